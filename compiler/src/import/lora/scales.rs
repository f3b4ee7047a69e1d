//! The factors of an adapter's products, by adapter_config.json; other kinds of adapters are refused by name.
//!
//! Keys of `alpha_pattern` are regular expressions, which PEFT matches with a module's name as `(.*\.)?(KEY)$`. Read are those that name a module or
//! its end, as PEFT itself and people write them.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::files::WEIGHTS_FILE;
use crate::error::{CompileError, Result};
use crate::import::json::Fields;

/// Larger than any trained rank; products of sizes stay far from overflow.
const MAX_RANK: usize = 1 << 16;

/// Fields by which an adapter is more than products of two matrices, or its model has other layers than its base.
const OTHERS: [&str; 12] = [
    "use_dora",
    "fan_in_fan_out",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
    "layer_replication",
    "modules_to_save",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
];

/// Scale of a product: alpha / rank, or alpha / √rank.
pub(super) struct Scales {
    /// `r` and those of `rank_pattern`. The matrices tell which of them is a module's.
    ranks: BTreeSet<usize>,
    alpha: f64,
    by_root: bool,
    /// In the file's order: the first that matches is taken.
    alphas: Vec<(Pattern, f64)>,
}

impl Scales {
    /// Of the adapter whose config is at `path`.
    ///
    /// # Errors
    /// For another kind of adapter, and where a value is missing or none that PEFT writes.
    pub fn read(path: &Path, config: &Value) -> Result<Scales> {
        let fields = Fields::root(path, config)?;
        let unsupported = |what: String| {
            let detail = "merged are adapters of kind LORA that add products of two matrices; PEFT itself merges others: \
                          merge_and_unload().save_pretrained(FOLDER)";
            Err(CompileError::Unsupported { what: format!("{}: {what}", path.display()), detail: detail.into() })
        };
        match fields.text("peft_type")? {
            Some("LORA") => {}
            found => return unsupported(format!("peft_type {}", found.unwrap_or("that is missing"))),
        }
        if let Some(bias) = fields.text("bias")?.filter(|bias| *bias != "none") {
            return unsupported(format!("bias {bias}"));
        }
        let is_set = |field: &&&str| fields.value(field).is_some_and(|value| !is_off(value));
        if let Some(field) = OTHERS.iter().find(is_set) {
            return unsupported((*field).into());
        }
        // The others also change the model's own weights at the start of training, and are merged into the changed ones.
        const BEGINNINGS: [&str; 3] = ["gaussian", "eva", "orthogonal"];
        let beginning = fields.value("init_lora_weights").and_then(Value::as_str);
        if let Some(other) = beginning.filter(|beginning| !BEGINNINGS.contains(beginning)) {
            return unsupported(format!("init_lora_weights {other}"));
        }
        let rank = fields.size("r", MAX_RANK)?.ok_or_else(|| fields.error("r", "is missing, expected the rank"))?;
        let mut ranks = BTreeSet::from([rank]);
        if let Some(of_modules) = fields.object("rank_pattern")? {
            for key in of_modules.names() {
                ranks.extend(of_modules.size(key, MAX_RANK)?);
            }
        }
        let mut alphas = Vec::new();
        if let Some(of_modules) = fields.object("alpha_pattern")? {
            for key in of_modules.names() {
                let what = "is a regular expression, expected the name of a module or its end";
                let pattern = Pattern::parse(key).ok_or_else(|| of_modules.error(key, what))?;
                alphas.push((pattern, of_modules.required_number(key)?));
            }
        }
        let alpha = fields.required_number("lora_alpha")?;
        Ok(Scales { ranks, alpha, by_root: fields.flag("use_rslora")? == Some(true), alphas })
    }

    /// Factor of the product of this module, whose matrices have rank `found`.
    ///
    /// # Errors
    /// Where the config at `path` names no such rank.
    pub fn of(&self, path: &Path, module: &str, found: usize) -> Result<f32> {
        if !self.ranks.contains(&found) {
            let ranks: Vec<String> = self.ranks.iter().map(usize::to_string).collect();
            let what = format!("rank of {module} is {}, {WEIGHTS_FILE} has {found}", ranks.join(" or "));
            return Err(CompileError::malformed(path, what));
        }
        let own = self.alphas.iter().find(|(pattern, _)| pattern.matches(module));
        let (alpha, rank) = (own.map_or(self.alpha, |(_, alpha)| *alpha), found as f64);
        Ok((alpha / if self.by_root { rank.sqrt() } else { rank }) as f32)
    }
}

/// Whether PEFT takes the value of a field for none.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::Array(values) => values.is_empty(),
        other => other.is_null(),
    }
}

/// Names of modules that a key of `alpha_pattern` matches.
struct Pattern {
    /// A module's name, or its last parts.
    end: String,
    before: Before,
}

/// What a name has before its end.
#[derive(Clone, Copy)]
enum Before {
    Nothing,
    Parts,
    NothingOrParts,
}

impl Pattern {
    /// `None`: the regular expression is more than a name.
    fn parse(key: &str) -> Option<Pattern> {
        let (rest, is_from_start) = key.strip_prefix('^').map_or((key, false), |rest| (rest, true));
        let (end, before) = match (rest.strip_prefix(r".*\."), rest.strip_prefix(r"(.*\.)?")) {
            (Some(end), _) => (end, Before::Parts),
            (None, Some(end)) => (end, Before::NothingOrParts),
            (None, None) => (rest, if is_from_start { Before::Nothing } else { Before::NothingOrParts }),
        };
        let end = end.replace(r"\.", ".");
        let is_name = !end.is_empty() && end.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
        is_name.then_some(Pattern { end, before })
    }

    fn matches(&self, module: &str) -> bool {
        let Some(rest) = module.strip_suffix(&self.end) else { return false };
        match self.before {
            Before::Nothing => rest.is_empty(),
            Before::Parts => rest.ends_with('.'),
            Before::NothingOrParts => rest.is_empty() || rest.ends_with('.'),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Value {
        json!({
            "peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none",
            "rank_pattern": { "v_proj": 2 }, "alpha_pattern": { "layers.1.mlp.up_proj": 3 },
        })
    }

    #[test]
    fn scales_follow_alpha_rank_and_their_patterns() {
        let path = Path::new("adapter_config.json");
        let scales = Scales::read(path, &config()).unwrap();
        assert_eq!(scales.of(path, "model.layers.0.self_attn.q_proj", 4).unwrap(), 2.0);
        assert_eq!(scales.of(path, "model.layers.0.self_attn.v_proj", 2).unwrap(), 4.0);
        assert_eq!(scales.of(path, "model.layers.1.mlp.up_proj", 4).unwrap(), 0.75);
        assert_eq!(scales.of(path, "model.layers.11.mlp.up_proj", 4).unwrap(), 2.0);
        let error = scales.of(path, "model.layers.0.self_attn.q_proj", 3).unwrap_err().to_string();
        assert!(
            error.contains("rank of model.layers.0.self_attn.q_proj is 2 or 4, adapter_model.safetensors has 3"),
            "{error}"
        );
        let mut rooted = config();
        rooted["use_rslora"] = true.into();
        assert_eq!(Scales::read(path, &rooted).unwrap().of(path, "q_proj", 4).unwrap(), 4.0);
    }

    #[test]
    fn the_first_pattern_of_the_file_that_matches_is_taken() {
        let path = Path::new("adapter_config.json");
        let mut config = config();
        config["alpha_pattern"] = json!({ "q_proj": 2, "layers.1.self_attn.q_proj": 64 });
        let scales = Scales::read(path, &config).unwrap();
        assert_eq!(scales.of(path, "model.layers.1.self_attn.q_proj", 4).unwrap(), 0.5);
    }

    /// By Python: re.match(rf"(.*\.)?({KEY})$", NAME).
    #[test]
    fn patterns_match_as_in_peft() {
        let names = ["q_proj", "model.q_proj", "model.xq_proj", "model.layers.1.q_proj"];
        for (key, expected) in [
            ("q_proj", [true, true, false, true]),
            (r"(.*\.)?q_proj", [true, true, false, true]),
            (r"^(.*\.)?q_proj", [true, true, false, true]),
            (r".*\.q_proj", [false, true, false, true]),
            (r"^.*\.q_proj", [false, true, false, true]),
            ("^q_proj", [true, false, false, false]),
            ("^model.q_proj", [false, true, false, false]),
            (r"layers\.1\.q_proj", [false, false, false, true]),
        ] {
            let pattern = Pattern::parse(key).unwrap_or_else(|| panic!("{key}"));
            assert_eq!(names.map(|name| pattern.matches(name)), expected, "{key}");
        }
        for key in ["", "^", r".*\.", ".*q_proj", "[qk]_proj", r"layers\.\d+\.q_proj", "q_proj$|k_proj", r"q_proj\"] {
            assert!(Pattern::parse(key).is_none(), "{key}");
        }
    }
}
