//! `inspect A --diff B`: what differs between two artifacts, as facts by name.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use super::Inspection;
use crate::args::Section;
use crate::report::text::printable;
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

/// Parts in the order in which they are shown, and the section that each belongs to.
const PARTS: [(&str, Section); 6] = [
    ("model", Section::File),
    ("options", Section::Options),
    ("plan", Section::Memory),
    ("tensors", Section::Tensors),
    ("weights", Section::Weights),
    ("kernels", Section::Kernels),
];
/// Most differences of a part that the summary lists; it counts the others.
const SUMMARY_LINES: usize = 10;

/// (index of the part, name of the fact) → its value.
type Facts = BTreeMap<(usize, String), String>;

impl Diff {
    pub fn between(left: &Inspection, right: &Inspection) -> Diff {
        let changes = changes(&facts(left), &facts(right));
        Diff { left: left.model.name.clone(), right: right.model.name.clone(), changes }
    }
}

impl Diff {
    /// What differs, part by part: all of it, or all of the parts that belong to one of `sections`, or on one screen.
    pub fn text(&self, sections: &[Section], all: bool) -> String {
        let (left, right) = (printable(&self.left), printable(&self.right));
        if self.changes.is_empty() {
            return format!("no difference between {left} and {right}\n");
        }
        let mut text = String::new();
        for (name, section) in PARTS {
            let changes: Vec<&Change> = self.changes.iter().filter(|change| change.part == name).collect();
            let selected = sections.contains(&section);
            if changes.is_empty() || !sections.is_empty() && !selected {
                continue;
            }
            text += &format!("{name}\n");
            if all || selected || changes.len() <= SUMMARY_LINES {
                text.extend(changes.iter().map(|change| format!("{change}\n")));
            } else {
                let option = section.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
                text += &format!("  {} differences: --section {option}\n", changes.len());
            }
        }
        text
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = printable(&self.what);
        let side = |side: &Option<String>| printable(side.as_deref().unwrap_or_default()).into_owned();
        match (&self.left, &self.right) {
            (Some(_), Some(_)) => write!(f, "  {what}: {} → {}", side(&self.left), side(&self.right)),
            (Some(_), None) => write!(f, "- {what}: {}", side(&self.left)),
            (None, _) => write!(f, "+ {what}: {}", side(&self.right)),
        }
    }
}

fn changes(left: &Facts, right: &Facts) -> Vec<Change> {
    let mut keys: Vec<&(usize, String)> = left.keys().chain(right.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let change = |key: &(usize, String)| {
        let (left, right) = (left.get(key).cloned(), right.get(key).cloned());
        (left != right).then(|| Change { part: PARTS[key.0].0, what: key.1.clone(), left, right })
    };
    keys.into_iter().filter_map(change).collect()
}

fn facts(inspection: &Inspection) -> Facts {
    let mut facts = Facts::new();
    let mut fact = |part: &str, what: String, how: String| {
        let part = PARTS.iter().position(|(name, _)| *name == part).expect("a part of the list");
        facts.insert((part, what), how);
    };
    let model = inspection.model;
    fact("model", "name".into(), model.name.clone());
    fact("model", "architecture".into(), model.architecture.clone());
    fact("model", "parameters".into(), model.parameters.to_string());
    fact("model", "positions".into(), model.max_positions.to_string());
    fact("model", "source".into(), format!("BLAKE3 {:.16}", inspection.provenance.source_blake3));
    fact("model", "file".into(), size(inspection.file_bytes));
    let bits = inspection.mean_bits_per_weight;
    fact("model", "weights".into(), bits.map_or("none".into(), |bits| format!("{bits:.3} bits per weight")));
    let cost = inspection.quantisation.as_ref().map(|cost| cost.mean_relative_error);
    let cost = cost.map_or("no known cost".into(), |error| format!("relative error {error:.5} on average"));
    fact("model", "quantising".into(), cost);
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
    fn only_differences_are_listed() {
        let facts = |pairs: &[(usize, &str, &str)]| {
            pairs.iter().map(|(part, what, how)| ((*part, what.to_string()), how.to_string())).collect::<Facts>()
        };
        let left = facts(&[(0, "name", "m"), (1, "group", "32"), (4, "w", "10 bytes")]);
        let right = facts(&[(0, "name", "m"), (1, "group", "64"), (5, "k", "there\u{1b}")]);
        let diff = Diff { left: "m".into(), right: "m".into(), changes: changes(&left, &right) };
        let all = "options\n  group: 32 → 64\nweights\n- w: 10 bytes\nkernels\n+ k: there\\u{1b}\n";
        assert_eq!((diff.text(&[], false).as_str(), diff.text(&[], true).as_str()), (all, all));
        assert_eq!(diff.text(&[Section::Weights], false), "weights\n- w: 10 bytes\n");
        let none = Diff { changes: changes(&left, &left), ..diff };
        assert_eq!(none.text(&[], false), "no difference between m and m\n");
    }

    #[test]
    fn a_long_part_is_counted_and_names_its_section() {
        let changed = |index: usize| Change {
            part: "tensors",
            what: format!("t{index}"),
            left: Some("a".into()),
            right: Some("b".into()),
        };
        let diff = Diff { left: "m".into(), right: "n".into(), changes: (0..11).map(changed).collect() };
        assert_eq!(diff.text(&[], false), "tensors\n  11 differences: --section tensors\n");
        assert_eq!(diff.text(&[], true).lines().count(), 12);
        assert_eq!(diff.text(&[Section::Tensors], false).lines().count(), 12);
    }
}
