//! The report's table: one line for all kernels of a model with equal figures.

use std::collections::{BTreeMap, BTreeSet};

use super::instructions::Class;
use super::{CompiledModel, Kernel};

/// Columns and their widths; what is counted in which unit is said in the report's head.
const COLUMNS: [(&str, usize); 14] = [
    ("n", 2),
    ("lanes", 5),
    ("wave", 4),
    ("VGPRs", 5),
    ("SGPRs", 5),
    ("spilled", 7),
    ("LDS", 6),
    ("waves", 5),
    ("code", 6),
    ("latency", 8),
    ("inverse", 8),
    ("dot4", 5),
    ("wmma", 5),
    ("b128", 5),
];
const ROWS_WIDTH: usize = 30;
const NAME_WIDTH: usize = 40;

/// What the columns mean.
pub const LEGEND: &str = "\
rows     token rows of the programs that use the kernel; n: kernels that came out alike (parts of a cut matrix)
lanes    of a workgroup; wave: lanes of a subgroup; waves: subgroups that fit on a SIMD
spilled  registers, scalar and vector, and bytes of scratch; LDS: bytes of a workgroup; code: bytes
latency  cycles of one wave by itself, inverse: cycles of its SIMD that it takes, both by ACO, each loop counted 8 times
dot4, wmma, b128  packed dot products, matrix products and 16-byte loads in the machine code
";

/// Kernels by model, rows and name.
pub fn table(models: &[CompiledModel]) -> String {
    let mut text = String::new();
    for model in models {
        let mut alike: BTreeMap<(Vec<u32>, &str, [u64; COLUMNS.len() - 1]), u64> = BTreeMap::new();
        // What only other versions of a program use is with the alternatives.
        let is_own = |kernel: &&Kernel| !kernel.rows.is_empty() || kernel.spec.is_of_runtime();
        for kernel in model.kernels.iter().filter(is_own) {
            let rows = kernel.rows.iter().copied().collect();
            *alike.entry((rows, &kernel.name, values(kernel))).or_default() += 1;
        }
        text += &format!("\n{:<ROWS_WIDTH$}{:<NAME_WIDTH$}{}\n", model.name, "", heading());
        for ((rows, name, values), count) in alike {
            let rows = rows.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            let cells = std::iter::once(count).chain(values).zip(COLUMNS);
            let cells: String = cells.map(|(value, (_, width))| format!(" {value:>width$}")).collect();
            text += &format!("{rows:<ROWS_WIDTH$}{name:<NAME_WIDTH$}{cells}\n");
        }
    }
    text
}

/// What the second table is.
const OTHERS: &str = "\
Alternatives, of which unicorn-run tune chooses on the device: VGPRs/waves/inverse of the compiler's choice and, behind the colon, of
each other way in the order of compiler/src/alternatives. None spills. A kernel without rows is that of a version of decode.
";

/// Kernels that the compiler did not choose: a line for each that they could replace.
pub fn alternatives_table(models: &[CompiledModel]) -> String {
    let mut text = OTHERS.to_owned();
    for model in models {
        text += &format!("\n{}\n", model.name);
        let mut alternatives = model.alternatives.iter();
        let mut lines: BTreeSet<(Vec<u32>, &str, String)> = BTreeSet::new();
        for (kernel, pipeline) in model.kernels.iter().zip(&model.set.targets[0].pipelines) {
            let others: Vec<String> = alternatives.by_ref().take(pipeline.alternatives.len()).map(figures).collect();
            let is_version = kernel.rows.is_empty() && !kernel.spec.is_of_runtime();
            if is_version || !others.is_empty() {
                let figures = format!("{:>11}: {}", figures(kernel), others.join(" "));
                lines.insert((kernel.rows.iter().copied().collect(), &kernel.name, figures));
            }
        }
        for (rows, name, figures) in lines {
            let rows = rows.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            text += format!("{rows:<ROWS_WIDTH$}{name:<NAME_WIDTH$}{figures}").trim_end();
            text.push('\n');
        }
    }
    text
}

fn figures(kernel: &Kernel) -> String {
    ["VGPRs", "Subgroups per SIMD", "Inverse Throughput"].map(|name| kernel.statistic(name).to_string()).join("/")
}

fn heading() -> String {
    COLUMNS.iter().map(|(name, width)| format!(" {name:>width$}")).collect()
}

/// Figures of a kernel in the order of [`COLUMNS`], without the count.
fn values(kernel: &Kernel) -> [u64; COLUMNS.len() - 1] {
    let spilled = ["Spilled SGPRs", "Spilled VGPRs", "Scratch size"].map(|name| kernel.statistic(name));
    [
        u64::from(kernel.words.lanes),
        u64::from(kernel.executable.subgroup_size),
        kernel.statistic("VGPRs"),
        kernel.statistic("SGPRs"),
        spilled.iter().sum(),
        kernel.statistic("LDS size"),
        kernel.statistic("Subgroups per SIMD"),
        kernel.statistic("Code size"),
        kernel.statistic("Latency"),
        kernel.statistic("Inverse Throughput"),
        kernel.count(Class::PackedDot) as u64,
        kernel.count(Class::Matrix) as u64,
        kernel.count(Class::WideLoad) as u64,
    ]
}
