//! Measures how long programs take on this device, so that their submissions can be split: at load, the first dispatches of
//! each program run once to warm up and once against the device's clock.

use unicorn_artifact::LogitsRows;
use unicorn_artifact::step::MAX_ROWS;

use crate::error::LoadError;
use crate::program::programs::PreparedPrograms;
use crate::program::submissions::{CostModel, split};
use crate::step::engine::{Engine, Rows, Step};
use crate::step::masks::Masks;
use crate::step::sampling::Sampling;

/// A program is measured on dispatches that are estimated to take this part of the bound: on a device ten times slower than
/// the estimate, measuring still stays within the bound.
const MEASURED_PART: f64 = 0.1;
/// A program that is estimated to take less than this part of the bound is not measured: clocks are coarse.
const MIN_PART: f64 = 0.01;
/// A program of whose first dispatches a plan declares so little that they may take longer is not measured: drivers reset a device
/// after two seconds.
const MAX_FORESEEN_SECONDS: f64 = 1.0;
/// Factor on the measured time: the attention of a long sequence is not measured, and kernels differ.
const SAFETY: f64 = 1.25;

/// Measures each program that may exceed a part of the bound, and replaces its cost model. The KV cache must be empty; what the
/// dispatches leave there is never read. Waits for the device.
///
/// # Errors
/// When the device fails.
pub fn measure(
    engine: &mut Engine,
    prepared: &PreparedPrograms,
    cost_models: &mut [CostModel],
    bound_seconds: f64,
    context_tokens: u32,
) -> Result<(), LoadError> {
    let device = engine.queue.device().clone();
    let tokens = vec![0; context_tokens.min(MAX_ROWS as u32) as usize];
    for (index, (program, cost_model)) in prepared.programs.iter().zip(cost_models).enumerate() {
        let all_bytes = program.weight_costs.iter().map(|cost| cost.bytes).sum();
        if cost_model.seconds(all_bytes) < MIN_PART * bound_seconds {
            continue;
        }
        let submissions = split(&program.weight_costs, *cost_model, MEASURED_PART * bound_seconds);
        let Some(first) = submissions.into_iter().next() else { continue };
        let bytes: u64 =
            first.iter().map(|range| program.weight_costs[range.dispatch].bytes_in(&range.workgroups)).sum();
        let foreseen: u64 =
            first.iter().map(|range| program.foreseen_costs[range.dispatch].bytes_in(&range.workgroups)).sum();
        if cost_model.seconds(foreseen) > MAX_FORESEEN_SECONDS {
            continue;
        }
        let Some((list, timer)) = program.record_alone(&device, &first)? else { return Ok(()) };
        engine.wait_for_weights(index, &first)?;
        let tokens = &tokens[..tokens.len().min(program.shape.rows as usize)];
        // An image may have more rows than a step, and takes time in proportion to them.
        let more_rows = match program.shape.logits {
            LogitsRows::Image => f64::from(program.shape.rows) / tokens.len() as f64,
            _ => 1.0,
        };
        let rows = [Rows { slot: 0, position: 0, tokens, rope_variant: 0, rope_shift: 0 }];
        let samplers = [Sampling::default().input(0, false, &[])];
        engine.write(&Step { program: index, rows: &rows, apart_rows: 0, samplers: &samplers }, &Masks::none())?;
        // The first run raises the device's clocks.
        for _ in 0..2 {
            engine.queue.run(std::slice::from_ref(&list))?;
        }
        match timer.seconds_between(0, 1) {
            Some(seconds) if seconds > 0.0 && bytes > 0 => {
                cost_model.seconds_per_byte = SAFETY * more_rows * seconds / bytes as f64
            }
            _ => {}
        }
    }
    Ok(())
}
