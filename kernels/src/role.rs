//! What each buffer is to its kernel, and how WGSL declares it: the vocabulary in which kernels and dispatches are wired.

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
