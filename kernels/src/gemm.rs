//! Matrix times many activations, on cooperative matrices: the matmul of prefill.
//!
//! Formula: `y[t][n] = factor[t] · Σ_k W[n][k] · h[t][k]`, W packed as `layout` draws it, h and factor a `Half` row as
//! `activations` draws it. Products are of f16, sums are f32. A weight is `(q - zero) * scale` rounded to f16: exact for
//! INT4 unless it is more than 8 steps from zero, and then off by at most 2^-12 of itself. Folded in, as the spec says: bias;
//! activation·mul of interleaved gate and up tiles.

use serde::{Deserialize, Serialize};

use artifacts::int4::{SCALE_SHIFT, ZERO_SHIFT};
use half::f16;

use crate::activations::{ACTIVATION_GROUP, ActivationFormat, Precision, decode_row, groups};
use crate::layout::{TILE_ROWS, WORD_BYTES, WeightFormat, WeightLayout};
use crate::spec::{Activation, BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Rows and columns of what a subgroup writes at a time: a gate tile and its up tile.
const BLOCK: usize = 2 * TILE_ROWS;

/// Parameters of one GEMM pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GemmSpec {
    pub layout: WeightLayout,
    /// Words between rows of the input and elements between rows of the output.
    pub input_stride: usize,
    pub output_stride: usize,
    /// First column of the output that this matrix writes.
    pub output_first: usize,
    pub bias: bool,
    /// Tiles alternate gate, up, gate, up; the output is `act(gate) * up`, half as many rows.
    pub act_mul: Option<Activation>,
    pub tile: GemmTile,
    /// Lanes of a subgroup; never 0.
    pub subgroup_size: u32,
}

/// How a workgroup cuts the result; chosen per device and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GemmTile {
    /// Matrix rows and rows of the step of a workgroup: each weight is unpacked once for all these rows of the step.
    pub matrix_rows: usize,
    pub step_rows: usize,
    /// Columns of a stage, 32 or 64: what lies in workgroup memory at a time.
    pub k: usize,
    /// Rows and columns of one cooperative matrix, 8 or 16.
    pub fragment: usize,
    /// Subgroups side by side along the matrix rows, and along the rows of the step.
    pub subgroups_across: usize,
    pub subgroups_down: usize,
    /// Two stages in workgroup memory: one barrier a stage instead of two.
    pub double_buffered: bool,
}

impl GemmTile {
    pub fn subgroups(&self) -> usize {
        self.subgroups_across * self.subgroups_down
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> usize {
        let buffers = if self.double_buffered { 2 } else { 1 };
        let padded_row_bytes = 2 * self.k + WORD_BYTES;
        let results = 4 * BLOCK * BLOCK * self.subgroups();
        buffers * (self.matrix_rows + self.step_rows) * padded_row_bytes + results
    }

    /// Whether every subgroup owns the same whole blocks.
    pub fn is_whole(&self) -> bool {
        let whole = |rows: usize, subgroups: usize| subgroups > 0 && rows > 0 && rows.is_multiple_of(subgroups * BLOCK);
        whole(self.step_rows, self.subgroups_down) && whole(self.matrix_rows, self.subgroups_across)
    }

    /// Rows of the step and matrix rows of one subgroup.
    fn subgroup_rows(&self) -> (usize, usize) {
        assert!(self.is_whole(), "subgroups own whole blocks of {BLOCK} rows, found {self:?}");
        (self.step_rows / self.subgroups_down, self.matrix_rows / self.subgroups_across)
    }
}

impl GemmSpec {
    /// Rows of the result.
    pub fn output_rows(&self) -> usize {
        if self.act_mul.is_some() { self.layout.rows / 2 } else { self.layout.rows }
    }

    pub fn lanes(&self) -> usize {
        self.tile.subgroups() * self.subgroup_size as usize
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let roles = [Role::Step, Role::Weights, Role::Output, Role::Halves];
        bindings(roles.into_iter().chain(self.bias.then_some(Role::Bias)))
    }

    /// Neighbouring workgroups take the same weights, so that these come from memory once.
    pub(crate) fn workgroups(&self, rows: usize) -> [usize; 3] {
        [rows.div_ceil(self.tile.step_rows), self.layout.rows.div_ceil(self.tile.matrix_rows), 1]
    }

    pub(crate) fn wgsl(&self) -> String {
        assert!(self.subgroup_size > 0, "matrices belong to subgroups");
        assert!(matches!(self.tile.k, 32 | 64), "a stage is 32 or 64 columns, found {}", self.tile.k);
        assert!(matches!(self.tile.fragment, 8 | 16), "fragments are of 8 or 16 rows, found {}", self.tile.fragment);
        let (layout, tile) = (&self.layout, &self.tile);
        let (subgroup_step_rows, subgroup_matrix_rows) = tile.subgroup_rows();
        let values = Values::default()
            .size("K", tile.k)
            .size("GROUPS", groups(layout.cols))
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("OUTPUT_FIRST", self.output_first)
            .size("OUTPUT_ROWS", self.output_rows())
            .size("STEP_ROWS", tile.step_rows)
            .size("MATRIX_ROWS", tile.matrix_rows)
            .size("BLOCK", BLOCK)
            .size("BUFFERS", if tile.double_buffered { 2 } else { 1 })
            .size("SUBGROUP", self.subgroup_size as usize)
            .size("SUBGROUPS", tile.subgroups())
            .size("SUBGROUPS_ACROSS", tile.subgroups_across)
            .size("SUBGROUP_STEP_ROWS", subgroup_step_rows)
            .size("SUBGROUP_MATRIX_ROWS", subgroup_matrix_rows)
            .size("WRITTEN", if self.act_mul.is_some() { TILE_ROWS } else { BLOCK })
            .flag("INT4", matches!(layout.format, WeightFormat::Int4 { .. }))
            .flag("INT8", layout.format == WeightFormat::Int8)
            .flag("F16", layout.format == WeightFormat::F16)
            .flag("INTERLEAVED", layout.format != WeightFormat::F16)
            .flag("BIAS", self.bias)
            .flag("ACT_MUL", self.act_mul.is_some())
            .flag("SILU", self.act_mul == Some(Activation::Silu))
            .text("INT4_SCALE_MASK", (1u32 << ZERO_SHIFT) - 1)
            .text("INT4_SCALE_SHIFT", SCALE_SHIFT)
            .text("INT4_ZERO_SHIFT", ZERO_SHIFT)
            .text("WORKGROUP_SIZE", self.lanes())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .text("BODY", self.body());
        // Extensions are named before anything else.
        let extensions = "enable f16;\nenable wgpu_cooperative_matrix;\n";
        extensions.to_owned() + &render(include_str!("wgsl/gemm.wgsl"), &values)
    }

    /// Stages of K columns. While one is multiplied, the next is on its way into registers.
    fn body(&self) -> String {
        let stages = (groups(self.layout.cols) * ACTIVATION_GROUP).div_ceil(self.tile.k);
        let loads = self.loads();
        let fetch = |stage: &str| -> Vec<String> {
            loads.iter().flat_map(|load| &load.fetch).map(|code| code.replace("$stage", stage)).collect()
        };
        let put = |buffer: &str| -> Vec<String> {
            loads.iter().flat_map(|load| &load.put).map(|code| code.replace("$buffer", buffer)).collect()
        };
        let barrier = || vec!["workgroupBarrier();".to_owned()];
        let kind = self.kind("f32", "C");
        let setup = self.sums().map(|(i, j)| format!("var sum_{i}_{j}: {kind};"));
        let setup = setup.chain(loads.iter().flat_map(|load| load.setup.clone())).collect();
        // The last stage fetches itself again, for nobody.
        let next = vec![format!("let next = min(stage + 1u, {}u);", stages - 1)];
        let stage = if self.tile.double_buffered {
            [next, fetch("next"), self.multiply("stage % 2u"), put("(stage + 1u) % 2u"), barrier()].concat()
        } else {
            [next, fetch("next"), self.multiply("0u"), barrier(), put("0u"), barrier()].concat()
        };
        let indented = |indent: &str, lines: Vec<String>| -> String {
            lines.into_iter().map(|code| format!("{indent}{code}\n")).collect()
        };
        indented("    ", [setup, fetch("0u"), put("0u"), barrier()].concat())
            + &format!("    for (var stage = 0u; stage < {stages}u; stage++) {{\n")
            + &indented("        ", stage)
            + "    }\n"
            + &indented("    ", self.results())
    }

    /// A type of cooperative matrices.
    fn kind(&self, element: &str, role: &str) -> String {
        format!("coop_mat{0}x{0}<{element}, {role}>", self.tile.fragment)
    }

    /// Fragments of one subgroup, along the rows of the step and along the matrix rows.
    fn fragments(&self) -> (usize, usize) {
        let (step_rows, matrix_rows) = self.tile.subgroup_rows();
        (step_rows / self.tile.fragment, matrix_rows / self.tile.fragment)
    }

    /// Places of a subgroup's sums.
    fn sums(&self) -> impl Iterator<Item = (usize, usize)> {
        let (step_fragments, matrix_fragments) = self.fragments();
        (0..step_fragments).flat_map(move |i| (0..matrix_fragments).map(move |j| (i, j)))
    }

    /// Blocks one after the other: into workgroup memory, from there by every lane to the output.
    fn results(&self) -> Vec<String> {
        let (step_rows, matrix_rows) = self.tile.subgroup_rows();
        let (fragment, across) = (self.tile.fragment, BLOCK / self.tile.fragment);
        let mut lines = Vec::new();
        for (block_i, block_j) in (0..step_rows / BLOCK).flat_map(|i| (0..matrix_rows / BLOCK).map(move |j| (i, j))) {
            for (i, j) in (0..across).flat_map(|i| (0..across).map(move |j| (i, j))) {
                let sum = format!("sum_{}_{}", block_i * across + i, block_j * across + j);
                let at = (BLOCK * i + j) * fragment;
                lines.push(format!("coopStoreT({sum}, &results[subgroup * RESULTS + {at}u], {BLOCK}u);"));
            }
            let step_row = format!("first_step_row + subgroup_step_row + {}u", BLOCK * block_i);
            let matrix_row = format!("first_tile * 8u + subgroup_matrix_row + {}u", BLOCK * block_j);
            lines.push(format!("write_block({step_row}, {matrix_row}, subgroup, subgroup_lane);"));
        }
        lines
    }

    /// One stage: every fragment of the activations with every fragment of the weights.
    fn multiply(&self, buffer: &str) -> Vec<String> {
        let (step_fragments, matrix_fragments) = self.fragments();
        let fragment = self.tile.fragment;
        let (a, b) = (self.kind("f16", "A"), self.kind("f16", "B"));
        let mut lines = vec![
            format!("let activations_at = (({buffer}) * STEP_ROWS + subgroup_step_row) * ROW_WORDS;"),
            format!("let weights_at = (({buffer}) * MATRIX_ROWS + subgroup_matrix_row) * ROW_WORDS;"),
        ];
        for depth in 0..self.tile.k / fragment {
            let at =
                |index: usize| format!("{}u * ROW_WORDS + {}u", fragment * index, fragment / HALVES_PER_WORD * depth);
            for i in 0..step_fragments {
                let from = format!("&activation_tile[activations_at + {}], ROW_WORDS", at(i));
                lines.push(format!("let a_{depth}_{i} = coopLoadT<{a}>({from});"));
            }
            for j in 0..matrix_fragments {
                let from = format!("&weight_tile[weights_at + {}], ROW_WORDS", at(j));
                lines.push(format!("let b_{depth}_{j} = coopLoad<{b}>({from});"));
                for i in 0..step_fragments {
                    let sum = format!("sum_{i}_{j}");
                    lines.push(format!("{sum} = coopMultiplyAdd(a_{depth}_{i}, b_{depth}_{j}, {sum});"));
                }
            }
        }
        lines
    }

    /// What each lane brings from memory into workgroup memory in a stage.
    fn loads(&self) -> Vec<Load> {
        let (lanes, (words, activations), parts) = (self.lanes(), self.stage_words(), self.word_parts());
        assert!(
            self.shares_out(),
            "{words} words of weights and {activations} of activations do not share out among {lanes} lanes"
        );
        let weights = (0..words * parts / lanes).map(|index| self.weight_load(index, parts));
        weights.chain((0..activations / lanes).map(|index| self.activation_load(index))).collect()
    }

    /// Words of weights and of activations that a workgroup brings in a stage.
    fn stage_words(&self) -> (usize, usize) {
        let GemmTile { matrix_rows, step_rows, k, .. } = self.tile;
        (matrix_rows * k / self.layout.format.chunk_cols(), step_rows * k / HALVES_PER_WORD)
    }

    /// Where there are fewer words of weights than lanes, neighbours read one together and unpack a part each.
    fn word_parts(&self) -> usize {
        (self.lanes() / self.stage_words().0).max(1)
    }

    /// Whether every lane brings as much of a stage as the others.
    pub fn shares_out(&self) -> bool {
        let (lanes, (words, activations), parts) = (self.lanes(), self.stage_words(), self.word_parts());
        let unpacked = (self.layout.format.chunk_cols() / HALVES_PER_WORD).is_multiple_of(parts);
        unpacked && (words * parts).is_multiple_of(lanes) && activations.is_multiple_of(lanes)
    }

    /// One word of weights: lanes count the rows of a tile, then parts of a word, chunks of a stage, tiles.
    fn weight_load(&self, i: usize, parts: usize) -> Load {
        let format = self.layout.format;
        let (chunks, block_chunks) = (self.tile.k / format.chunk_cols(), format.chunks_per_block());
        let (block_words, last_chunk) = (format.block_words(), self.layout.blocks_per_tile() * block_chunks - 1);
        let tile_words = self.layout.blocks_per_tile() * block_words;
        let words = format.chunk_cols() / HALVES_PER_WORD;
        let part = format!("part_{i}");
        let setup = vec![
            format!("let item_{i} = lane / 8u + {}u;", i * self.lanes() / TILE_ROWS),
            format!("let part_{i} = item_{i} % {parts}u;"),
            format!("let chunk_{i} = item_{i} / {parts}u % {chunks}u;"),
            format!("let tile_{i} = item_{i} / {}u;", parts * chunks),
            format!("let base_{i} = min(first_tile + tile_{i}, {}u) * {tile_words}u;", self.layout.tiles() - 1),
            format!(
                "let put_{i} = (tile_{i} * 8u + lane % 8u) * ROW_WORDS + chunk_{i} * {words}u + {part} * {}u;",
                words / parts
            ),
            format!("var word_{i}: vec4<u32>;"),
            format!("var param_{i}: u32;"),
        ];
        let mut fetch = vec![
            format!("let column_{i} = min($stage * {chunks}u + chunk_{i}, {last_chunk}u);"),
            format!("let block_{i} = base_{i} + column_{i} / {block_chunks}u * {block_words}u;"),
            format!("word_{i} = weights[block_{i} + column_{i} % {block_chunks}u * 8u + lane % 8u];"),
        ];
        if format.has_params() {
            let pair = format!("weights[block_{i} + {}u][lane % 8u / 2u]", block_words - 1);
            fetch.push(format!("param_{i} = row_param({pair}, lane % 8u);"));
        }
        let at = format!("weight_tile[($buffer) * MATRIX_ROWS * ROW_WORDS + put_{i}");
        let component = |index: usize| format!("word_{i}.{}", ["x", "y", "z", "w"][index]);
        let pick = |index: usize| match parts {
            1 => component(index),
            2 => format!("select({}, {}, {part} == 1u)", component(index), component(index + 2)),
            _ => format!("word_{i}[{part}]"),
        };
        let eight = |index: usize| match format {
            WeightFormat::Int4 { .. } => format!("eight_weights({}, param_{i})", pick(index)),
            WeightFormat::Int8 => {
                format!("eight_weights(vec2<u32>({}, {}), param_{i})", pick(2 * index), pick(2 * index + 1))
            }
            WeightFormat::F16 => format!("word_{i}"),
        };
        let put = (0..words / parts).map(|index| format!("{at} + {index}u] = {};", eight(index))).collect();
        Load { setup, fetch, put }
    }

    /// One word of activations: lanes count the words of a row's stage, then rows.
    fn activation_load(&self, i: usize) -> Load {
        let row_words = self.tile.k / HALVES_PER_WORD;
        let all_words = groups(self.layout.cols) * ACTIVATION_GROUP / HALVES_PER_WORD;
        let setup = vec![
            format!("let row_{i} = (lane + {}u) / {row_words}u;", i * self.lanes()),
            format!("let place_{i} = (lane + {}u) % {row_words}u;", i * self.lanes()),
            format!("let from_{i} = min(first_step_row + row_{i}, last_step_row) * (INPUT_STRIDE / 4u);"),
            format!("var halves_{i}: vec4<u32>;"),
        ];
        let place = format!("$stage * {row_words}u + place_{i}");
        let fetch = if all_words.is_multiple_of(row_words) {
            format!("halves_{i} = halves[from_{i} + {place}];")
        } else {
            // Behind the last column lies what is no number: zeros instead.
            let word = format!("halves[from_{i} + min({place}, {}u)]", all_words - 1);
            format!("halves_{i} = select(vec4<u32>(0u), {word}, {place} < {all_words}u);")
        };
        let at = format!("activation_tile[(($buffer) * STEP_ROWS + row_{i}) * ROW_WORDS + place_{i}]");
        let put = format!("{at} = ordered(halves_{i});");
        Load { setup, fetch: vec![fetch], put: vec![put] }
    }
}

/// f16 numbers in one vec4<u32>.
const HALVES_PER_WORD: usize = 8;

/// Statements that bring a word to its place, by way of registers; `$stage` and `$buffer` stand for what a loop counts.
struct Load {
    setup: Vec<String>,
    fetch: Vec<String>,
    put: Vec<String>,
}

/// Buffers of the twin, as the kernel binds them.
pub struct GemmInputs<'a> {
    pub packed: &'a [u8],
    /// (rows, input_stride)
    pub halves: &'a [u32],
    pub bias: &'a [f32],
    pub n_rows: usize,
}

/// The kernel in plain loops: writes `output` (n_rows, output_stride).
pub fn twin(spec: &GemmSpec, inputs: &GemmInputs, output: &mut [f32]) {
    let (rows, cols) = (spec.layout.rows, spec.layout.cols);
    let format = ActivationFormat::Half(Precision::Int8);
    let activations: Vec<Vec<f32>> =
        (0..inputs.n_rows).map(|row| decode_row(format, &inputs.halves[row * spec.input_stride..], cols)).collect();
    let mut products = vec![vec![0f32; rows]; inputs.n_rows];
    let mut weights = vec![0f32; cols];
    for row in 0..rows {
        spec.layout.decode_row(inputs.packed, row, &mut weights);
        weights.iter_mut().for_each(|weight| *weight = f16::from_f32(*weight).to_f32());
        for (x, products) in activations.iter().zip(&mut products) {
            let sum: f32 = weights.iter().zip(x).map(|(w, x)| w * x).sum();
            products[row] = if spec.bias { sum + inputs.bias[row] } else { sum };
        }
    }
    for (step_row, products) in products.iter().enumerate() {
        for row in 0..spec.output_rows() {
            let value = match spec.act_mul {
                None => products[row],
                Some(activation) => {
                    let gate = row / TILE_ROWS * 2 * TILE_ROWS + row % TILE_ROWS;
                    activation.apply(products[gate]) * products[gate + TILE_ROWS]
                }
            };
            output[step_row * spec.output_stride + spec.output_first + row] = value;
        }
    }
}
