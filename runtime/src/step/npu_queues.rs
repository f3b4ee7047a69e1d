//! A step in two queues: the host submits to GPU and NPU in the order of the schedule, and waits for one of them only where the next entry of the other needs
//! what it computes.

use std::collections::VecDeque;
use std::ops::Range;

use crate::memory::buffers::HostViews;
use crate::npu::NpuDevice;
use crate::program::npu_queues::{NpuRun, QueueEntry};
use crate::step::stop::Stop;
use crate::vk::command_list::CommandList;
use crate::vk::submission::SubmissionQueue;

/// What two queues do; other ones in tests.
trait Queues {
    type Error;

    /// Submits lists of an entry to the GPU; `false`: the step is cancelled.
    fn begin_gpu(&mut self, entry: usize, lists: Range<usize>) -> Result<bool, Self::Error>;

    /// Waits for an entry of the GPU.
    fn end_gpu(&mut self, entry: usize) -> Result<(), Self::Error>;

    /// Passes activations on, where they have to be copied, and submits a run to the NPU; `false`: the step has no such rows.
    fn begin_npu(&mut self, run: &NpuRun) -> Result<bool, Self::Error>;

    /// Waits for the run of the NPU that was submitted first, and passes its outputs on.
    fn end_npu(&mut self) -> Result<(), Self::Error>;
}

/// Submits all entries in order; returns whether none was cancelled. The last entry of the GPU may still be in flight then, and after an error or a
/// cancelled step others of both queues.
fn run<Q: Queues>(queues: &mut Q, entries: &[QueueEntry]) -> Result<bool, Q::Error> {
    // Entries of the NPU that were not waited for.
    let mut running = VecDeque::new();
    for (index, entry) in entries.iter().enumerate() {
        match entry {
            QueueEntry::Gpu { lists, waits_for } => {
                while waits_for.is_some_and(|other| running.front().is_some_and(|first| *first <= other)) {
                    queues.end_npu()?;
                    running.pop_front();
                }
                if !queues.begin_gpu(index, lists.clone())? {
                    return Ok(false);
                }
            }
            QueueEntry::Npu(run) => {
                queues.end_gpu(run.waits_for)?;
                if queues.begin_npu(run)? {
                    running.push_back(index);
                }
            }
        }
    }
    Ok(true)
}

/// A step's GPU and NPU.
pub struct StepQueues<'d> {
    pub queue: &'d mut SubmissionQueue,
    pub npu: &'d mut NpuDevice,
    pub views: &'d mut HostViews,
    /// Rows of the step.
    pub n_rows: u32,
    /// Slot of the last entry's lists.
    pub step_slot: usize,
    pub lists: &'d [CommandList],
}

impl StepQueues<'_> {
    /// Submits a step; `goes_on` is asked before each list. Returns when the last run of the NPU has ended: the last entry of the GPU is in flight then.
    /// `false`: cancelled, and nothing of it is in flight.
    pub fn run(self, entries: &[QueueEntry], goes_on: &mut dyn FnMut(usize) -> bool) -> Result<bool, Stop> {
        let mut both = Both { devices: self, goes_on, segments: vec![0; entries.len()], last: entries.len() - 1 };
        let ran = run(&mut both, entries);
        let devices = both.devices;
        if !matches!(ran, Ok(true)) {
            // Both end what they have. The first failure is the one to report.
            let npu = devices.npu.end_all().map_err(Stop::Npu);
            let gpu = devices.queue.end_segment(devices.queue.last_segment());
            if ran.is_ok() {
                npu?;
                gpu?;
            }
        }
        ran
    }
}

struct Both<'d, 'w> {
    devices: StepQueues<'d>,
    goes_on: &'w mut dyn FnMut(usize) -> bool,
    /// The segment of each of the GPU's entries.
    segments: Vec<u64>,
    /// Index of the last entry.
    last: usize,
}

impl Queues for Both<'_, '_> {
    type Error = Stop;

    fn begin_gpu(&mut self, entry: usize, lists: Range<usize>) -> Result<bool, Stop> {
        let StepQueues { queue, step_slot, lists: all, .. } = &mut self.devices;
        if entry == self.last {
            // Steps with a sampler apart have another number of lists.
            let rest = &all[lists.start..];
            if !(lists.start..all.len()).all(|list| (self.goes_on)(list)) {
                return Ok(false);
            }
            queue.begin(*step_slot, rest)?;
            return Ok(true);
        }
        for list in lists {
            if !(self.goes_on)(list) {
                return Ok(false);
            }
            self.segments[entry] = queue.begin_segment(&all[list])?;
        }
        Ok(true)
    }

    fn end_gpu(&mut self, entry: usize) -> Result<(), Stop> {
        Ok(self.devices.queue.end_segment(self.segments[entry])?)
    }

    fn begin_npu(&mut self, run: &NpuRun) -> Result<bool, Stop> {
        let StepQueues { npu, views, n_rows, .. } = &mut self.devices;
        if run.first_row >= *n_rows {
            // What the device then reads are rows that no one uses.
            return Ok(false);
        }
        if let Some(activations) = &views.npu[run.run].activations {
            activations.invalidate()?;
            let to = npu.activations(run.product, run.run).map_err(Stop::Npu)?;
            to.copy_from_slice(&activations.bytes()[..to.len()]);
        }
        npu.begin(run.product, run.run).map_err(Stop::Npu)?;
        Ok(true)
    }

    fn end_npu(&mut self) -> Result<(), Stop> {
        let StepQueues { npu, views, .. } = &mut self.devices;
        let (product, run) = npu.end_first().map_err(Stop::Npu)?;
        if let Some(outputs) = &mut views.npu[run].outputs {
            let found = npu.outputs(product, run).map_err(Stop::Npu)?;
            outputs.bytes_mut()[..found.len()].copy_from_slice(found);
            outputs.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vk::Failure;

    /// Both queues as an order of events. The NPU computes a run as late as it may: when it is waited for.
    #[derive(Default)]
    struct Recorded {
        events: Vec<String>,
        /// Entries of the GPU that were submitted, and that were waited for.
        gpu: [Vec<usize>; 2],
        running: VecDeque<usize>,
        cancels: Option<usize>,
        rows: u32,
    }

    impl Queues for Recorded {
        type Error = Failure;

        fn begin_gpu(&mut self, entry: usize, _: Range<usize>) -> Result<bool, Failure> {
            self.events.push(format!("gpu {entry}"));
            self.gpu[0].push(entry);
            Ok(self.cancels != Some(entry))
        }

        fn end_gpu(&mut self, entry: usize) -> Result<(), Failure> {
            assert!(self.gpu[0].contains(&entry), "entry {entry} was submitted");
            self.events.push(format!("gpu {entry} ended"));
            self.gpu[1].push(entry);
            Ok(())
        }

        fn begin_npu(&mut self, run: &NpuRun) -> Result<bool, Failure> {
            assert!(self.gpu[1].contains(&run.waits_for), "activations of run {} are written", run.run);
            assert!(!self.running.contains(&run.run), "buffers of run {} are free", run.run);
            if run.first_row >= self.rows {
                return Ok(false);
            }
            self.events.push(format!("npu {}", run.run));
            self.running.push_back(run.run);
            Ok(true)
        }

        fn end_npu(&mut self) -> Result<(), Failure> {
            let run = self.running.pop_front().expect("one runs");
            self.events.push(format!("npu {run} ended"));
            Ok(())
        }
    }

    fn gpu(waits_for: Option<usize>) -> QueueEntry {
        QueueEntry::Gpu { lists: 0..1, waits_for }
    }

    fn npu(run: usize, waits_for: usize) -> QueueEntry {
        QueueEntry::Npu(NpuRun { product: 0, run, first_row: 8 * run as u32, waits_for })
    }

    /// Two parts of the rows: three stages with two commands between them.
    fn entries() -> Vec<QueueEntry> {
        vec![
            gpu(None),
            gpu(None),
            npu(0, 0),
            npu(1, 1),
            gpu(Some(2)),
            npu(0, 4),
            gpu(Some(3)),
            npu(1, 6),
            gpu(Some(5)),
            gpu(Some(7)),
        ]
    }

    fn events(rows: u32, cancels: Option<usize>) -> (bool, Vec<String>) {
        let mut recorded = Recorded { rows, cancels, ..Recorded::default() };
        let all = run(&mut recorded, &entries()).unwrap_or_else(|failure| panic!("{failure:?}"));
        (all, recorded.events)
    }

    #[test]
    fn each_queue_works_while_the_other_does() {
        let (all, events) = events(16, None);
        assert!(all);
        let order = [
            "gpu 0",
            "gpu 1",
            "gpu 0 ended",
            "npu 0",
            "gpu 1 ended",
            "npu 1",
            "npu 0 ended",
            // While the NPU has the second part, the GPU begins and ends with the first.
            "gpu 4",
            "gpu 4 ended",
            "npu 0",
            "npu 1 ended",
            "gpu 6",
            "gpu 6 ended",
            "npu 1",
            "npu 0 ended",
            "gpu 8",
            "npu 1 ended",
            "gpu 9",
        ];
        assert_eq!(events, order);
    }

    #[test]
    fn runs_without_rows_are_left_out_and_no_one_waits_for_them() {
        let (all, events) = events(8, None);
        assert!(all && !events.iter().any(|event| event.starts_with("npu 1")), "{events:?}");
        assert_eq!(events.iter().filter(|event| *event == "npu 0 ended").count(), 2);
    }

    #[test]
    fn a_cancelled_step_submits_nothing_more() {
        let (all, events) = events(16, Some(4));
        assert!(!all);
        assert_eq!(events.last().map(String::as_str), Some("gpu 4"));
    }
}
