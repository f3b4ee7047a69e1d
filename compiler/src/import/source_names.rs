//! Which canonical tensors a tensor of a folder holds, by its name.

use super::config::ModelConfig;
use super::experts_config::ExpertNames;
use super::interleaved;
use super::predictor;
use super::strided;
use super::vision;

/// The role of a source tensor in text generation.
#[derive(Debug, PartialEq)]
pub(super) enum Role {
    /// Its canonical name, projections still fused.
    Text(String),
    /// The canonical name of a tensor of a vision tower or its projector, which is read if the config has one.
    Image(String),
    /// What the name of a tensor of a head that predicts the token behind the next has behind its prefix.
    Predictor(String),
    /// A tower for images or sound, or its projector.
    Unused,
    /// A buffer that old checkpoints store and the config determines.
    Buffer,
}

/// The role of a tensor of this name.
pub(super) fn role_of(source_name: &str) -> Role {
    const UNUSED: [&str; 6] =
        ["vision_tower.", "multi_modal_projector.", "visual.", "audio_tower.", "embed_vision.", "embed_audio."];
    // Multimodal prefixes as transformers 5 and 4 write them, then the text-only one.
    const TEXT: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];
    let without_model = source_name.strip_prefix("model.").unwrap_or(source_name);
    if let Some(canonical) = vision::canonical(source_name) {
        return Role::Image(canonical);
    }
    if let Some(name) = without_model.strip_prefix(predictor::PREFIX) {
        return Role::Predictor(name.to_owned());
    }
    if UNUSED.iter().any(|prefix| without_model.starts_with(prefix)) {
        return Role::Unused;
    }
    if source_name.ends_with("rotary_emb.inv_freq") {
        return Role::Buffer;
    }
    let canonical = TEXT.iter().find_map(|prefix| source_name.strip_prefix(prefix)).unwrap_or(source_name);
    let numbered = [MIXTRAL, LFM2].into_iter().find(|(theirs, _)| canonical.contains(theirs));
    let Some((theirs, ours)) = numbered else { return Role::Text(canonical.to_owned()) };
    let in_block = canonical.replace(theirs, ours);
    Role::Text(NUMBERED.iter().fold(in_block, |name, (theirs, ours)| name.replace(theirs, ours)))
}

/// Blocks whose matrices of experts have numbers for names, and ours: Mixtral's as transformers 4 has it, and LFM2's.
const MIXTRAL: (&str, &str) = ("block_sparse_moe.", "mlp.");
const LFM2: (&str, &str) = ("feed_forward.experts.", "mlp.experts.");
const NUMBERED: [(&str, &str); 3] =
    [(".w1.weight", ".gate_proj.weight"), (".w2.weight", ".down_proj.weight"), (".w3.weight", ".up_proj.weight")];

/// A folder's name with its terms for experts, where those are ours, replaced by the ones that such a folder has.
pub(crate) fn expert_source_name(names: ExpertNames, name: &str) -> String {
    let (theirs, ours) = match names {
        ExpertNames::Mixtral => MIXTRAL,
        // `FolderLayout` gives back the block.
        ExpertNames::Lfm2 => (LFM2.0, LFM2.0),
        _ => return name.to_owned(),
    };
    if !name.contains(ours) {
        return name.to_owned();
    }
    NUMBERED.iter().fold(name.replace(ours, theirs), |name, (theirs, ours)| name.replace(ours, theirs))
}

/// The canonical tensors that a source tensor of this name holds, whether or not the model has them.
pub(super) fn source_parts(config: &ModelConfig, source_name: &str) -> Vec<String> {
    match role_of(source_name) {
        Role::Text(canonical) => parts_of(config, &config.folder.canonical(&canonical)),
        Role::Image(canonical) => parts_of(config, &canonical),
        Role::Predictor(_) | Role::Unused | Role::Buffer => vec![source_name.to_owned()],
    }
}

/// Number of experts whose matrices a source tensor stacks, as transformers 5 does.
pub(super) fn stacked_experts(config: &ModelConfig, canonical: &str) -> Option<usize> {
    let is_stack = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"].iter().any(|name| canonical.ends_with(name));
    config.experts.as_ref().map(|experts| experts.count).filter(|_| is_stack)
}

/// The tensors that a source tensor holds: several for fused projections and for stacked experts.
pub(super) fn parts_of(config: &ModelConfig, canonical: &str) -> Vec<String> {
    if let Some(stack) = strided::stack(config, canonical) {
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
    const FUSED: [(&str, &[&str]); 3] = [
        ("qkv_proj.weight", &["q_proj", "k_proj", "v_proj"]),
        ("gate_up_proj.weight", &["gate_proj", "up_proj"]),
        ("kv_a_proj_with_mqa.weight", &["kv_a_proj", "k_rope_proj"]),
    ];
    for (fused, parts) in FUSED {
        if let Some(block) = canonical.strip_suffix(fused) {
            return parts.iter().map(|part| format!("{block}{part}.weight")).collect();
        }
    }
    vec![canonical.to_owned()]
}
