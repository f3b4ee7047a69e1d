//! An inspection on one screen: what it is, what it costs, where it fits.

use unicorn_artifact::account::size;

use super::Inspection;
use super::machines::MachineRow;
use crate::report::table::Column::{Left, Right};
use crate::report::table::{or_dash, table};
use crate::report::text::printable;

impl Inspection<'_> {
    pub(super) fn summary(&self) -> String {
        let model = self.model;
        let tokens = self.account.context_tokens;
        let mut lines = format!("{}\n", printable(&model.name));
        let mut line = |name: &str, text: String| lines += &format!("  {name:<11}{}\n", printable(&text));
        line(
            "model",
            format!(
                "{}, {} parameters, {} layers, hidden {}, vocabulary {}, at most {} tokens",
                model.architecture,
                count(model.parameters),
                model.n_layers,
                model.hidden_size,
                model.vocab_size,
                model.max_positions
            ),
        );
        if let Some(above) = model.long_rope_above_tokens {
            line("", format!("sequences above {above} tokens take the long rotary frequencies"));
        }
        if model.synthetic {
            line("", "synthetic: the weights are random, for timing and not for text".into());
        }
        let bits = self.mean_bits_per_weight.map_or(String::new(), |bits| format!(", {bits:.2} bits per weight"));
        line("file", format!("{}: {} of weights{bits}", size(self.file_bytes), size(self.weight_bytes())));
        line("quantising", self.quantising());
        line("made by", self.made_by());
        self.license.iter().for_each(|license| line("license", license.title()));
        line("targets", self.targets.iter().map(|target| target.name).collect::<Vec<_>>().join(", "));
        let kv: u64 = self.kv_groups.iter().map(|group| group.bytes_per_sequence).sum();
        let all = self.account.bytes();
        line("memory", format!("{}, of which {} are the KV cache of {tokens} tokens", size(all), size(kv)));
        if let Some(draft) = &self.draft {
            let parameters = count(draft.model.parameters);
            let (weights, memory) = (size(draft.weight_bytes), size(draft.account.bytes()));
            let name = &draft.model.name;
            line("draft", format!("{name}, {parameters} parameters: {weights} of weights, {memory} of memory besides"));
        }
        if let Some(head) = &self.predictor {
            let (weights, read) = (size(head.weight_bytes), size(head.bytes_read_per_token));
            line("MTP head", format!("{weights} of weights, of which a token without a draft reads {read}"));
        }
        let of_draft = self.draft.as_ref().and_then(|draft| draft.npu.as_ref());
        for (npu, whose) in [(self.npu.as_ref(), ""), (of_draft, " for the draft")] {
            if let Some(npu) = npu.filter(|npu| !npu.memory.is_empty()) {
                line("npu", npu.memory_text() + whose);
            }
        }
        let (weights, read) = (self.model.weight_bytes_per_token, self.account.bytes_read_per_token());
        line("per token", format!("{} of weights are read, {} after {tokens} tokens", size(weights), size(read)));
        lines + "\n" + &self.machines()
    }

    fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.len_bytes).sum()
    }

    fn quantising(&self) -> String {
        if self.tensors.is_empty() {
            return "cost unknown: the artifact lists no source tensors".into();
        }
        let Some(cost) = &self.quantisation else { return "no tensor lost precision".into() };
        format!(
            "relative error {:.4} on average over {} of {} tensors, at most {:.4} ({})",
            cost.mean_relative_error,
            cost.tensors,
            self.tensors.len(),
            cost.worst_relative_error,
            cost.worst
        )
    }

    fn made_by(&self) -> String {
        let value = |name: &str| self.provenance.options.get(name).and_then(|value| value.as_str());
        let options = ["weights", "group", "kv", "machine"];
        let options: Vec<String> =
            options.iter().filter_map(|name| value(name).map(|value| format!("{name} {value}"))).collect();
        let (version, options) = (self.provenance.compiler_version, options.join(", "));
        format!("unicorn-compile {version} ({options}) from BLAKE3 {:.16}", self.provenance.source_blake3)
    }

    /// Each machine, the one that the artifact was planned for marked.
    fn machines(&self) -> String {
        let tokens = self.account.context_tokens;
        let known = self.machines.iter().filter(|machine| machine.estimated_tokens_per_s.is_some() || !machine.fits());
        let row = |machine: &MachineRow| {
            let planned = if machine.planned { " (planned)" } else { "" };
            vec![
                format!("{}{planned}", machine.name),
                machine.memory(),
                machine.verdict(tokens),
                or_dash(machine.estimated_tokens_per_s_empty, 1),
                or_dash(machine.estimated_tokens_per_s, 1),
                machine.bound(),
            ]
        };
        let columns = [
            Left("machine"),
            Left("vram + gtt"),
            Left("fits"),
            Right("tokens/s"),
            Right("at the end"),
            Left("bound by reading"),
        ];
        let rows: Vec<Vec<String>> = known.map(row).collect();
        format!(
            "Where a sequence of {tokens} tokens fits, and what published bandwidths permit at its begin and end (estimates)\n{}",
            table(&columns, &rows)
        )
    }
}

impl MachineRow {
    fn fits(&self) -> bool {
        self.missing_bytes.is_none()
    }

    fn verdict(&self, context_tokens: u32) -> String {
        match (self.missing_bytes, self.longest_context_tokens) {
            (None, longest) if longest > context_tokens => format!("yes, to {longest}"),
            (None, _) => "yes".into(),
            (Some(missing), 0) => format!("no, {} are missing", size(missing)),
            (Some(_), longest) => format!("only {longest} tokens"),
        }
    }

    /// Budgets of the tiers that the GPU reads: `7.50 GiB + 28.00 GiB`.
    fn memory(&self) -> String {
        let budget = |bytes: Option<u64>| bytes.map_or("unlimited".to_owned(), size);
        let gpu = self.tiers.iter().filter(|tier| tier.readers.contains(&unicorn_artifact::Reader::Gpu));
        gpu.map(|tier| budget(tier.budget_bytes)).collect::<Vec<_>>().join(" + ")
    }

    /// The tier whose reads take most of a step: `vram at 89.6 GB/s`.
    fn bound(&self) -> String {
        let seconds = |tier: &&unicorn_artifact::TierAccount| tier.estimated_seconds_per_token().unwrap_or_default();
        let tiers = self.account.iter().flat_map(|account| &account.tiers);
        let slowest = tiers.filter(|tier| tier.bytes_read_per_token > 0);
        let slowest = slowest.max_by(|one, other| seconds(one).total_cmp(&seconds(other)));
        slowest.map_or("–".into(), |tier| match tier.bytes_per_s {
            Some(rate) => format!("{} at {} GB/s", tier.tier, rate as f64 / 1e9),
            None => format!("{} at an unknown bandwidth", tier.tier),
        })
    }
}

/// `134.52 million`
fn count(number: u64) -> String {
    match number {
        1_000_000_000.. => format!("{:.2} billion", number as f64 / 1e9),
        1_000_000.. => format!("{:.2} million", number as f64 / 1e6),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_in_millions() {
        assert_eq!(count(134_515_008), "134.52 million");
        assert_eq!(count(27_009_002_240), "27.01 billion");
        assert_eq!(count(9_000), "9000");
    }
}
