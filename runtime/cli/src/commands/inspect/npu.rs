//! The NPU section as rows and as a table.

use serde::Serialize;
use unicorn_artifact::account::size;
use unicorn_artifact::{NpuArgument, NpuDecision, NpuProduct, NpuProgram, NpuSection, NpuShape, NpuTileUse};

use super::npu_queues::{NpuQueues, queues};
use crate::report::table::Column::{Left, Right};
use crate::report::table::table;
use crate::report::text::printable;

/// What the NPU does.
#[derive(Serialize)]
pub struct NpuRows<'a> {
    pub device: &'a str,
    pub decisions: &'a [NpuDecision],
    pub programs: Vec<NpuProgramRow<'a>>,
    pub products: &'a [NpuProduct],
    pub weight_bytes: u64,
    /// Buffers in system memory, in addition to what the GPU needs.
    pub memory: Vec<NpuMemoryRow>,
    /// One a target: steps of both devices.
    pub queues: Vec<NpuQueues>,
}

/// A buffer that the NPU needs.
#[derive(Serialize)]
pub struct NpuMemoryRow {
    pub name: &'static str,
    pub bytes: u64,
    pub reason: &'static str,
}

/// A program, without its bytes.
#[derive(Serialize)]
pub struct NpuProgramRow<'a> {
    pub name: &'a str,
    pub shape: NpuShape,
    pub activation: Option<&'a str>,
    pub arguments: &'a [NpuArgument],
    pub instruction_bytes: usize,
    /// 0: there is no control image.
    pub control_bytes: usize,
    /// Whether the control image starts cores. `false`: they have no machine code, and the program cannot run on an NPU.
    pub runs_cores: bool,
    pub uses: &'a [NpuTileUse],
    /// Matrices that it multiplies by.
    pub products: usize,
    /// Seconds of one command at the highest and at the lower clock, estimated by a model of the array, not measured.
    pub estimated_seconds: [f64; 2],
    pub estimated_busy: f32,
    pub estimated_shim_bytes: u64,
}

impl<'a> NpuRows<'a> {
    pub fn of(section: &'a NpuSection) -> NpuRows<'a> {
        let program = |(number, program): (usize, &'a NpuProgram)| NpuProgramRow {
            name: &program.name,
            shape: program.shape,
            activation: program.activation.as_deref(),
            arguments: &program.arguments,
            instruction_bytes: program.instructions.len(),
            control_bytes: program.control.len(),
            runs_cores: program.runs_cores(),
            uses: &program.uses,
            products: section.products.iter().filter(|product| product.program as usize == number).count(),
            estimated_seconds: program.estimate.seconds(),
            estimated_busy: program.estimate.busy,
            estimated_shim_bytes: program.estimate.shim_bytes,
        };
        NpuRows {
            device: &section.device,
            decisions: &section.decisions,
            programs: section.programs.iter().enumerate().map(program).collect(),
            products: &section.products,
            weight_bytes: section.slices.iter().sum(),
            memory: section
                .memory(section.most_runs())
                .into_iter()
                .map(|(name, bytes, reason)| NpuMemoryRow { name, bytes, reason })
                .collect(),
            queues: queues(section),
        }
    }

    pub fn heading(&self) -> String {
        let (programs, bytes) = (self.programs.len(), size(self.weight_bytes));
        format!("NPU ({}), {programs} programs, {bytes} of weights; never run on hardware", printable(self.device))
    }

    /// `1.08 GiB of system memory: NPU weights 1.00 GiB, …`; empty: nothing.
    pub fn memory_text(&self) -> String {
        let each: Vec<String> = self.memory.iter().map(|row| format!("{} {}", row.name, size(row.bytes))).collect();
        match each.is_empty() {
            true => String::new(),
            false => {
                let all = size(self.memory.iter().map(|row| row.bytes).sum());
                format!("{all} of system memory: {}", each.join(", "))
            }
        }
    }

    /// Decisions, memory, programs with what they use, and the queues of a step; all times are estimates.
    pub fn text(&self) -> String {
        let mut lines = String::new();
        for NpuDecision { work, on_npu, reason, .. } in self.decisions {
            let place = if *on_npu { "NPU" } else { "GPU" };
            lines += &format!("  {} on the {place}: {}\n", printable(work), printable(reason));
        }
        let memory = self.memory_text();
        if !memory.is_empty() {
            lines += &format!("  {memory}\n");
        }
        let programs: Vec<Vec<String>> = self.programs.iter().map(NpuProgramRow::cells).collect();
        let columns = [
            Left("program"),
            Right("matrices"),
            Left("rows × columns × depth"),
            Left("tile of a core"),
            Right("instructions"),
            Right("control"),
            Right("L1"),
            Right("L2"),
            Left("descriptors"),
            Left("locks"),
            Left("estimate"),
        ];
        lines += &table(&columns, &programs);
        let incomplete = self.programs.iter().filter(|program| !program.runs_cores).count();
        if incomplete > 0 {
            lines += &format!(
                "  {incomplete} of {} programs have no machine code of the cores, which needs Peano, and cannot run on an NPU\n",
                self.programs.len()
            );
        }
        lines + &self.queues.iter().map(NpuQueues::text).collect::<String>()
    }
}

impl NpuProgramRow<'_> {
    fn cells(&self) -> Vec<String> {
        let NpuShape { rows, cols, depth, columns, core_rows, core_cols, core_depth } = self.shape;
        // Figures of core, memory and shim tile.
        let each = |pair: fn(&NpuTileUse) -> [u32; 2]| {
            let used = self.uses.iter().map(pair).map(|[used, there]| format!("{used}/{there}"));
            used.collect::<Vec<_>>().join(" ")
        };
        let memory = |index: usize| {
            let [used, there] = self.uses.get(index).map_or([0, 0], |one| one.memory_bytes);
            format!("{:.0} %", 100.0 * f64::from(used) / f64::from(there.max(1)))
        };
        let [fast, slow] = self.estimated_seconds.map(|seconds| seconds * 1e3);
        vec![
            self.name.to_owned(),
            self.products.to_string(),
            format!("{rows} × {cols} × {depth} on {columns} × 4 cores"),
            format!("{core_rows} × {core_cols} × {core_depth}"),
            size(self.instruction_bytes as u64),
            size(self.control_bytes as u64),
            memory(0),
            memory(1),
            each(|one| one.descriptors),
            each(|one| one.locks),
            format!("{fast:.2} to {slow:.2} ms, {:.0} % busy", 100.0 * self.estimated_busy),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicorn_artifact::NpuEstimate;

    #[test]
    fn a_program_has_a_line_with_what_it_uses() {
        let tile_use = |tile: &str, used, there| NpuTileUse {
            tile: tile.into(),
            memory_bytes: [used, there],
            channels: [1, 1, 2],
            descriptors: [4, 16],
            locks: [6, 16],
        };
        let program = NpuProgram {
            name: "64x96\u{1b}".into(),
            shape: NpuShape { rows: 64, cols: 64, depth: 96, columns: 1, core_rows: 16, core_cols: 16, core_depth: 32 },
            activation: None,
            arguments: Vec::new(),
            instructions: vec![0; 2048],
            control: Vec::new(),
            uses: vec![tile_use("core tile", 32768, 65536), tile_use("memory tile", 131072, 524288)],
            estimate: NpuEstimate {
                cycles: 1_600_000,
                clock_hz: [1_600_000_000, 800_000_000],
                busy: 0.75,
                shim_bytes: 1,
            },
        };
        let decision =
            NpuDecision { work: "ffn".into(), on_npu: true, overruled: false, reason: "2 ms\n on the GPU".into() };
        let (decisions, programs) = (vec![decision], vec![program]);
        let section = NpuSection {
            device: "npu1".into(),
            decisions,
            programs,
            products: Vec::new(),
            slices: vec![1 << 20],
            steps: Vec::new(),
        };
        let rows = NpuRows::of(&section);
        assert_eq!(rows.heading(), "NPU (npu1), 1 programs, 1.00 MiB of weights; never run on hardware");
        let text = rows.text();
        assert!(text.starts_with("  ffn on the NPU: 2 ms\\n on the GPU\n"), "{text}");
        for part in [
            "64x96\\u{1b}",
            "16 × 16 × 32",
            "2.00 KiB",
            "50 %",
            "25 %",
            "4/16 4/16",
            "1.00 to 2.00 ms, 75 % busy",
            "1 of 1 programs have no machine code of the cores, which needs Peano",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
