//! `inspect A --diff B`: what differs between two artifacts, as facts by name.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Inspection;
use unicorn_artifact::account::size;

/// What differs, in the order of the parts and then by name.
#[derive(Serialize)]
pub struct Diff {
    left: String,
    right: String,
    changes: Vec<Change>,
}

/// A fact that the two artifacts do not share; `None` where one of them has none of this name.
#[derive(Debug, PartialEq, Serialize)]
struct Change {
    part: &'static str,
    what: String,
    left: Option<String>,
    right: Option<String>,
}

/// Parts in the order in which they are shown.
const PARTS: [&str; 6] = ["model", "options", "tensors", "plan", "weights", "kernels"];

/// (index of the part, what) → how it is.
type Facts = BTreeMap<(usize, String), String>;

impl Diff {
    pub fn between(left: &Inspection, right: &Inspection) -> Diff {
        let changes = changes(&facts(left), &facts(right));
        Diff { left: left.model.name.clone(), right: right.model.name.clone(), changes }
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() {
            return writeln!(f, "no difference between {} and {}", self.left, self.right);
        }
        let mut part = "";
        for change in &self.changes {
            if change.part != part {
                part = change.part;
                writeln!(f, "{part}")?;
            }
            match (&change.left, &change.right) {
                (Some(left), Some(right)) => writeln!(f, "  {}: {left} → {right}", change.what)?,
                (Some(left), None) => writeln!(f, "- {}: {left}", change.what)?,
                (None, right) => writeln!(f, "+ {}: {}", change.what, right.as_deref().unwrap_or_default())?,
            }
        }
        Ok(())
    }
}

fn changes(left: &Facts, right: &Facts) -> Vec<Change> {
    let mut keys: Vec<&(usize, String)> = left.keys().chain(right.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let change = |key: &(usize, String)| {
        let (left, right) = (left.get(key).cloned(), right.get(key).cloned());
        (left != right).then(|| Change { part: PARTS[key.0], what: key.1.clone(), left, right })
    };
    keys.into_iter().filter_map(change).collect()
}

fn facts(inspection: &Inspection) -> Facts {
    let mut facts = Facts::new();
    let mut fact = |part: &str, what: String, how: String| {
        let part = PARTS.iter().position(|one| *one == part).expect("a part of the list");
        facts.insert((part, what), how);
    };
    let model = inspection.model;
    fact("model", "name".into(), model.name.clone());
    fact("model", "architecture".into(), model.architecture.clone());
    fact("model", "parameters".into(), model.parameters.to_string());
    fact("model", "positions".into(), model.max_positions.to_string());
    fact("model", "source".into(), format!("BLAKE3 {}", inspection.provenance.source_blake3));
    fact("model", "file".into(), size(inspection.file_bytes));
    fact("options", "unicorn-compile".into(), inspection.provenance.compiler_version.to_owned());
    for (name, value) in &inspection.provenance.options {
        fact("options", name.clone(), value.as_str().unwrap_or_default().to_owned());
    }
    for tensor in inspection.tensors {
        let (bits, error) = (tensor.bits_per_weight, tensor.relative_error);
        let how = format!("{} {bits:.3} bits a weight, relative error {error:.5}", tensor.format);
        fact("tensors", tensor.name.clone(), how);
    }
    fact("plan", "machine".into(), inspection.machine.to_owned());
    let rate = inspection.estimated_tokens_per_s;
    fact("plan", "estimate".into(), rate.map_or("none".into(), |rate| format!("at most {rate:.2} tokens/s")));
    for tier in &inspection.account.tiers {
        let budget = tier.budget_bytes.map_or("no known limit".into(), size);
        let read = size(tier.bytes_read_per_token);
        fact("plan", tier.tier.name().into(), format!("{} of {budget}, {read} read a token", size(tier.bytes())));
    }
    for (index, group) in inspection.kv_groups.iter().enumerate() {
        let how = format!("{} layers, {} in {}", group.n_layers, size(group.bytes_per_sequence), group.tier);
        fact("plan", format!("KV group {index} at {} tokens", inspection.account.context_tokens), how);
    }
    fact("plan", "activations".into(), size(inspection.arena_bytes));
    for weight in &inspection.weights {
        fact("weights", weight.name.into(), format!("{} bytes in {}", weight.len_bytes, weight.tier));
    }
    for target in &inspection.targets {
        for pipeline in &target.pipelines {
            fact("kernels", format!("{} {pipeline}", target.name), "there".into());
        }
        let barriers = target.decode.iter().filter(|dispatch| dispatch.order == "barrier").count();
        let how = format!("{} dispatches, {barriers} barriers", target.decode.len());
        fact("kernels", format!("{} decode step", target.name), how);
    }
    let (modules, bytes) = (inspection.kernel_modules, inspection.kernel_module_bytes);
    fact("kernels", "modules".into(), format!("{modules} of {}", size(bytes)));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_told() {
        let facts = |pairs: &[(usize, &str, &str)]| {
            pairs.iter().map(|(part, what, how)| ((*part, what.to_string()), how.to_string())).collect::<Facts>()
        };
        let left = facts(&[(0, "name", "m"), (1, "group", "32"), (4, "w", "10 bytes")]);
        let right = facts(&[(0, "name", "m"), (1, "group", "64"), (5, "k", "there")]);
        let diff = Diff { left: "m".into(), right: "m".into(), changes: changes(&left, &right) };
        assert_eq!(diff.to_string(), "options\n  group: 32 → 64\nweights\n- w: 10 bytes\nkernels\n+ k: there\n");
        let none = Diff { changes: changes(&left, &left), ..diff };
        assert_eq!(none.to_string(), "no difference between m and m\n");
    }
}
