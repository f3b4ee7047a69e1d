//! [`KernelSpec`]: which kernel, with which numbers. Equal specs are one pipeline.

use serde::{Deserialize, Serialize};

use crate::activations::ActivationFormat;
use crate::attention::AttentionSpec;
use crate::bandwidth_probe::BandwidthProbeSpec;
use crate::checksum::ChecksumSpec;
use crate::combine::CombineSpec;
use crate::decode_attention::DecodeAttentionSpec;
use crate::elementwise::ElementwiseSpec;
use crate::embed::EmbedSpec;
use crate::flash::FlashSpec;
use crate::fragments::FragmentsSpec;
use crate::fused_tail::NextSpec;
use crate::gemm::GemmSpec;
use crate::heads::HeadsSpec;
use crate::matmul::MatMulSpec;
use crate::norm::NormSpec;
use crate::quantize::QuantizeSpec;
use crate::register_gemm::RegisterGemmSpec;
use crate::sample::SampleSpec;

/// One specialised kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KernelSpec {
    Embed(EmbedSpec),
    Norm(NormSpec),
    Quantize(QuantizeSpec),
    MatMul(MatMulSpec),
    Gemm(GemmSpec),
    RegisterGemm(RegisterGemmSpec),
    Heads(HeadsSpec),
    Attention(AttentionSpec),
    DecodeAttention(DecodeAttentionSpec),
    Flash(FlashSpec),
    Combine(CombineSpec),
    Elementwise(ElementwiseSpec),
    Sample(SampleSpec),
    Checksum(ChecksumSpec),
    BandwidthProbe(BandwidthProbeSpec),
    Fragments(FragmentsSpec),
}

/// What a binding is to its kernel; the position in [`KernelSpec::bindings`] is its number in the shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingSpec {
    pub role: Role,
    pub writes: bool,
}

/// The roles that a kernel's buffers play, by which a dispatch is wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Step,
    /// The same, which the kernel prepares for the step after.
    StepState,
    /// The packed matrix.
    Weights,
    /// The activation that is read.
    Input,
    /// The same, read four elements at a time.
    InputQuads,
    /// The same as integers (rows of `activations`), sixteen codes at a time.
    Codes,
    /// The other operand.
    Second,
    /// The residual stream before the sum.
    Residual,
    Output,
    /// The same, written four elements at a time.
    OutputQuads,
    /// The same as integers: rows of `activations`.
    Encoded,
    /// What attention found in each split, see `combine`.
    Partials,
    /// The same, written and read by workgroups of one dispatch.
    Exchange,
    /// Sums of cooperative matrices, written and read likewise.
    ExchangedSums,
    /// The packed matrix behind, see `next`.
    NextWeights,
    /// What workgroups add their parts to, see `sums`.
    Sums,
    /// Others, which the next dispatch adds to: they are zeroed.
    ClearedSums,
    /// The activation that is read, made so.
    InputSums,
    /// Counters of what has been left there; 0 between dispatches.
    Arrivals,
    /// The slots of the dispatch before and of this one, see `chain`.
    Chain,
    /// The slots of the whole program.
    ChainSlots,
    /// The residual stream after the sum.
    Sum,
    Bias,
    /// What the products of gate and up are divided by before they become f16: a power of two, above which none is.
    ProductFactor,
    /// Weight of the norm that is applied to the result.
    NormWeight,
    /// Weight of the norm on the input before it is added to the residual.
    PostNormWeight,
    QueryNorm,
    KeyNorm,
    RopeTable,
    Keys,
    Values,
    /// `unicorn_artifact::step::Output`s.
    Drawn,
    /// `unicorn_artifact::hash::HashedRange`, of the bytes that are bound as weights.
    HashedRange,
    /// Eight words a subtree of that range.
    Hashes,
    /// One word a workgroup, of everything that it has read.
    Folded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Activation {
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

/// An f32 that can be part of a key: compared by its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Number(u32);

impl Role {
    /// Whether it is an activation, which dispatches of a step hand on.
    fn is_of_the_step(self) -> bool {
        matches!(
            self,
            Role::Input
                | Role::InputQuads
                | Role::InputSums
                | Role::Codes
                | Role::Residual
                | Role::Output
                | Role::OutputQuads
                | Role::Encoded
                | Role::Sum
                | Role::Sums
                | Role::ClearedSums
        )
    }

    fn is_written(self) -> bool {
        matches!(
            self,
            Role::StepState
                | Role::Output
                | Role::OutputQuads
                | Role::Encoded
                | Role::Partials
                | Role::Exchange
                | Role::ExchangedSums
                | Role::Sums
                | Role::ClearedSums
                | Role::Arrivals
                | Role::Chain
                | Role::Sum
                | Role::Keys
                | Role::Values
                | Role::Drawn
                | Role::Hashes
                | Role::Folded
        )
    }
}

impl Number {
    pub fn new(value: f32) -> Number {
        Number(value.to_bits())
    }

    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl KernelSpec {
    /// Short name of the family, for labels and profiles.
    pub fn name(&self) -> &'static str {
        match self {
            KernelSpec::Embed(_) => "embed",
            KernelSpec::Norm(_) => "norm",
            KernelSpec::Quantize(_) => "quantize",
            KernelSpec::MatMul(_) => "matmul",
            KernelSpec::Gemm(_) => "gemm",
            KernelSpec::RegisterGemm(_) => "register gemm",
            KernelSpec::Heads(_) => "heads",
            KernelSpec::Attention(_) => "attention",
            KernelSpec::DecodeAttention(_) => "decode attention",
            KernelSpec::Flash(_) => "flash",
            KernelSpec::Combine(_) => "combine",
            KernelSpec::Elementwise(_) => "elementwise",
            KernelSpec::Sample(_) => "sample",
            KernelSpec::Checksum(_) => "checksum",
            KernelSpec::BandwidthProbe(_) => "bandwidth probe",
            KernelSpec::Fragments(_) => "fragments",
        }
    }

    /// Whether the runtime starts it by itself, in no program.
    pub fn is_of_runtime(&self) -> bool {
        matches!(self, KernelSpec::Checksum(_) | KernelSpec::BandwidthProbe(_) | KernelSpec::Fragments(_))
    }

    /// The buffers of descriptor set 0, in order.
    pub fn bindings(&self) -> Vec<BindingSpec> {
        match self {
            KernelSpec::Embed(spec) => spec.bindings(),
            KernelSpec::Norm(spec) => spec.bindings(),
            KernelSpec::Quantize(spec) => spec.bindings(),
            KernelSpec::MatMul(spec) => spec.bindings(),
            KernelSpec::Gemm(spec) => spec.bindings(),
            KernelSpec::RegisterGemm(spec) => spec.bindings(),
            KernelSpec::Heads(spec) => spec.bindings(),
            KernelSpec::Attention(spec) => spec.bindings(),
            KernelSpec::DecodeAttention(spec) => spec.bindings(),
            KernelSpec::Flash(spec) => spec.bindings(),
            KernelSpec::Combine(spec) => spec.bindings(),
            KernelSpec::Elementwise(spec) => spec.bindings(),
            KernelSpec::Sample(spec) => spec.bindings(),
            KernelSpec::Checksum(spec) => spec.bindings(),
            KernelSpec::BandwidthProbe(spec) => spec.bindings(),
            KernelSpec::Fragments(spec) => spec.bindings(),
        }
    }

    /// Whether it counts on the device's lanes to hold fragments of cooperative matrices as `register_gemm` draws them.
    pub fn lanes_hold_fragments(&self) -> bool {
        match self {
            KernelSpec::RegisterGemm(spec) => spec.lanes_hold_fragments,
            KernelSpec::Fragments(_) => true,
            _ => false,
        }
    }

    /// Whether the kernel waits for the dispatch before it, and counts itself for the next, without barriers: `None`, it
    /// cannot.
    pub fn chained(&mut self) -> Option<&mut bool> {
        match self {
            KernelSpec::MatMul(spec) if spec.input != ActivationFormat::F32 => Some(&mut spec.chained),
            KernelSpec::DecodeAttention(spec) => Some(&mut spec.chained),
            KernelSpec::Norm(spec) => Some(&mut spec.chained),
            _ => None,
        }
    }

    /// The kernel that zeroes so many elements of the next dispatch's sums besides; `None`: it cannot, or zeroes others.
    pub fn clearing(&self, elements: usize) -> Option<KernelSpec> {
        let mut spec = self.clone();
        let clears = match &mut spec {
            KernelSpec::MatMul(spec) => &mut spec.clears,
            KernelSpec::DecodeAttention(spec) => &mut spec.clears,
            _ => return None,
        };
        (std::mem::replace(clears, elements) == 0).then_some(spec)
    }

    /// The kernel that does the matmul behind it besides; `None`: it cannot.
    pub fn with_next(&self, next: NextSpec) -> Option<KernelSpec> {
        let mut spec = self.clone();
        match &mut spec {
            KernelSpec::MatMul(spec) => spec.next = Some(next),
            KernelSpec::DecodeAttention(spec) => spec.next = Some(next),
            _ => return None,
        }
        Some(spec)
    }

    /// The kernel whose first norm reads sums instead of f32; `None`: it does not begin with a norm.
    pub fn reading_sums(&self) -> Option<KernelSpec> {
        let mut spec = self.clone();
        match &mut spec {
            KernelSpec::MatMul(spec) => spec.prologue.as_mut()?.sums = true,
            KernelSpec::Norm(spec) => spec.sums = true,
            _ => return None,
        }
        Some(spec)
    }

    /// WGSL with entry point `main`.
    pub fn wgsl(&self) -> String {
        match self {
            KernelSpec::Embed(spec) => spec.wgsl(),
            KernelSpec::Norm(spec) => spec.wgsl(),
            KernelSpec::Quantize(spec) => spec.wgsl(),
            KernelSpec::MatMul(spec) => spec.wgsl(),
            KernelSpec::Gemm(spec) => spec.wgsl(),
            KernelSpec::RegisterGemm(spec) => spec.wgsl(),
            KernelSpec::Heads(spec) => spec.wgsl(),
            KernelSpec::Attention(spec) => spec.wgsl(),
            KernelSpec::DecodeAttention(spec) => spec.wgsl(),
            KernelSpec::Flash(spec) => spec.wgsl(),
            KernelSpec::Combine(spec) => spec.wgsl(),
            KernelSpec::Elementwise(spec) => spec.wgsl(),
            KernelSpec::Sample(spec) => spec.wgsl(),
            KernelSpec::Checksum(spec) => spec.wgsl(),
            KernelSpec::BandwidthProbe(spec) => spec.wgsl(),
            KernelSpec::Fragments(spec) => spec.wgsl(),
        }
    }

    /// Workgroups for a program of at most `rows` rows; of [`KernelSpec::Checksum`], for as many subtrees, and of
    /// [`KernelSpec::BandwidthProbe`] just as many.
    pub fn workgroups(&self, rows: usize) -> [usize; 3] {
        match self {
            KernelSpec::Embed(spec) => spec.workgroups(rows),
            KernelSpec::Norm(_) | KernelSpec::Quantize(_) => [rows, 1, 1],
            KernelSpec::MatMul(spec) => spec.workgroups(rows),
            KernelSpec::Gemm(spec) => spec.workgroups(rows),
            KernelSpec::RegisterGemm(spec) => spec.workgroups(),
            KernelSpec::Heads(spec) => spec.workgroups(rows),
            KernelSpec::Attention(spec) => spec.workgroups(rows),
            KernelSpec::DecodeAttention(spec) => spec.workgroups(rows),
            KernelSpec::Flash(spec) => spec.workgroups(rows),
            KernelSpec::Combine(spec) => spec.workgroups(rows),
            KernelSpec::Elementwise(spec) => spec.workgroups(rows),
            KernelSpec::Sample(_) => [rows, 1, 1],
            KernelSpec::Checksum(_) | KernelSpec::BandwidthProbe(_) => [rows, 1, 1],
            KernelSpec::Fragments(_) => [1, 1, 1],
        }
    }
}

/// A list of bindings from roles, of which some are for writing.
pub(crate) fn bindings(roles: impl IntoIterator<Item = Role>) -> Vec<BindingSpec> {
    roles.into_iter().map(|role| BindingSpec { role, writes: role.is_written() }).collect()
}

/// `var` declarations of `bindings` in WGSL: each role has one name and one element type everywhere.
pub(crate) fn declarations(bindings: &[BindingSpec]) -> String {
    declare(bindings, |_| false, &[])
}

/// The same for a kernel that may be `chained`, and that loads from the buffers of `held` before it waits.
///
/// What dispatches of a chain tell each other is `@coherent`: no barrier makes one see it. Buffers of `held` are declared as if the
/// kernel wrote them: NVIDIA's compiler moves loads of what nobody writes to where they are used, behind the wait, and there they take
/// the time of a read of memory.
pub(crate) fn declarations_of_chain(bindings: &[BindingSpec], chained: bool, held: &[Role]) -> String {
    declare(bindings, |role| chained && role.is_of_the_step(), if chained { held } else { &[] })
}

fn declare(bindings: &[BindingSpec], is_told: impl Fn(Role) -> bool, held: &[Role]) -> String {
    let declare = |(number, binding): (usize, &BindingSpec)| {
        let (name, kind) = match binding.role {
            Role::Step | Role::StepState => ("step", "Step"),
            Role::Weights => ("weights", "array<vec4<u32>>"),
            Role::Input => ("input", "array<f32>"),
            Role::InputQuads => ("input", "array<vec4<f32>>"),
            Role::Codes => ("codes", "array<vec4<u32>>"),
            Role::Second => ("second", "array<f32>"),
            Role::Residual => ("residual", "array<vec4<f32>>"),
            Role::Output => ("output", "array<f32>"),
            Role::OutputQuads => ("output", "array<vec4<f32>>"),
            Role::Encoded => ("encoded", "array<u32>"),
            Role::Partials | Role::Exchange => ("partials", "array<vec4<f32>>"),
            Role::ExchangedSums => ("partials", "array<f32>"),
            Role::NextWeights => ("fused_weights", "array<vec4<u32>>"),
            Role::Sums => ("sums", "array<atomic<i64>>"),
            Role::ClearedSums => ("cleared_sums", "array<vec4<i64>>"),
            Role::InputSums => ("input", "array<vec4<i64>>"),
            Role::Arrivals => ("arrivals", "array<atomic<u32>>"),
            Role::Chain => ("chain", "array<atomic<u32>>"),
            Role::ChainSlots => ("chain_slots", "array<u32>"),
            Role::Sum => ("sum", "array<vec4<f32>>"),
            Role::Bias => ("bias", "array<f32>"),
            Role::ProductFactor => ("product_factor", "array<f32>"),
            Role::NormWeight => ("norm_weight", "array<vec4<f32>>"),
            Role::PostNormWeight => ("post_norm_weight", "array<vec4<f32>>"),
            Role::QueryNorm => ("query_norm", "array<f32>"),
            Role::KeyNorm => ("key_norm", "array<f32>"),
            Role::RopeTable => ("rope_table", "array<vec2<f32>>"),
            Role::Keys => ("keys", "array<vec4<u32>>"),
            Role::Values => ("values", "array<vec4<u32>>"),
            Role::Drawn => ("drawn", "array<Output>"),
            Role::HashedRange => ("hashed_range", "vec4<u32>"),
            Role::Hashes => ("hashes", "array<vec4<u32>>"),
            Role::Folded => ("folded", "array<u32>"),
        };
        let access = if binding.writes || held.contains(&binding.role) { "read_write" } else { "read" };
        let is_exchanged = matches!(binding.role, Role::Exchange | Role::ExchangedSums);
        let coherent = if is_exchanged || is_told(binding.role) { " @coherent" } else { "" };
        format!("@group(0) @binding({number}){coherent} var<storage, {access}> {name}: {kind};\n")
    };
    bindings.iter().enumerate().map(declare).collect()
}

impl Activation {
    /// The function itself, for twins.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}
