//! What Ollama's clients read of models: `/api/tags`, `/api/ps`, `/api/show`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use unicorn_text::unicorn_runtime::{DeviceKind, Model, Sampling};

use super::date::rfc3339;

/// A loaded model, as each of the three paths describes it.
pub(crate) struct Description {
    /// Entry in the answer of `/api/tags`.
    pub(crate) tag: Value,
    /// Entry in the answer of `/api/ps`.
    pub(crate) running: Value,
    /// The answer of `/api/show`.
    pub(crate) show: Value,
}

/// What a description states about its server, in addition to the model.
pub(crate) struct Served<'s> {
    pub(crate) name: &'s str,
    /// Seconds since 1970 at which the server began.
    pub(crate) since: u64,
    /// The chat template.
    pub(crate) template: &'s str,
    pub(crate) capabilities: &'s [&'static str],
    /// Sampling of a request that names none.
    pub(crate) sampling: &'s Sampling,
}

/// Clients show the first 12 letters of a digest, and fail where there are none.
const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The entry of `/api/tags` for a model that was not loaded yet: nothing is known of it but its name.
pub(crate) fn tag_of_unloaded(name: &str, since: u64) -> Value {
    json!({
        "name": name, "model": name, "modified_at": rfc3339(since), "size": 0, "digest": NO_DIGEST, "details": details("", "", ""),
    })
}

impl Description {
    pub(crate) fn new(model: &Model, served: &Served<'_>) -> Description {
        let (meta, report) = (&model.meta().model, model.report());
        let digest: String = model.content_hash().iter().map(|byte| format!("{byte:02x}")).collect();
        let parameters = human_number(meta.parameters);
        let format = most_used_format(model);
        let mut details = details(&meta.architecture, &parameters, &format);
        (details["context_length"], details["embedding_length"]) =
            (model.context_tokens().into(), meta.hidden_size.into());
        let (name, modified) = (served.name, rfc3339(served.since));
        let mut tag = json!({
            "name": name, "model": name, "modified_at": modified, "size": report.weight_bytes, "digest": digest, "details": details,
        });
        let mut running = tag.clone();
        tag["capabilities"] = served.capabilities.into();
        let bytes: u64 = report.memory.iter().map(|tier| tier.total()).sum();
        running["size"] = bytes.into();
        // A software device computes on the CPU.
        running["size_vram"] = if model.device().kind == DeviceKind::Cpu { 0 } else { bytes }.into();
        running["context_length"] = model.context_tokens().into();
        // The model stays for as long as the server does.
        running["expires_at"] = "9999-12-31T23:59:59Z".into();
        let architecture = if meta.architecture.is_empty() { "unicorn" } else { &meta.architecture };
        let mut info = Map::new();
        info.insert("general.architecture".into(), architecture.into());
        info.insert("general.parameter_count".into(), meta.parameters.into());
        for (key, value) in [
            ("context_length", model.context_tokens()),
            ("embedding_length", meta.hidden_size),
            ("block_count", meta.n_layers),
            ("vocab_size", meta.vocab_size),
        ] {
            info.insert(format!("{architecture}.{key}"), value.into());
        }
        let parameters = sampling_parameters(served.sampling);
        let mut show = json!({
            "modelfile": modelfile(name, &parameters),
            "parameters": lines(&parameters, |name, value| format!("{name:<30} {value}")),
            "template": served.template, "details": details, "modified_at": modified, "capabilities": served.capabilities,
            "model_info": info,
        });
        if let Some(license) = model.license() {
            show["license"] = license.to_string().into();
        }
        Description { tag, running, show }
    }
}

fn details(family: &str, parameter_size: &str, quantization: &str) -> Value {
    let families: Vec<&str> = [family].into_iter().filter(|family| !family.is_empty()).collect();
    json!({
        "format": "unicorn", "family": family, "families": families, "parent_model": "", "parameter_size": parameter_size,
        "quantization_level": quantization,
    })
}

/// The number format of most weights, such as `int4/32`.
fn most_used_format(model: &Model) -> String {
    let mut weights: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in &model.meta().tensors {
        let count = weights.entry(&tensor.format).or_default();
        *count = count.saturating_add(tensor.rows.saturating_mul(tensor.cols));
    }
    weights.into_iter().max_by_key(|(_, weights)| *weights).map(|(format, _)| format.to_owned()).unwrap_or_default()
}

/// Sampling parameters by Ollama's names.
fn sampling_parameters(sampling: &Sampling) -> [(&'static str, String); 6] {
    [
        ("temperature", sampling.temperature.to_string()),
        ("top_k", sampling.top_k.to_string()),
        ("top_p", sampling.top_p.to_string()),
        ("min_p", sampling.min_p.to_string()),
        ("repeat_penalty", sampling.repeat_penalty.to_string()),
        ("repeat_last_n", sampling.repeat_last_n.to_string()),
    ]
}

fn modelfile(name: &str, parameters: &[(&str, String)]) -> String {
    format!("FROM {name}\n{}", lines(parameters, |name, value| format!("PARAMETER {name} {value}")))
}

fn lines(parameters: &[(&str, String)], line: impl Fn(&str, &str) -> String) -> String {
    parameters.iter().map(|(name, value)| line(name, value)).collect::<Vec<_>>().join("\n")
}

/// A number with three digits: `135M`, `7.62B`.
fn human_number(number: u64) -> String {
    let scaled = |unit: f64, letter| {
        let digits = match number as f64 / unit {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            _ => 2,
        };
        format!("{:.digits$}{letter}", number as f64 / unit)
    };
    match number {
        1_000_000_000.. => scaled(1e9, "B"),
        1_000_000.. => scaled(1e6, "M"),
        1_000.. => scaled(1e3, "K"),
        few => few.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_unit() {
        let numbers = [(999, "999"), (1_500, "1.50K"), (134_515_008, "135M"), (27_400_000_000, "27.4B")];
        for (number, text) in numbers {
            assert_eq!(human_number(number), text);
        }
    }

    #[test]
    fn a_model_without_a_digest_has_one_that_clients_can_cut() {
        let tag = tag_of_unloaded("m", 0);
        assert_eq!(tag["digest"].as_str().map(str::len), Some(64));
        assert_eq!(tag["modified_at"], "1970-01-01T00:00:00Z");
    }
}
