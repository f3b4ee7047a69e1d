//! Which dispatches of a step follow one another without a barrier (`unicorn_kernels::counter_sync`).

use unicorn_kernels::{ActivationFormat, KernelSpec, counter_sync};

use super::{KernelDispatch, Operand};

/// Replaces the barriers of every run of dispatches whose kernels can wait for each other, in a program whose last dispatch is the
/// sampler, which reports a dispatch that gave up waiting.
pub fn synchronize(dispatches: &mut [KernelDispatch]) {
    // The first dispatch's slot also has one in front of it.
    if dispatches.len() >= counter_sync::SLOTS {
        return;
    }
    let pays: Vec<bool> = (0..dispatches.len()).map(|index| pays(&dispatches[index..])).collect();
    let mut can_wait: Vec<bool> = dispatches
        .iter_mut()
        .zip(pays)
        .map(|(dispatch, pays)| pays && !dispatch.is_next_part && dispatch.spec.counter_sync().is_some())
        .collect();
    can_wait.push(false);
    let mut is_any_counted = false;
    for (index, dispatch) in dispatches.iter_mut().enumerate() {
        let follows = index > 0 && can_wait[index - 1];
        if !can_wait[index] || !(follows || can_wait[index + 1]) {
            continue;
        }
        let Some(counter_sync) = dispatch.spec.counter_sync() else { continue };
        *counter_sync = true;
        dispatch.operands.push(Operand::SyncCounters { dispatch: index + 1 });
        dispatch.is_counted = follows;
        is_any_counted = true;
    }
    if let (Some(KernelDispatch { spec: KernelSpec::Sample(sample), operands, .. }), true) =
        (dispatches.last_mut(), is_any_counted)
    {
        sample.counter_sync = true;
        operands.push(Operand::SyncCounterSlots);
    }
}

/// Whether counters are faster than a barrier for the first of these dispatches. With counters, what an earlier dispatch of the step has
/// written is loaded from the L2 cache each time: kernels that load it more than once gain only where they have one row. Of matmuls of f32
/// activations, only the router's was measured.
fn pays(dispatches: &[KernelDispatch]) -> bool {
    let [dispatch, behind @ ..] = dispatches else { return false };
    match &dispatch.spec {
        KernelSpec::Route(_) | KernelSpec::ExpertSum(_) => dispatch.rows == 1,
        KernelSpec::MatMul(spec) if spec.choice.is_some() => dispatch.rows == 1,
        KernelSpec::MatMul(spec) if spec.input == ActivationFormat::F32 => {
            let chooses = |next: &KernelDispatch| match &next.spec {
                KernelSpec::Route(_) => true,
                KernelSpec::MatMul(spec) => spec.choice.is_some(),
                _ => false,
            };
            behind.first().is_some_and(chooses) && dispatch.rows == 1
        }
        KernelSpec::MatMul(spec) if spec.experts.is_some() => dispatch.rows == 1,
        _ => true,
    }
}
