//! The two queues of a step in which an NPU takes part, from its schedule: what runs in each, in order, what waits for what, and what runs at the same time.
//!
//! ```text
//! time   0                 1                  2                     3
//! GPU    dispatches of a   dispatches of b    ┌─ dispatches of a    ┌─ dispatches of b …
//! NPU                   └─► command of a ─────┘ command of b ───────┘
//! ```
//!
//! Time is in entries, all of which are drawn as long as each other: how long the GPU's take is not known before they are measured.

use std::ops::Range;

use serde::Serialize;
use unicorn_artifact::account::size;
use unicorn_artifact::npu::{ACTIVATIONS, DispatchPart, NpuScheduleEntry, NpuWorkItem, OUTPUTS};
use unicorn_artifact::{NpuCommand, NpuProgram, NpuSection, NpuSteps, Program};

use crate::report::table::Column::{Left, Right};
use crate::report::table::table;
use crate::report::text::printable;

/// A step of one target, of its program with the most rows.
#[derive(Serialize)]
pub struct NpuQueues {
    pub target: String,
    pub rows: u32,
    /// Dispatches of the step.
    pub dispatches: usize,
    /// Commands of the step; each runs once for each part of the rows.
    pub commands: usize,
    /// Entries of both queues, in the order in which they are submitted.
    pub entries: Vec<QueueEntry>,
}

/// Work that one of the queues does without waiting.
#[derive(Serialize)]
pub struct QueueEntry {
    /// `gpu` or `npu`.
    pub queue: &'static str,
    /// Names of its first and last dispatch, or of its product and program.
    pub what: String,
    /// Its rows of the step: the first, and the one behind the last.
    pub rows: [u32; 2],
    /// Number of dispatches; 0 for a command of the NPU.
    pub dispatches: usize,
    /// Layer of a product.
    pub layer: Option<u32>,
    /// Index of the entry of the other queue that it waits for.
    pub waits_for: Option<usize>,
    /// Bytes that this entry receives from that one and those before it.
    pub handed_bytes: u64,
    /// When it begins, in entries: behind the one before it in its queue, and the one that it waits for.
    pub begins_at: usize,
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
    let programs = steps.kernels.programs.iter().zip(&steps.commands).enumerate();
    let with_commands = programs.filter(|(_, (_, commands))| !commands.is_empty());
    // The first of those with equally many rows.
    let (index, (program, commands)) = with_commands.min_by_key(|(_, (program, _))| std::cmp::Reverse(program.rows))?;
    let schedule = steps.schedule(index, &section.runs(program.rows, commands));
    let step = Step { section, program, commands };
    Some(NpuQueues {
        target: steps.kernels.name.clone(),
        rows: program.rows,
        dispatches: program.dispatches.len(),
        commands: commands.len(),
        entries: step.entries(&schedule.entries),
    })
}

struct Step<'s> {
    section: &'s NpuSection,
    program: &'s Program,
    commands: &'s [NpuCommand],
}

impl Step<'_> {
    fn entries(&self, schedule: &[NpuScheduleEntry]) -> Vec<QueueEntry> {
        let (mut entries, mut received): (Vec<QueueEntry>, usize) = (Vec::new(), 0);
        for entry in schedule {
            let waits_for = entry.waits_for.map(|other| other as usize);
            let mut made = match &entry.work {
                NpuWorkItem::Dispatches(parts) => {
                    let awaited = received..waits_for.map_or(received, |other| other + 1);
                    received = received.max(awaited.end);
                    QueueEntry { handed_bytes: self.output_bytes(&schedule[awaited]), ..self.dispatches(parts) }
                }
                NpuWorkItem::Run { command, run } => self.run(*command, *run),
            };
            let ends = |entry: &QueueEntry| entry.begins_at + 1;
            let before = entries.iter().rev().find(|one| one.queue == made.queue).map_or(0, ends);
            made.begins_at = before.max(waits_for.map_or(0, |other| ends(&entries[other])));
            made.waits_for = waits_for;
            entries.push(made);
        }
        entries
    }

    fn dispatches(&self, parts: &[DispatchPart]) -> QueueEntry {
        let label = |part: &DispatchPart| self.program.dispatches[part.dispatch as usize].label.clone();
        let what = match parts {
            [] => String::new(),
            [only] => label(only),
            [first, .., last] => format!("{} to {}", label(first), label(last)),
        };
        // All dispatches of an entry have the same rows.
        let rows = parts.first().map_or([0, self.program.rows], |part| {
            let all = self.program.dispatches[part.dispatch as usize].workgroups[usize::from(part.axis)];
            [part.begin, part.end].map(|at| (u64::from(self.program.rows) * u64::from(at) / u64::from(all)) as u32)
        });
        QueueEntry {
            queue: "gpu",
            what,
            rows,
            dispatches: parts.len(),
            layer: None,
            waits_for: None,
            handed_bytes: 0,
            begins_at: 0,
            estimated_seconds: None,
            program: None,
        }
    }

    fn run(&self, command: u32, run: u32) -> QueueEntry {
        let product = &self.section.products[self.commands[command as usize].product as usize];
        let program = self.program_of(command);
        let rows = program.shape.rows.min(self.program.rows);
        QueueEntry {
            queue: "npu",
            what: format!("{} by {}", product.name, program.name),
            rows: [run * rows, (run + 1) * rows],
            dispatches: 0,
            layer: product.layer,
            waits_for: None,
            handed_bytes: argument_bytes(program, ACTIVATIONS),
            begins_at: 0,
            estimated_seconds: Some(program.estimate.seconds()),
            program: Some(product.program),
        }
    }

    /// Bytes of the outputs of the runs among these entries.
    fn output_bytes(&self, entries: &[NpuScheduleEntry]) -> u64 {
        let bytes = |entry: &NpuScheduleEntry| match entry.work {
            NpuWorkItem::Run { command, .. } => argument_bytes(self.program_of(command), OUTPUTS),
            NpuWorkItem::Dispatches(_) => 0,
        };
        entries.iter().map(bytes).sum()
    }

    fn program_of(&self, command: u32) -> &NpuProgram {
        let product = &self.section.products[self.commands[command as usize].product as usize];
        &self.section.programs[product.program as usize]
    }
}

fn argument_bytes(program: &NpuProgram, argument: usize) -> u64 {
    program.arguments.get(argument).map_or(0, |one| one.bytes)
}

impl NpuQueues {
    /// A line an entry, the GPU's on the left and the NPU's on the right; layers that are like the one before them are left out.
    pub fn text(&self) -> String {
        let NpuQueues { rows, dispatches, commands, .. } = self;
        let target = printable(&self.target);
        let heading = format!(
            "  Two queues in a step of {rows} rows on {target}: {dispatches} dispatches and {commands} commands, {}\n",
            self.at_once()
        );
        let (mut lines, mut left_out) = (Vec::new(), Vec::new());
        let layers = self.layers();
        for (index, range) in layers.iter().enumerate() {
            if index > 0 && self.are_alike(range, &layers[index - 1]) {
                left_out.push(self.entries[range.clone()].iter().find_map(|entry| entry.layer));
                continue;
            }
            lines.extend(like_before(&mut left_out));
            lines.extend(range.clone().map(|index| self.entries[index].cells(index)));
        }
        lines.extend(like_before(&mut left_out));
        let columns = [Right(""), Right("time"), Left("GPU"), Left("waits"), Left("NPU"), Left("estimate")];
        heading + &table(&columns, &lines)
    }

    /// How much of the time both queues work.
    fn at_once(&self) -> String {
        let times = |queue: &str| -> std::collections::BTreeSet<usize> {
            self.entries.iter().filter(|entry| entry.queue == queue).map(|entry| entry.begins_at).collect()
        };
        let (gpu, npu) = (times("gpu"), times("npu"));
        match gpu.intersection(&npu).count() {
            0 => "which wait for each other".to_owned(),
            both => format!("at once in {both} of {} units of time", gpu.union(&npu).count()),
        }
    }

    /// Ranges of entries that belong to one layer: the runs of its commands, each with the dispatches before it. The last dispatches are a range of their own.
    fn layers(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<(Option<u32>, Range<usize>)> = Vec::new();
        let mut begin = 0;
        for (index, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.queue == "npu") {
            match ranges.last_mut() {
                Some((layer, range)) if *layer == entry.layer => range.end = index + 1,
                _ => ranges.push((entry.layer, begin..index + 1)),
            }
            begin = index + 1;
        }
        ranges.into_iter().map(|(_, range)| range).chain(std::iter::once(begin..self.entries.len())).collect()
    }

    /// Whether two layers have the same kinds of work, which wait for what is as far back.
    fn are_alike(&self, one: &Range<usize>, other: &Range<usize>) -> bool {
        let alike = |(one, other): (usize, usize)| {
            let (entry, like) = (&self.entries[one], &self.entries[other]);
            (entry.dispatches, entry.program, entry.rows) == (like.dispatches, like.program, like.rows)
                && entry.waits_for.map(|waited| one - waited) == like.waits_for.map(|waited| other - waited)
        };
        one.len() == other.len() && one.clone().zip(other.clone()).all(alike)
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
    Some(vec!["…".into(), String::new(), text, String::new(), String::new(), String::new()])
}

impl QueueEntry {
    fn cells(&self, index: usize) -> Vec<String> {
        let [first, end] = self.rows;
        let what = format!("{}, rows {first} to {}", printable(&self.what), end.saturating_sub(1));
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
        vec![index.to_string(), self.begins_at.to_string(), gpu, waits, npu, estimate]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two parts of the rows, of layers of one command each.
    fn entries(layers: usize) -> Vec<QueueEntry> {
        let mut entries: Vec<QueueEntry> = Vec::new();
        let mut push = |is_npu: bool, layer: usize, part: usize, waits_for: Option<usize>, begins_at: usize| {
            entries.push(QueueEntry {
                queue: if is_npu { "npu" } else { "gpu" },
                what: format!("work{}", entries.len()),
                rows: [32 * part as u32, 32 * (part as u32 + 1)],
                dispatches: if is_npu { 0 } else { 3 },
                layer: is_npu.then_some(layer as u32),
                waits_for,
                handed_bytes: 2048,
                begins_at,
                estimated_seconds: is_npu.then_some([1e-3, 2e-3]),
                program: is_npu.then_some(0),
            });
        };
        for layer in 0..=layers {
            for part in 0..2 {
                let at = 4 * layer + 2 * part;
                push(false, layer, part, (layer > 0).then(|| at - 3), 2 * layer + part);
                if layer < layers {
                    push(true, layer, part, Some(at), 2 * layer + part + 1);
                }
            }
        }
        entries
    }

    #[test]
    fn both_queues_are_drawn_with_their_waits_and_layers_that_repeat_once() {
        let text =
            NpuQueues { target: "generic".into(), rows: 64, dispatches: 15, commands: 4, entries: entries(4) }.text();
        for part in [
            "step of 64 rows on generic: 15 dispatches and 4 commands, at once in 8 of 10 units of time",
            "3 dispatches: work0, rows 0 to 31",
            "─► for 0, 2.00 KiB",
            "work3, rows 32 to 63",
            "1.00 to 2.00 ms",
            "layers 2 to 3 likewise",
            "◄─ for 13, 2.00 KiB",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(text.contains("work4,") && !text.contains("work8,") && text.contains("work16,"), "{text}");
        let in_turns = NpuQueues { target: String::new(), rows: 64, dispatches: 3, commands: 0, entries: entries(0) };
        assert!(in_turns.text().contains("which wait for each other"));
    }
}
