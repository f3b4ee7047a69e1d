//! Drivers that this user has run a model on, in the user's cache, with the result of `selftest` on them: for a driver that is not
//! among them, a test is offered.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::CliError;
use crate::files::{json_file, user_folders};
use unicorn_runtime::DeviceFacts;

/// A driver of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownDriver {
    pub device: String,
    pub driver: String,
    /// Result of the last self-test; `None`: none was run.
    pub tested: Option<Tested>,
}

/// Result of a self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tested {
    Right,
    Wrong,
}

/// Most drivers that are kept: older ones are removed.
const MAX_DRIVERS: usize = 64;

/// `drivers.json` in the folder of this program's caches.
fn path_in(folder: &Path) -> PathBuf {
    folder.join("drivers.json")
}

/// What is known of the device with its driver; `None`: it was never seen, or there is no cache.
pub fn find(facts: &DeviceFacts) -> Option<KnownDriver> {
    find_in(&user_folders::cache()?, facts)
}

/// Records that the device ran with its driver, and the result of a test if there was one.
///
/// # Errors
/// When the user has no cache, or it cannot be written.
pub fn remember(facts: &DeviceFacts, tested: Option<Tested>) -> Result<(), CliError> {
    let folder = user_folders::cache().ok_or_else(|| CliError::new("no folder for a cache"))?;
    remember_in(&folder, facts, tested)
}

fn find_in(folder: &Path, facts: &DeviceFacts) -> Option<KnownDriver> {
    read(folder).into_iter().find(|known| known.is(facts))
}

fn remember_in(folder: &Path, facts: &DeviceFacts, tested: Option<Tested>) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|error| CliError::at(folder, error))?;
    let mut all = read(folder);
    let before = all.iter().find(|known| known.is(facts)).and_then(|known| known.tested);
    all.retain(|known| !known.is(facts));
    all.truncate(MAX_DRIVERS - 1);
    let (device, driver) = (facts.name.clone(), facts.driver.clone());
    all.insert(0, KnownDriver { device, driver, tested: tested.or(before) });
    json_file::write(&path_in(folder), &all)
}

/// A file that cannot be read counts as absent.
fn read(folder: &Path) -> Vec<KnownDriver> {
    json_file::read(&path_in(folder)).unwrap_or_default()
}

impl KnownDriver {
    fn is(&self, facts: &DeviceFacts) -> bool {
        (&self.device, &self.driver) == (&facts.name, &facts.driver)
    }
}
