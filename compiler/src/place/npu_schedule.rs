//! The order of a step's dispatches and of an NPU's commands in two queues ([`NpuSchedule`]).
//!
//! ```text
//! dispatches   a b │ c d e │ f        │: a command of the NPU
//! stages      a0 b0 a1 b1 · c0 d0 e0 · c1 d1 e1 · f0 · f1        0, 1: parts of the rows
//! ```
//!
//! The NPU takes the rows of a step in parts. Where all dispatches of a stage can be divided in the same way, the GPU takes them part after part: while the NPU
//! computes a part's product, the GPU is at another one. A part needs no other, but for keys and values of earlier rows: attention of a part comes behind all
//! dispatches of the parts before it.

use unicorn_artifact::npu::{DispatchPart, NpuScheduleEntry, NpuWorkItem};
use unicorn_artifact::{Binding, NpuCommand, NpuSchedule, Program};

use crate::select::{KernelDispatch, Operand, SelectedProgram};

/// The schedule of a program whose operands are placed, and whose commands run once for each of its parts.
pub fn schedule(program: &SelectedProgram, placed: &Program, commands: &[NpuCommand]) -> NpuSchedule {
    let stages = Stages { program, placed };
    let n_parts = program.npu_parts;
    let (mut entries, mut runs) = (Vec::new(), Vec::new());
    for (stage, (begin, end)) in bounds(&program.dispatches).into_iter().enumerate() {
        let blocks = stages.blocks(begin, end);
        // The command before the stage, whose outputs its first block reads: an entry a part.
        let mut awaited: Vec<u32> = std::mem::take(&mut runs);
        for (number, block) in blocks.iter().enumerate() {
            let gives_work = stage < commands.len() && number + 1 == blocks.len();
            let mut ready = Vec::new();
            let mut give = |entries: &mut Vec<NpuScheduleEntry>, part: usize, waits_for: u32| {
                runs.push(entries.len() as u32);
                let work = NpuWorkItem::Run { command: stage as u32, run: part as u32 };
                entries.push(NpuScheduleEntry { work, waits_for: Some(waits_for) });
            };
            let parts = if block.is_divided { (0..n_parts).map(Some).collect() } else { vec![None] };
            for &part in &parts {
                let waits_for = part.map_or(awaited.last(), |part| awaited.get(part)).copied();
                ready.push(entries.len() as u32);
                let work = (block.begin..block.end).map(|dispatch| stages.part(dispatch, part)).collect();
                entries.push(NpuScheduleEntry { work: NpuWorkItem::Dispatches(work), waits_for });
                // The NPU is given a part as soon as it is ready; but the GPU need not wait for that before it begins with the next part, where it can.
                if let Some(part) = part.filter(|_| gives_work && stage > 0) {
                    give(&mut entries, part, ready[part]);
                }
            }
            if gives_work && (stage == 0 || !block.is_divided) {
                (0..n_parts).for_each(|part| give(&mut entries, part, ready[part.min(ready.len() - 1)]));
            }
            awaited.clear();
        }
    }
    NpuSchedule { entries }
}

/// First dispatch of each stage, and the one behind its last: a stage begins with the dispatch that reads a command's outputs.
pub fn bounds(dispatches: &[KernelDispatch]) -> Vec<(usize, usize)> {
    let reads =
        |dispatch: &KernelDispatch| dispatch.operands.iter().any(|one| matches!(one, Operand::NpuOutput { .. }));
    let begins = std::iter::once(0).chain((1..dispatches.len()).filter(|index| reads(&dispatches[*index])));
    let begins: Vec<usize> = begins.collect();
    let ends = begins[1..].iter().copied().chain([dispatches.len()]);
    begins.iter().copied().zip(ends).collect()
}

/// Consecutive dispatches of a stage.
struct Block {
    begin: usize,
    end: usize,
    /// Whether all of one part come before those of the next.
    is_divided: bool,
}

struct Stages<'p> {
    program: &'p SelectedProgram,
    placed: &'p Program,
}

impl Stages<'_> {
    /// Blocks of a stage, each as long as possible.
    fn blocks(&self, begin: usize, end: usize) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for dispatch in begin..end {
            let is_divided = self.first_workgroups(dispatch).is_some();
            match blocks.last_mut() {
                Some(block) if block.is_divided == is_divided => block.end = dispatch + 1,
                _ => blocks.push(Block { begin: dispatch, end: dispatch + 1, is_divided }),
            }
        }
        for block in &mut blocks {
            block.is_divided &= self.can_lag(block);
        }
        blocks
    }

    /// A part of a dispatch; `None`: all of it.
    fn part(&self, dispatch: usize, part: Option<usize>) -> DispatchPart {
        let placed = &self.placed.dispatches[dispatch];
        let Some(part) = part else { return DispatchPart::whole(dispatch, placed) };
        let (axis, workgroups) = self.first_workgroups(dispatch).expect("it is divided");
        let is_last = part + 1 == self.program.npu_parts;
        let end = if is_last { placed.workgroups[axis] } else { (part as u32 + 1) * workgroups };
        DispatchPart { dispatch: dispatch as u32, axis: axis as u8, begin: part as u32 * workgroups, end }
    }

    /// The axis along which a dispatch is divided, and the workgroups of a part; `None`: it cannot be.
    fn first_workgroups(&self, dispatch: usize) -> Option<(usize, u32)> {
        let (selected, n_parts) = (&self.program.dispatches[dispatch], self.program.npu_parts);
        let axis = selected.spec.row_axis()?;
        let is_by_row = |operand: &Operand| {
            matches!(
                operand,
                Operand::Value(_)
                    | Operand::Encoded(_)
                    | Operand::NpuInput { .. }
                    | Operand::NpuOutput { .. }
                    | Operand::Keys { .. }
                    | Operand::Values { .. }
            )
        };
        let is_shared = |operand: &Operand| matches!(operand, Operand::StepBuffer | Operand::Weight(_));
        let divides = n_parts > 1
            && selected.rows.is_multiple_of(n_parts * axis.rows)
            && selected.operands.iter().all(|operand| is_by_row(operand) || is_shared(operand));
        divides.then_some((axis.axis, (selected.rows / n_parts / axis.rows) as u32))
    }

    /// Whether a part's dispatches may all come before those of the next part: no dispatch writes what lies where an earlier one of the next part has its own
    /// values, nor keys and values that it reads.
    fn can_lag(&self, block: &Block) -> bool {
        let of = |dispatch: usize| {
            self.placed.dispatches[dispatch].bindings.iter().zip(&self.program.dispatches[dispatch].operands)
        };
        (block.begin..block.end).all(|later| {
            (block.begin..later).all(|earlier| {
                of(earlier).all(|(one, operand)| {
                    of(later).all(|(other, of_other)| {
                        let is_cache = matches!(operand, Operand::Keys { .. } | Operand::Values { .. });
                        let is_same = operand == of_other && !(is_cache && other.writes);
                        is_same || !(one.writes || other.writes) || !overlap(one, other)
                    })
                })
            })
        })
    }
}

/// Whether two bindings have bytes in common; one without a length is a whole buffer.
fn overlap(one: &Binding, other: &Binding) -> bool {
    let end =
        |binding: &Binding| if binding.len_bytes == 0 { u64::MAX } else { binding.offset_bytes + binding.len_bytes };
    one.buffer == other.buffer && one.offset_bytes < end(other) && other.offset_bytes < end(one)
}
