//! A model that is compiled and loaded for a test, and what is asked of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tests::compiled::{Silent, options, with};
use tests::launch::{device, device_matrices, device_register_matrices, without_what_the_device_lacks};
use tests::models::{everything, number};
use tests::reference::{Reference, relative_error};
use unicorn_compiler::{CompileOptions, FormatPolicy, Source, WeightsOption, compile, export};
use unicorn_kernels::KvFormat;
use unicorn_runtime::{DeviceChoice, LoadError, LoadOptions, Model, Sampling};
use unicorn_spirv::target::{self, GemmTuning, MatrixTuning, RegisterTuning, Target};

/// f16 weights and KV cache, everything else f32: three decimal digits of each factor, over a few layers.
pub const F16_TOLERANCE: f64 = 5e-3;
/// INT8 in groups of 32 on random weights, which forgive less than trained ones.
pub const INT8_TOLERANCE: f64 = 3e-2;
/// The same weights in f32 by the reference: what is left is the f16 KV cache.
pub const EXPORTED_TOLERANCE: f64 = 5e-3;
/// The same with int8 activations: half a step of 1/127 of each group's largest, over a few layers of random weights.
pub const INTEGER_TOLERANCE: f64 = 3e-2;
/// K and V as int8 codes: half a step of 1/127 of each head's largest, over a few layers of random weights.
pub const INT8_KV_TOLERANCE: f64 = 3e-2;
/// Two computations of the same int8 cache: a sum that differs in the last bit moves a code now and then to its neighbour.
pub const INT8_KV_SAME_TOLERANCE: f64 = 5e-3;
/// Only the order of sums differs.
pub const SAME_TOLERANCE: f64 = 1e-3;

/// How near two computations with the same weights must come. With int8 activations a sum that differs in the last bit moves a
/// code now and then to its neighbour, and after a few layers the two are as far apart as either is from f32.
pub fn same_tolerance(case: &Case) -> f64 {
    if case.target == INTEGER.target { INTEGER_TOLERANCE } else { SAME_TOLERANCE }
}

#[derive(Clone, Copy)]
pub struct Case {
    pub weights: WeightsOption,
    pub group: u32,
    pub fuse: bool,
    pub kv: KvFormat,
    pub target: &'static str,
    /// Where the device has matrices.
    pub gemms: Gemms,
    /// Cached tokens from which on the long-context program decodes, instead of the target's number.
    pub long_context_from: Option<usize>,
}

/// How operands reach the matrix units.
#[derive(Clone, Copy)]
pub enum Gemms {
    /// Through workgroup memory.
    Halves,
    /// Weights from registers, through workgroup memory.
    Registers,
    /// Directly from registers, on devices whose lanes hold fragments in that layout.
    Lanes,
}

pub const F16: Case = Case {
    weights: WeightsOption::F16,
    group: 32,
    fuse: true,
    kv: KvFormat::F16,
    target: "llvmpipe",
    gemms: Gemms::Halves,
    long_context_from: None,
};
pub const INT4: Case = Case { weights: WeightsOption::Int4, ..F16 };
/// A GPU's kernels, made for the subgroups of the device at hand.
pub const INTEGER: Case = Case { target: "rdna3", ..INT4 };

/// The same without workgroup memory.
fn directly_from_registers(matrices: MatrixTuning) -> MatrixTuning {
    let GemmTuning::Registers(tuning) = matrices.gemm else { unreachable!("from registers") };
    let gemm = GemmTuning::Registers(RegisterTuning { lanes_hold_fragments: true, ..tuning });
    MatrixTuning { gemm, ..matrices }
}

/// A compiled model folder; deleted when dropped.
pub struct Built {
    folder: tempfile::TempDir,
    source: PathBuf,
    case: Case,
}

impl Built {
    pub fn of(source: &Path, case: Case) -> Built {
        let built = Built { folder: tempfile::tempdir().expect("a folder"), source: source.to_owned(), case };
        compile(Source::Model(source), &built.artifact(), &built.options(), &mut Silent)
            .unwrap_or_else(|error| panic!("{} does not compile: {error}", source.display()));
        built
    }

    pub fn artifact(&self) -> PathBuf {
        self.folder.path().join("model.unicorn")
    }

    fn options(&self) -> CompileOptions {
        let policy = FormatPolicy { weights: self.case.weights, group: self.case.group };
        let mut requested = target::by_name(self.case.target).expect("a preset");
        if requested.integer_dot {
            requested = requested.for_any_device(device().subgroup_size);
            without_what_the_device_lacks(&mut requested);
            requested.shared_memory_bytes = requested.shared_memory_bytes.min(device().shared_memory_bytes as usize);
            requested.matrix = requested.matrix.and_then(|_| match self.case.gemms {
                Gemms::Halves => device_matrices(),
                Gemms::Registers => device_register_matrices(),
                Gemms::Lanes => device_register_matrices().map(directly_from_registers),
            });
        }
        if let (Some(tuning), Some(from_tokens)) = (&mut requested.decode_attention, self.case.long_context_from) {
            tuning.long_context.from_tokens = from_tokens;
        }
        // Generic as well, for devices that the requested target does not fit. It fits the software device.
        let is_needed = |generic: &Target| generic.name != requested.name && !device().name.contains("llvmpipe");
        let generic = target::by_name("generic").filter(is_needed);
        let targets = [requested].into_iter().chain(generic).collect();
        with(options(targets, Vec::new()), |options| {
            options.policy = policy;
            options.fuse = self.case.fuse;
            options.kv = self.case.kv;
        })
    }

    pub fn load(&self) -> Model {
        self.load_with_slots(1)
    }

    pub fn load_with_slots(&self, slots: u32) -> Model {
        let model = self
            .try_load(slots, false)
            .unwrap_or_else(|error| panic!("{} does not load: {error}", self.source.display()));
        // Compiled for any device with these subgroups, so it must have been chosen.
        let is_for_any = target::by_name(self.case.target).is_some_and(|target| target.integer_dot);
        assert!(!is_for_any || model.report().target == self.case.target, "it runs on {}", model.report().target);
        model
    }

    pub fn try_load(&self, slots: u32, barriers: bool) -> Result<Model, LoadError> {
        let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
        // However slow the device, decode has several steps in a submission.
        let multistep = Duration::MAX;
        let device = DeviceChoice::Name(device);
        // By name, it runs also where packed dot products take several instructions.
        let is_for_any = target::by_name(self.case.target).is_some_and(|target| target.integer_dot);
        let options = LoadOptions::default().with(|options| {
            options.device = device;
            options.target = is_for_any.then(|| self.case.target.into());
            options.slots = slots;
            options.multistep = multistep;
            options.barriers = barriers;
        });
        Model::load(&self.artifact(), &options)
    }

    /// Logits of the exported weights by the reference.
    pub fn exported_logits(&self, tokens: &[i32]) -> Vec<f32> {
        let folder = self.folder.path().join("exported");
        export(&self.source, &self.artifact(), &self.options(), &folder, &mut Silent).expect("it exports");
        Reference::open(&folder).logits(tokens)
    }
}

pub fn logits(model: &Model, tokens: &[i32], chunk_tokens: u32) -> Vec<f32> {
    let tokens: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
    let mut session = model.session().expect("a free slot");
    session.set_chunk_tokens(chunk_tokens);
    let mut all = Vec::new();
    session.feed_with_logits(&tokens, &mut |_, row| all.extend_from_slice(row)).expect("the steps run");
    all
}

pub fn greedy(model: &Model, prompt: &[i32], count: usize) -> Vec<u32> {
    let sampling = Sampling::default();
    let mut session = model.session().expect("a free slot");
    let mut next: Vec<u32> = prompt.iter().map(|&token| token as u32).collect();
    let mut samples = Vec::new();
    for _ in 0..count {
        let sampled = session.feed_and_sample(&next, &sampling).expect("the step runs");
        samples.push(sampled.token);
        next = vec![sampled.token];
    }
    samples
}

/// One format for a model, or all.
pub fn cases_of(folder: &Path) -> impl Iterator<Item = Case> {
    let cases = [F16, INT4, INTEGER];
    let only = cases[number(folder) % cases.len()];
    if everything() { cases.to_vec() } else { vec![only] }.into_iter()
}

/// A group size that the model keeps when other models are added.
pub fn group_of(folder: &Path) -> u32 {
    [32, 64, 128][number(folder) % 3]
}

pub fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f64) {
    let error = relative_error(expected, found);
    assert!(error <= tolerance, "{what}: relative error {error}, at most {tolerance}");
}
