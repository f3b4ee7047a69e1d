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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<CorrectedImages>,
}

/// Kernels of images, one of which is wrong on the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorrectedImages {
    /// For the reader of the file.
    pub kernels: Vec<String>,
    /// The artifact's target whose programs make the rows of images instead.
    pub target: String,
}

/// A kind of step with a kernel that is wrong on the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorrectedStep {
    pub rows: u32,
    pub batch: bool,
    pub from_tokens: u32,
    /// For the reader of the file: the kernels that are switched off, or those among which the wrong one is.
    pub kernels: Vec<String>,
    pub instead: Replacement,
}

/// What runs in place of a wrong kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replacement {
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

/// The path beside which the file of an artifact's packed draft lies.
pub fn of_draft(artifact: &Path) -> PathBuf {
    let mut name = artifact.as_os_str().to_owned();
    name.push(".draft");
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

/// What an earlier test with this key has found; `None` if there is no such file.
pub fn earlier(artifact: &Path, key: &str) -> Option<CorrectionsFile> {
    json_file::read(&path_for(artifact)).ok().filter(|file: &CorrectionsFile| file.key == key)
}

impl CorrectionsFile {
    /// Writes it into the artifact's folder, whole or not at all; without a correction, an earlier file is removed.
    pub fn write(&self, artifact: &Path) -> Result<Option<PathBuf>, CliError> {
        let path = path_for(artifact);
        if !self.steps.is_empty() || self.images.is_some() {
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
        let line = |kind: &str, kernels: &[String], instead: &str| {
            format!("{kind}: {} is switched off on this device, {instead}", kernels.join(" or "))
        };
        let of_target = |name: &str| format!("kernels of target {name} run");
        let of_step = |step: &CorrectedStep| {
            let instead = match &step.instead {
                Replacement::Alternatives(_) => "an alternative runs".to_owned(),
                Replacement::Target(name) => of_target(name),
            };
            line(&step_name(step.shape()), &step.kernels, &instead)
        };
        let images = self.images.iter().map(|images| line("images", &images.kernels, &of_target(&images.target)));
        self.steps.iter().map(of_step).chain(images).collect()
    }

    fn corrections(&self) -> io::Result<Corrections> {
        let steps = self.steps.iter().map(|step| (step.shape(), step.instead.correction())).collect();
        let images = self.images.as_ref().map(|images| images.target.clone());
        Ok(Corrections { key: json_file::key(&self.key)?, steps, images })
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

impl Replacement {
    fn correction(&self) -> Correction {
        match self {
            Replacement::Alternatives(alternatives) => Correction::Alternatives(alternatives.choice()),
            Replacement::Target(name) => Correction::Target(name.clone()),
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
        let steps = vec![
            step(1, Replacement::Alternatives(choice.clone().into())),
            step(64, Replacement::Target("generic".into())),
        ];
        let file = CorrectionsFile {
            key: hex(&[0xab; 32]),
            device: "Some GPU".into(),
            driver: "driver 1".into(),
            target: "rdna3".into(),
            steps,
            images: Some(CorrectedImages { kernels: vec!["image attention".into()], target: "generic".into() }),
        };
        let path = file.write(&artifact).unwrap().unwrap();
        assert_eq!(path, folder.path().join("model.unicorn.selftest.json"));
        let (again, corrections) = read(&artifact).unwrap();
        assert_eq!((&again, corrections.key, corrections.steps.len()), (&file, [0xab; 32], 2));
        let decode = StepShape { rows: 1, batch: false, from_tokens: 0 };
        assert_eq!(corrections.steps[&decode], Correction::Alternatives(choice));
        assert_eq!(corrections.images.as_deref(), Some("generic"));
        assert_eq!(earlier(&artifact, &file.key).as_ref(), Some(&file));
        assert_eq!(earlier(&artifact, &hex(&[0xac; 32])), None);
        let expected =
            "prefill of 64 tokens: gemm or flash is switched off on this device, kernels of target generic run";
        assert_eq!(file.lines()[1], expected);
        let expected = "images: image attention is switched off on this device, kernels of target generic run";
        assert_eq!(file.lines()[2], expected);
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(read(&artifact), None);
        let none = CorrectionsFile { steps: Vec::new(), images: None, ..file };
        assert_eq!((none.write(&artifact).unwrap(), path.exists()), (None, false));
        assert_eq!(none.write(&artifact).unwrap(), None);
    }
}
