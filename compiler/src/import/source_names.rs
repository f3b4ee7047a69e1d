//! Which canonical tensors a tensor of a folder holds, by its name.

use super::config::ModelConfig;
use super::interleaved;
use super::transposed;

/// The role of a source tensor in text generation.
#[derive(Debug, PartialEq)]
pub(super) enum Role {
    /// Its canonical name, projections still fused.
    Text(String),
    /// A tower for images or sound, or its projector; a head that predicts further tokens.
    Unused,
    /// A buffer that old checkpoints store and the config determines.
    Buffer,
}

/// The role of a tensor of this name.
pub(super) fn role_of(source_name: &str) -> Role {
    const UNUSED: [&str; 7] =
        ["vision_tower.", "multi_modal_projector.", "visual.", "mtp.", "audio_tower.", "embed_vision.", "embed_audio."];
    // Multimodal prefixes as transformers 5 and 4 write them, then the text-only one.
    const TEXT: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];
    let without_model = source_name.strip_prefix("model.").unwrap_or(source_name);
    if UNUSED.iter().any(|prefix| without_model.starts_with(prefix)) {
        return Role::Unused;
    }
    if source_name.ends_with("rotary_emb.inv_freq") {
        return Role::Buffer;
    }
    let canonical = TEXT.iter().find_map(|prefix| source_name.strip_prefix(prefix)).unwrap_or(source_name);
    let is_mixtral = canonical.contains(MIXTRAL[0].0);
    let names = MIXTRAL.iter().filter(|_| is_mixtral);
    Role::Text(names.fold(canonical.to_owned(), |name, (theirs, ours)| name.replace(theirs, ours)))
}

/// Names of Mixtral's tensors as transformers 4 has them, and ours; the first is in all of them.
const MIXTRAL: [(&str, &str); 4] = [
    ("block_sparse_moe.", "mlp."),
    (".w1.weight", ".gate_proj.weight"),
    (".w2.weight", ".down_proj.weight"),
    (".w3.weight", ".up_proj.weight"),
];

/// A canonical name with its terms for experts replaced by Mixtral's.
pub(crate) fn mixtral_name(name: &str) -> String {
    if name.contains(".mlp.") {
        MIXTRAL.iter().fold(name.to_owned(), |name, (theirs, ours)| name.replace(ours, theirs))
    } else {
        name.to_owned()
    }
}

/// The canonical tensors that a source tensor of this name holds, whether or not the model has them.
pub(super) fn source_parts(config: &ModelConfig, source_name: &str) -> Vec<String> {
    match role_of(source_name) {
        Role::Text(canonical) => parts_of(config, &config.folder.canonical(&canonical)),
        Role::Unused | Role::Buffer => vec![source_name.to_owned()],
    }
}

/// Number of experts whose matrices a source tensor stacks, as transformers 5 does.
pub(super) fn stacked_experts(config: &ModelConfig, canonical: &str) -> Option<usize> {
    let is_stack = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"].iter().any(|name| canonical.ends_with(name));
    config.experts.as_ref().map(|experts| experts.count).filter(|_| is_stack)
}

/// The tensors that a source tensor holds: several for fused projections and for stacked experts.
pub(super) fn parts_of(config: &ModelConfig, canonical: &str) -> Vec<String> {
    if let Some(stack) = transposed::stack(config, canonical) {
        return stack.parts.into_iter().map(|(part, _)| part).collect();
    }
    if let Some(experts) = stacked_experts(config, canonical) {
        let (block, name) = canonical.rsplit_once('.').expect("a stack has a block");
        let parts: &[&str] = if name == "down_proj" { &["down_proj"] } else { &["gate_proj", "up_proj"] };
        let of_expert = |expert| parts.iter().map(move |part| format!("{block}.{expert}.{part}.weight"));
        return (0..experts).flat_map(of_expert).collect();
    }
    if let Some(parts) = interleaved::parts(config, canonical) {
        return parts.into_iter().map(|part| part.name).collect();
    }
    const FUSED: [(&str, &[&str]); 2] =
        [("qkv_proj.weight", &["q_proj", "k_proj", "v_proj"]), ("gate_up_proj.weight", &["gate_proj", "up_proj"])];
    for (fused, parts) in FUSED {
        if let Some(block) = canonical.strip_suffix(fused) {
            return parts.iter().map(|part| format!("{block}{part}.weight")).collect();
        }
    }
    vec![canonical.to_owned()]
}
