//! The order of a step's work in two queues, those of the GPU and of the NPU, and what waits for what.
//!
//! ```text
//! GPU   [rows 0..256 to qkv] [rows 256..512 to qkv] ┌─ [rows 0..256 from qkv … to ffn] ┌─ [rows 256..512 from qkv …]
//! NPU                      └─► [qkv of 0..256] ─────┘ [qkv of 256..512] ───────────────┘ …
//! ```
//!
//! Entries of one queue run one after the other, in this order. An entry waits for at most one of the other queue, and so for all before that one:
//! everything else may run at the same time. A command runs on what the GPU's entry that it waits for has written; the first entry of the GPU that
//! waits for a command, or for a later one, receives its outputs.

use serde::{Deserialize, Serialize};

use super::NpuCommand;
use crate::error::ParseError;
use crate::kernels::{Dispatch, Program};

/// The order of a program's dispatches and commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuSchedule {
    /// Entries of both queues, in the order in which they are submitted; the first and the last are of the GPU.
    pub entries: Vec<NpuScheduleEntry>,
}

/// Work that one of the queues does without waiting in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuScheduleEntry {
    /// The work, which also says in which queue.
    pub work: NpuWorkItem,
    /// Index of an entry before it, of the other queue.
    pub waits_for: Option<u32>,
}

/// Work of one of the queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NpuWorkItem {
    /// Of the GPU, in order.
    Dispatches(Vec<DispatchPart>),
    /// Of the NPU: one run of a command.
    Run {
        /// Index into the program's commands.
        command: u32,
        /// Number of the run: of the rows behind those of the run before.
        run: u32,
    },
}

/// Workgroups of a dispatch: a range of one axis, and all of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchPart {
    /// Index into the program's dispatches.
    pub dispatch: u32,
    /// The axis: 0 to 2.
    pub axis: u8,
    /// First workgroup on it.
    pub begin: u32,
    /// The workgroup behind the last.
    pub end: u32,
}

impl DispatchPart {
    /// All workgroups of a dispatch.
    pub fn whole(index: usize, dispatch: &Dispatch) -> DispatchPart {
        DispatchPart { dispatch: index as u32, axis: 0, begin: 0, end: dispatch.workgroups[0] }
    }

    /// First workgroup and number of workgroups on each axis, of a dispatch that has `workgroups`.
    pub fn range(&self, workgroups: [u32; 3]) -> ([u32; 3], [u32; 3]) {
        let (mut first, mut count) = ([0; 3], workgroups);
        (first[usize::from(self.axis)], count[usize::from(self.axis)]) = (self.begin, self.end - self.begin);
        (first, count)
    }
}

impl NpuSchedule {
    /// Everything in the order of the program, GPU and NPU in turns: what a file without schedules means. `runs` has the number of runs of each command.
    pub fn in_turns(program: &Program, commands: &[NpuCommand], runs: &[u32]) -> NpuSchedule {
        let (mut entries, mut done) = (Vec::new(), 0);
        let mut gpu = |entries: &mut Vec<NpuScheduleEntry>, end: usize| {
            let parts = (done..end).map(|index| DispatchPart::whole(index, &program.dispatches[index])).collect();
            done = end;
            let waits_for = (entries.len() as u32).checked_sub(1);
            entries.push(NpuScheduleEntry { work: NpuWorkItem::Dispatches(parts), waits_for });
        };
        for (command, (one, runs)) in commands.iter().zip(runs).enumerate() {
            gpu(&mut entries, one.before_dispatch as usize);
            let waits_for = Some(entries.len() as u32 - 1);
            let run = |run| NpuScheduleEntry { work: NpuWorkItem::Run { command: command as u32, run }, waits_for };
            entries.extend((0..*runs).map(run));
        }
        gpu(&mut entries, program.dispatches.len());
        NpuSchedule { entries }
    }

    /// Checks what a reader relies on: every workgroup of every dispatch and every run of every command once, in order; waits for earlier entries of
    /// the other queue; outputs that are received before the run of the same number of another command begins, which uses the same buffers. Not checked: that
    /// an entry waits for all whose results it reads, as an artifact may compute anything.
    pub(crate) fn check(&self, program: &Program, commands: &[NpuCommand], runs: &[u32]) -> Result<(), ParseError> {
        let of = |index: usize, what: &str| format!("{what} of entry {index} of an NPU schedule");
        let mut done: Vec<Option<DispatchPart>> = vec![None; program.dispatches.len()];
        let mut next_run = vec![0; commands.len()];
        // The last run that each of the GPU's entries, or one before it, waits for; and the last entry of each number of runs.
        let (mut awaited, mut awaited_by) = (None, vec![None; self.entries.len()]);
        let mut last_of_number: Vec<Option<u32>> = vec![None; runs.iter().copied().max().unwrap_or(0) as usize];
        for (index, NpuScheduleEntry { work, waits_for }) in self.entries.iter().enumerate() {
            if let Some(other) = *waits_for {
                let is_other = |other: &NpuScheduleEntry| other.work.is_run() != work.is_run();
                if other as usize >= index || !is_other(&self.entries[other as usize]) {
                    let expected = format!("an entry of the other queue before {index}");
                    return Err(ParseError::invalid(of(index, "wait"), expected, other));
                }
            }
            match work {
                NpuWorkItem::Dispatches(parts) => {
                    awaited = awaited.max(*waits_for);
                    awaited_by[index] = awaited;
                    for part in parts {
                        let Some(dispatch) = program.dispatches.get(part.dispatch as usize) else {
                            let expected = format!("below {}", program.dispatches.len());
                            return Err(ParseError::invalid(of(index, "dispatch"), expected, part.dispatch));
                        };
                        let before = &mut done[part.dispatch as usize];
                        let (axis, begin) = before.map_or((part.axis, 0), |before| (before.axis, before.end));
                        let most = dispatch.workgroups.get(usize::from(axis)).copied().unwrap_or(0);
                        if (part.axis, part.begin) != (axis, begin) || part.end <= begin || part.end > most {
                            let expected = format!("from {begin} to at most {most} on axis {axis}");
                            return Err(ParseError::invalid(of(index, "workgroups"), expected, format!("{part:?}")));
                        }
                        *before = Some(*part);
                    }
                }
                NpuWorkItem::Run { command, run } => {
                    let expected = next_run.get(*command as usize).copied();
                    if expected != Some(*run) || *run >= runs[*command as usize] {
                        let expected = expected.map_or("a command that exists".into(), |run| format!("run {run}"));
                        return Err(ParseError::invalid(of(index, "run"), expected, format!("{run} of {command}")));
                    }
                    next_run[*command as usize] += 1;
                    let before = last_of_number[*run as usize].replace(index as u32);
                    let received = waits_for.and_then(|other| awaited_by[other as usize]);
                    if waits_for.is_none() || before > received {
                        let expected = "one for an entry of the GPU that has received the outputs of the run before in the same buffers";
                        return Err(ParseError::invalid(of(index, "wait"), expected, format!("{waits_for:?}")));
                    }
                }
            }
        }
        let covered = |(part, dispatch): (&Option<DispatchPart>, &Dispatch)| {
            part.is_some_and(|part| part.end == dispatch.workgroups[usize::from(part.axis)])
        };
        let whole = done.iter().zip(&program.dispatches).filter(|pair| covered(*pair)).count();
        let last_run = self.entries.iter().rposition(|entry| entry.work.is_run()).map(|index| index as u32);
        let ends_on_gpu = self.entries.last().is_some_and(|entry| !entry.work.is_run());
        let found = (whole, next_run.iter().sum::<u32>(), ends_on_gpu, awaited.max(last_run) == awaited);
        let expected = (program.dispatches.len(), runs.iter().sum::<u32>(), true, true);
        if found != expected {
            let what = "whole dispatches, runs, whether the GPU ends, and receives all outputs, of an NPU schedule";
            return Err(ParseError::invalid(what, format!("{expected:?}"), format!("{found:?}")));
        }
        Ok(())
    }
}

impl NpuWorkItem {
    /// Whether it is the NPU's.
    pub fn is_run(&self) -> bool {
        matches!(self, NpuWorkItem::Run { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{LogitsRows, Order};

    /// Four dispatches of 2 × 4 workgroups, and a command of two runs before the third.
    fn program() -> (Program, Vec<NpuCommand>, Vec<u32>) {
        let dispatch = Dispatch {
            pipeline: 0,
            workgroups: [2, 4, 1],
            alternatives: Vec::new(),
            order: Order::Barrier,
            bindings: Vec::new(),
            label: String::new(),
            weight_bytes: 0,
        };
        let program = Program {
            rows: 16,
            logits: LogitsRows::None,
            samples: false,
            batch: false,
            images: false,
            from_tokens: 0,
            dispatches: vec![dispatch; 4],
        };
        let command =
            NpuCommand { before_dispatch: 2, product: 0, activations_offset_bytes: 0, outputs_offset_bytes: 0 };
        (program, vec![command], vec![2])
    }

    fn gpu(parts: &[(u32, u32, u32)], waits_for: Option<u32>) -> NpuScheduleEntry {
        let part = |&(dispatch, begin, end): &(u32, u32, u32)| DispatchPart { dispatch, axis: 1, begin, end };
        NpuScheduleEntry { work: NpuWorkItem::Dispatches(parts.iter().map(part).collect()), waits_for }
    }

    fn npu(run: u32, waits_for: u32) -> NpuScheduleEntry {
        NpuScheduleEntry { work: NpuWorkItem::Run { command: 0, run }, waits_for: Some(waits_for) }
    }

    fn overlapped() -> NpuSchedule {
        let entries = vec![
            gpu(&[(0, 0, 2), (1, 0, 2)], None),
            npu(0, 0),
            gpu(&[(0, 2, 4), (1, 2, 4)], None),
            npu(1, 2),
            gpu(&[(2, 0, 2), (3, 0, 2)], Some(1)),
            gpu(&[(2, 2, 4), (3, 2, 4)], Some(3)),
        ];
        NpuSchedule { entries }
    }

    #[test]
    fn schedules_in_turns_and_in_parts_are_taken() {
        let (program, commands, runs) = program();
        let in_turns = NpuSchedule::in_turns(&program, &commands, &runs);
        assert_eq!(
            in_turns.entries.iter().map(|entry| entry.waits_for).collect::<Vec<_>>(),
            [None, Some(0), Some(0), Some(2)]
        );
        for schedule in [in_turns, overlapped()] {
            schedule.check(&program, &commands, &runs).unwrap();
        }
        let part = DispatchPart { dispatch: 0, axis: 1, begin: 2, end: 4 };
        assert_eq!(part.range([2, 4, 1]), ([0, 2, 0], [2, 2, 1]));
    }

    #[test]
    fn what_a_reader_relies_on_is_checked() {
        let (program, commands, runs) = program();
        let refused = |change: &dyn Fn(&mut Vec<NpuScheduleEntry>), part: &str| {
            let mut schedule = overlapped();
            change(&mut schedule.entries);
            let error = schedule.check(&program, &commands, &runs).unwrap_err().to_string();
            assert!(error.contains(part), "{part} is not in {error}");
        };
        refused(&|entries| entries[1].waits_for = None, "wait of entry 1 of an NPU schedule");
        refused(&|entries| entries[1].waits_for = Some(1), "wait of entry 1");
        refused(&|entries| entries[4].waits_for = Some(5), "wait of entry 4");
        refused(&|entries| entries[4].waits_for = Some(0), "wait of entry 4");
        refused(&|entries| entries[4] = gpu(&[(4, 0, 2)], Some(1)), "dispatch of entry 4");
        refused(&|entries| entries[5] = gpu(&[(2, 2, 5)], Some(3)), "workgroups of entry 5");
        refused(&|entries| entries[5] = gpu(&[(2, 1, 4)], Some(3)), "workgroups of entry 5");
        refused(&|entries| entries[5] = gpu(&[(2, 2, 2)], Some(3)), "workgroups of entry 5");
        refused(&|entries| entries[5] = gpu(&[(2, 2, 4), (3, 2, 3)], Some(3)), "whole dispatches, runs");
        refused(&|entries| entries[3] = npu(0, 2), "run of entry 3");
        refused(&|entries| entries[3] = npu(2, 2), "run of entry 3");
        refused(&|entries| entries.push(npu(2, 5)), "run of entry 6");
        refused(&|entries| entries[3].work = NpuWorkItem::Run { command: 1, run: 0 }, "run of entry 3");
        refused(&|entries| entries[5].waits_for = Some(1), "(4, 2, true, false)");
        refused(&|entries| drop(entries.pop()), "whole dispatches, runs");
        refused(&|entries| entries.clear(), "whole dispatches, runs");
        // The second command's first run uses the buffers of the first one's.
        let twice = NpuCommand { before_dispatch: 3, ..commands[0] };
        let of_first = |waits_for| {
            let run = |command, run, waits_for| NpuScheduleEntry {
                work: NpuWorkItem::Run { command, run },
                waits_for: Some(waits_for),
            };
            let entries = vec![
                gpu(&[(0, 0, 4), (1, 0, 4)], None),
                run(0, 0, 0),
                gpu(&[(2, 0, 4)], waits_for),
                run(1, 0, 2),
                gpu(&[(3, 0, 4)], Some(3)),
            ];
            NpuSchedule { entries }.check(&program, &[commands[0], twice], &[1, 1])
        };
        of_first(Some(1)).unwrap();
        let error = of_first(None).unwrap_err().to_string();
        assert!(error.contains("has received the outputs of the run before"), "{error}");
        let axis = |entries: &mut Vec<NpuScheduleEntry>| {
            let NpuWorkItem::Dispatches(parts) = &mut entries[2].work else { unreachable!("the GPU's") };
            parts[0].axis = 3;
        };
        refused(&axis, "workgroups of entry 2");
    }
}
