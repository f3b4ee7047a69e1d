//! The role of each buffer in a kernel, and its declaration in WGSL: the terms in which dispatches are wired.

/// A binding of a kernel; its position in [`KernelSpec::bindings`](crate::KernelSpec::bindings) is its number in the shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingSpec {
    /// Role of the buffer.
    pub role: Role,
    /// Whether the kernel writes to the buffer.
    pub writes: bool,
}

/// Roles of a kernel's buffers, by which a dispatch is wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The step's header and rows, see `unicorn_artifact::step`.
    Step,
    /// The same, which the kernel also prepares for the next step.
    StepState,
    /// The words of the step buffer, in which masks of tokens lie, see `sample`.
    Masks,
    /// The packed matrix.
    Weights,
    /// The packed matrices behind those: this part of a stack, of which `Weights` is part 0.
    WeightsPart(u8),
    /// The activation that is read.
    Input,
    /// The same, read four elements at a time.
    InputQuads,
    /// The same as integers (rows of `activation_format`), sixteen codes at a time.
    QuantizedInput,
    /// The second operand.
    Second,
    /// The third operand.
    Third,
    /// The fourth operand.
    Fourth,
    /// Keys of an image's patches, read four elements at a time.
    PatchKeys,
    /// Values of an image's patches, read four elements at a time.
    PatchValues,
    /// The logits by which experts are chosen.
    RouterLogits,
    /// The experts of each row, see `route`; read by the kernel.
    Routes,
    /// The experts of each row; written by the kernel.
    MadeRoutes,
    /// Factor of each expert's weight.
    ExpertScale,
    /// What is added to each expert's score where experts are chosen.
    ChoiceBias,
    /// The step's rows by expert, see `expert_rows`; read by the kernel.
    ExpertRows,
    /// The step's rows by expert; written by the kernel.
    MadeExpertRows,
    /// The streams of the residual beside the active one, see `streams`; read by the kernel.
    Streams,
    /// The same; written by the kernel.
    MadeStreams,
    /// Weights, one after the other, of what is done with streams: see `altup`, `laurel` and `streams`.
    StreamWeights,
    /// The active stream as the layer's last gate reads it, see `altup`.
    ScaledOutput,
    /// The residual stream before the sum.
    Residual,
    /// Rows that the host writes for rows of images, see `embed`.
    InputRows,
    /// The activation that is written.
    Output,
    /// The same, written and read by workgroups of one dispatch.
    ExchangedOutput,
    /// The same, written four elements at a time.
    OutputQuads,
    /// The same as integers: rows of `activation_format`.
    Encoded,
    /// Partial results of attention, one for each split, see `combine`.
    Partials,
    /// The same, written and read by workgroups of one dispatch.
    Exchange,
    /// Sums of cooperative matrices, written and read by workgroups of one dispatch.
    ExchangedSums,
    /// The packed matrix of the next matmul, see `fused_tail`.
    TailWeights,
    /// Sums to which workgroups add their parts, see `fixed_sums`.
    FixedSums,
    /// Sums to which the next dispatch adds; the kernel zeroes them.
    ClearedFixedSums,
    /// The activation that is read, as fixed-point sums.
    InputFixedSums,
    /// Completion counters of the parts that have been written; 0 between dispatches.
    CompletionCounters,
    /// The slots of the dispatch before and of this one, see `counter_sync`.
    SyncCounters,
    /// The slots of the whole program.
    AllSyncCounters,
    /// The residual stream after the sum.
    Sum,
    /// One f32 for each output of the matrix or element of the row.
    Bias,
    /// Divisor of the products of gate and up before they become f16: a power of two that no product exceeds.
    ProductFactor,
    /// Weight of the norm that is applied to the result.
    NormWeight,
    /// Weight of the norm on the input before it is added to the residual.
    PostNormWeight,
    /// Weight of the RMS norm of query heads: (head_dim) f32.
    QueryNorm,
    /// Weight of the RMS norm of key heads: (head_dim) f32.
    KeyNorm,
    /// A logit of each query head that takes its share of the softmax and has no value: (heads) f32.
    Sinks,
    /// Cosines and sines, see `heads`.
    RopeTable,
    /// The pool of key pages, see `cache`.
    Keys,
    /// The pool of value pages, see `cache`.
    Values,
    /// The first half of each page of recurrent state, see `recurrent_state`.
    StateLow,
    /// The second half.
    StateHigh,
    /// Weights of a short convolution: (channels, taps) f32.
    Taps,
    /// Decay of each head's state, as projected from the row.
    Decay,
    /// Strength of the correction of each head's state, as projected from the row.
    Strength,
    /// Logarithm of each head's rate of decay: (heads) f32.
    DecayRate,
    /// Weight of the RMS norm of each head of a recurrent layer: (head_dim) f32.
    HeadNorm,
    /// The samples: `unicorn_artifact::step::Output`s.
    Sampled,
    /// `unicorn_artifact::hash::HashedRange`, of the bytes that are bound as weights.
    HashedRange,
    /// Hashes: eight words for each subtree of that range.
    Hashes,
    /// One word a workgroup: the exclusive or of all words that it has read.
    Folded,
}

impl Role {
    /// Whether it is an activation that a dispatch of a step writes for a later one.
    fn is_of_the_step(self) -> bool {
        matches!(
            self,
            Role::Input
                | Role::InputQuads
                | Role::InputFixedSums
                | Role::QuantizedInput
                | Role::Second
                | Role::Decay
                | Role::Strength
                | Role::RouterLogits
                | Role::Routes
                | Role::MadeRoutes
                | Role::Residual
                | Role::Output
                | Role::OutputQuads
                | Role::Encoded
                | Role::Sum
                | Role::FixedSums
                | Role::ClearedFixedSums
        )
    }

    fn is_written(self) -> bool {
        matches!(
            self,
            Role::StepState
                | Role::Output
                | Role::ExchangedOutput
                | Role::MadeStreams
                | Role::ScaledOutput
                | Role::OutputQuads
                | Role::Encoded
                | Role::Partials
                | Role::Exchange
                | Role::ExchangedSums
                | Role::FixedSums
                | Role::ClearedFixedSums
                | Role::CompletionCounters
                | Role::SyncCounters
                | Role::MadeRoutes
                | Role::MadeExpertRows
                | Role::Sum
                | Role::Keys
                | Role::Values
                | Role::StateLow
                | Role::StateHigh
                | Role::Sampled
                | Role::Hashes
                | Role::Folded
        )
    }
}

/// The bindings of these roles, some of which are written.
pub(crate) fn bindings(roles: impl IntoIterator<Item = Role>) -> Vec<BindingSpec> {
    roles.into_iter().map(|role| BindingSpec { role, writes: role.is_written() }).collect()
}

/// The number of rows, in WGSL, of an activation that has `rows_per_token` rows for each row of the step.
pub(crate) fn rows_of_step(rows_per_token: usize) -> String {
    match rows_per_token {
        1 => "step.header.n_rows".into(),
        many => format!("step.header.n_rows * {many}u"),
    }
}

/// `var` declarations of `bindings` in WGSL: each role has one name and one element type everywhere.
pub(crate) fn declarations(bindings: &[BindingSpec]) -> String {
    declare(bindings, |_| false, &[])
}

/// The same for a kernel that may have `counter_sync`, and that loads from the buffers of `guarded` before it waits.
///
/// Buffers that dispatches synchronised by counters write for each other are `@coherent`: there is no barrier between them that
/// would make the writes visible. Buffers of `guarded` are declared as if the kernel wrote them: NVIDIA's compiler moves loads of
/// data that no invocation writes to where they are used, behind the wait, and there they take the time of a read of memory.
pub(crate) fn declarations_with_sync(bindings: &[BindingSpec], counter_sync: bool, guarded: &[Role]) -> String {
    declare(bindings, |role| counter_sync && role.is_of_the_step(), if counter_sync { guarded } else { &[] })
}

fn declare(bindings: &[BindingSpec], is_coherent: impl Fn(Role) -> bool, guarded: &[Role]) -> String {
    let declare = |(number, binding): (usize, &BindingSpec)| {
        let (name, kind) = match binding.role {
            Role::Step | Role::StepState => ("step", "Step"),
            Role::Masks => ("masks", "array<u32>"),
            Role::Weights | Role::WeightsPart(_) => ("weights", "array<vec4<u32>>"),
            Role::Input => ("input", "array<f32>"),
            Role::InputQuads => ("input", "array<vec4<f32>>"),
            Role::QuantizedInput => ("codes", "array<vec4<u32>>"),
            Role::Second => ("second", "array<f32>"),
            Role::Third => ("third", "array<f32>"),
            Role::Fourth => ("fourth", "array<f32>"),
            Role::PatchKeys => ("patch_keys", "array<vec4<f32>>"),
            Role::PatchValues => ("patch_values", "array<vec4<f32>>"),
            Role::RouterLogits => ("router_logits", "array<f32>"),
            Role::Routes | Role::MadeRoutes => ("routes", "array<u32>"),
            Role::ExpertScale => ("expert_scale", "array<f32>"),
            Role::ChoiceBias => ("choice_bias", "array<f32>"),
            Role::ExpertRows | Role::MadeExpertRows => ("expert_rows", "array<u32>"),
            Role::InputRows => ("input_rows", "array<f32>"),
            Role::Streams => ("streams", "array<f32>"),
            Role::MadeStreams => ("made_streams", "array<f32>"),
            Role::StreamWeights => ("stream_weights", "array<f32>"),
            Role::ScaledOutput => ("scaled_output", "array<f32>"),
            Role::Residual => ("residual", "array<vec4<f32>>"),
            Role::Output | Role::ExchangedOutput => ("output", "array<f32>"),
            Role::OutputQuads => ("output", "array<vec4<f32>>"),
            Role::Encoded => ("encoded", "array<u32>"),
            Role::Partials | Role::Exchange => ("partials", "array<vec4<f32>>"),
            Role::ExchangedSums => ("partials", "array<f32>"),
            Role::TailWeights => ("tail_weights", "array<vec4<u32>>"),
            Role::FixedSums => ("fixed_sums", "array<atomic<i64>>"),
            Role::ClearedFixedSums => ("cleared_fixed_sums", "array<vec4<i64>>"),
            Role::InputFixedSums => ("input", "array<vec4<i64>>"),
            Role::CompletionCounters => ("completion_counters", "array<atomic<u32>>"),
            Role::SyncCounters => ("sync_counters", "array<atomic<u32>>"),
            Role::AllSyncCounters => ("all_sync_counters", "array<u32>"),
            Role::Sum => ("sum", "array<vec4<f32>>"),
            Role::Bias => ("bias", "array<f32>"),
            Role::ProductFactor => ("product_factor", "array<f32>"),
            Role::NormWeight => ("norm_weight", "array<vec4<f32>>"),
            Role::PostNormWeight => ("post_norm_weight", "array<vec4<f32>>"),
            Role::QueryNorm => ("query_norm", "array<f32>"),
            Role::KeyNorm => ("key_norm", "array<f32>"),
            Role::Sinks => ("sinks", "array<f32>"),
            Role::RopeTable => ("rope_table", "array<vec2<f32>>"),
            Role::Keys => ("keys", "array<vec4<u32>>"),
            Role::Values => ("values", "array<vec4<u32>>"),
            Role::StateLow => ("state_low", "array<f32>"),
            Role::StateHigh => ("state_high", "array<f32>"),
            Role::Taps => ("taps", "array<f32>"),
            Role::Decay => ("decay", "array<f32>"),
            Role::Strength => ("strength", "array<f32>"),
            Role::DecayRate => ("decay_rate", "array<f32>"),
            Role::HeadNorm => ("head_norm", "array<f32>"),
            Role::Sampled => ("sampled", "array<Output>"),
            Role::HashedRange => ("hashed_range", "vec4<u32>"),
            Role::Hashes => ("hashes", "array<vec4<u32>>"),
            Role::Folded => ("folded", "array<u32>"),
        };
        let access = if binding.writes || guarded.contains(&binding.role) { "read_write" } else { "read" };
        let is_exchanged = matches!(binding.role, Role::Exchange | Role::ExchangedSums | Role::ExchangedOutput);
        let coherent = if is_exchanged || is_coherent(binding.role) { " @coherent" } else { "" };
        let part = if let Role::WeightsPart(part) = binding.role { format!("_{part}") } else { String::new() };
        format!("@group(0) @binding({number}){coherent} var<storage, {access}> {name}{part}: {kind};\n")
    };
    bindings.iter().enumerate().map(declare).collect()
}
