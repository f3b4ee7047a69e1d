//! `devices`: what each Vulkan device can do, and which targets of an artifact would run there.

use std::fs::File;
use std::path::Path;

use serde::Serialize;
use unicorn_artifact::{ArtifactView, TargetKernels};

use crate::args::DevicesArgs;
use crate::error::CliError;
use crate::terminal::output::{note, print, print_json};
use unicorn_artifact::account::size;
use unicorn_runtime::{
    DeviceFacts, DeviceKind, LoadError, Transfers, choose_target, devices, measure_transfers, vendor_name,
};

pub fn run(args: &DevicesArgs) -> Result<(), CliError> {
    let targets = match &args.artifact {
        Some(path) => Some(targets_of(path)?),
        None => None,
    };
    let devices = devices()?;
    let mut rows: Vec<DeviceRow> = devices.iter().map(|facts| DeviceRow::new(facts, targets.as_deref())).collect();
    if args.transfers {
        for (row, facts) in rows.iter_mut().zip(&devices) {
            match measure_transfers(facts) {
                Ok(transfers) => row.transfers = Some(TransferRow::new(transfers)),
                Err(error) => note(format_args!("transfers to {} are not measured: {error}", facts.name)),
            }
        }
    }
    if args.json {
        return print_json(&rows);
    }
    if rows.is_empty() {
        note("no Vulkan device found; install a driver, for example mesa-vulkan-drivers");
    }
    print(&rows.iter().map(DeviceRow::page).collect::<Vec<_>>().join("\n"))
}

/// A device as `--json` prints it.
#[derive(Serialize)]
struct DeviceRow {
    index: usize,
    name: String,
    kind: String,
    software: bool,
    driver: String,
    vendor_id: u32,
    device_id: u32,
    api_version: String,
    subgroup_size: u32,
    min_subgroup_size: u32,
    max_subgroup_size: u32,
    subgroup_arithmetic: bool,
    shared_memory_bytes: u32,
    workgroup_invocations: u32,
    storage_range_bytes: u64,
    max_allocation_bytes: u64,
    heaps: Vec<HeapRow>,
    features: Vec<&'static str>,
    cooperative_matrix: Vec<String>,
    /// Present only when an artifact was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<Vec<TargetFit>>,
    /// Present only with --transfers, and if the device supports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfers: Option<TransferRow>,
}

/// Transfer rates from this machine's memory, in 10⁹ bytes a second.
#[derive(Serialize)]
struct TransferRow {
    copied_gb_per_s: f64,
    /// `None`: the device reads no host memory in place, or all memory counts as its own.
    copied_to_host_gb_per_s: Option<f64>,
    /// `None`: too little of the device's memory is host-visible.
    mapped_device_gb_per_s: Option<f64>,
    /// `None`: as for copies.
    mapped_host_gb_per_s: Option<f64>,
}

#[derive(Serialize)]
struct HeapRow {
    bytes: u64,
    /// `None`: the driver does not report it.
    budget_bytes: Option<u64>,
    used_bytes: u64,
    device_local: bool,
}

/// Whether a target's kernels run on a device.
#[derive(Serialize)]
pub struct TargetFit {
    name: String,
    /// Why it does not run here; `None`: it fits.
    misfit: Option<String>,
}

impl DeviceRow {
    fn new(facts: &DeviceFacts, targets: Option<&[TargetKernels]>) -> DeviceRow {
        let heap = |heap: &unicorn_runtime::Heap| HeapRow {
            bytes: heap.bytes,
            budget_bytes: heap.budget_bytes,
            used_bytes: heap.used_bytes,
            device_local: heap.device_local,
        };
        let (major, minor, patch) = facts.api_version;
        DeviceRow {
            index: facts.index,
            name: facts.name.clone(),
            kind: facts.kind.to_string(),
            software: facts.kind == DeviceKind::Cpu,
            driver: facts.driver.clone(),
            vendor_id: facts.vendor_id,
            device_id: facts.device_id,
            api_version: format!("{major}.{minor}.{patch}"),
            subgroup_size: facts.subgroup_size,
            min_subgroup_size: facts.min_subgroup_size,
            max_subgroup_size: facts.max_subgroup_size,
            subgroup_arithmetic: facts.subgroup_arithmetic,
            shared_memory_bytes: facts.shared_memory_bytes,
            workgroup_invocations: facts.workgroup_invocations,
            storage_range_bytes: facts.storage_range_bytes,
            max_allocation_bytes: facts.max_allocation_bytes,
            heaps: facts.heaps.iter().map(heap).collect(),
            features: facts.features.names(),
            cooperative_matrix: facts.features.cooperative_matrix.clone(),
            targets: targets.map(|targets| targets.iter().map(|target| TargetFit::new(target, facts)).collect()),
            transfers: None,
        }
    }

    fn page(&self) -> String {
        let arithmetic = if self.subgroup_arithmetic { "" } else { ", no arithmetic in subgroups" };
        let mut lines = vec![
            format!("{}: {} ({})", self.index, self.name, self.kind),
            format!("   driver        {}, Vulkan {}", self.driver, self.api_version),
            format!("   ids           {}, device {:#06x}", vendor_name(self.vendor_id), self.device_id),
            format!(
                "   subgroups     {}, from {} to {}{arithmetic}",
                self.subgroup_size, self.min_subgroup_size, self.max_subgroup_size
            ),
            format!(
                "   workgroups    up to {} invocations, {} of shared memory",
                self.workgroup_invocations,
                size(self.shared_memory_bytes.into())
            ),
            format!(
                "   buffers       bindings up to {}, allocations up to {}",
                size(self.storage_range_bytes),
                size(self.max_allocation_bytes)
            ),
        ];
        lines.extend(self.heaps.iter().map(HeapRow::line));
        lines.push(format!("   features      {}", self.features.join(", ")));
        lines.extend(self.cooperative_matrix.iter().map(|shape| format!("   matrices      {shape}")));
        lines.extend(self.targets.iter().flatten().map(TargetFit::line));
        lines.extend(self.transfers.iter().map(TransferRow::line));
        lines.join("\n") + "\n"
    }
}

impl HeapRow {
    fn line(&self) -> String {
        let place = if self.device_local { "device" } else { "host" };
        let budget = match self.budget_bytes {
            Some(budget) => format!(", budget {}, used {}", size(budget), size(self.used_bytes)),
            None => String::new(),
        };
        format!("   memory        {} of {place} memory{budget}", size(self.bytes))
    }
}

impl TransferRow {
    fn new(transfers: Transfers) -> TransferRow {
        TransferRow {
            copied_gb_per_s: transfers.copied / 1e9,
            copied_to_host_gb_per_s: transfers.copied_to_host.map(|rate| rate / 1e9),
            mapped_device_gb_per_s: transfers.mapped_device.map(|rate| rate / 1e9),
            mapped_host_gb_per_s: transfers.mapped_host.map(|rate| rate / 1e9),
        }
    }

    fn line(&self) -> String {
        let also =
            |rate: Option<f64>, what| rate.map(|rate| format!(", {what} memory {rate:.2} GB/s")).unwrap_or_default();
        format!(
            "   transfers     copies {:.2} GB/s{}{}{}",
            self.copied_gb_per_s,
            also(self.copied_to_host_gb_per_s, "copies to host"),
            also(self.mapped_device_gb_per_s, "mapped device"),
            also(self.mapped_host_gb_per_s, "mapped host")
        )
    }
}

impl TargetFit {
    pub fn new(target: &TargetKernels, facts: &DeviceFacts) -> TargetFit {
        let misfit = match choose_target(std::slice::from_ref(target), facts, None) {
            Ok(_) => None,
            Err(LoadError::NoTarget { reasons, .. }) => Some(reasons.join("; ")),
            Err(error) => Some(error.to_string()),
        };
        TargetFit { name: target.name.clone(), misfit }
    }

    pub fn line(&self) -> String {
        match &self.misfit {
            None => format!("   fits          target {}", self.name),
            Some(misfit) => format!("   does not fit  {misfit}"),
        }
    }
}

pub fn targets_of(path: &Path) -> Result<Vec<TargetKernels>, CliError> {
    let file = File::open(path).map_err(|error| CliError::at(path, error))?;
    let view = ArtifactView::read(&file).map_err(|error| CliError::at(path, error))?;
    Ok(view.kernels.targets)
}
