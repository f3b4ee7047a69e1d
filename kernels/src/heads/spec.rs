//! Parameters of the kernel, its bindings, and the numbers that its WGSL takes.

use serde::{Deserialize, Serialize};
use unicorn_artifact::step::{ImageNumbers, ROPE_SHIFT_BITS, image_across, rope_shift};

use crate::cache::CacheLayout;
use crate::kernel::{Kernel, RowAxis};
use crate::number::Number;
use crate::role::{BindingSpec, Role, bindings, declarations};
use crate::template::{Values, render};

/// Positions that share one coarse entry of the RoPE table.
pub const ROPE_FINE: usize = 256;

/// Parameters of one heads kernel: the parts of one source row, in their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadsSpec {
    /// Parts of a source row.
    pub parts: Vec<HeadsPart>,
    /// Whether a row has no values of its own: its keys, before their norm and rotation, are its values.
    pub values_are_keys: bool,
    /// Shape of the layer's cache.
    pub cache: CacheLayout,
    /// Elements between rows of the input.
    pub input_stride: usize,
    /// Elements between rows of the output.
    pub output_stride: usize,
    /// Epsilon of the RMS norms.
    pub eps: Number,
    /// Elements of a head that RoPE rotates; 0 when none is rotated.
    pub rotary_dim: usize,
    /// The first of them.
    pub rotary_begins: usize,
    /// Coarse entries of one variant of the RoPE table.
    pub rope_coarse: usize,
    /// Index of the cache's KV group, whose block table is read.
    pub kv_group: usize,
    /// The positions of which angles are.
    pub positions: RopePositions,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
}

/// The positions of which rotary embeddings take angles. Where a model takes images of any size (Qwen3-VL's interleaved M-RoPE), a row of
/// an image has three: that of the image's first row, and this plus its places from the top and from the left. What follows an image
/// continues behind the largest of them, by [`rope_word`](unicorn_artifact::step::rope_word).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RopePositions {
    /// Those in the sequence.
    Own,
    /// Those in the sequence less what images before took up in excess; no row is one of an image.
    Shifted,
    /// The same, and of rows of images the three.
    OfImages {
        /// Pair `i` has the place from the top where `i mod 3` is 1 and `i < 3 · sections[0]`, that from the left where it is 2 and
        /// `i < 3 · sections[1]`, else the position of the first row.
        sections: [usize; 2],
        /// Most rows of an image, which determine how rows are numbered.
        image_rows: usize,
    },
}

impl RopePositions {
    /// The position of rotary pair `pair`, for twins: of the row at `position` of its sequence with this token and word.
    pub fn of(self, pair: usize, position: u32, token: u32, word: u32) -> u32 {
        let RopePositions::OfImages { sections, image_rows } = self else {
            return if self == RopePositions::Own { position } else { position - rope_shift(word) };
        };
        let (shifted, across) = (position - rope_shift(word), image_across(word));
        let place = ImageNumbers::for_rows(image_rows as u32).place(token);
        let Some((_, row)) = place.filter(|_| across > 0) else { return shifted };
        let (first, row) = (shifted - row as u32, row as u32);
        match pair % 3 {
            1 if pair < 3 * sections[0] => first + row / across,
            2 if pair < 3 * sections[1] => first + row % across,
            _ => first,
        }
    }
}

/// Consecutive heads that are treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadsPart {
    /// Number of heads.
    pub n_heads: usize,
    /// RMS norm with the weight of these heads.
    pub norm: Option<NormOf>,
    /// Whether RoPE is applied.
    pub rope: bool,
    /// Factor of the elements that go to `Destination::Output`; not applied to the cache.
    pub scale: Number,
    /// A second factor of these elements, which depends on the position.
    pub growth: Option<Growth>,
    /// Where the heads are written.
    pub to: Destination,
}

/// A factor of queries that grows with their position, so that attention over a long context stays sharp:
/// `1 + beta ln(1 + floor(position / interval))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Growth {
    /// Not negative.
    pub beta: Number,
    /// Tokens, above 0.
    pub interval: usize,
}

/// The heads whose RMS norm is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NormOf {
    /// Query heads: `Role::QueryNorm`.
    Query,
    /// Key heads: `Role::KeyNorm`.
    Key,
    /// Value heads: without a weight.
    Value,
}

/// Where the heads of a part are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Destination {
    /// f32 rows of `output_stride`, heads from 0.
    Output,
    /// Key pages of the cache.
    Keys,
    /// Value pages of the cache.
    Values,
    /// Key and value pages of the cache, as one latent vector.
    Latent,
}

impl HeadsPart {
    /// Factor of the elements that go to the output, at `position`.
    pub fn scale_at(&self, position: usize) -> f32 {
        let growth = |growth: &Growth| 1.0 + growth.beta.get() * (1.0 + (position / growth.interval) as f32).ln();
        self.scale.get() * self.growth.as_ref().map_or(1.0, growth)
    }

    /// WGSL of that factor, for code with a variable `position`.
    pub(crate) fn scale_wgsl(&self) -> String {
        let scale = format!("{:?}f", self.scale.get());
        match self.growth {
            None => scale,
            Some(Growth { beta, interval }) => {
                format!("({scale} * (1.0 + {:?}f * log(1.0 + f32(position / {interval}u))))", beta.get())
            }
        }
    }
}

impl Kernel for HeadsSpec {
    fn bindings(&self) -> Vec<BindingSpec> {
        let output = self.has(|part| part.to == Destination::Output).then_some(Role::Output);
        let cache = [
            (Role::Keys, self.has(|part| matches!(part.to, Destination::Keys | Destination::Latent))),
            (Role::Values, self.has(|part| matches!(part.to, Destination::Values | Destination::Latent))),
        ];
        let cache = cache.into_iter().filter(|(_, used)| *used).map(|(role, _)| role);
        bindings([Role::Step, Role::Input].into_iter().chain(output).chain(self.factors()).chain(cache))
    }

    fn workgroups(&self, rows: usize) -> [usize; 3] {
        [self.parts.iter().map(|part| part.n_heads).sum(), rows, 1]
    }

    fn row_axis(&self) -> Option<RowAxis> {
        RowAxis::each_row(1)
    }

    fn wgsl(&self) -> String {
        let values = Values::default()
            .size("VECTORS", 1)
            .size("INPUT_STRIDE", self.input_stride)
            .size("OUTPUT_STRIDE", self.output_stride)
            .size("KV_GROUP", self.kv_group)
            .count("VALUES_BEGIN", self.source_heads())
            .size("WORKGROUP", self.workgroup())
            .size("SUBGROUP", self.subgroup_size as usize)
            .flag("SUBGROUPS", self.subgroup_size > 0)
            .text("DECLARATIONS", declarations(&self.bindings()));
        assert!(!self.values_are_keys || self.is_qkv(), "values are the keys of the part before them");
        render(include_str!("kernel.wgsl"), &self.values(self.cache.values(self.part_values(values))))
    }
}

impl HeadsSpec {
    fn workgroup(&self) -> usize {
        // Half a head's pairs at least, in whole subgroups.
        (self.cache.head_dim / 2).next_multiple_of(self.subgroup_size.max(32) as usize).min(128)
    }

    /// Heads of a source row.
    pub fn source_heads(&self) -> usize {
        let heads: usize = self.parts.iter().map(|part| part.n_heads).sum();
        heads - if self.values_are_keys { self.cache.n_kv_heads } else { 0 }
    }

    fn has(&self, test: impl Fn(&HeadsPart) -> bool) -> bool {
        self.parts.iter().any(test)
    }

    /// Buffers by which heads are normed and rotated.
    pub(crate) fn factors(&self) -> impl Iterator<Item = Role> {
        let candidates = [
            (Role::QueryNorm, self.norms(NormOf::Query)),
            (Role::KeyNorm, self.norms(NormOf::Key)),
            (Role::RopeTable, self.has(|part| part.rope)),
        ];
        candidates.into_iter().filter(|(_, used)| *used).map(|(role, _)| role)
    }

    /// Whether the parts are q, k and v, as attention's prologue takes them.
    pub fn is_qkv(&self) -> bool {
        let to: Vec<Destination> = self.parts.iter().map(|part| part.to).collect();
        let rope: Vec<bool> = self.parts.iter().map(|part| part.rope).collect();
        to == [Destination::Output, Destination::Keys, Destination::Values] && rope[0] == rope[1] && !rope[2]
    }

    /// The head of a source row at which a part begins.
    pub(super) fn source_head(&self, index: usize) -> usize {
        let before = self.parts[..index].iter().map(|part| part.n_heads).sum();
        if self.values_are_keys && self.parts[index].to == Destination::Values {
            return before - self.cache.n_kv_heads;
        }
        before
    }

    pub(crate) fn norms(&self, of: NormOf) -> bool {
        self.has(|part| part.norm == Some(of))
    }

    /// Values for pieces that include `vectors`, without those of the cache.
    pub(crate) fn values(&self, values: Values) -> Values {
        values
            .size("ROTARY_PAIRS", self.rotary_dim / 2)
            .text(
                "ROTARY_BEGINS",
                if self.rotary_begins > 0 { format!("{}u + ", self.rotary_begins) } else { String::new() },
            )
            .flag("SHIFTED", self.positions != RopePositions::Own)
            .flag("PLACES", self.sections().is_some())
            .count("PAIRS_DOWN", 3 * self.sections().map_or(0, |[down, _]| down))
            .count("PAIRS_ACROSS", 3 * self.sections().map_or(0, |[_, across]| across))
            .text("ROPE_SHIFT_BITS", format!("{ROPE_SHIFT_BITS}u"))
            .count("IMAGE_NUMBERS", self.image_numbers().each() as usize)
            .size("ROPE_COARSE", self.rope_coarse)
            .size("ROPE_FINE", ROPE_FINE)
            .number("EPS", self.eps.get())
            .flag("ROPE", self.has(|part| part.rope))
            .flag("NORM", self.has(|part| part.norm.is_some()))
            .flag("QUERY_NORM", self.norms(NormOf::Query))
            .flag("KEY_NORM", self.norms(NormOf::Key))
            .flag("VALUE_NORM", self.norms(NormOf::Value))
            .flag("VALUES_ARE_KEYS", self.values_are_keys)
            .flag("CACHE", self.has(|part| part.to != Destination::Output))
            .flag("STORE_LATENT", self.has(|part| part.to == Destination::Latent))
            .flag("STORE_KEYS", self.has(|part| part.to == Destination::Keys))
            .flag("STORE_VALUES", self.has(|part| part.to == Destination::Values))
    }

    fn sections(&self) -> Option<[usize; 2]> {
        match self.positions {
            RopePositions::OfImages { sections, .. } => Some(sections),
            _ => None,
        }
    }

    fn image_numbers(&self) -> ImageNumbers {
        match self.positions {
            RopePositions::OfImages { image_rows, .. } => ImageNumbers::for_rows(image_rows as u32),
            _ => ImageNumbers::for_rows(0),
        }
    }

    /// Values that describe each part of the row, for the standalone kernel.
    fn part_values(&self, mut values: Values) -> Values {
        let mut first_head = 0;
        for (p, part) in self.parts.iter().enumerate() {
            let name = |what: &str| format!("PART_{p}_{what}");
            values = values
                .count(name("BEGIN"), first_head)
                .count(name("END"), first_head + part.n_heads)
                .text(name("SCALE"), part.scale_wgsl())
                .flag(name("QUERY_NORM"), part.norm == Some(NormOf::Query))
                .flag(name("KEY_NORM"), part.norm == Some(NormOf::Key))
                .flag(name("VALUE_NORM"), part.norm == Some(NormOf::Value))
                .flag(name("ROPE"), part.rope)
                .flag(name("KEYS"), part.to == Destination::Keys)
                .flag(name("VALUES"), part.to == Destination::Values)
                .flag(name("LATENT"), part.to == Destination::Latent);
            first_head += part.n_heads;
        }
        values.count("PARTS", self.parts.len())
    }
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
