//! [`KernelSpec`]: which kernel, with which numbers. Equal specs are one pipeline.
//!
//! A new kernel is a folder with its `Kernel`, its `mod` line in `lib.rs`, and its line in the list below. No other file of this
//! crate imports this one.

use serde::{Deserialize, Serialize};

use crate::fragment_shape::FragmentShape;
use crate::fused_tail::FusedTailSpec;
use crate::kernel::{Kernel, RowAxis};
use crate::role::BindingSpec;

macro_rules! kernels {
    ($($(#[$doc:meta])* $variant:ident($spec:path) $name:literal)*) => {
        /// One specialised kernel.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum KernelSpec {
            $($(#[$doc])* $variant($spec),)*
        }

        impl KernelSpec {
            /// Short name of the family, for labels and profiles.
            pub fn name(&self) -> &'static str {
                match self {
                    $(KernelSpec::$variant(_) => $name,)*
                }
            }

            fn kernel(&self) -> &dyn Kernel {
                match self {
                    $(KernelSpec::$variant(spec) => spec,)*
                }
            }

            fn kernel_mut(&mut self) -> &mut dyn Kernel {
                match self {
                    $(KernelSpec::$variant(spec) => spec,)*
                }
            }
        }
    };
}

kernels! {
    /// Rows of the embedding table.
    Embed(crate::embed::EmbedSpec) "embed"
    /// Residual sum and RMS norm.
    Norm(crate::norm::NormSpec) "norm"
    /// Converts f32 rows to integers or f16.
    Quantize(crate::quantize::QuantizeSpec) "quantize"
    /// Matrix times few rows of activations.
    MatMul(crate::matmul::MatMulSpec) "matmul"
    /// Matrix times many rows, by packed integer dot products.
    DotGemm(crate::dot_gemm::DotGemmSpec) "dot gemm"
    /// Matrix times many rows, in f32.
    FloatGemm(crate::float_gemm::FloatGemmSpec) "float gemm"
    /// Matrix times many rows, on matrix units.
    Gemm(crate::gemm::GemmSpec) "gemm"
    /// Matrix times many rows, on matrix units, with weights straight from registers.
    RegisterGemm(crate::register_gemm::RegisterGemmSpec) "register gemm"
    /// QK norm, RoPE, query scale and KV write.
    Heads(crate::heads::HeadsSpec) "heads"
    /// Attention over the paged KV cache, split over the tokens.
    Attention(crate::attention::AttentionSpec) "attention"
    /// Heads, attention and combine of one row a sequence.
    DecodeAttention(crate::decode_attention::DecodeAttentionSpec) "decode attention"
    /// Attention of many rows, on matrix units.
    Flash(crate::flash::FlashSpec) "flash"
    /// Combines the partial results of attention's splits.
    Combine(crate::combine::CombineSpec) "combine"
    /// One operation on each element.
    Elementwise(crate::elementwise::ElementwiseSpec) "elementwise"
    /// The experts of each row.
    Route(crate::route::RouteSpec) "route"
    /// Routes of rows that are given to every matrix of a stack.
    EveryMatrix(crate::every_matrix::EveryMatrixSpec) "every matrix"
    /// Rearranges the columns of heads.
    HeadColumns(crate::head_columns::HeadColumnsSpec) "head columns"
    /// Table of the rows of each expert.
    ExpertRows(crate::expert_rows::ExpertRowsSpec) "expert rows"
    /// Weighted sum of the results of a row's experts.
    ExpertSum(crate::expert_sum::ExpertSumSpec) "expert sum"
    /// Converts rows to the activations of an NPU program.
    NpuInput(crate::npu_input::NpuInputSpec) "npu input"
    /// Converts an NPU program's outputs to rows.
    NpuOutput(crate::npu_output::NpuOutputSpec) "npu output"
    /// The next token of each sequence.
    Sample(crate::sample::SampleSpec) "sample"
    /// BLAKE3 of weights in device memory.
    Checksum(crate::checksum::ChecksumSpec) "checksum"
    /// Reads a buffer once.
    BandwidthProbe(crate::bandwidth_probe::BandwidthProbeSpec) "bandwidth probe"
    /// Which elements of a cooperative matrix each lane holds.
    Fragments(crate::fragments::FragmentsSpec) "fragments"
    /// Short causal convolution of each channel, with state.
    ShortConv(crate::short_conv::ShortConvSpec) "short conv"
    /// The row before each row of a sequence, with state.
    PreviousRow(crate::previous_row::PreviousRowSpec) "previous row"
    /// Layer norm with weight and bias.
    LayerNorm(crate::layer_norm::LayerNormSpec) "layer norm"
    /// Attention of the patches of an image.
    ImageAttention(crate::image_attention::ImageAttentionSpec) "image attention"
    /// Means over squares of patches.
    ImagePool(crate::image_pool::ImagePoolSpec) "image pool"
    /// Adds learned positions to the patches of an image.
    ImagePositions(crate::image_positions::ImagePositionsSpec) "image positions"
    /// Rotary embedding of the patches of an image.
    ImageRope(crate::image_rope::ImageRopeSpec) "image rope"
    /// Gated delta rule, with state.
    DeltaRule(crate::delta_rule::DeltaRuleSpec) "delta rule"
    /// Gated delta rule of many rows, on matrix units.
    DeltaChunks(crate::delta_chunks::DeltaChunksSpec) "delta chunks"
    /// RMS norm of each head, times a gate.
    GatedNorm(crate::gated_norm::GatedNormSpec) "gated norm"
    /// Streams of the residual, predicted in front of a layer or corrected behind it.
    AltUp(crate::altup::AltUpSpec) "altup"
    /// Streams of the residual beside the active one, at the beginning, in a layer and at the end.
    Streams(crate::streams::StreamsSpec) "streams"
    /// The stream behind attention and a learned augmented residual layer.
    Laurel(crate::laurel::LaurelSpec) "laurel"
    /// Product of gate and up, of which large gates are kept.
    SparseActMul(crate::sparse_act_mul::SparseActMulSpec) "sparse act mul"
}

impl KernelSpec {
    /// Whether the runtime dispatches it outside of programs.
    pub fn is_of_runtime(&self) -> bool {
        self.kernel().is_of_runtime()
    }

    /// The buffers of descriptor set 0, in order.
    pub fn bindings(&self) -> Vec<BindingSpec> {
        self.kernel().bindings()
    }

    /// WGSL with entry point `main`.
    pub fn wgsl(&self) -> String {
        self.kernel().wgsl()
    }

    /// Sides of the cooperative matrices that it multiplies; `None`: those in its WGSL, if it has any.
    pub fn fragment_shape(&self) -> Option<FragmentShape> {
        self.kernel().fragment_shape()
    }

    /// Workgroups (x, y, z) for a program of at most `rows` rows. For [`KernelSpec::Checksum`], `rows` counts subtrees; for
    /// [`KernelSpec::BandwidthProbe`], workgroups.
    pub fn workgroups(&self, rows: usize) -> [usize; 3] {
        self.kernel().workgroups(rows)
    }

    /// The axis of the workgroups that counts rows, by which a dispatch can be divided into parts that depend on their own rows alone; `None`: it cannot.
    pub fn row_axis(&self) -> Option<RowAxis> {
        self.kernel().row_axis()
    }

    /// The flag for counter synchronisation with the dispatches before and after it; `None`: the kernel does not support it.
    pub fn counter_sync(&mut self) -> Option<&mut bool> {
        self.kernel_mut().counter_sync()
    }

    /// The same kernel, which also zeroes `elements` elements of the next dispatch's sums; `None`: it cannot, or zeroes others.
    pub fn clearing(&self, elements: usize) -> Option<KernelSpec> {
        let mut spec = self.clone();
        let cleared_before = std::mem::replace(spec.kernel_mut().clears()?, elements);
        (cleared_before == 0).then_some(spec)
    }

    /// The same kernel, which also computes the next matmul; `None`: not supported.
    pub fn with_fused_tail(&self, next: FusedTailSpec) -> Option<KernelSpec> {
        let mut spec = self.clone();
        *spec.kernel_mut().fused_tail()? = Some(next);
        Some(spec)
    }

    /// The same kernel, whose first norm reads sums instead of f32; `None`: it does not begin with a norm.
    pub fn reading_fixed_sums(&self) -> Option<KernelSpec> {
        let mut spec = self.clone();
        *spec.kernel_mut().reads_fixed_sums()? = true;
        Some(spec)
    }
}
