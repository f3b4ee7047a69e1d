//! The kernels section: for each target its SPIR-V, the pipelines, and the dispatch lists that use them.

use serde::{Deserialize, Serialize};

#[cfg(feature = "write")]
use crate::codec;
use crate::device_class::DeviceClass;
#[cfg(feature = "write")]
use crate::header::SectionKind;
use crate::modules::ModuleSet;

/// Bytes that a workgroup of [`TargetKernels::bandwidth_probe`] reads at a time.
pub const READ_BLOCK_BYTES: u64 = 16 << 10;

/// Kernels and programs of each kind of device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernels {
    /// Targets, the more specific first: a device runs the first one that fits it.
    pub targets: Vec<TargetKernels>,
}

impl Kernels {
    /// Programs that have sections of their own, apart from all others.
    #[cfg(feature = "write")]
    pub(crate) fn split(&self) -> (Kernels, ApartPrograms) {
        let mut rest = self.clone();
        let mut apart = ApartPrograms::default();
        for target in &mut rest.targets {
            let take = |programs: &mut Vec<Program>, wanted: fn(&Program) -> bool| {
                let (taken, others) = std::mem::take(programs).into_iter().partition(wanted);
                *programs = others;
                taken
            };
            apart.hidden.push(take(&mut target.programs, |program| program.logits == LogitsRows::Hidden));
            apart.image.push(take(&mut target.programs, Program::is_of_images));
            apart.mixed.push(take(&mut target.programs, |program| program.logits == LogitsRows::Samplers));
            let is_beside_two = |program: &Program| program.logits == LogitsRows::SamplersBesideTwo;
            apart.beside_two.push(take(&mut target.programs, is_beside_two));
            apart.predicted.push(take(&mut target.programs, |program| program.logits == LogitsRows::Predicted));
        }
        (rest, apart)
    }

    /// Whether all samplers take masks: see [`Program::takes_masks`].
    pub fn take_masks(&self) -> bool {
        let mut sampling = self.targets.iter().flat_map(|target| &target.programs).filter(|program| program.samples);
        sampling.all(Program::takes_masks)
    }

    /// The inverse of [`Kernels::split`] if those programs were the last of their targets.
    pub(crate) fn join(&mut self, apart: ApartPrograms) {
        let of_images = |mut program: Program| {
            program.images = program.logits != LogitsRows::Image;
            program
        };
        for (target, programs) in self.targets.iter_mut().zip(apart.hidden) {
            target.programs.extend(programs);
        }
        for (target, programs) in self.targets.iter_mut().zip(apart.image) {
            target.programs.extend(programs.into_iter().map(of_images));
        }
        for (target, programs) in self.targets.iter_mut().zip(apart.mixed) {
            target.programs.extend(programs);
        }
        for (target, programs) in self.targets.iter_mut().zip(apart.beside_two) {
            target.programs.extend(programs);
        }
        for (target, programs) in self.targets.iter_mut().zip(apart.predicted) {
            target.programs.extend(programs);
        }
    }
}

/// Programs that readers of earlier versions do not know, one list a target.
#[derive(Default)]
pub(crate) struct ApartPrograms {
    /// Those that write hidden rows.
    pub(crate) hidden: Vec<Vec<Program>>,
    /// Those that make rows of images, and those whose rows may be of images.
    pub(crate) image: Vec<Vec<Program>>,
    /// Those whose rows are newest tokens of several sequences and a part of a prompt.
    pub(crate) mixed: Vec<Vec<Program>>,
    /// The same with parts of two prompts.
    pub(crate) beside_two: Vec<Vec<Program>>,
    /// Those that predict the token behind the next one.
    pub(crate) predicted: Vec<Vec<Program>>,
}

#[cfg(feature = "write")]
impl ApartPrograms {
    /// The sections of those that there are.
    pub(crate) fn sections(&self) -> impl Iterator<Item = (SectionKind, Vec<u8>)> {
        let lists = [
            (SectionKind::HiddenPrograms, &self.hidden),
            (SectionKind::ImagePrograms, &self.image),
            (SectionKind::MixedPrograms, &self.mixed),
            (SectionKind::BesideTwoPrograms, &self.beside_two),
            (SectionKind::PredictedPrograms, &self.predicted),
        ];
        let present = lists.into_iter().filter(|(_, lists)| lists.iter().any(|programs| !programs.is_empty()));
        present.map(|(kind, lists)| (kind, codec::encode(lists)))
    }
}

/// Kernels and programs of one kind of device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetKernels {
    /// Name of the target for `--target`.
    pub name: String,
    /// Which devices it is for.
    pub matches: TargetMatch,
    /// SPIR-V, each content once. Entry point `main`.
    pub modules: ModuleSet,
    /// Kernels, which programs name by their index.
    pub pipelines: Vec<Pipeline>,
    /// Lists of dispatches, by size and purpose of a step.
    pub programs: Vec<Program>,
    /// Index into `pipelines` of the kernel that hashes weights in place: bound to a range of weights, a
    /// [`crate::hash::HashedRange`] and 32 bytes for each of the range's subtrees; one workgroup computes one subtree.
    pub checksum: Option<u32>,
    /// Index into `pipelines` of the kernel that reads a buffer once to measure bandwidth: bound to whole blocks of
    /// [`READ_BLOCK_BYTES`] and a word for each workgroup; it runs with any number of workgroups.
    pub bandwidth_probe: Option<u32>,
    /// Index into `pipelines` of the kernel that counts the elements of a cooperative matrix that the device's lanes hold elsewhere
    /// than this target's kernels assume: bound to one word, one workgroup. The target is for devices where the count is 0.
    pub fragments: Option<u32>,
}

impl TargetKernels {
    /// The bindings of each pipeline, a bit each, that all its dispatches declare as written. Every binding of a pipeline without
    /// dispatches, which the runtime binds by itself.
    pub fn writable_bindings(&self) -> Vec<u32> {
        let mut writable = vec![u32::MAX; self.pipelines.len()];
        for dispatch in self.programs.iter().flat_map(|program| &program.dispatches) {
            let written = dispatch.bindings.iter().rev().fold(0, |bits, one| bits << 1 | u32::from(one.writes));
            writable[dispatch.pipeline as usize] &= written;
        }
        writable
    }
}

/// Which devices a target is for: classes that it was made for, and what its kernels require in Vulkan's terms. The runtime
/// takes the first target in the file that fits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetMatch {
    /// The device must belong to one of these; empty: any. A target that was requested by name also runs on devices of other
    /// classes that meet its requirements.
    pub classes: Vec<DeviceClass>,
    /// Subgroup size that the kernels were made for; 0: they use none.
    pub subgroup_size: u32,
    /// Most bytes of workgroup memory that a kernel uses.
    pub shared_memory_bytes: u32,
    /// Most invocations of a workgroup.
    pub workgroup_invocations: u32,
    /// Kernels use packed dot products of int8.
    pub integer_dot_product: bool,
    /// Kernels add to 64-bit integers in buffers by atomics.
    pub int64_atomics: bool,
    /// Writes of a dispatch become visible to later dispatches without barriers, also transitively: the Vulkan memory model with
    /// chains of availability and visibility.
    pub memory_model_chains: bool,
    /// Kernels use cooperative matrices of f16 with f32 sums, of these sides, and with them the Vulkan memory model and arithmetic in
    /// f16.
    pub matrix_sides: MatrixSides,
}

/// Sides of cooperative matrices, each below 256, in a number: the side of square ones, others as `m + 256 n + 65536 k`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MatrixSides(pub u32);

impl MatrixSides {
    /// No matrices.
    pub const NONE: MatrixSides = MatrixSides(0);

    /// Rows m of the left matrix and of sums, columns n of the right matrix and of sums, and what is summed over, k.
    pub fn of([m, n, k]: [u8; 3]) -> MatrixSides {
        MatrixSides(if m == n && n == k { m.into() } else { u32::from_le_bytes([m, n, k, 0]) })
    }

    /// m, n and k; `None`: there are no matrices.
    pub fn get(self) -> Option<[u32; 3]> {
        match self.0.to_le_bytes() {
            [0, 0, 0, 0] => None,
            [_, 0, 0, 0] => Some([self.0; 3]),
            [m, n, k, _] => Some([m, n, k].map(u32::from)),
        }
    }
}

/// One kernel of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    /// Name for people and profiles.
    pub name: String,
    /// Number of a module of the target.
    pub module: u32,
    /// Storage buffers 0..bindings of descriptor set 0.
    pub bindings: u32,
    /// Other kernels with the same result, from which `unicorn-run tune` picks the fastest on a device.
    pub alternatives: Vec<Alternative>,
}

/// A module that can replace a pipeline's own: it reads and writes the same, except for the last bits of sums, with its own
/// number of workgroups ([`Dispatch::alternatives`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// Name for people and profiles.
    pub name: String,
    /// Number of a module of the target.
    pub module: u32,
}

/// One step of the model over at most `rows` token rows, recorded once and run many times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Most token rows.
    pub rows: u32,
    /// Which rows get logits.
    pub logits: LogitsRows,
    /// Whether the last dispatch samples a token from each row of the logits into the output buffer.
    pub samples: bool,
    /// Each row is the newest token of a sequence of its own.
    pub batch: bool,
    /// Its rows may be of images, see [`crate::step::ImageNumbers`]. Such programs have a section of their own, in which this is not written.
    #[serde(skip)]
    pub images: bool,
    /// Number of cached tokens of a sequence from which on this runs instead of the program that is otherwise equal; 0: always.
    pub from_tokens: u32,
    /// Dispatches in order.
    pub dispatches: Vec<Dispatch>,
}

impl Program {
    /// Whether it makes rows of images, or may have some.
    pub fn is_of_images(&self) -> bool {
        self.images || self.logits == LogitsRows::Image
    }

    /// Whether its sampler, the last dispatch, takes masks of the tokens that may be sampled (`step::feeds_and_mask`): the step buffer, which
    /// samplers write, is bound to it a second time, to be read.
    pub fn takes_masks(&self) -> bool {
        let binds_step = |dispatch: &Dispatch, writes: bool| {
            dispatch.bindings.iter().any(|binding| binding.buffer == BufferRef::Step && binding.writes == writes)
        };
        self.samples && self.dispatches.last().is_some_and(|last| binds_step(last, true) && binds_step(last, false))
    }

    /// Whether the buffer of logits gets rows of the model's stream.
    pub fn gives_hidden_rows(&self) -> bool {
        matches!(self.logits, LogitsRows::Hidden | LogitsRows::Image)
    }

    /// Elements between the hidden rows that it writes; `None`: it writes none, or parts of rows.
    pub fn hidden_stride(&self) -> Option<u32> {
        let row_bytes = 4 * u64::from(self.rows);
        let bindings = || self.dispatches.iter().flat_map(|dispatch| &dispatch.bindings);
        let written = bindings().find(|binding| binding.writes && binding.buffer == BufferRef::Logits)?;
        let is_whole = self.gives_hidden_rows() && row_bytes > 0 && written.len_bytes.is_multiple_of(row_bytes);
        u32::try_from(written.len_bytes / row_bytes.max(1)).ok().filter(|&stride| is_whole && stride > 0)
    }
}

/// Which rows of a step get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogitsRows {
    /// No row.
    None,
    /// Only row `StepHeader::logits_row`; its logits are row 0 of the logits buffer.
    One,
    /// Every row.
    All,
    /// No row; instead of logits, the buffer gets the head's input: the hidden row of every row, after the final norm, f32. The
    /// binding's length is a multiple of the program's rows. Such programs have a section of their own.
    Hidden,
    /// No row: the program makes rows of an image's patches, and the buffer gets these, in the same form. Such programs have a section of
    /// their own.
    Image,
    /// The first rows, at most [`crate::step::MAX_SAMPLERS`]: a token is sampled for each sampler of the step. Rows from
    /// `StepHeader::apart_rows` on are of a prompt. Such programs have a section of their own.
    Samplers,
    /// The only row, whose token was sampled and is not in the cache yet; its logits are those of the token that follows it, as the model's
    /// head for drafts predicts it. Such programs have a section of their own.
    Predicted,
    /// As `Samplers`, but that rows behind `StepHeader::apart_rows` are of one prompt or of two: see [`crate::step::rows_apart`]. Such programs have a
    /// section of their own.
    SamplersBesideTwo,
}

impl LogitsRows {
    /// Most prompts of which a step has parts, beside newest tokens of other sequences; 0: its rows are not mixed.
    pub fn prompts_beside(self) -> usize {
        match self {
            LogitsRows::Samplers => 1,
            LogitsRows::SamplersBesideTwo => 2,
            LogitsRows::None
            | LogitsRows::One
            | LogitsRows::All
            | LogitsRows::Hidden
            | LogitsRows::Image
            | LogitsRows::Predicted => 0,
        }
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Index into [`TargetKernels::pipelines`].
    pub pipeline: u32,
    /// Workgroups along x, y and z.
    pub workgroups: [u32; 3],
    /// The same for each of the pipeline's alternatives, in order.
    pub alternatives: Vec<[u32; 3]>,
    /// A range for each binding of the pipeline, in order.
    pub bindings: Vec<Binding>,
    /// How it waits for those before it.
    pub order: Order,
    /// Layer and role, for people.
    pub label: String,
    /// Weight bytes that this dispatch reads.
    pub weight_bytes: u64,
}

/// How a dispatch is ordered after those whose results it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// It neither accesses a range that a dispatch since the last barrier wrote, nor overwrites one that such a dispatch read.
    Free,
    /// A barrier comes before it.
    Barrier,
    /// Counter synchronisation: its workgroups wait until the counter shows that all those of the dispatch before have ended.
    CounterSync,
}

/// A range of one of the runtime's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Which buffer.
    pub buffer: BufferRef,
    /// Offset in the buffer. 0 with `len_bytes` 0 means the whole buffer.
    pub offset_bytes: u64,
    /// Length of the range; 0 at offset 0: the whole buffer.
    pub len_bytes: u64,
    /// Whether the kernel writes it.
    pub writes: bool,
}

/// A buffer of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BufferRef {
    /// Weight section `slice`.
    Weights {
        /// Index of the section.
        slice: u32,
    },
    /// Activations.
    Arena,
    /// Keys of one layer of a KV group: its part of the pool, all pages.
    Keys {
        /// Index into the plan's KV groups.
        group: u32,
        /// Layer within the group.
        layer: u32,
    },
    /// Values of one layer of a KV group, in the same form.
    Values {
        /// Index into the plan's KV groups.
        group: u32,
        /// Layer within the group.
        layer: u32,
    },
    /// `step::StepHeader`, rows, samplers, histories and block tables.
    Step,
    /// f32 rows of logits.
    Logits,
    /// `step::Output`s.
    Output,
    /// What the host writes for a step beside its tokens: patches of an image, or rows of images. Only in programs of images.
    Input,
}
