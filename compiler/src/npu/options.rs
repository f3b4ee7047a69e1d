//! What is requested of the NPU, and its programs as text.

use std::fmt::{self, Display};
use std::path::PathBuf;

/// A kind of work that the NPU has programs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NpuWork {
    /// Queries, keys and values.
    Qkv,
    /// The output projection of attention.
    Output,
    /// Gate and up with their activation, and down.
    Ffn,
}

impl NpuWork {
    /// All kinds of work, in the order of a layer.
    pub const ALL: [NpuWork; 3] = [NpuWork::Qkv, NpuWork::Output, NpuWork::Ffn];

    /// `qkv`, `output` or `ffn`.
    pub fn name(self) -> &'static str {
        match self {
            NpuWork::Qkv => "qkv",
            NpuWork::Output => "output",
            NpuWork::Ffn => "ffn",
        }
    }
}

impl Display for NpuWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which NPU programs to make. Checked by the functions that take them.
///
/// ```
/// use unicorn_compiler::{CompileOptions, NpuOptions};
///
/// let mut options = CompileOptions::default();
/// options.npu = Some(NpuOptions::default().with(|npu| npu.columns = 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NpuOptions {
    /// Rows of a program, one of [`NpuOptions::ROWS`]: 256, so that steps of 512 rows are two parts, of which GPU and NPU have one each.
    pub rows: usize,
    /// Columns of the array, 1 to 4: 4.
    pub columns: usize,
    /// What the NPU does; `None`, the default: what it does faster than the GPU by the estimate.
    pub work: Option<Vec<NpuWork>>,
    /// Whether the NPU computes all products of a packed draft's tokens: `false`. Else those of which the estimate says so, if `work` is `None`.
    pub draft: bool,
    /// An installation of Peano (llvm-aie), which makes machine code of the cores; `None`, the default: the programs have none.
    pub peano: Option<PathBuf>,
}

impl NpuOptions {
    /// Rows of a program by which the NPU takes part in a step: all rows of one, or an eighth to a half of one of 64 or 512. A program of 16 or 32
    /// computes 64, since its tiles have as many: no step is divided into those.
    pub const ROWS: [usize; 6] = [1, 8, 64, 128, 256, 512];
}

impl Default for NpuOptions {
    fn default() -> NpuOptions {
        NpuOptions { rows: 256, columns: 4, work: None, draft: false, peano: None }
    }
}

/// The programs of a model as MLIR.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NpuTexts {
    /// One for each shape.
    pub programs: Vec<NpuMlir>,
    /// Work without a program, each with the reason.
    pub without: Vec<String>,
}

/// The program of one shape as MLIR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpuMlir {
    /// Columns and depth of a product, such as `6144x4096`, and its activation; or `attention`, heads of keys, query rows, keys and values of a head.
    pub name: String,
    /// Why its tiles have their sizes, for people.
    pub explanation: String,
    /// MLIR in each operation's own syntax.
    pub readable: String,
    /// MLIR in the generic form.
    pub generic: String,
    /// What the NPU's firmware does for one command: the host's transfers, encoded.
    pub instructions: Vec<u8>,
    /// Files of the control part, without programs for the cores: the ends of their names (`init.cdo`, `pdi`, `xclbin`), and their bytes.
    pub control: Vec<(String, Vec<u8>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_by_which_no_step_is_divided_are_refused() {
        let check = |rows| NpuOptions::default().with(|npu| npu.rows = rows).check().map_err(|error| error.to_string());
        assert!(NpuOptions::ROWS.into_iter().all(|rows| check(rows).is_ok()));
        for rows in [0, 2, 16, 32, 100, 1024] {
            let error = check(rows).unwrap_err();
            assert!(error.contains(&format!("are {rows}, expected one of 1, 8, 64, 128, 256, 512")), "{error}");
        }
    }
}
