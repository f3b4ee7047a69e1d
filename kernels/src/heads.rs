//! Work on the heads of q, k and v between projection and attention: QK norm, RoPE, query scale, KV write.
//!
//! Formulas, per head `h` of `head_dim` elements: norm as in `norm`; RoPE (Su et al. 2021) in the half-split form of
//! transformers: pair `(i, i + d/2)` of the first `d = rotary_dim` elements turns by `position · inv_freq[i]`. Cos and sin come
//! from two short tables by the addition theorem, so that no GPU's own sine of a large angle matters.
//!
//! ```text
//! rope table   vec2(cos, sin)   variant 0: [position / 256][pair], then [position % 256][pair]; variant 1 the same
//! key page     u32 = two f16    [kv head][pair of dimensions][token of the page]
//! value page   u32 = two f16    [kv head][token of the page][pair of dimensions]
//! ```

use half::f16;
use serde::{Deserialize, Serialize};

use crate::activations::ActivationFormat;
use crate::norm::{NormSpec, norm_row};
use crate::spec::{BindingSpec, Number, Role, bindings, declarations};
use crate::template::{Values, render};

/// Positions that share one coarse entry of the RoPE table.
pub const ROPE_FINE: usize = 256;

/// Parameters of one heads kernel: the parts of one source row, in the order in which they lie there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadsSpec {
    pub parts: Vec<HeadsPart>,
    pub head_dim: usize,
    pub input_stride: usize,
    pub output_stride: usize,
    pub eps: Number,
    /// Elements of a head that RoPE turns; 0 when no part is turned.
    pub rotary_dim: usize,
    /// Coarse entries of one variant of the RoPE table.
    pub rope_coarse: usize,
    pub page_tokens: usize,
    pub kv_group: usize,
    pub subgroup_size: u32,
}

/// Consecutive heads that are treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadsPart {
    pub n_heads: usize,
    /// RMS norm with the weight of this role (`QueryNorm` or `KeyNorm`).
    pub norm: Option<NormOf>,
    pub rope: bool,
    pub scale: Number,
    pub to: Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NormOf {
    Query,
    Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Destination {
    /// f32 rows of `output_stride`, heads from 0.
    Output,
    Keys,
    Values,
}

impl HeadsSpec {
    fn workgroup(&self) -> usize {
        // Half a head's pairs at least, whole subgroups at any size.
        (self.head_dim / 2).next_multiple_of(32).min(128)
    }

    fn has(&self, test: impl Fn(&HeadsPart) -> bool) -> bool {
        self.parts.iter().any(test)
    }

    pub(crate) fn bindings(&self) -> Vec<BindingSpec> {
        let candidates = [
            (Role::Output, self.has(|part| part.to == Destination::Output)),
            (Role::QueryNorm, self.has(|part| part.norm == Some(NormOf::Query))),
            (Role::KeyNorm, self.has(|part| part.norm == Some(NormOf::Key))),
            (Role::RopeTable, self.has(|part| part.rope)),
            (Role::Keys, self.has(|part| part.to == Destination::Keys)),
            (Role::Values, self.has(|part| part.to == Destination::Values)),
        ];
        let used = candidates.into_iter().filter(|(_, used)| *used).map(|(role, _)| role);
        bindings([Role::Step, Role::Input].into_iter().chain(used))
    }

    pub(crate) fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.parts.iter().map(|part| part.n_heads).sum(), rows, 1]
    }

    pub(crate) fn wgsl(&self) -> String {
        let values = Values::default()
            .size("HEAD_DIM", self.head_dim)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("ROTARY_PAIRS", self.rotary_dim / 2)
            .size("ROPE_COARSE", self.rope_coarse)
            .size("ROPE_FINE", ROPE_FINE)
            .size("PAGE_TOKENS", self.page_tokens)
            .size("KV_GROUP", self.kv_group)
            .size("WORKGROUP", self.workgroup())
            .size("SUBGROUP", self.subgroup_size as usize)
            .number("EPS", self.eps.get())
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .flag("ROPE", self.has(|part| part.rope))
            .flag("CACHE", self.has(|part| part.to != Destination::Output))
            .text("WORKGROUP_SIZE", self.workgroup())
            .text("DECLARATIONS", declarations(&self.bindings()))
            .text("PARTS", self.parts_wgsl());
        render(include_str!("wgsl/heads.wgsl"), &values)
    }

    /// One branch a part; a workgroup handles one head and takes one of them.
    fn parts_wgsl(&self) -> String {
        let mut text = String::new();
        let mut first_head = 0;
        for part in &self.parts {
            let end = first_head + part.n_heads;
            text += &format!("    if (head >= {first_head}u && head < {end}u) {{\n");
            text += &format!("        let part_head = head - {first_head}u;\n");
            match part.norm {
                Some(NormOf::Query) => text += "        norm_head(lane, true);\n",
                Some(NormOf::Key) => text += "        norm_head(lane, false);\n",
                None => {}
            }
            if part.rope {
                text += "        rope_head(lane, row, position);\n";
            }
            text += &match part.to {
                Destination::Output => format!(
                    "        for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {{\n            \
                     output[row * OUTPUT_STRIDE + part_head * HEAD_DIM + i] = vector[i] * {:?}f;\n        }}\n",
                    part.scale.get()
                ),
                Destination::Keys => {
                    let index = format!("(cell.page * {0}u + part_head) * (HEAD_DIM / 2u) * PAGE_TOKENS", part.n_heads);
                    format!(
                        "        let cell = cache_cell(row);\n        let at = {index} + cell.slot;\n        \
                         for (var i = lane; i < HEAD_DIM / 2u; i += WORKGROUP) {{\n            \
                         keys[at + i * PAGE_TOKENS] = packed_pair(i);\n        }}\n"
                    )
                }
                Destination::Values => {
                    let index = format!(
                        "((cell.page * {0}u + part_head) * PAGE_TOKENS + cell.slot) * (HEAD_DIM / 2u)",
                        part.n_heads
                    );
                    format!(
                        "        let cell = cache_cell(row);\n        let at = {index};\n        \
                         for (var i = lane; i < HEAD_DIM / 2u; i += WORKGROUP) {{\n            \
                         values[at + i] = packed_pair(i);\n        }}\n"
                    )
                }
            };
            text += "    }\n";
            first_head = end;
        }
        // Only the norms that are bound may be named.
        let norms = [(NormOf::Query, "query_norm"), (NormOf::Key, "key_norm")];
        let bound: Vec<&str> =
            norms.iter().filter(|(of, _)| self.has(|part| part.norm == Some(*of))).map(|(_, name)| *name).collect();
        text += "}\n";
        match bound[..] {
            [] => {}
            [one] => text += &norm_head_wgsl(&format!("{one}[i]")),
            _ => text += &norm_head_wgsl("select(key_norm[i], query_norm[i], is_query)"),
        }
        text
    }
}

fn norm_head_wgsl(weight: &str) -> String {
    format!(
        "
fn norm_head(lane: u32, is_query: bool) {{
    var squares = 0.0;
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {{
        squares += vector[i] * vector[i];
    }}
    let scale = inverseSqrt(workgroup_sum(squares, lane) / f32(HEAD_DIM) + EPS);
    for (var i = lane; i < HEAD_DIM; i += WORKGROUP) {{
        vector[i] *= scale * {weight};
    }}
    workgroupBarrier();
}}
"
    )
}

/// The table that a kernel reads, for positions below `max_positions`: one variant for each list of frequencies, cos and
/// sin times `attention_factor` in the coarse entries.
pub fn rope_table(variants: &[&[f64]], attention_factor: f64, max_positions: usize) -> Vec<[f32; 2]> {
    let coarse = rope_coarse(max_positions);
    let mut table = Vec::new();
    for inv_freq in variants {
        for position in (0..coarse).map(|index| index * ROPE_FINE) {
            table.extend(inv_freq.iter().map(|freq| cos_sin(position as f64 * freq, attention_factor)));
        }
        for position in 0..ROPE_FINE {
            table.extend(inv_freq.iter().map(|freq| cos_sin(position as f64 * freq, 1.0)));
        }
    }
    table
}

/// Coarse entries of one variant for positions below `max_positions`.
pub fn rope_coarse(max_positions: usize) -> usize {
    max_positions.div_ceil(ROPE_FINE)
}

fn cos_sin(angle: f64, factor: f64) -> [f32; 2] {
    [(angle.cos() * factor) as f32, (angle.sin() * factor) as f32]
}

/// Buffers of the twin. Caches are u32 words as drawn above.
pub struct HeadsInputs<'a> {
    pub input: &'a [f32],
    pub query_norm: &'a [f32],
    pub key_norm: &'a [f32],
    pub rope_table: &'a [[f32; 2]],
    pub positions: &'a [u32],
    /// Of one sequence and this KV group: page of the pool for each page of the sequence.
    pub block_table: &'a [u32],
    pub rope_variant: usize,
}

/// The kernel in plain loops, all rows of one sequence.
pub fn twin(spec: &HeadsSpec, inputs: &HeadsInputs, output: &mut [f32], keys: &mut [u32], values: &mut [u32]) {
    let dim = spec.head_dim;
    for (row, &position) in inputs.positions.iter().enumerate() {
        let page = inputs.block_table.get(position as usize / spec.page_tokens).map_or(0, |&page| page as usize);
        let slot = position as usize % spec.page_tokens;
        let mut first_head = 0;
        for part in &spec.parts {
            for part_head in 0..part.n_heads {
                let at = row * spec.input_stride + (first_head + part_head) * dim;
                let mut vector = inputs.input[at..at + dim].to_vec();
                if let Some(of) = part.norm {
                    let weight = if of == NormOf::Query { inputs.query_norm } else { inputs.key_norm };
                    vector = norm_row(&spec.head_norm(), &vector, &[], &[], weight).1;
                }
                if part.rope {
                    rope(spec, inputs, position as usize, &mut vector);
                }
                let pair = |i: usize| {
                    let bits = |x: f32| u32::from(f16::from_f32(x).to_bits());
                    bits(vector[2 * i]) | (bits(vector[2 * i + 1]) << 16)
                };
                let head_in_page = page * part.n_heads + part_head;
                match part.to {
                    Destination::Output => {
                        for (i, value) in vector.iter().enumerate() {
                            output[row * spec.output_stride + part_head * dim + i] = value * part.scale.get();
                        }
                    }
                    Destination::Keys => {
                        for i in 0..dim / 2 {
                            keys[(head_in_page * (dim / 2) + i) * spec.page_tokens + slot] = pair(i);
                        }
                    }
                    Destination::Values => {
                        for i in 0..dim / 2 {
                            values[(head_in_page * spec.page_tokens + slot) * (dim / 2) + i] = pair(i);
                        }
                    }
                }
            }
            first_head += part.n_heads;
        }
    }
}

impl HeadsSpec {
    fn head_norm(&self) -> NormSpec {
        NormSpec {
            width: self.head_dim,
            stride: self.head_dim,
            eps: self.eps,
            add: false,
            post_norm: false,
            format: ActivationFormat::F32,
            lanes: 0,
            subgroup_size: 0,
        }
    }
}

fn rope(spec: &HeadsSpec, inputs: &HeadsInputs, position: usize, vector: &mut [f32]) {
    let pairs = spec.rotary_dim / 2;
    let variant = inputs.rope_variant * (spec.rope_coarse + ROPE_FINE) * pairs;
    for i in 0..pairs {
        let [coarse_cos, coarse_sin] = inputs.rope_table[variant + position / ROPE_FINE * pairs + i];
        let [fine_cos, fine_sin] = inputs.rope_table[variant + (spec.rope_coarse + position % ROPE_FINE) * pairs + i];
        let cos = coarse_cos * fine_cos - coarse_sin * fine_sin;
        let sin = coarse_sin * fine_cos + coarse_cos * fine_sin;
        let (low, high) = (vector[i], vector[i + pairs]);
        vector[i] = low * cos - high * sin;
        vector[i + pairs] = high * cos + low * sin;
    }
}
