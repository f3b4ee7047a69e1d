//! `model.unicorn.selftest.json`: kernels that `selftest` found wrong on a device, and what runs in their place, beside the artifact.
//! A later load uses it if it is for the same artifact, target, device and driver; otherwise the load notes that, and does not fail.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::CliError;
use crate::files::json_file;
use crate::report::steps::step_name;
use crate::terminal::output::note;
use unicorn_runtime::{Choice, Correction, Corrections, StepShape};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorrectionsFile {
    /// Key of artifact, target, device and driver, in hexadecimal digits; corrections with another key do not apply.
    pub key: String,
    /// Names of device, driver and target, for the reader of the file.
    pub device: String,
    pub driver: String,
    pub target: String,
    pub steps: Vec<CorrectedStep>,
}

/// A kind of step with a kernel that is wrong on the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorrectedStep {
    pub rows: u32,
    pub batch: bool,
    pub from_tokens: u32,
    /// For the reader of the file: the kernels that are switched off, or those among which the wrong one is.
    pub kernels: Vec<String>,
    pub instead: Instead,
}

/// What runs in place of a wrong kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instead {
    /// Other kernels of the same target.
    Alternatives(Alternatives),
    /// The programs of the artifact's target of this name.
    Target(String),
}

/// A choice among a target's kernels: that of the compiler or of a tuning, except the wrong kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternatives {
    /// Number of the program among those with the same result; 0: the compiler's.
    pub version: u32,
    /// Alternatives of pipelines, by their numbers in the artifact.
    pub winners: BTreeMap<u32, u32>,
}

/// Path of an artifact's file.
pub fn path_for(artifact: &Path) -> PathBuf {
    let mut name = artifact.as_os_str().to_owned();
    name.push(".selftest.json");
    name.into()
}

/// `None` without a file, and with a note on stderr if the file is not valid.
pub fn read(artifact: &Path) -> Option<(CorrectionsFile, Corrections)> {
    let path = path_for(artifact);
    let both = json_file::read(&path).and_then(|file: CorrectionsFile| file.corrections().map(|made| (file, made)));
    match both {
        Ok(both) => Some(both),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            note(format_args!("result of selftest is not used: {}: {error}", path.display()));
            None
        }
    }
}

/// Steps that an earlier test with this key has corrected; none if there is no such file.
pub fn earlier_steps(artifact: &Path, key: &str) -> Vec<CorrectedStep> {
    let file = json_file::read(&path_for(artifact)).ok().filter(|file: &CorrectionsFile| file.key == key);
    file.map_or(Vec::new(), |file| file.steps)
}

impl CorrectionsFile {
    /// Writes it into the artifact's folder, whole or not at all; without a correction, an earlier file is removed.
    pub fn write(&self, artifact: &Path) -> Result<Option<PathBuf>, CliError> {
        let path = path_for(artifact);
        if !self.steps.is_empty() {
            json_file::write(&path, self)?;
            return Ok(Some(path));
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CliError::at(&path, error)),
            _ => Ok(None),
        }
    }

    /// A line for each kind of step.
    pub fn lines(&self) -> Vec<String> {
        let line = |step: &CorrectedStep| {
            let instead = match &step.instead {
                Instead::Alternatives(_) => "an alternative runs".to_owned(),
                Instead::Target(name) => format!("kernels of target {name} run"),
            };
            let switched_off = step.kernels.join(" or ");
            format!("{}: {switched_off} is switched off on this device, {instead}", step_name(step.shape()))
        };
        self.steps.iter().map(line).collect()
    }

    fn corrections(&self) -> io::Result<Corrections> {
        let steps = self.steps.iter().map(|step| (step.shape(), step.instead.correction())).collect();
        Ok(Corrections { key: json_file::key(&self.key)?, steps })
    }
}

impl CorrectedStep {
    pub fn shape(&self) -> StepShape {
        StepShape { rows: self.rows, batch: self.batch, from_tokens: self.from_tokens }
    }
}

impl Alternatives {
    pub fn choice(&self) -> Choice {
        Choice { version: self.version, winners: self.winners.clone() }
    }
}

impl From<Choice> for Alternatives {
    fn from(Choice { version, winners }: Choice) -> Alternatives {
        Alternatives { version, winners }
    }
}

impl Instead {
    fn correction(&self) -> Correction {
        match self {
            Instead::Alternatives(alternatives) => Correction::Alternatives(alternatives.choice()),
            Instead::Target(name) => Correction::Target(name.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::header::hex;

    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_nothing_wrong_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let artifact = folder.path().join("model.unicorn");
        assert_eq!(read(&artifact), None);
        let step = |rows, instead| CorrectedStep {
            rows,
            batch: false,
            from_tokens: 0,
            kernels: vec!["gemm".into(), "flash".into()],
            instead,
        };
        let choice = Choice { version: 1, winners: [(3, 1)].into() };
        let steps =
            vec![step(1, Instead::Alternatives(choice.clone().into())), step(64, Instead::Target("generic".into()))];
        let file = CorrectionsFile {
            key: hex(&[0xab; 32]),
            device: "Some GPU".into(),
            driver: "driver 1".into(),
            target: "rdna3".into(),
            steps,
        };
        let path = file.write(&artifact).unwrap().unwrap();
        assert_eq!(path, folder.path().join("model.unicorn.selftest.json"));
        let (again, corrections) = read(&artifact).unwrap();
        assert_eq!((&again, corrections.key, corrections.steps.len()), (&file, [0xab; 32], 2));
        let decode = StepShape { rows: 1, batch: false, from_tokens: 0 };
        assert_eq!(corrections.steps[&decode], Correction::Alternatives(choice));
        assert_eq!(earlier_steps(&artifact, &file.key), file.steps);
        assert_eq!(earlier_steps(&artifact, &hex(&[0xac; 32])), []);
        let expected =
            "prefill of 64 tokens: gemm or flash is switched off on this device, kernels of target generic run";
        assert_eq!(file.lines()[1], expected);
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(read(&artifact), None);
        let none = CorrectionsFile { steps: Vec::new(), ..file };
        assert_eq!((none.write(&artifact).unwrap(), path.exists()), (None, false));
        assert_eq!(none.write(&artifact).unwrap(), None);
    }
}
