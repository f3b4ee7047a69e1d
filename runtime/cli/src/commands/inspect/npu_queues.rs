//! The two queues of a step in which an NPU takes part: what runs in each, in order, and what waits for what.
//!
//! ```text
//! GPU   dispatches ─┐ activations             ┌─ dispatches …
//! NPU               └─► command ─ outputs ────┘
//! ```
//!
//! Each end is waited for: the runtime submits dispatches, waits for them, passes the activations on, submits the command, waits
//! for it, and passes the outputs back.

use serde::Serialize;
use unicorn_artifact::account::size;
use unicorn_artifact::npu::{ACTIVATIONS, OUTPUTS};
use unicorn_artifact::{Dispatch, NpuCommand, NpuSection, NpuSteps, Program};

use crate::report::table::Column::{Left, Right};
use crate::report::table::table;
use crate::report::text::printable;

/// A step of one target, of its program with the most rows.
#[derive(Serialize)]
pub struct NpuQueues {
    pub target: String,
    pub rows: u32,
    /// Entries of both queues, in the order in which they run.
    pub entries: Vec<QueueEntry>,
}

/// Work that one of the queues does without waiting.
#[derive(Serialize)]
pub struct QueueEntry {
    /// `gpu` or `npu`.
    pub queue: &'static str,
    /// Names of its first and last dispatch, or of its product and program.
    pub what: String,
    /// Number of dispatches; 0 for a command of the NPU.
    pub dispatches: usize,
    /// Layer of a product.
    pub layer: Option<u32>,
    /// Index of the entry of the other queue that it waits for.
    pub waits_for: Option<usize>,
    /// Bytes that this entry receives from that one.
    pub handed_bytes: u64,
    /// Estimated seconds of a command at the highest and at the lower clock. `None`: work of the GPU, which is not estimated.
    pub estimated_seconds: Option<[f64; 2]>,
    /// Index of a command's program.
    #[serde(skip)]
    program: Option<u32>,
}

/// The queues of each target.
pub fn queues(section: &NpuSection) -> Vec<NpuQueues> {
    section.steps.iter().filter_map(|steps| queues_of(section, steps)).collect()
}

fn queues_of(section: &NpuSection, steps: &NpuSteps) -> Option<NpuQueues> {
    let programs = steps.kernels.programs.iter().zip(&steps.commands);
    let with_commands = programs.filter(|(_, commands)| !commands.is_empty());
    // The first of those with equally many rows.
    let (program, commands) = with_commands.min_by_key(|(program, _)| std::cmp::Reverse(program.rows))?;
    let target = steps.kernels.name.clone();
    Some(NpuQueues { target, rows: program.rows, entries: entries(section, program, commands) })
}

fn entries(section: &NpuSection, program: &Program, commands: &[NpuCommand]) -> Vec<QueueEntry> {
    let (mut entries, mut done, mut handed_bytes) = (Vec::new(), 0, 0);
    let gpu = |dispatches: &[Dispatch], waits_for: Option<usize>, handed_bytes: u64| QueueEntry {
        queue: "gpu",
        what: first_and_last(dispatches),
        dispatches: dispatches.len(),
        layer: None,
        waits_for,
        handed_bytes,
        estimated_seconds: None,
        program: None,
    };
    for command in commands {
        let end = (command.before_dispatch as usize).clamp(done, program.dispatches.len());
        entries.push(gpu(&program.dispatches[done..end], entries.len().checked_sub(1), handed_bytes));
        done = end;
        let product = &section.products[command.product as usize];
        let npu_program = &section.programs[product.program as usize];
        // A step with more rows runs the program several times.
        let runs = npu_program.runs_of(program.rows).unwrap_or(1);
        let bytes = |argument: usize| u64::from(runs) * npu_program.arguments.get(argument).map_or(0, |one| one.bytes);
        let times = if runs > 1 { format!(", {runs} runs") } else { String::new() };
        handed_bytes = bytes(OUTPUTS);
        entries.push(QueueEntry {
            queue: "npu",
            what: format!("{} by {}{times}", product.name, npu_program.name),
            dispatches: 0,
            layer: product.layer,
            waits_for: Some(entries.len() - 1),
            handed_bytes: bytes(ACTIVATIONS),
            estimated_seconds: Some(npu_program.estimate.seconds().map(|seconds| f64::from(runs) * seconds)),
            program: Some(product.program),
        });
    }
    entries.push(gpu(&program.dispatches[done..], entries.len().checked_sub(1), handed_bytes));
    entries
}

fn first_and_last(dispatches: &[Dispatch]) -> String {
    match dispatches {
        [] => String::new(),
        [only] => only.label.clone(),
        [first, .., last] => format!("{} to {}", first.label, last.label),
    }
}

impl NpuQueues {
    /// A line an entry, the GPU's on the left and the NPU's on the right; layers that are like the one before them are left out.
    pub fn text(&self) -> String {
        let commands = self.entries.iter().filter(|entry| entry.queue == "npu").count();
        let dispatches: usize = self.entries.iter().map(|entry| entry.dispatches).sum();
        let (rows, target) = (self.rows, printable(&self.target));
        let heading = format!(
            "  Two queues in a step of {rows} rows on {target}: {dispatches} dispatches and {commands} commands, which wait for each other\n"
        );
        let (mut lines, mut left_out) = (Vec::new(), Vec::new());
        let layers = self.layers();
        for (index, range) in layers.iter().enumerate() {
            if index > 0 && self.shape(range) == self.shape(&layers[index - 1]) {
                left_out.push(self.entries[range.clone()].iter().find_map(|entry| entry.layer));
                continue;
            }
            lines.extend(like_before(&mut left_out));
            lines.extend(range.clone().map(|index| self.entries[index].cells(index)));
        }
        lines.extend(like_before(&mut left_out));
        let columns = [Right(""), Left("GPU"), Left("waits"), Left("NPU"), Left("estimate")];
        heading + &table(&columns, &lines)
    }

    /// Ranges of entries that belong to one layer: its commands, each with the dispatches before it. The last dispatches are a range of their own.
    fn layers(&self) -> Vec<std::ops::Range<usize>> {
        let mut ranges: Vec<(Option<u32>, std::ops::Range<usize>)> = Vec::new();
        for (index, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.queue == "npu") {
            match ranges.last_mut() {
                Some((layer, range)) if *layer == entry.layer => range.end = index + 1,
                _ => ranges.push((entry.layer, index - 1..index + 1)),
            }
        }
        let end = ranges.last().map_or(0, |(_, range)| range.end);
        ranges.into_iter().map(|(_, range)| range).chain(std::iter::once(end..self.entries.len())).collect()
    }

    fn shape(&self, range: &std::ops::Range<usize>) -> Vec<(usize, Option<u32>)> {
        self.entries[range.clone()].iter().map(|entry| (entry.dispatches, entry.program)).collect()
    }
}

/// A line in place of the layers that are left out, if there are any.
fn like_before(left_out: &mut Vec<Option<u32>>) -> Option<Vec<String>> {
    let all = std::mem::take(left_out);
    let name = |layer: &Option<u32>| layer.map_or("–".to_owned(), |layer| layer.to_string());
    let text = match &all[..] {
        [] => return None,
        [only] => format!("layer {} likewise", name(only)),
        [first, .., last] => format!("layers {} to {} likewise", name(first), name(last)),
    };
    Some(vec!["…".into(), text, String::new(), String::new(), String::new()])
}

impl QueueEntry {
    fn cells(&self, index: usize) -> Vec<String> {
        let what = printable(&self.what).into_owned();
        let wait = |arrow: &str| match self.waits_for {
            None => String::new(),
            Some(other) => format!("{arrow} for {other}, {}", size(self.handed_bytes)),
        };
        let estimate = self.estimated_seconds.map_or(String::new(), |seconds| {
            let [fast, slow] = seconds.map(|seconds| seconds * 1e3);
            format!("{fast:.2} to {slow:.2} ms")
        });
        let (gpu, waits, npu) = match self.queue {
            "npu" => (String::new(), wait("─►"), what),
            _ => (format!("{} dispatches: {what}", self.dispatches), wait("◄─"), String::new()),
        };
        vec![index.to_string(), gpu, waits, npu, estimate]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(queue: &'static str, layer: Option<u32>, index: usize) -> QueueEntry {
        let is_npu = queue == "npu";
        QueueEntry {
            queue,
            what: format!("work{index}"),
            dispatches: if is_npu { 0 } else { 3 },
            layer,
            waits_for: index.checked_sub(1),
            handed_bytes: 2048,
            estimated_seconds: is_npu.then_some([1e-3, 2e-3]),
            program: is_npu.then_some(0),
        }
    }

    #[test]
    fn both_queues_are_drawn_with_their_waits_and_layers_that_repeat_once() {
        let mut entries = Vec::new();
        for layer in 0..4 {
            entries.push(entry("gpu", None, entries.len()));
            entries.push(entry("npu", Some(layer), entries.len()));
        }
        entries.push(entry("gpu", None, entries.len()));
        let text = NpuQueues { target: "generic".into(), rows: 64, entries }.text();
        for part in [
            "step of 64 rows on generic: 15 dispatches and 4 commands",
            "3 dispatches: work0",
            "─► for 0, 2.00 KiB",
            "work1",
            "1.00 to 2.00 ms",
            "layers 1 to 3 likewise",
            "◄─ for 7, 2.00 KiB",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("work3") && text.contains("work8"), "{text}");
    }
}
