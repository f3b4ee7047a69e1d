//! Twenty and more real GPUs, as their drivers report them (`tests/devices`): which class and target each takes, among all targets
//! and among those of an artifact by default, and where models of 8 and 27 billion parameters lie in their memory.
//!
//! `docs/devices.md` holds the resulting tables; `BLESS=1` writes them.

use std::fs;
use std::iter::successors;
use std::path::{Path, PathBuf};

use tests::compiled::{Silent, options};
use tests::devices::Device;
use unicorn_artifact::{Budget, DeviceClass, MatrixSides, TargetKernels, Tier};
use unicorn_compiler::{Planned, Source, plan};
use unicorn_runtime::planning::{AmdgpuMemory, AvailableMemory, ContextRequest, MemoryFigures, Residency};
use unicorn_runtime::{DeviceFacts, DeviceKind, Heap, KvCapacity, LoadError, choose_target};
use unicorn_spirv::{Target, target};

/// The class of each by its vendor's documents: an answer that no rule of the runtime takes part in. With a driver that lists no
/// matrices of f16, 16 x 16 x 16, GPUs with matrix units are of the class before them, or of none.
const CLASSES: [(&str, Option<DeviceClass>); 25] = [
    ("adreno-740", Some(DeviceClass::Adreno)),
    ("apple-m2", None),
    ("arc-140v", Some(DeviceClass::Intel)),
    ("arc-a770", Some(DeviceClass::Intel)),
    ("arc-b580", Some(DeviceClass::Intel)),
    // Pascal: no matrix units.
    ("geforce-gtx-1080", None),
    ("geforce-rtx-2070", Some(DeviceClass::NvidiaTuring)),
    ("geforce-rtx-3060", Some(DeviceClass::NvidiaRtx)),
    ("geforce-rtx-4090", Some(DeviceClass::NvidiaLarge)),
    ("geforce-rtx-5090", Some(DeviceClass::NvidiaLarge)),
    ("mali-g710", Some(DeviceClass::Mali)),
    // A driver from before VK_KHR_cooperative_matrix.
    ("nvidia-a100", None),
    ("nvidia-h200", Some(DeviceClass::NvidiaHopper)),
    ("radeon-680m", Some(DeviceClass::Rdna2)),
    ("radeon-780m", Some(DeviceClass::Rdna3)),
    ("radeon-8060s", Some(DeviceClass::Rdna3)),
    ("radeon-890m", Some(DeviceClass::Rdna3)),
    ("radeon-rx-580", Some(DeviceClass::Gcn)),
    ("radeon-rx-6700-xt", Some(DeviceClass::Rdna2)),
    // Emulated matrices.
    ("radeon-rx-6700-xt-windows", Some(DeviceClass::Rdna2)),
    ("radeon-rx-7900-xtx", Some(DeviceClass::Rdna3)),
    // RADV had no matrices for it yet.
    ("radeon-rx-9070-xt", Some(DeviceClass::Rdna2)),
    ("radeon-rx-9070-xt-mesa26", Some(DeviceClass::Rdna4)),
    ("radeon-vega-8-renoir", Some(DeviceClass::Gcn)),
    ("steam-deck", Some(DeviceClass::Rdna2)),
];

#[test]
fn each_gpu_is_of_its_class() {
    let found: Vec<_> = Device::all().iter().map(|device| (device.file.clone(), device.facts().class())).collect();
    assert_eq!(found, CLASSES.map(|(file, class)| (file.to_owned(), class)));
}

#[test]
fn every_value_has_a_source() {
    for device in Device::all() {
        for source in std::iter::once(&device.source).chain(device.other_sources.values()) {
            let names_one = ["https://", "Mesa", "README.md", "by this project", "as above", "of cooperative_matrix"];
            assert!(names_one.iter().any(|part| source.contains(part)), "{}: {source}", device.file);
        }
    }
}

/// What a newer driver adds: the report of an A100 is from before VK_KHR_cooperative_matrix. It has as many warps a multiprocessor as
/// Hopper, and no kernels that rely on the order of Hopper's workgroups.
#[test]
fn an_a100_whose_driver_has_matrices_takes_kernels_with_barriers() {
    let mut facts = Device::all().into_iter().find(|device| device.file == "nvidia-a100").unwrap().facts();
    facts.features.cooperative_matrix = vec!["16x16x16 f16 -> f32".into()];
    assert_eq!(facts.class(), Some(DeviceClass::NvidiaLarge));
    assert_eq!(choose_target(&kernels(target::presets()), &facts, None).unwrap().name, "nvidia-large");
    assert_eq!(choose_target(&kernels(target::defaults()), &facts, None).unwrap().name, "nvidia-rtx");
}

/// Counters in the place of barriers rely on an order of workgroups that was seen on Hopper alone.
#[test]
fn only_hopper_takes_kernels_with_counters_by_itself() {
    let has_counters = |name: &str| target::by_name(name).unwrap().counter_sync;
    let mut with_counters = Vec::new();
    for device in Device::all() {
        let facts = device.facts();
        if has_counters(&choose_target(&kernels(target::presets()), &facts, None).unwrap().name) {
            with_counters.push(device.file);
        }
    }
    assert_eq!(with_counters, ["nvidia-h200"]);
}

/// A target that was made for others still runs where it is requested by name and the device has what it requires.
#[test]
fn targets_run_by_name_on_devices_that_meet_their_requirements() {
    let targets = kernels(target::presets());
    let by_file = |file: &str| Device::all().into_iter().find(|device| device.file == file).unwrap().facts();
    for name in ["rdna3", "generic-matrix", "nvidia-rtx", "generic-dot", "generic-subgroup", "generic"] {
        assert_eq!(choose_target(&targets, &by_file("nvidia-h200"), Some(name)).unwrap().name, name);
    }
    let refusal = choose_target(&targets, &by_file("radeon-680m"), Some("rdna3")).unwrap_err().to_string();
    assert!(refusal.contains("needs cooperative matrices 16x16x16 f16 -> f32"), "{refusal}");
}

/// Every GPU takes a target, of all and of an artifact's default set: one for its class or one for any device.
#[test]
fn defaults_serve_every_gpu() {
    let (all, defaults) = (kernels(target::presets()), kernels(target::defaults()));
    for device in Device::all() {
        let facts = device.facts();
        for targets in [&all, &defaults] {
            let chosen = choose_target(targets, &facts, None).unwrap();
            let classes = &chosen.matches.classes;
            let mut own = successors(facts.class(), |class| class.wider());
            assert!(classes.is_empty() || own.any(|class| classes.contains(&class)), "{}", device.file);
            // Of the default set, mobile GPUs, with their subgroups of 16 and of 64, take `generic`, which uses no subgroups.
            let is_mobile = matches!(facts.class(), Some(DeviceClass::Adreno | DeviceClass::Mali));
            let is_slow = is_mobile && std::ptr::eq(targets, &defaults);
            assert_eq!(chosen.name == "generic", is_slow, "{}", device.file);
        }
    }
}

/// Models of 8 and 27 billion parameters in INT4 on every GPU.
#[test]
fn models_lie_where_they_fit_and_below_every_limit() {
    let models = [Model::of("llama-3-8b.json"), Model::of("gemma-3-27b.json")];
    for device in Device::all() {
        let facts = device.facts();
        for Model { name, planned } in &models {
            let plan = planned.plan();
            let largest = plan.slices.iter().map(|slice| slice.bytes).max().unwrap();
            assert!(largest <= facts.max_allocation_bytes, "{}: {name}: a slice of {largest}", device.file);
            let bound = plan.weights.iter().map(|weight| weight.len_bytes).chain([plan.arena_bytes]).max().unwrap();
            assert!(bound <= facts.storage_range_bytes, "{}: {name}: a binding of {bound}", device.file);
            match residency(&device, planned) {
                Ok(residency) => {
                    let vram = residency.tier(Tier::Vram).expect("all of a plan for any machine is in VRAM");
                    let heap = facts.heaps[vram.heap];
                    assert!(heap.device_local && vram.device_local, "{}: {name}: {vram:?}", device.file);
                    assert!(vram.bytes.total() <= memory_bytes(&facts), "{}: {name}: {vram:?}", device.file);
                    assert!(residency.context_tokens >= 512, "{}: {name}: {residency:?}", device.file);
                }
                Err(LoadError::InsufficientMemory(report)) => {
                    let weights: u64 = plan.slices.iter().map(|slice| slice.bytes).sum();
                    assert!(weights + (1 << 30) > memory_bytes(&facts), "{}: {name}: {report:?}", device.file);
                }
                Err(error) => panic!("{}: {name}: {error}", device.file),
            }
        }
    }
}

#[test]
fn tables_of_the_manual_are_what_is_chosen() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/devices.md");
    let manual = fs::read_to_string(&path).unwrap();
    let [begin, end] = ["<!-- from tests/tests/devices.rs -->\n", "<!-- until here -->\n"];
    let (before, rest) = manual.split_once(begin).expect("the tables' beginning");
    let (found, after) = rest.split_once(end).expect("the tables' end");
    let expected = tables();
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, [before, begin, &expected, end, after].concat()).unwrap();
    } else {
        assert!(found == expected, "docs/devices.md differs: BLESS=1 writes it. Expected\n{expected}");
    }
}

fn tables() -> String {
    let (all, defaults) = (kernels(target::presets()), kernels(target::defaults()));
    let mut text =
        "| GPU and driver | class | target | of an artifact's defaults | it goes without |\n|---|---|---|---|---|\n"
            .to_owned();
    for device in Device::all() {
        let facts = device.facts();
        let class = facts.class().map_or("none".into(), |class| class.to_string());
        let name = |targets| format!("`{}`", choose_target(targets, &facts, None).unwrap().name);
        text += &format!(
            "| {} | {class} | {} | {} | {} |\n",
            device.gpu,
            name(&all),
            name(&defaults),
            goes_without(&device, choose_target(&all, &facts, None).unwrap())
        );
    }
    text += "\n| GPU | Llama 3 8B | Gemma 3 27B | weights are loaded by |\n|---|---|---|---|\n";
    let models = [Model::of("llama-3-8b.json"), Model::of("gemma-3-27b.json")];
    for device in Device::all() {
        let planned = models.each_ref().map(|model| residency(&device, &model.planned));
        let cells = planned.each_ref().map(|planned| match planned {
            Ok(residency) => format!("{} tokens", residency.context_tokens),
            Err(_) => "does not fit".into(),
        });
        let vram = planned.iter().flatten().filter_map(|residency| residency.tier(Tier::Vram)).next();
        let paths = vram.map_or("", |vram| if vram.host_visible { "writing in place, or staging" } else { "staging" });
        text += &format!("| {} | {} | {} | {paths} |\n", device.gpu, cells[0], cells[1]);
    }
    text
}

/// What kernels could use if this device or its driver had it.
fn goes_without(device: &Device, chosen: &TargetKernels) -> String {
    let facts = device.facts();
    let shapes = &facts.features.cooperative_matrix;
    let mut without = Vec::new();
    if chosen.matches.matrix_sides == MatrixSides::NONE {
        let f32_sums: Vec<&str> = shapes.iter().filter_map(|shape| shape.strip_suffix(" f16 -> f32")).collect();
        without.push(match f32_sums[..] {
            _ if device.unknown.contains_key("cooperative_matrix") => "matrices, whose shapes no report names".into(),
            [] => "matrices: the driver lists none".into(),
            ["16x16x16"] => "matrices: the driver emulates them".into(),
            _ => format!("matrices: they are {}", f32_sums.join(", ")),
        });
    }
    if !chosen.matches.integer_dot_product {
        assert!(!facts.features.integer_dot_product_accelerated, "{}", device.file);
        without.push("packed dot products: each takes several instructions".into());
    }
    without.join("; ")
}

struct Model {
    name: &'static str,
    planned: Planned,
}

impl Model {
    /// The plan for any machine, made without weights.
    fn of(name: &'static str) -> Model {
        let shape: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/shapes").join(name);
        let planned = plan(Source::Synthetic(&shape), &options(target::defaults(), Vec::new()), &mut Silent).unwrap();
        Model { name, planned }
    }
}

/// Where the model would lie on the device, for as long a context as fits.
fn residency(device: &Device, planned: &Planned) -> Result<Residency, LoadError> {
    let facts = device.facts();
    // On Linux, RADV's heaps are the kernel's VRAM and GTT together, split differently.
    let all = MemoryFigures { total_bytes: memory_bytes(&facts), used_bytes: 0 };
    let none = MemoryFigures { total_bytes: 0, used_bytes: 0 };
    let amdgpu = is_radv_apu(&facts).then_some(AmdgpuMemory { vram: none, gtt: all });
    let memory = AvailableMemory {
        artifact: Path::new("model.unicorn"),
        facts: &facts,
        amdgpu,
        budget: &Budget::default(),
        beside: None,
    };
    let request = ContextRequest {
        requested_tokens: None,
        min_tokens: 512,
        max_positions: planned.checkpoint.config.max_positions as u32,
        slots: 1,
        kv_capacity: KvCapacity::Each,
        chunk_tokens: 512,
        state_copies: 1,
    };
    Residency::of(planned.plan(), &memory, &request)
}

/// All memory that a model may take for its own.
fn memory_bytes(facts: &DeviceFacts) -> u64 {
    let counts = |heap: &&Heap| heap.device_local || is_radv_apu(facts);
    facts.heaps.iter().filter(counts).map(|heap| heap.bytes).sum()
}

fn is_radv_apu(facts: &DeviceFacts) -> bool {
    facts.kind == DeviceKind::Integrated && facts.driver.starts_with("radv")
}

/// As an artifact with these targets lists them.
fn kernels(targets: Vec<Target>) -> Vec<TargetKernels> {
    let kernels = |target: Target| TargetKernels {
        name: target.name.into(),
        matches: target.matches(),
        modules: Default::default(),
        pipelines: Vec::new(),
        programs: Vec::new(),
        checksum: None,
        bandwidth_probe: None,
        fragments: None,
    };
    targets.into_iter().map(kernels).collect()
}
