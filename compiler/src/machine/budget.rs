//! Sizes (`vram=8GiB,gtt=20GiB`) of one compile that take the place of the machine's.

use unicorn_artifact::{Budget, MachinePlan};

use crate::error::CompileError;

/// `machine` with these sizes in place of its own.
///
/// # Errors
/// When the machine lacks a tier that is budgeted.
pub fn apply(budget: &Budget, mut machine: MachinePlan) -> Result<MachinePlan, CompileError> {
    for (tier, bytes) in budget.iter() {
        let found = machine.tiers.iter_mut().find(|one| one.tier == tier);
        let Some(one) = found else {
            let what = format!("machine {} has no {} to budget", machine.name, tier.name());
            return Err(CompileError::Option { option: "budget", what });
        };
        one.budget_bytes = Some(bytes);
        one.source = format!("size: --budget; {}", one.source);
    }
    Ok(machine)
}
