//! Matrix times activations: the kernel that reads nearly every byte of the model.
//!
//! Formula: `y[t][n] = Σ_k W[n][k] · x[t][k]`, W packed as `layout` draws it. Folded in, as the spec says: before it the
//! residual sum and RMS norm (`Prologue`, one row at a time); after it bias, activation·mul of interleaved gate and up
//! tiles, or the final soft cap.

use serde::{Deserialize, Serialize};

use artifacts::int4::{SCALE_SHIFT, ZERO_SHIFT};

use crate::layout::{TILE_ROWS, WeightFormat, WeightLayout};
use crate::norm::{NormSpec, norm_row};
use crate::spec::{Activation, BindingSpec, Number, Role, bindings, declarations};
use crate::template::{Values, render};

/// Parameters of one matmul pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MatMulSpec {
    pub layout: WeightLayout,
    /// Elements between rows of the input and of the output.
    pub input_stride: usize,
    pub output_stride: usize,
    /// First column of the output that this matrix writes (a large head is cut into several matrices).
    pub output_first: usize,
    /// The norm that makes the input; needs `tile.columns` of 1.
    pub prologue: Option<NormSpec>,
    pub bias: bool,
    /// Tiles alternate gate, up, gate, up; the output is `act(gate) * up`, half as many rows.
    pub act_mul: Option<Activation>,
    pub softcap: Option<Number>,
    /// Reads row `StepHeader::logits_row` only and writes row 0.
    pub row_from_step: bool,
    pub tile: MatMulTile,
    pub subgroup_size: u32,
}

/// How lanes share the work; chosen per device and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MatMulTile {
    /// Rows of the step that one lane handles: each weight is unpacked once for all of them.
    pub columns: usize,
    /// Tiles of 8 matrix rows that one lane handles: each activation is loaded once for all of them.
    pub tiles_per_lane: usize,
    /// Lanes that share a matrix row, each with every `k_slices`-th block.
    pub k_slices: usize,
    /// Lane groups of 8 · k_slices in a workgroup.
    pub group_tiles: usize,
    /// Subgroups have 8 lanes, and a lane loads one of every eight activations and gets the others from its neighbours:
    /// where a load costs each lane by itself, as on a CPU. Needs `k_slices` of 1.
    pub broadcast: bool,
}

impl MatMulTile {
    pub fn workgroup_size(&self) -> usize {
        TILE_ROWS * self.k_slices * self.group_tiles
    }
}

impl MatMulSpec {
    /// Rows of the result.
    pub fn output_rows(&self) -> usize {
        if self.act_mul.is_some() { self.layout.rows / 2 } else { self.layout.rows }
    }

    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> usize {
        let normed = if self.prologue.is_some() { 4 * self.layout.padded_cols() } else { 0 };
        normed + 8 * self.tile.workgroup_size()
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let mut roles = vec![Role::Step, Role::Weights, Role::Output];
        match &self.prologue {
            Some(norm) => roles.extend(norm.data_roles()),
            None => roles.push(Role::Columns),
        }
        roles.extend(self.bias.then_some(Role::Bias));
        bindings(roles)
    }

    pub(crate) fn workgroups(&self, rows: usize) -> [usize; 3] {
        let tiles_per_group = self.tile.group_tiles * self.tile.tiles_per_lane;
        let rows = if self.row_from_step { 1 } else { rows };
        [self.layout.tiles().div_ceil(tiles_per_group), rows.div_ceil(self.tile.columns), 1]
    }

    pub(crate) fn wgsl(&self) -> String {
        assert!(self.prologue.is_none() || self.tile.columns == 1, "a prologue norms one row");
        assert!(!self.row_from_step || self.tile.columns == 1, "logits_row is one row");
        assert!(!self.tile.broadcast || self.tile.k_slices == 1, "neighbours work on the same block");
        assert!(
            self.act_mul.is_none() || self.tile.tiles_per_lane.is_multiple_of(2),
            "gate and up tiles come in pairs"
        );
        let layout = &self.layout;
        let norm = self.prologue.as_ref();
        let values = Values::default()
            .size("COLS", layout.cols)
            .size("PADDED_COLS", layout.padded_cols())
            .size("BLOCKS", layout.blocks_per_tile())
            .size("BLOCK_WORDS", layout.format.block_words())
            .size("TILES", layout.tiles())
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("OUTPUT_FIRST", self.output_first)
            .size("OUTPUT_ROWS", self.output_rows())
            .size("COLUMNS", self.tile.columns)
            .size("TILES_PER_LANE", self.tile.tiles_per_lane)
            .size("K_SLICES", self.tile.k_slices)
            .size("GROUP_TILES", self.tile.group_tiles)
            .size("WORKGROUP", self.tile.workgroup_size())
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("EPS", norm.map_or(0.0, |norm| norm.eps.get()))
            .number("CAP", self.softcap.map_or(0.0, Number::get))
            .flag("INT4", matches!(layout.format, WeightFormat::Int4 { .. }))
            .flag("INT8", layout.format == WeightFormat::Int8)
            .flag("F16", layout.format == WeightFormat::F16)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("PROLOGUE", norm.is_some())
            .flag("PROLOGUE_ADD", norm.is_some_and(|norm| norm.add))
            .flag("PROLOGUE_POST_NORM", norm.is_some_and(|norm| norm.post_norm))
            .flag("TAIL", layout.cols != layout.padded_cols())
            .flag("BROADCAST", self.tile.broadcast)
            .flag("SPLIT", self.tile.k_slices > 1)
            .flag("ACT_MUL", self.act_mul.is_some())
            .flag("SILU", self.act_mul == Some(Activation::Silu))
            .flag("SOFTCAP", self.softcap.is_some())
            .flag("ROW_FROM_STEP", self.row_from_step)
            .text("INT4_SCALE_MASK", (1u32 << ZERO_SHIFT) - 1)
            .text("INT4_SCALE_SHIFT", SCALE_SHIFT)
            .text("INT4_ZERO_SHIFT", ZERO_SHIFT)
            .text("WORKGROUP_SIZE", self.tile.workgroup_size())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .text("BODY", self.body());
        render(include_str!("wgsl/matmul.wgsl"), &values)
    }

    /// The loop over blocks with every accumulator a named variable, so that no driver has to find out that an array of
    /// them can live in registers.
    fn body(&self) -> String {
        let (tiles, columns) = (self.tile.tiles_per_lane, self.tile.columns);
        let mut text = String::new();
        let mut line = |indent: usize, code: String| text += &format!("{}{code}\n", "    ".repeat(indent));
        for tile in 0..tiles {
            // A lane past the last tile computes the last one again and stores nothing.
            line(1, format!("let base_{tile} = min(first_tile + {tile}u, TILES - 1u) * BLOCKS * BLOCK_WORDS;"));
            for column in 0..columns {
                line(1, format!("var acc_{tile}_{column} = 0.0;"));
            }
        }
        line(1, "for (var block = slice; block < BLOCKS; block += K_SLICES) {".into());
        for tile in 0..tiles {
            line(2, format!("let at_{tile} = base_{tile} + block * BLOCK_WORDS;"));
            if self.layout.format.has_params() {
                let params_at = self.layout.format.block_words() - 1;
                line(2, format!("let param_{tile} = row_param(weights[at_{tile} + {params_at}u][row / 2u], row);"));
                match self.layout.format {
                    WeightFormat::Int4 { .. } => {
                        line(2, format!("let scale_{tile} = vec4<f32>(int4_scale(param_{tile}));"));
                        line(2, format!("let shift_{tile} = -int4_zero(param_{tile}) * scale_{tile};"));
                    }
                    _ => line(2, format!("let scale_{tile} = int8_scale(param_{tile});")),
                }
            }
        }
        if self.tile.broadcast {
            self.octets(&mut line)
        } else {
            self.quads(&mut line)
        }
        line(1, "}".into());
        for column in 0..columns {
            for tile in 0..tiles {
                if self.tile.k_slices > 1 {
                    line(1, format!("acc_{tile}_{column} = slice_sum(acc_{tile}_{column}, lane, slice);"));
                }
            }
        }
        line(1, "if (slice == 0u) {".into());
        for tile in 0..tiles {
            line(2, format!("let row_{tile} = (first_tile + {tile}u) * 8u + row;"));
            if self.bias {
                line(2, format!("let bias_{tile} = bias[min(row_{tile}, {}u)];", self.layout.rows - 1));
                for column in 0..columns {
                    line(2, format!("acc_{tile}_{column} += bias_{tile};"));
                }
            }
        }
        for column in 0..columns {
            let step_row = format!("output_row + {column}u");
            if self.act_mul.is_some() {
                for pair in 0..tiles / 2 {
                    let (gate, up) = (2 * pair, 2 * pair + 1);
                    let matrix_row = format!("((first_tile + {gate}u) / 2u) * 8u + row");
                    let value = format!("activate(acc_{gate}_{column}) * acc_{up}_{column}");
                    line(2, format!("store({step_row}, {matrix_row}, {value});"));
                }
            } else {
                for tile in 0..tiles {
                    line(2, format!("store({step_row}, row_{tile}, acc_{tile}_{column});"));
                }
            }
        }
        line(1, "}".into());
        text
    }

    /// One block, four activations of every column at a time, each lane loading its own.
    fn quads(&self, line: &mut impl FnMut(usize, String)) {
        let quads_per_chunk = self.layout.format.chunk_cols() / 4;
        line(2, format!("let quad = block * {}u;", self.layout.format.block_cols() / 4));
        for chunk in 0..self.layout.format.chunks_per_block() {
            line(2, "{".into());
            for tile in 0..self.tile.tiles_per_lane {
                line(3, format!("let word_{tile} = weights[at_{tile} + {}u + row];", chunk * TILE_ROWS));
            }
            for part in 0..quads_per_chunk {
                for tile in 0..self.tile.tiles_per_lane {
                    line(3, format!("let w_{part}_{tile} = {};", self.unpacked(part, tile)));
                }
                for column in 0..self.tile.columns {
                    let quad = chunk * quads_per_chunk + part;
                    line(3, format!("let x_{part}_{column} = activations(input_row + {column}u, quad + {quad}u);"));
                    for tile in 0..self.tile.tiles_per_lane {
                        line(3, format!("acc_{tile}_{column} += dot(w_{part}_{tile}, x_{part}_{column});"));
                    }
                }
            }
            line(2, "}".into());
        }
    }

    /// One block, eight activations of every column at a time, one a lane, handed round the subgroup.
    fn octets(&self, line: &mut impl FnMut(usize, String)) {
        let format = self.layout.format;
        let octets_per_chunk = format.chunk_cols() / 8;
        line(2, format!("for (var chunk = 0u; chunk < {}u; chunk++) {{", format.chunks_per_block()));
        for tile in 0..self.tile.tiles_per_lane {
            line(3, format!("let chunk_{tile} = weights[at_{tile} + chunk * {TILE_ROWS}u + row];"));
        }
        line(3, format!("for (var octet = 0u; octet < {octets_per_chunk}u; octet++) {{"));
        for tile in 0..self.tile.tiles_per_lane {
            line(4, format!("let word_{tile} = {};", self.octet_words(tile)));
            for part in 0..2 {
                line(4, format!("let w_{part}_{tile} = {};", self.unpacked(part, tile)));
            }
        }
        let (block_cols, chunk_cols) = (format.block_cols(), format.chunk_cols());
        line(4, format!("let at = block * {block_cols}u + chunk * {chunk_cols}u + octet * 8u + row;"));
        for column in 0..self.tile.columns {
            line(4, format!("let x_{column} = activation(input_row + {column}u, at);"));
            for i in 0..8 {
                line(4, format!("let x_{column}_{i} = subgroupBroadcast(x_{column}, {i}u);"));
                for tile in 0..self.tile.tiles_per_lane {
                    let weight = format!("w_{}_{tile}.{}", i / 4, ["x", "y", "z", "w"][i % 4]);
                    line(4, format!("acc_{tile}_{column} = fma({weight}, x_{column}_{i}, acc_{tile}_{column});"));
                }
            }
        }
        line(3, "}".into());
        line(2, "}".into());
    }

    /// The words of `chunk_{tile}` that hold octet `octet`, first in front.
    fn octet_words(&self, tile: usize) -> String {
        match self.layout.format {
            WeightFormat::Int4 { .. } => format!("vec4<u32>(chunk_{tile}[octet], 0u, 0u, 0u)"),
            WeightFormat::Int8 => format!("select(chunk_{tile}, chunk_{tile}.zwxy, octet == 1u)"),
            WeightFormat::F16 => format!("chunk_{tile}"),
        }
    }

    /// Four weights, the `part`-th of the words in `word_{tile}`.
    fn unpacked(&self, part: usize, tile: usize) -> String {
        let component = |index: usize| ["x", "y", "z", "w"][index];
        match self.layout.format {
            WeightFormat::Int4 { .. } => {
                let half = ["int4_low", "int4_high"][part % 2];
                format!("fma({half}(word_{tile}.{}), scale_{tile}, shift_{tile})", component(part / 2))
            }
            WeightFormat::Int8 => format!("int8_codes(word_{tile}.{}) * scale_{tile}", component(part)),
            WeightFormat::F16 => {
                let (low, high) = (component(2 * part), component(2 * part + 1));
                format!("f16_weights(word_{tile}.{low}, word_{tile}.{high})")
            }
        }
    }
}

/// Buffers of the twin, as the kernel binds them.
pub struct MatMulInputs<'a> {
    pub packed: &'a [u8],
    /// (rows, input_stride)
    pub input: &'a [f32],
    pub residual: &'a [f32],
    pub norm_weight: &'a [f32],
    pub post_norm_weight: &'a [f32],
    pub bias: &'a [f32],
    pub n_rows: usize,
    pub logits_row: usize,
}

/// The kernel in plain loops: writes `output` (n_rows, output_stride) and, with an adding prologue, `sum`.
pub fn twin(spec: &MatMulSpec, inputs: &MatMulInputs, output: &mut [f32], sum: &mut [f32]) {
    let cols = spec.layout.cols;
    let step_rows = if spec.row_from_step { spec_row(inputs) } else { 0..inputs.n_rows };
    for (output_row, step_row) in step_rows.enumerate() {
        let at = step_row * spec.input_stride;
        let mut x = inputs.input[at..at + cols].to_vec();
        if let Some(norm) = &spec.prologue {
            let residual = if norm.add { &inputs.residual[at..at + cols] } else { &[][..] };
            let (new_sum, normed) = norm_row(norm, &x, residual, inputs.post_norm_weight, inputs.norm_weight);
            if norm.add {
                sum[at..at + cols].copy_from_slice(&new_sum);
            }
            x = normed;
        }
        let mut weights = vec![0f32; cols];
        let mut products = vec![0f32; spec.layout.rows];
        for (row, product) in products.iter_mut().enumerate() {
            spec.layout.decode_row(inputs.packed, row, &mut weights);
            *product = weights.iter().zip(&x).map(|(w, x)| w * x).sum();
            if spec.bias {
                *product += inputs.bias[row];
            }
        }
        for row in 0..spec.output_rows() {
            let mut value = products[row];
            if let Some(activation) = spec.act_mul {
                let (tile, row_in_tile) = (row / TILE_ROWS, row % TILE_ROWS);
                let gate = products[2 * tile * TILE_ROWS + row_in_tile];
                let up = products[(2 * tile + 1) * TILE_ROWS + row_in_tile];
                value = activation.apply(gate) * up;
            }
            if let Some(cap) = spec.softcap {
                value = cap.get() * (value / cap.get()).tanh();
            }
            output[output_row * spec.output_stride + spec.output_first + row] = value;
        }
    }
}

fn spec_row(inputs: &MatMulInputs) -> std::ops::Range<usize> {
    inputs.logits_row..inputs.logits_row + 1
}
