//! Which device, and which target's kernels: pure functions of a snapshot of facts. No Vulkan calls.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use unicorn_artifact::{TargetKernels, TargetMatch};

use crate::error::{LoadError, size};

/// What the driver says of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFacts {
    /// Place in the loader's list.
    pub index: usize,
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    pub vendor_id: u32,
    pub device_id: u32,
    pub kind: DeviceKind,
    /// Major, minor, patch.
    pub api_version: (u32, u32, u32),
    pub subgroup_size: u32,
    pub min_subgroup_size: u32,
    pub max_subgroup_size: u32,
    /// Subgroup arithmetic and shuffles in compute shaders.
    pub subgroup_arithmetic: bool,
    pub shared_memory_bytes: u32,
    pub workgroup_invocations: u32,
    /// Largest range that one storage buffer binding may see.
    pub storage_range_bytes: u64,
    pub max_allocation_bytes: u64,
    pub heaps: Vec<Heap>,
    pub memory_types: Vec<MemoryType>,
    pub features: DeviceFeatures,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    Discrete,
    Integrated,
    Virtual,
    /// Software.
    Cpu,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    pub bytes: u64,
    /// What the driver thinks this process may hold in all; `None`: the driver does not say.
    pub budget_bytes: Option<u64>,
    /// What this process holds already, as far as the driver says.
    pub used_bytes: u64,
    pub device_local: bool,
}

/// One way to allocate from a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryType {
    /// Index into [`DeviceFacts::heaps`].
    pub heap: usize,
    pub device_local: bool,
    pub host_visible: bool,
    pub host_coherent: bool,
    pub host_cached: bool,
}

/// Optional abilities that kernels or the runtime can use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceFeatures {
    pub float16: bool,
    pub int8: bool,
    pub int16: bool,
    pub int64: bool,
    /// Atomics of 64-bit integers in buffers.
    pub int64_atomics: bool,
    pub storage_8bit: bool,
    pub storage_16bit: bool,
    pub integer_dot_product: bool,
    pub memory_model: bool,
    pub memory_model_device_scope: bool,
    /// What a workgroup has seen of a second one's writes, a third sees that hears of the first.
    pub memory_model_chains: bool,
    /// Subgroup operations on 8- and 16-bit numbers.
    pub subgroup_extended_types: bool,
    pub subgroup_size_control: bool,
    pub full_subgroups: bool,
    pub timeline_semaphore: bool,
    pub robust_buffer_access: bool,
    pub memory_budget: bool,
    /// Host memory can become device memory in place (VK_EXT_external_memory_host).
    pub host_import: bool,
    /// The driver tells registers, spills and machine code (VK_KHR_pipeline_executable_properties).
    pub pipeline_statistics: bool,
    /// Shapes of cooperative matrices, as `16x16x16 f16 -> f32`; empty: none.
    pub cooperative_matrix: Vec<String>,
}

/// Which device a person asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first discrete device, else integrated, else virtual; never software.
    #[default]
    Auto,
    Index(usize),
    /// Part of the name, in any case.
    Name(String),
}

/// The device that `choice` means.
///
/// # Errors
/// [`LoadError::NoDevice`] with everything that was found.
pub fn choose_device<'a>(devices: &'a [DeviceFacts], choice: &DeviceChoice) -> Result<&'a DeviceFacts, LoadError> {
    let chosen = match choice {
        DeviceChoice::Auto => {
            [DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Virtual].iter().find_map(|&kind| {
                devices.iter().find(|device| device.kind == kind && device.is_recent() && device.has_memory())
            })
        }
        DeviceChoice::Index(index) => devices.iter().find(|device| device.index == *index),
        DeviceChoice::Name(part) => devices.iter().find(|device| contains_in_any_case(&device.name, part)),
    };
    let chosen = chosen.ok_or_else(|| LoadError::NoDevice {
        wanted: choice.to_string(),
        found: devices.iter().map(DeviceFacts::to_string).collect(),
    })?;
    if !chosen.is_recent() {
        let (major, minor, patch) = chosen.api_version;
        return Err(LoadError::Unsupported {
            what: format!("{} has Vulkan {major}.{minor}.{patch}, expected 1.2 or later", chosen.name),
        });
    }
    if !chosen.has_memory() {
        return Err(LoadError::Unsupported {
            what: format!("{} has no memory: its driver compiles kernels and runs none", chosen.name),
        });
    }
    Ok(chosen)
}

/// The first target that fits the device, or the one called `forced` if it fits.
///
/// # Errors
/// [`LoadError::NoTarget`] says for each target what it expected and what the device has.
pub fn choose_target<'a>(
    targets: &'a [TargetKernels],
    device: &DeviceFacts,
    forced: Option<&str>,
) -> Result<&'a TargetKernels, LoadError> {
    let mut reasons = Vec::new();
    for target in targets {
        let misfit = match forced {
            Some(name) if name != target.name => Some(format!("not {name}, which was asked for")),
            _ => misfit(&target.matches, device),
        };
        match misfit {
            None => return Ok(target),
            Some(reason) => reasons.push(format!("target {}: {reason}", target.name)),
        }
    }
    if reasons.is_empty() {
        reasons.push("it has no targets at all".into());
    }
    Err(LoadError::NoTarget { device: device.name.clone(), reasons })
}

impl DeviceFacts {
    /// Whether kernels can be given exactly this subgroup size.
    pub fn offers_subgroup_size(&self, size: u32) -> bool {
        let any_in_range = self.features.subgroup_size_control
            && self.features.full_subgroups
            && (self.min_subgroup_size..=self.max_subgroup_size).contains(&size);
        size.is_power_of_two() && (size == self.subgroup_size || any_in_range)
    }

    /// Whether everything that Vulkan 1.3 made mandatory is there.
    pub fn has_core_1_3(&self) -> bool {
        (self.api_version.0, self.api_version.1) >= (1, 3)
    }

    pub fn is_recent(&self) -> bool {
        (self.api_version.0, self.api_version.1) >= (1, 2)
    }

    /// A driver without its hardware may still list a device.
    pub fn has_memory(&self) -> bool {
        !self.heaps.is_empty()
    }
}

impl Heap {
    /// What this process may still take.
    pub fn available_bytes(&self) -> u64 {
        self.budget_bytes.unwrap_or(self.bytes).saturating_sub(self.used_bytes)
    }
}

impl DeviceFeatures {
    /// Whether kernels for this `TargetMatch::matrix_side` run.
    pub fn multiplies_f16_matrices(&self, side: u32) -> bool {
        self.float16 && self.memory_model && self.cooperative_matrix.contains(&f16_matrix(side))
    }

    /// Whether kernels on matrices of int8 run that are so high and wide, and so deep.
    pub fn multiplies_int8_matrices(&self, side: u32, depth: u32) -> bool {
        let matrix = format!("{side}x{side}x{depth} i8 -> i32");
        self.int8 && self.memory_model && self.cooperative_matrix.contains(&matrix)
    }

    /// Names of what is there, for people.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            ("float16", self.float16),
            ("int8", self.int8),
            ("int16", self.int16),
            ("int64", self.int64),
            ("int64 atomics", self.int64_atomics),
            ("8-bit storage", self.storage_8bit),
            ("16-bit storage", self.storage_16bit),
            ("integer dot product", self.integer_dot_product),
            ("memory model", self.memory_model),
            ("memory model device scope", self.memory_model_device_scope),
            ("memory model chains", self.memory_model_chains),
            ("subgroup extended types", self.subgroup_extended_types),
            ("subgroup size control", self.subgroup_size_control),
            ("full subgroups", self.full_subgroups),
            ("timeline semaphore", self.timeline_semaphore),
            ("robust buffer access", self.robust_buffer_access),
            ("memory budget", self.memory_budget),
            ("host memory import", self.host_import),
            ("pipeline statistics", self.pipeline_statistics),
            ("cooperative matrix", !self.cooperative_matrix.is_empty()),
        ];
        all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
    }
}

impl FromStr for DeviceChoice {
    type Err = Infallible;

    /// Digits are an index, anything else is part of a name, nothing is [`DeviceChoice::Auto`].
    fn from_str(text: &str) -> Result<DeviceChoice, Infallible> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(DeviceChoice::Auto);
        }
        Ok(text.parse().map_or_else(|_| DeviceChoice::Name(text.to_owned()), DeviceChoice::Index))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => write!(f, "a discrete, integrated or virtual GPU with Vulkan 1.2"),
            DeviceChoice::Index(index) => write!(f, "device {index}"),
            DeviceChoice::Name(part) => write!(f, "a name that contains \"{part}\""),
        }
    }
}

impl fmt::Display for DeviceFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.index, self.name, self.kind)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Discrete => "discrete",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Virtual => "virtual",
            DeviceKind::Cpu => "software",
            DeviceKind::Other => "other",
        })
    }
}

impl fmt::Display for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.device_local { "device" } else { "host" };
        write!(f, "{} of {} {place} memory", size(self.available_bytes()), size(self.bytes))
    }
}

/// What keeps a target from running on a device: both sides of the first mismatch.
fn misfit(wanted: &TargetMatch, device: &DeviceFacts) -> Option<String> {
    if let Some(vendor) = wanted.vendor_id.filter(|&vendor| vendor != device.vendor_id) {
        return Some(format!("made for vendor {vendor:#06x}, this device has {:#06x}", device.vendor_id));
    }
    let named = wanted.name_contains.iter().any(|part| contains_in_any_case(&device.name, part));
    if !named && !wanted.name_contains.is_empty() {
        return Some(format!("made for devices named {}, this is {}", wanted.name_contains.join(" or "), device.name));
    }
    if wanted.subgroup_size != 0 && !device.offers_subgroup_size(wanted.subgroup_size) {
        let (least, most) = (device.min_subgroup_size, device.max_subgroup_size);
        let has = if least == most { most.to_string() } else { format!("{least} to {most}") };
        return Some(format!("made for subgroup size {}, this device has {has}", wanted.subgroup_size));
    }
    if wanted.shared_memory_bytes > device.shared_memory_bytes {
        return Some(format!(
            "needs {} bytes of shared memory, this device has {}",
            wanted.shared_memory_bytes, device.shared_memory_bytes
        ));
    }
    if wanted.workgroup_invocations > device.workgroup_invocations {
        return Some(format!(
            "needs workgroups of {}, this device has at most {}",
            wanted.workgroup_invocations, device.workgroup_invocations
        ));
    }
    let features = &device.features;
    if wanted.integer_dot_product && !features.integer_dot_product {
        return Some("needs integer dot products, this device has none".into());
    }
    if wanted.int64_atomics && !(features.int64 && features.int64_atomics) {
        return Some("needs atomics of 64-bit integers, this device has none".into());
    }
    if wanted.memory_model_chains && !(features.memory_model && features.memory_model_chains) {
        return Some(
            "needs the Vulkan memory model with chains of availability and visibility, this device lacks them".into(),
        );
    }
    let side = wanted.matrix_side;
    if side != 0 && !features.multiplies_f16_matrices(side) {
        let has =
            if features.cooperative_matrix.is_empty() { "none".into() } else { features.cooperative_matrix.join(", ") };
        return Some(format!(
            "needs cooperative matrices {}, f16 and the memory model, this device has matrices: {has}; f16: {}; memory \
             model: {}",
            f16_matrix(side),
            features.float16,
            features.memory_model
        ));
    }
    None
}

/// Square matrices as [`DeviceFeatures::cooperative_matrix`] names them.
fn f16_matrix(side: u32) -> String {
    format!("{side}x{side}x{side} f16 -> f32")
}

fn contains_in_any_case(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A made-up device with one 8 GiB heap of its own that the host sees, as an APU or llvmpipe has.
    pub(crate) fn facts(index: usize, name: &str, kind: DeviceKind) -> DeviceFacts {
        DeviceFacts {
            index,
            name: name.into(),
            driver: "made up 1.0".into(),
            vendor_id: 0x1002,
            device_id: 0x15bf,
            kind,
            api_version: (1, 3, 230),
            subgroup_size: 64,
            min_subgroup_size: 32,
            max_subgroup_size: 64,
            subgroup_arithmetic: true,
            shared_memory_bytes: 64 << 10,
            workgroup_invocations: 1024,
            storage_range_bytes: 128 << 20,
            max_allocation_bytes: 4 * GIB,
            heaps: vec![Heap { bytes: 8 * GIB, budget_bytes: None, used_bytes: 0, device_local: true }],
            memory_types: vec![MemoryType {
                heap: 0,
                device_local: true,
                host_visible: true,
                host_coherent: true,
                host_cached: true,
            }],
            features: DeviceFeatures { subgroup_size_control: true, full_subgroups: true, ..Default::default() },
        }
    }

    fn target(name: &str, matches: TargetMatch) -> TargetKernels {
        TargetKernels {
            name: name.into(),
            matches,
            pipelines: vec![],
            programs: vec![],
            checksum: None,
            reads: None,
            fragments: None,
        }
    }

    #[test]
    fn auto_takes_discrete_before_integrated_and_never_software() {
        let software = facts(0, "llvmpipe (LLVM 15)", DeviceKind::Cpu);
        let apu = facts(1, "AMD Radeon 780M", DeviceKind::Integrated);
        let card = facts(2, "NVIDIA H200", DeviceKind::Discrete);
        let all = [software.clone(), apu, card];
        assert_eq!(choose_device(&all, &DeviceChoice::Auto).unwrap().index, 2);
        assert_eq!(choose_device(&all[..2], &DeviceChoice::Auto).unwrap().index, 1);
        let error = choose_device(&[software], &DeviceChoice::Auto).unwrap_err().to_string();
        assert!(error.contains("0: llvmpipe (LLVM 15) (software)") && error.contains("UNICORN_DEVICE"), "{error}");
    }

    #[test]
    fn a_driver_without_hardware_runs_nothing() {
        let null = DeviceFacts { heaps: vec![], ..facts(0, "Null hardware (RADV PHOENIX)", DeviceKind::Integrated) };
        let card = facts(1, "NVIDIA H200", DeviceKind::Discrete);
        assert_eq!(choose_device(&[null.clone(), card], &DeviceChoice::Auto).unwrap().index, 1);
        assert!(choose_device(std::slice::from_ref(&null), &DeviceChoice::Auto).is_err());
        let error = choose_device(&[null], &DeviceChoice::Index(0)).unwrap_err().to_string();
        assert!(error.contains("Null hardware (RADV PHOENIX) has no memory"), "{error}");
    }

    #[test]
    fn choice_is_an_index_or_part_of_a_name() {
        let all = [facts(0, "llvmpipe (LLVM 15)", DeviceKind::Cpu), facts(1, "Radeon 780M", DeviceKind::Integrated)];
        assert_eq!(choose_device(&all, &"LLVMpipe".parse().unwrap()).unwrap().index, 0);
        assert_eq!(choose_device(&all, &"1".parse().unwrap()).unwrap().index, 1);
        assert_eq!("".parse::<DeviceChoice>().unwrap(), DeviceChoice::Auto);
        assert!(choose_device(&all, &"7".parse().unwrap()).is_err());
    }

    #[test]
    fn an_old_device_is_named() {
        let old = DeviceFacts { api_version: (1, 1, 5), ..facts(0, "Old", DeviceKind::Discrete) };
        let error = choose_device(&[old], &DeviceChoice::Index(0)).unwrap_err().to_string();
        assert_eq!(error, "Old has Vulkan 1.1.5, expected 1.2 or later");
    }

    #[test]
    fn first_fitting_target_wins_and_force_overrides_order() {
        let device = facts(0, "AMD Radeon 780M (RADV GFX1103_R1)", DeviceKind::Integrated);
        let phoenix = TargetMatch {
            vendor_id: Some(0x1002),
            name_contains: vec!["gfx1103".into()],
            subgroup_size: 32,
            ..Default::default()
        };
        let targets = [
            target("other", TargetMatch { vendor_id: Some(1), ..Default::default() }),
            target("phoenix", phoenix),
            target("generic", TargetMatch::default()),
        ];
        assert_eq!(choose_target(&targets, &device, None).unwrap().name, "phoenix");
        assert_eq!(choose_target(&targets, &device, Some("generic")).unwrap().name, "generic");
        assert!(choose_target(&targets, &device, Some("other")).is_err());
    }

    #[test]
    fn mismatch_names_both_sides() {
        let device = DeviceFacts {
            subgroup_size: 32,
            max_subgroup_size: 32,
            shared_memory_bytes: 100,
            ..facts(0, "GPU", DeviceKind::Discrete)
        };
        let wide = target("wide", TargetMatch { subgroup_size: 64, ..Default::default() });
        let hungry = target("hungry", TargetMatch { shared_memory_bytes: 200, ..Default::default() });
        let error = choose_target(&[wide, hungry], &device, None).unwrap_err().to_string();
        assert_eq!(
            error,
            "artifact has no kernels for GPU: target wide: made for subgroup size 64, this device has 32; target \
             hungry: needs 200 bytes of shared memory, this device has 100"
        );
    }

    #[test]
    fn kernels_of_chains_need_what_they_tell_each_other_by() {
        let mut device = facts(0, "GPU", DeviceKind::Discrete);
        let sums = TargetMatch { int64_atomics: true, ..Default::default() };
        device.features.int64 = true;
        assert_eq!(misfit(&sums, &device).unwrap(), "needs atomics of 64-bit integers, this device has none");
        device.features.int64_atomics = true;
        assert_eq!(misfit(&sums, &device), None);
        let chains = TargetMatch { memory_model_chains: true, ..Default::default() };
        device.features.memory_model = true;
        assert!(misfit(&chains, &device).unwrap().contains("chains of availability and visibility"));
        device.features.memory_model_chains = true;
        assert_eq!(misfit(&chains, &device), None);
    }

    #[test]
    fn kernels_on_matrix_units_need_their_shape_and_what_comes_with_it() {
        let mut device = facts(0, "GPU", DeviceKind::Discrete);
        let wanted = TargetMatch { integer_dot_product: true, matrix_side: 16, ..Default::default() };
        assert_eq!(misfit(&wanted, &device).unwrap(), "needs integer dot products, this device has none");
        device.features.integer_dot_product = true;
        device.features.cooperative_matrix = vec!["8x8x8 f16 -> f32".into()];
        device.features.memory_model = true;
        assert_eq!(
            misfit(&wanted, &device).unwrap(),
            "needs cooperative matrices 16x16x16 f16 -> f32, f16 and the memory model, this device has matrices: 8x8x8 f16 \
             -> f32; f16: false; memory model: true"
        );
        device.features.cooperative_matrix.push("16x16x16 f16 -> f32".into());
        device.features.float16 = true;
        assert_eq!(misfit(&wanted, &device), None);
    }
}
