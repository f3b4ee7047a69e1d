//! Which device runs a model, and which of the artifact's targets it runs: pure functions of [`DeviceFacts`].

use std::convert::Infallible;
use std::fmt;
use std::iter::successors;
use std::str::FromStr;

use unicorn_artifact::{DeviceClass, TargetKernels, TargetMatch};

use crate::device::facts::{DeviceFacts, DeviceKind, f16_matrix};
use crate::error::LoadError;

/// Which device to use. Parses from text: digits are an index, anything else is part of a name, and nothing is
/// [`DeviceChoice::Auto`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first discrete device, else integrated, else virtual; never a software device.
    #[default]
    Auto,
    /// The device at this position of the loader's list.
    Index(usize),
    /// The first device whose name contains this text, ignoring case.
    Name(String),
}

impl From<&str> for DeviceChoice {
    /// The choice that `text` parses to; parsing never fails.
    fn from(text: &str) -> DeviceChoice {
        let Ok(choice) = text.parse();
        choice
    }
}

/// The device that `choice` selects.
///
/// # Errors
/// [`LoadError::NoDevice`] lists the devices that were found; [`LoadError::Unsupported`] if the device has no Vulkan 1.2 or no
/// memory.
pub fn choose_device<'a>(devices: &'a [DeviceFacts], choice: &DeviceChoice) -> Result<&'a DeviceFacts, LoadError> {
    let chosen = match choice {
        DeviceChoice::Auto => {
            [DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Virtual].iter().find_map(|&kind| {
                devices.iter().find(|device| device.kind == kind && device.is_recent() && device.has_memory())
            })
        }
        DeviceChoice::Index(index) => devices.iter().find(|device| device.index == *index),
        DeviceChoice::Name(part) => devices.iter().find(|device| contains_ignoring_case(&device.name, part)),
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

/// The first target that was made for the device and fits it; or the target named `forced`, whatever it was made for, if its
/// requirements are met.
///
/// # Errors
/// [`LoadError::NoTarget`] gives for each target what it requires and what the device has.
pub fn choose_target<'a>(
    targets: &'a [TargetKernels],
    device: &DeviceFacts,
    forced: Option<&str>,
) -> Result<&'a TargetKernels, LoadError> {
    let mut reasons = Vec::new();
    for target in targets {
        let misfit = match forced {
            Some(name) if name != target.name => Some(format!("not {name}, which was requested")),
            Some(_) => unmet_requirement(&target.matches, device),
            None => misfit(&target.matches, device),
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

impl FromStr for DeviceChoice {
    type Err = Infallible;

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
            DeviceChoice::Name(part) if part.starts_with("0x") => {
                write!(
                    f,
                    "a name that contains \"{part}\" (a device is selected by its number or name, not by a PCI id)"
                )
            }
            DeviceChoice::Name(part) => write!(f, "a name that contains \"{part}\""),
        }
    }
}

/// Why a device does not take a target by itself, with both sides of the mismatch; `None` if it does. `wanted` is what an
/// artifact records of a target, or what a compiler declares of one that it has kernels for.
pub fn misfit(wanted: &TargetMatch, device: &DeviceFacts) -> Option<String> {
    let class = device.class();
    let mut classes = successors(class, |class| class.wider());
    if !wanted.classes.is_empty() && !classes.any(|class| wanted.classes.contains(&class)) {
        let made_for: Vec<String> = wanted.classes.iter().map(DeviceClass::to_string).collect();
        let is = class.map_or("of no class that has targets of its own".into(), |class| class.to_string());
        return Some(format!("made for {}, this device is {is}", made_for.join(" or ")));
    }
    let features = &device.features;
    if wanted.integer_dot_product && features.integer_dot_product && !features.integer_dot_product_accelerated {
        return Some("an integer dot product takes several instructions on this device".into());
    }
    unmet_requirement(wanted, device)
}

/// The first requirement of a target that the device does not meet, with both sides of the mismatch.
fn unmet_requirement(wanted: &TargetMatch, device: &DeviceFacts) -> Option<String> {
    if wanted.subgroup_size != 0 && !device.offers_subgroup_size(wanted.subgroup_size) {
        let (min, max) = (device.min_subgroup_size, device.max_subgroup_size);
        let has = if min == max { max.to_string() } else { format!("{min} to {max}") };
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
    if let Some(sides) = wanted.matrix_sides.get().filter(|sides| !features.multiplies_f16_matrices(*sides)) {
        let has =
            if features.cooperative_matrix.is_empty() { "none".into() } else { features.cooperative_matrix.join(", ") };
        return Some(format!(
            "needs cooperative matrices {}, f16 and the memory model, this device has matrices: {has}; f16: {}; memory \
             model: {}",
            f16_matrix(sides),
            features.float16,
            features.memory_model
        ));
    }
    None
}

/// Name and PCI ID of a vendor of devices: `AMD (vendor 0x1002)`.
pub fn vendor_name(id: u32) -> String {
    let known = [
        (0x1002, "AMD"),
        (0x10de, "NVIDIA"),
        (0x8086, "Intel"),
        (0x13b5, "Arm"),
        (0x5143, "Qualcomm"),
        (0x1010, "Imagination"),
        (0x106b, "Apple"),
        (0x14e4, "Broadcom"),
        // Vulkan's own number, for drivers without a PCI device.
        (0x10005, "Mesa"),
    ];
    let name = known.iter().find(|(known, _)| *known == id).map_or("unknown vendor", |(_, name)| name);
    format!("{name} (vendor {id:#06x})")
}

fn contains_ignoring_case(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::MatrixSides;

    use super::*;
    use crate::device::facts::DeviceKind;
    use crate::device::facts::tests::facts;

    fn target(name: &str, matches: TargetMatch) -> TargetKernels {
        TargetKernels {
            name: name.into(),
            matches,
            modules: Default::default(),
            pipelines: vec![],
            programs: vec![],
            checksum: None,
            bandwidth_probe: None,
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
        assert!(
            error.contains("0: llvmpipe (LLVM 15) (software)") && error.contains("selected by name or number"),
            "{error}"
        );
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
        let mut device = facts(0, "AMD Radeon 680M (RADV REMBRANDT)", DeviceKind::Integrated);
        (device.features.integer_dot_product, device.features.integer_dot_product_accelerated) = (true, true);
        let made_for = |class| TargetMatch { classes: vec![class], subgroup_size: 32, ..Default::default() };
        let wide = TargetMatch { subgroup_size: 128, ..Default::default() };
        let targets = [
            target("wide", wide),
            target("nvidia", made_for(DeviceClass::NvidiaRtx)),
            target("gcn", TargetMatch { subgroup_size: 64, ..made_for(DeviceClass::Gcn) }),
            target("rdna2", made_for(DeviceClass::Rdna2)),
            target("generic", TargetMatch::default()),
        ];
        assert_eq!(choose_target(&targets, &device, None).unwrap().name, "rdna2");
        for other in ["generic", "nvidia"] {
            assert_eq!(choose_target(&targets, &device, Some(other)).unwrap().name, other);
        }
        assert!(choose_target(&targets, &device, Some("wide")).is_err());
    }

    #[test]
    fn vendors_are_named() {
        assert_eq!(vendor_name(0x10de), "NVIDIA (vendor 0x10de)");
        assert_eq!(vendor_name(0x4711), "unknown vendor (vendor 0x4711)");
    }

    #[test]
    fn a_target_of_another_class_and_slow_dot_products_are_left_to_others() {
        let mut device = facts(0, "GPU", DeviceKind::Discrete);
        let rdna3 = TargetMatch { classes: vec![DeviceClass::Rdna3, DeviceClass::Rdna4], ..Default::default() };
        let found = misfit(&rdna3, &device).unwrap();
        assert_eq!(found, "made for AMD RDNA 3 or AMD RDNA 4, this device is of no class that has targets of its own");
        let dot = TargetMatch { integer_dot_product: true, ..Default::default() };
        device.features.integer_dot_product = true;
        assert_eq!(misfit(&dot, &device).unwrap(), "an integer dot product takes several instructions on this device");
        assert_eq!(unmet_requirement(&dot, &device), None);
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
    fn counter_synchronisation_needs_the_memory_model() {
        let mut device = facts(0, "GPU", DeviceKind::Discrete);
        let sums = TargetMatch { int64_atomics: true, ..Default::default() };
        device.features.int64 = true;
        assert_eq!(
            unmet_requirement(&sums, &device).unwrap(),
            "needs atomics of 64-bit integers, this device has none"
        );
        device.features.int64_atomics = true;
        assert_eq!(unmet_requirement(&sums, &device), None);
        let chains = TargetMatch { memory_model_chains: true, ..Default::default() };
        device.features.memory_model = true;
        assert!(unmet_requirement(&chains, &device).unwrap().contains("chains of availability and visibility"));
        device.features.memory_model_chains = true;
        assert_eq!(unmet_requirement(&chains, &device), None);
    }

    #[test]
    fn kernels_on_matrix_units_need_their_shape_and_what_comes_with_it() {
        let mut device = facts(0, "GPU", DeviceKind::Discrete);
        let wanted =
            TargetMatch { integer_dot_product: true, matrix_sides: MatrixSides::of([16; 3]), ..Default::default() };
        assert_eq!(unmet_requirement(&wanted, &device).unwrap(), "needs integer dot products, this device has none");
        device.features.integer_dot_product = true;
        device.features.cooperative_matrix = vec!["8x8x8 f16 -> f32".into()];
        device.features.memory_model = true;
        assert_eq!(
            unmet_requirement(&wanted, &device).unwrap(),
            "needs cooperative matrices 16x16x16 f16 -> f32, f16 and the memory model, this device has matrices: 8x8x8 f16 \
             -> f32; f16: false; memory model: true"
        );
        device.features.cooperative_matrix.push("16x16x16 f16 -> f32".into());
        device.features.float16 = true;
        assert_eq!(unmet_requirement(&wanted, &device), None);
    }
}
