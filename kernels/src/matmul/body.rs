//! The loop of a matmul in WGSL, every accumulator a named variable, so that no driver has to find out that an array of
//! them can live in registers.

use std::ops::Range;

use crate::activations::ActivationFormat;
use crate::group_weights::component;
use crate::layout::{TILE_ROWS, WeightFormat};
use crate::matmul::{MatMulSpec, Sharing};

/// What a workgroup does once, before its first pass.
pub fn before_passes(spec: &MatMulSpec) -> String {
    let mut body = Body { spec, text: String::new() };
    match (spec.input, &spec.prologue) {
        // The wait is inside the pass, behind the first loads: see `groups_in_turns`.
        (ActivationFormat::Codes(_), None) => return body.text,
        (ActivationFormat::Codes(_), Some(_)) => body.first_groups(),
        _ => {}
    }
    body.wait();
    if spec.prologue.is_some() {
        body.line(1, "prologue(lane, group.y == 0u, input_row);".into());
    }
    body.text
}

/// A pass, from the first block to the stored result.
pub fn pass(spec: &MatMulSpec) -> String {
    let mut body = Body { spec, text: String::new() };
    if spec.tile.sharing == Sharing::Across {
        body.across();
    } else {
        body.accumulators();
        match spec.input {
            ActivationFormat::F32 => body.blocks(),
            _ if spec.prologue.is_some() => body.groups_rolling(),
            _ => body.groups_in_turns(),
        }
        body.sums();
    }
    body.store();
    body.text
}

pub(super) struct Body<'a> {
    pub(super) spec: &'a MatMulSpec,
    text: String,
}

impl Body<'_> {
    pub(super) fn line(&mut self, indent: usize, code: String) {
        self.text += &format!("{}{code}\n", "    ".repeat(indent));
    }

    pub(super) fn lines(&mut self, indent: usize, code: Vec<String>) {
        for line in code {
            self.line(indent, line);
        }
    }

    /// Of a lane.
    pub(super) fn tiles(&self) -> Range<usize> {
        0..self.spec.tile.tiles_per_lane
    }

    /// (tile of a lane, column) of every accumulator.
    fn cells(&self) -> Vec<(usize, usize)> {
        let columns = self.spec.tile.columns;
        self.tiles().flat_map(|tile| (0..columns).map(move |column| (tile, column))).collect()
    }

    fn accumulators(&mut self) {
        for (tile, column) in self.cells() {
            self.line(1, format!("var acc_{tile}_{column} = 0.0;"));
        }
    }

    /// Where each tile of a lane begins, of which `first` is the first. `declare` is `let `, `var `, or nothing where they change.
    pub(super) fn bases(&mut self, indent: usize, declare: &str, first: &str) {
        for tile in self.tiles() {
            // A lane past the last tile computes the last one again and stores nothing.
            let base = format!("min({first} + {tile}u, TILES - 1u) * BLOCKS * BLOCK_WORDS");
            self.line(indent, format!("{declare}base_{tile} = {base};"));
        }
    }

    pub(super) fn wait(&mut self) {
        if self.spec.chained {
            self.line(1, "await_dispatch(lane);".into());
        }
    }

    /// f32 activations: blocks of weights.
    fn blocks(&mut self) {
        self.bases(1, "let ", "first_tile");
        self.line(1, "for (var block = slice; block < BLOCKS; block += K_SLICES) {".into());
        for tile in self.tiles() {
            self.line(2, format!("let at_{tile} = base_{tile} + block * BLOCK_WORDS;"));
        }
        self.block_params();
        match self.spec.tile.sharing {
            Sharing::Broadcast => self.octets(),
            _ => self.quads(),
        }
        self.line(1, "}".into());
    }

    /// Scale, and what to add for the zero point, of this lane's row in the block at `at_{tile}`.
    pub(super) fn block_params(&mut self) {
        let format = self.spec.layout.format;
        if !format.has_params() {
            return;
        }
        let params_at = format.block_words() - 1;
        for tile in self.tiles() {
            self.line(2, format!("let param_{tile} = row_param(weights[at_{tile} + {params_at}u][row / 2u], row);"));
            match format {
                WeightFormat::Int4 { .. } => {
                    self.line(2, format!("let scale_{tile} = int4_scale(param_{tile});"));
                    self.line(2, format!("let shift_{tile} = -int4_zero(param_{tile}) * scale_{tile};"));
                }
                _ => self.line(2, format!("let scale_{tile} = int8_scale(param_{tile});")),
            }
        }
    }

    /// One block, four activations of every column at a time, each lane loading its own.
    fn quads(&mut self) {
        let spec = self.spec;
        let format = spec.layout.format;
        let quads_per_chunk = format.chunk_cols() / 4;
        self.line(2, format!("let quad = block * {}u;", format.block_cols() / 4));
        for chunk in 0..format.chunks_per_block() {
            self.line(2, "{".into());
            for tile in self.tiles() {
                self.line(3, format!("let word_{tile} = weights[at_{tile} + {}u + row];", chunk * TILE_ROWS));
            }
            for part in 0..quads_per_chunk {
                for tile in self.tiles() {
                    self.line(3, format!("let w_{part}_{tile} = {};", self.unpacked(part, tile)));
                }
                for column in 0..spec.tile.columns {
                    let quad = chunk * quads_per_chunk + part;
                    self.line(
                        3,
                        format!("let x_{part}_{column} = activations(input_row + {column}u, quad + {quad}u);"),
                    );
                    for tile in self.tiles() {
                        self.line(3, format!("acc_{tile}_{column} += dot(w_{part}_{tile}, x_{part}_{column});"));
                    }
                }
            }
            self.line(2, "}".into());
        }
    }

    /// One block, eight activations of every column at a time, one a lane, handed round the subgroup.
    fn octets(&mut self) {
        let spec = self.spec;
        let format = spec.layout.format;
        let octets_per_chunk = format.chunk_cols() / 8;
        self.line(2, format!("for (var chunk = 0u; chunk < {}u; chunk++) {{", format.chunks_per_block()));
        for tile in self.tiles() {
            self.line(3, format!("let chunk_{tile} = weights[at_{tile} + chunk * {TILE_ROWS}u + row];"));
        }
        self.line(3, format!("for (var octet = 0u; octet < {octets_per_chunk}u; octet++) {{"));
        for tile in self.tiles() {
            self.line(4, format!("let word_{tile} = {};", self.octet_words(tile)));
            for part in 0..2 {
                self.line(4, format!("let w_{part}_{tile} = {};", self.unpacked(part, tile)));
            }
        }
        let (block_cols, chunk_cols) = (format.block_cols(), format.chunk_cols());
        self.line(4, format!("let at = block * {block_cols}u + chunk * {chunk_cols}u + octet * 8u + row;"));
        for column in 0..spec.tile.columns {
            self.line(4, format!("let x_{column} = activation(input_row + {column}u, at);"));
            for i in 0..8 {
                self.line(4, format!("let x_{column}_{i} = subgroupBroadcast(x_{column}, {i}u);"));
                for tile in self.tiles() {
                    let weight = format!("w_{}_{tile}.{}", i / 4, component(i % 4));
                    self.line(4, format!("acc_{tile}_{column} = fma({weight}, x_{column}_{i}, acc_{tile}_{column});"));
                }
            }
        }
        self.line(3, "}".into());
        self.line(2, "}".into());
    }

    /// The words of `chunk_{tile}` that hold octet `octet`, first in front.
    fn octet_words(&self, tile: usize) -> String {
        match self.spec.layout.format {
            WeightFormat::Int4 { .. } => format!("vec4<u32>(chunk_{tile}[octet], 0u, 0u, 0u)"),
            WeightFormat::Int8 => format!("select(chunk_{tile}, chunk_{tile}.zwxy, octet == 1u)"),
            WeightFormat::F16 => format!("chunk_{tile}"),
        }
    }

    /// Four weights, the `part`-th of the words in `word_{tile}`.
    fn unpacked(&self, part: usize, tile: usize) -> String {
        match self.spec.layout.format {
            WeightFormat::Int4 { .. } => {
                let half = ["int4_low", "int4_high"][part % 2];
                let (word, params) = (component(part / 2), format!("vec4(scale_{tile}), vec4(shift_{tile})"));
                format!("fma({half}(word_{tile}.{word}), {params})")
            }
            WeightFormat::Int8 => format!("int8_codes(word_{tile}.{}) * scale_{tile}", component(part)),
            WeightFormat::F16 => {
                let (low, high) = (component(2 * part), component(2 * part + 1));
                format!("f16_weights(word_{tile}.{low}, word_{tile}.{high})")
            }
        }
    }

    /// Adds up what the lanes of a row have; the sums are right in the lanes of slice 0.
    fn sums(&mut self) {
        let spec = self.spec;
        let lanes = TILE_ROWS * spec.tile.k_slices;
        let mut mask = TILE_ROWS;
        while mask < lanes.min(spec.subgroup_size as usize) {
            for (tile, column) in self.cells() {
                self.line(1, format!("acc_{tile}_{column} += subgroupShuffleXor(acc_{tile}_{column}, {mask}u);"));
            }
            mask *= 2;
        }
        if spec.parts_per_row() == 1 {
            return;
        }
        // Through workgroup memory, all accumulators between two barriers.
        self.line(1, "if (in_part == 0u) {".into());
        for (index, (tile, column)) in self.cells().into_iter().enumerate() {
            self.line(2, format!("partial[partial_at({index}u, part) + row] = acc_{tile}_{column};"));
        }
        self.line(1, "}".into());
        self.line(1, "workgroupBarrier();".into());
        self.line(1, "if (slice == 0u) {".into());
        self.line(2, "for (var other = 1u; other < PARTS; other++) {".into());
        for (index, (tile, column)) in self.cells().into_iter().enumerate() {
            self.line(3, format!("acc_{tile}_{column} += partial[partial_at({index}u, other) + row];"));
        }
        self.line(2, "}".into());
        self.line(1, "}".into());
    }

    fn store(&mut self) {
        let spec = self.spec;
        self.line(1, "if (slice == 0u) {".into());
        for tile in self.tiles() {
            self.line(2, format!("let row_{tile} = (first_tile + {tile}u) * {TILE_ROWS}u + row;"));
            if spec.bias {
                self.line(2, format!("let bias_{tile} = bias[min(row_{tile}, {}u)];", spec.layout.rows - 1));
                for column in 0..spec.tile.columns {
                    self.line(2, format!("acc_{tile}_{column} += bias_{tile};"));
                }
            }
        }
        for column in 0..spec.tile.columns {
            if spec.act_mul.is_some() {
                for pair in 0..spec.tile.tiles_per_lane / 2 {
                    let (gate, up) = (2 * pair, 2 * pair + 1);
                    let matrix_row = format!("((first_tile + {gate}u) / 2u) * {TILE_ROWS}u + row");
                    let value = format!("activate(acc_{gate}_{column}) * acc_{up}_{column}");
                    self.line(2, format!("store({column}u, output_row, {matrix_row}, {value});"));
                }
            } else {
                for tile in self.tiles() {
                    self.line(2, format!("store({column}u, output_row, row_{tile}, acc_{tile}_{column});"));
                }
            }
        }
        self.line(1, "}".into());
    }
}
