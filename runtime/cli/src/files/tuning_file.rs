//! `model.unicorn.tune.json`: what `tune` found best, beside the artifact. A later load uses it if it
//! is for the same artifact, target, device and driver; otherwise the load notes that, and does not fail.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::CliError;
use crate::files::json_file;
use crate::terminal::output::note;
use unicorn_runtime::{Choice, StepShape, Tuning};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningFile {
    /// Key of artifact, target, device and driver, in hexadecimal digits; a tuning with another key does not apply.
    pub key: String,
    /// Names of device, driver and target, for the reader of the file.
    pub device: String,
    pub driver: String,
    pub target: String,
    pub steps: Vec<TunedStep>,
}

/// A kind of step that runs faster with alternatives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedStep {
    /// Most rows, and whether each is of a sequence of its own.
    pub rows: u32,
    pub batch: bool,
    /// Cached tokens from which on steps are of this shape.
    pub from_tokens: u32,
    /// Number of the program among those with the same result; 0: the compiler's.
    pub version: u32,
    /// Time of the whole step: with the compiler's choice, and with this one.
    pub microseconds_before: f64,
    pub microseconds: f64,
    pub winners: Vec<Winner>,
}

/// A pipeline that runs faster with an alternative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Winner {
    /// Numbers in the artifact.
    pub pipeline: u32,
    pub alternative: u32,
    /// Name of the kernel, for the reader of the file.
    pub name: String,
    /// Time of all its dispatches in a step: with the compiler's choice, and with this one.
    pub microseconds_before: f64,
    pub microseconds: f64,
}

/// Path of an artifact's file.
pub fn path_for(artifact: &Path) -> PathBuf {
    let mut name = artifact.as_os_str().to_owned();
    name.push(".tune.json");
    name.into()
}

/// `None` without a file, and with a note on stderr if the file is not valid.
pub fn read(artifact: &Path) -> Option<Tuning> {
    let path = path_for(artifact);
    match json_file::read(&path).and_then(|file: TuningFile| file.tuning()) {
        Ok(tuning) => Some(tuning),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            note(format_args!("tuning is not used: {}: {error}", path.display()));
            None
        }
    }
}

/// Steps that an earlier tuning with this key has decided; none if there is no such file.
pub fn earlier_steps(artifact: &Path, key: &str) -> Vec<TunedStep> {
    let file = json_file::read(&path_for(artifact)).ok().filter(|file: &TuningFile| file.key == key);
    file.map_or(Vec::new(), |file| file.steps)
}

impl TuningFile {
    /// Writes it into the artifact's folder, whole or not at all.
    pub fn write(&self, artifact: &Path) -> Result<PathBuf, CliError> {
        let path = path_for(artifact);
        json_file::write(&path, self)?;
        Ok(path)
    }

    fn tuning(&self) -> io::Result<Tuning> {
        let choices = self.steps.iter().map(|step| (step.shape(), step.choice())).collect();
        Ok(Tuning { key: json_file::key(&self.key)?, choices })
    }
}

impl TunedStep {
    pub fn shape(&self) -> StepShape {
        StepShape { rows: self.rows, batch: self.batch, from_tokens: self.from_tokens }
    }

    pub fn choice(&self) -> Choice {
        let winners = self.winners.iter().map(|one| (one.pipeline, one.alternative)).collect();
        Choice { version: self.version, winners }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use unicorn_artifact::header::hex;

    use super::*;

    fn file() -> TuningFile {
        let winner =
            Winner { pipeline: 3, alternative: 1, name: "matmul".into(), microseconds_before: 10.0, microseconds: 8.0 };
        TuningFile {
            key: hex(&[0xab; 32]),
            device: "Some GPU".into(),
            driver: "driver 1".into(),
            target: "generic".into(),
            steps: vec![TunedStep {
                rows: 8,
                batch: true,
                from_tokens: 0,
                version: 0,
                microseconds_before: 100.0,
                microseconds: 98.0,
                winners: vec![winner],
            }],
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let artifact = folder.path().join("model.unicorn");
        assert_eq!(read(&artifact), None);
        let path = file().write(&artifact).unwrap();
        let shape = StepShape { rows: 8, batch: true, from_tokens: 0 };
        let choice = Choice { version: 0, winners: [(3, 1)].into() };
        assert_eq!(path, folder.path().join("model.unicorn.tune.json"));
        assert_eq!(read(&artifact), Some(Tuning { key: [0xab; 32], choices: BTreeMap::from([(shape, choice)]) }));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(earlier_steps(&artifact, &file().key), file().steps);
        assert_eq!(earlier_steps(&artifact, &hex(&[0xac; 32])), []);
    }

    #[test]
    fn a_damaged_tuning_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let artifact = folder.path().join("model.unicorn");
        let path = file().write(&artifact).unwrap();
        let sound = std::fs::read_to_string(&path).unwrap();
        for damaged in [&sound[..sound.len() / 2], "", "[]", &sound.replace("abab", "xyxy"), &sound.replace("abab", "")]
        {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(read(&artifact), None, "{damaged}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(read(&artifact), None);
    }
}
