//! The weights' way onto the device from end to end: filled along a route, compared with their hashes where they lie, held
//! against the accounts of driver and kernel. Before a model runs, or beside its first steps (`loading`).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::LoadError;
use crate::load::checksum::Checksum;
use crate::load::order::Route;
use crate::load::resident::ArtifactFile;
use crate::load::upload_path::Source;
use crate::load::weights::{self, Arrived, Slice};
use crate::memory::usage::{Accounts, HeapBytes};
use crate::vk::device::Device;
use crate::vk::pipeline::Pipeline;
use crate::vk::submit::Lane;

/// Everything that it takes to make weights resident in buffers that exist.
pub struct Delivery {
    pub artifact: Arc<ArtifactFile>,
    pub device: Arc<Device>,
    /// Of one submission.
    pub timeout: Duration,
    /// One a weight section.
    pub slices: Vec<Slice>,
    pub route: Route,
    /// Before anything was allocated.
    pub before: Accounts,
    /// One a heap of the device.
    pub allocated: Vec<HeapBytes>,
    /// When loading began.
    pub begun: Instant,
}

/// Weights that are there.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered {
    /// Moving the weights took so long.
    pub seconds_weights: f64,
    /// From the beginning of the load until the last of them was there.
    pub seconds_resident: f64,
    pub verified: Verified,
    /// What the driver and the kernel said of what is resident, or why nothing could be compared.
    pub held: String,
}

/// How the weights were compared with their hashes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verified {
    No,
    /// In the file: the artifact holds no kernel that hashes.
    InFile,
    /// Where they are resident.
    OnDevice {
        seconds: f64,
    },
}

/// How they are to be compared.
pub enum Verify {
    No,
    InFile,
    /// With the artifact's kernel.
    OnDevice(Arc<Pipeline>),
}

/// When weights moved.
pub struct Filled {
    begun: Instant,
    ended: Instant,
}

impl Delivery {
    /// Moves the weights. `None`: `arrived` broke off.
    ///
    /// # Errors
    /// When the file cannot be read, or a copy fails.
    pub fn fill(&mut self, arrived: &mut Arrived<'_>) -> Result<Option<Filled>, LoadError> {
        let begun = Instant::now();
        let source = Source { device: &self.device, file: self.artifact.file(), timeout: self.timeout };
        let flow = weights::fill(&source, &mut self.slices, &self.route, arrived)?;
        Ok((flow == ControlFlow::Continue(())).then(|| Filled { begun, ended: Instant::now() }))
    }

    /// Checks what was filled.
    ///
    /// # Errors
    /// [`LoadError::WrongBytes`], [`LoadError::Artifact`] or [`LoadError::NotResident`] for what is not as it should be.
    pub fn check(self, filled: Filled, verify: Verify) -> Result<Delivered, LoadError> {
        let verified = match verify {
            Verify::No => Verified::No,
            Verify::InFile => {
                self.artifact.verify()?;
                Verified::InFile
            }
            Verify::OnDevice(kernel) => {
                let begin = Instant::now();
                self.verify(&kernel)?;
                Verified::OnDevice { seconds: begin.elapsed().as_secs_f64() }
            }
        };
        let facts = self.device.facts();
        let after = Accounts::now(facts, &self.device.heaps()?);
        Ok(Delivered {
            seconds_weights: (filled.ended - filled.begun).as_secs_f64(),
            seconds_resident: (filled.ended - self.begun).as_secs_f64(),
            verified,
            held: self.before.compare(&after, &self.allocated, facts, self.artifact.plan())?,
        })
    }

    fn verify(&self, kernel: &Arc<Pipeline>) -> Result<(), LoadError> {
        let mut lane = Lane::create(&self.device, self.timeout)?;
        let mut checksum = Checksum::create(&self.device, kernel)?;
        let both = self.artifact.weights().iter().zip(&self.slices).enumerate();
        for (index, (section, slice)) in both {
            checksum.verify(&mut lane, self.artifact.file(), index, section, slice.buffer())?;
        }
        Ok(())
    }
}
