//! [`Machine`]: sizes and bandwidths of a machine's memory. Presets are files in `artifacts/machines`, and users write their own; a
//! [`Budget`] replaces sizes. The compiler plans for one machine, `inspect` compares an artifact with all presets.

mod file;

use std::io;
use std::path::{Path, PathBuf};

use crate::budget::Budget;
use crate::plan::{MachinePlan, Reader, Tier, TierPlan};

/// A machine's tiers of memory, from its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Name of the file without its extension.
    pub name: String,
    /// Description in one line.
    pub about: String,
    /// Each tier once, in the order of [`Tier`]; VRAM, GTT and host are always present.
    pub tiers: Vec<MachineTier>,
    /// Peak operations per second of its GPU, multiply-adds counted as two; `None`: unknown.
    pub flop_per_s: Option<u64>,
}

/// One tier of a machine's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineTier {
    /// Which tier.
    pub tier: Tier,
    /// Size of the memory; `None`: unlimited.
    pub size_bytes: Option<u64>,
    /// The part of `size_bytes` that is left to other programs.
    pub kept_free_bytes: u64,
    /// Bandwidth of reads; `None`: unknown.
    pub bytes_per_s: Option<u64>,
    /// The processors that read it in place.
    pub readers: Vec<Reader>,
    /// Whether rows of a table may be placed here although a faster tier has room.
    pub sparse_rows: bool,
    /// Where size and bandwidth come from.
    pub source: String,
}

/// Why a machine cannot be planned for.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// There is neither a preset nor a file of this name.
    #[error("machine {name} is unknown, expected a file or one of {presets}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// Names of all presets, separated by commas.
        presets: String,
    },
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// The file does not follow `artifacts/machines/README.md`.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, what was expected, and where.
        what: String,
    },
    /// A budget names a tier that the machine does not have.
    #[error("machine {machine} has no {tier} to budget")]
    NoTier {
        /// The machine's name.
        machine: String,
        /// The tier that was named.
        tier: Tier,
    },
}

/// The shipped files, by name.
const PRESETS: [(&str, &str); 9] = [
    ("generic", include_str!("../machines/generic.json")),
    ("phoenix-16gb", include_str!("../machines/phoenix-16gb.json")),
    ("phoenix-32gb", include_str!("../machines/phoenix-32gb.json")),
    ("phoenix-64gb", include_str!("../machines/phoenix-64gb.json")),
    ("phoenix-96gb", include_str!("../machines/phoenix-96gb.json")),
    ("strix-point", include_str!("../machines/strix-point.json")),
    ("strix-halo", include_str!("../machines/strix-halo.json")),
    ("rdna3-dgpu", include_str!("../machines/rdna3-dgpu.json")),
    ("nvidia", include_str!("../machines/nvidia.json")),
];

impl Machine {
    /// The preset called `name`, or the machine that the file of this path describes.
    ///
    /// # Errors
    /// When there is neither, and when the file does not follow `artifacts/machines/README.md`.
    pub fn named(name: &str) -> Result<Machine, MachineError> {
        if let Some((name, text)) = PRESETS.iter().find(|(preset, _)| *preset == name) {
            return file::parse(Path::new(name), text.as_bytes());
        }
        let path = Path::new(name);
        if !path.exists() {
            let presets: Vec<&str> = Machine::presets().collect();
            return Err(MachineError::Unknown { name: name.to_owned(), presets: presets.join(", ") });
        }
        let bytes = std::fs::read(path).map_err(|source| MachineError::Io { path: path.to_owned(), source })?;
        file::parse(path, &bytes)
    }

    /// An unknown machine, for which nothing is refused or estimated.
    pub fn generic() -> Machine {
        Machine::named("generic").expect("a preset")
    }

    /// Names of the machines that are shipped.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|(name, _)| *name)
    }

    /// The plan's record of the machine, with the sizes of `budget` in place of its own.
    ///
    /// # Errors
    /// When `budget` names a tier that the machine lacks.
    pub fn plan(&self, budget: &Budget) -> Result<MachinePlan, MachineError> {
        let plan = |one: &MachineTier| TierPlan {
            tier: one.tier,
            budget_bytes: one.size_bytes.map(|size| size - one.kept_free_bytes),
            bytes_per_s: one.bytes_per_s,
            readers: one.readers.clone(),
            sparse_rows: one.sparse_rows,
            source: one.source.clone(),
        };
        with_budget(budget, MachinePlan { name: self.name.clone(), tiers: self.tiers.iter().map(plan).collect() })
    }
}

/// `machine` with the sizes of `budget` in place of its own.
///
/// # Errors
/// When the machine lacks a tier that is budgeted.
pub fn with_budget(budget: &Budget, mut machine: MachinePlan) -> Result<MachinePlan, MachineError> {
    for (tier, bytes) in budget.iter() {
        let found = machine.tiers.iter_mut().find(|one| one.tier == tier);
        let Some(one) = found else { return Err(MachineError::NoTier { machine: machine.name, tier }) };
        one.budget_bytes = Some(bytes);
        one.source = format!("size: given as a budget; {}", one.source);
    }
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_reads_and_leaves_room_to_plan_for() {
        for name in Machine::presets() {
            let machine = Machine::named(name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(machine.name, name);
            let plan = machine.plan(&Budget::default()).unwrap();
            let gpu: Vec<Tier> = plan.gpu_tiers().map(|tier| tier.tier).collect();
            assert_eq!(gpu, [Tier::Vram, Tier::Gtt], "{name}");
            assert!(plan.tiers.iter().all(|tier| tier.budget_bytes.is_none_or(|bytes| bytes > 0)), "{name}");
        }
    }

    #[test]
    fn phoenix_has_the_figures_of_its_readme() {
        let vram = |name: String| Machine::named(&name).unwrap().tiers[1].size_bytes.unwrap() >> 20;
        assert_eq!(
            ["16gb", "32gb", "64gb", "96gb"].map(|ram| vram(format!("phoenix-{ram}"))),
            [512, 4096, 8192, 16384]
        );
        assert_eq!(Machine::named("phoenix-32gb").unwrap().tiers[1].bytes_per_s, Some(89_600_000_000));
    }

    #[test]
    fn a_budget_replaces_the_files_value() {
        let budget: Budget = "vram=8GiB".parse().unwrap();
        let plan = Machine::named("phoenix-32gb").unwrap().plan(&budget).unwrap();
        let of = |tier| plan.tiers.iter().find(|one| one.tier == tier).unwrap().budget_bytes;
        assert_eq!((of(Tier::Vram), of(Tier::Gtt)), (Some(8 << 30), Some(14 << 30)));
        let refused = Machine::generic().plan(&"npu=1MiB".parse().unwrap()).unwrap_err();
        assert_eq!(refused.to_string(), "machine generic has no npu to budget");
    }

    #[test]
    fn an_unknown_machine_is_an_error_with_the_known_ones() {
        let message = Machine::named("pheonix").unwrap_err().to_string();
        assert!(message.starts_with("machine pheonix is unknown, expected a file or one of generic, phoenix-16gb"));
    }
}
