//! Sections of an inspection as tables.

use serde_json::Value;

use super::Inspection;
use crate::args::Section;
use crate::report::table::Column::{Left, Right};
use crate::report::table::table;
use crate::report::text::printable;
use unicorn_artifact::account::size;

impl Inspection<'_> {
    /// These sections, in the order in which they were requested.
    pub(super) fn sections(&self, sections: &[Section]) -> String {
        sections.iter().map(|section| self.section(*section)).collect::<Vec<_>>().join("\n")
    }

    fn section(&self, section: Section) -> String {
        let (heading, body) = match section {
            Section::Options => {
                let version = printable(self.provenance.compiler_version);
                (format!("Made by unicorn-compile {version}"), self.provenance_lines())
            }
            Section::Memory => {
                let (machine, tokens) = (printable(self.machine), self.account.context_tokens);
                let account = self.account.to_string();
                let lines = account.lines().map(|line| format!("  {line}\n")).collect();
                (format!("Memory of {machine}, with the KV cache of one sequence of {tokens} tokens"), lines)
            }
            Section::Layers => {
                (format!("Layers, {} read per token", size(self.account.bytes_read_per_token())), self.layers())
            }
            Section::Weights => {
                (format!("Weights, {} read per token", size(self.model.weight_bytes_per_token)), self.weights())
            }
            Section::Kv => ("KV cache".into(), self.kv_groups()),
            Section::Activations => (format!("Activations, {} in all", size(self.arena_bytes)), self.activations()),
            Section::Buffers => ("Other buffers".into(), self.buffers()),
            Section::Kernels => {
                let (modules, bytes) = (self.kernel_modules, size(self.kernel_module_bytes));
                (format!("Kernels, {modules} modules of {bytes}"), self.targets())
            }
            Section::Tensors => (self.tensors_heading(), self.tensors()),
            Section::Npu => self.npu(),
            Section::File => (format!("File, {} bytes, format {}", self.file_bytes, self.format_version), self.file()),
        };
        format!("{heading}\n{body}")
    }

    /// The model's part, and that of a draft in the file behind it.
    fn npu(&self) -> (String, String) {
        let (heading, mut body) = match &self.npu {
            Some(npu) => (npu.heading(), npu.text()),
            None => ("NPU".into(), "  no programs; unicorn-compile MODEL --npu phoenix makes them\n".into()),
        };
        if let Some((draft, npu)) = self.draft.as_ref().and_then(|draft| Some((draft, draft.npu.as_ref()?))) {
            body += &format!("\nDraft {}: {}\n{}", printable(&draft.model.name), npu.heading(), npu.text());
        }
        (heading, body)
    }

    fn provenance_lines(&self) -> String {
        let row = |(name, value): (&String, &Value)| vec![name.clone(), value.as_str().unwrap_or_default().to_owned()];
        let options: Vec<Vec<String>> = self.provenance.options.iter().map(row).collect();
        format!(
            "{}  source BLAKE3 {}\n",
            table(&[Left("option"), Left("value")], &options),
            self.provenance.source_blake3
        )
    }

    fn layers(&self) -> String {
        let kv = self.kv_groups.iter().map(|group| {
            let name = group.window_tokens.map_or("KV".into(), |window| format!("KV, window {window}"));
            let cells = [group.n_layers.to_string(), size(group.bytes_per_sequence)];
            let cells = [name].into_iter().chain(cells).chain([size(group.bytes_read_per_token)]);
            cells.chain([percent(group.share_of_traffic), group.tier.to_owned()]).collect()
        });
        let layers = self.layers.iter().map(|layer| {
            vec![
                layer.layer.map_or("none".into(), |index| index.to_string()),
                layer.weights.to_string(),
                size(layer.len_bytes),
                size(layer.bytes_read_per_token),
                percent(layer.share_of_traffic),
                layer.tiers.join(", "),
            ]
        });
        let columns =
            [Left("layer"), Right("parts"), Right("bytes"), Right("per token"), Right("of all"), Left("tier")];
        table(&columns, &layers.chain(kv).collect::<Vec<_>>())
    }

    fn weights(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .weights
            .iter()
            .map(|weight| {
                vec![
                    weight.layer.map_or("-".into(), |layer| layer.to_string()),
                    weight.name.to_owned(),
                    size(weight.len_bytes),
                    weight.slice.to_string(),
                    weight.offset_bytes.to_string(),
                    weight.tier.to_owned(),
                    size(weight.bytes_read_per_token),
                    percent(weight.share_of_traffic),
                    weight.reason.to_owned(),
                ]
            })
            .collect();
        let columns = [
            Right("layer"),
            Left("name"),
            Right("bytes"),
            Right("slice"),
            Right("offset"),
            Left("tier"),
            Right("per token"),
            Right("of all"),
            Left("reason"),
        ];
        table(&columns, &rows)
    }

    fn kv_groups(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .kv_groups
            .iter()
            .map(|group| {
                vec![
                    group.n_layers.to_string(),
                    group.window_tokens.map_or("all".into(), |tokens| tokens.to_string()),
                    if group.is_state { "state".into() } else { group.page_tokens.to_string() },
                    size(group.page_bytes),
                    group.pages_per_sequence.to_string(),
                    size(group.bytes_per_sequence),
                    group.tier.to_owned(),
                    group.reason.to_owned(),
                ]
            })
            .collect();
        let columns = [
            Right("layers"),
            Right("window"),
            Right("page tokens"),
            Right("page"),
            Right("pages"),
            Right("bytes"),
            Left("tier"),
            Left("reason"),
        ];
        table(&columns, &rows)
    }

    fn activations(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .activations
            .iter()
            .map(|activation| {
                vec![
                    activation.name.to_owned(),
                    size(activation.len_bytes),
                    activation.offset_bytes.to_string(),
                    format!("{}..={}", activation.first_use, activation.last_use),
                    activation.tier.to_owned(),
                    activation.reason.to_owned(),
                ]
            })
            .collect();
        let columns =
            [Left("name"), Right("bytes"), Right("offset"), Right("dispatches"), Left("tier"), Left("reason")];
        table(&columns, &rows)
    }

    fn buffers(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .buffers
            .iter()
            .map(|buffer| {
                let bytes = size(buffer.bytes);
                vec![buffer.name.to_owned(), bytes, buffer.tier.to_owned(), buffer.reason.to_owned()]
            })
            .collect();
        table(&[Left("name"), Right("bytes"), Left("tier"), Left("reason")], &rows)
    }

    fn targets(&self) -> String {
        let mut lines = String::new();
        for target in &self.targets {
            let subgroups = match target.subgroup_size {
                0 => "any subgroup size".to_owned(),
                size => format!("subgroup size {size}"),
            };
            let mut requirements = vec![subgroups];
            if !target.classes.is_empty() {
                requirements.push(target.classes.join(" or "));
            }
            requirements.push(format!("{} of shared memory", size(target.shared_memory_bytes.into())));
            requirements.push(format!("workgroups of {}", target.workgroup_invocations));
            lines += &format!("  {}: {}\n", printable(target.name), printable(&requirements.join(", ")));
            lines += &format!("  pipelines: {}\n", printable(&target.pipelines.join(", ")));
            let programs: Vec<Vec<String>> = target
                .programs
                .iter()
                .map(|program| {
                    vec![
                        program.rows.to_string(),
                        program.logits.to_owned(),
                        if program.samples { "yes" } else { "no" }.to_owned(),
                        program.from_tokens.to_string(),
                        program.dispatches.to_string(),
                        program.barriers.to_string(),
                        size(program.weight_bytes),
                    ]
                })
                .collect();
            let columns = [
                Right("program rows"),
                Left("logits"),
                Left("samples"),
                Right("from tokens"),
                Right("dispatches"),
                Right("barriers"),
                Right("weights"),
            ];
            lines += &table(&columns, &programs);
        }
        lines
    }

    fn tensors_heading(&self) -> String {
        match self.mean_bits_per_weight {
            Some(bits) => format!("Source tensors, {bits:.3} bits a weight on average"),
            None => "Source tensors".into(),
        }
    }

    fn tensors(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .tensors
            .iter()
            .map(|tensor| {
                vec![
                    tensor.name.clone(),
                    format!("{} × {}", tensor.rows, tensor.cols),
                    tensor.format.clone(),
                    format!("{:.3}", tensor.bits_per_weight),
                    format!("{:.5}", tensor.relative_error),
                ]
            })
            .collect();
        let columns = [Left("name"), Right("shape"), Left("format"), Right("bits a weight"), Right("relative error")];
        table(&columns, &rows)
    }

    fn file(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .sections
            .iter()
            .map(|section| {
                vec![
                    section.kind.clone(),
                    section.index.to_string(),
                    section.offset_bytes.to_string(),
                    section.len_bytes.to_string(),
                    section.blake3.clone(),
                ]
            })
            .collect();
        table(&[Left("section"), Right("index"), Right("offset"), Right("bytes"), Left("BLAKE3")], &rows)
    }
}

/// A share, 0 to 1, as a percentage.
fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
