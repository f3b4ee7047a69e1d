//! Which dispatches of a step follow one another without a barrier (`unicorn_kernels::chain`).

use unicorn_kernels::{KernelSpec, chain};

use super::{Operand, Step};

/// Chains every run of steps whose kernels can wait for each other, in a program whose last step is the sampler: it looks
/// for one that gave up.
pub fn chain(steps: &mut [Step]) {
    // The first step's slot has one in front of it, as all have.
    if steps.len() >= chain::SLOTS {
        return;
    }
    let mut can_wait: Vec<bool> =
        steps.iter_mut().map(|step| !step.is_next_part && step.spec.chained().is_some()).collect();
    can_wait.push(false);
    let mut is_any_chained = false;
    for (index, step) in steps.iter_mut().enumerate() {
        let follows = index > 0 && can_wait[index - 1];
        if !can_wait[index] || !(follows || can_wait[index + 1]) {
            continue;
        }
        let Some(chained) = step.spec.chained() else { continue };
        *chained = true;
        step.operands.push(Operand::Chain { dispatch: index + 1 });
        step.is_counted = follows;
        is_any_chained = true;
    }
    if let (Some(Step { spec: KernelSpec::Sample(sample), operands, .. }), true) = (steps.last_mut(), is_any_chained) {
        sample.chained = true;
        operands.push(Operand::ChainSlots);
    }
}
