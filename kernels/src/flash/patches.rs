//! An image's patches in place of rows with a cache.

use serde::{Deserialize, Serialize};

use crate::cache::{CacheLayout, KvFormat};
use crate::image_attention::ImageAttentionSpec;
use crate::number::Number;
use crate::role::rows_of_step;
use crate::template::Values;

/// Elements of which padded heads have a multiple: no fragment has longer sides.
const SIDE: usize = 16;
/// Patches whose keys and values are in workgroup memory at a time.
const TILE: usize = 32;

/// Queries, keys and values of an image's patches: rows of activations in f32. `FlashSpec::cache` has as many KV heads as there are heads,
/// of `head_dim` elements in whole fragments, and pages of as many tokens as there are patches in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PatchRows {
    /// Elements of a head; a multiple of 4.
    pub head_dim: usize,
    /// Elements between rows of keys and of values; multiples of 4.
    pub strides: [usize; 2],
    /// Column of the first head of queries, keys and values; multiples of 4.
    pub firsts: [usize; 3],
    /// Factor of the product of query and key.
    pub scale: Number,
    /// Patches for each row of the step.
    pub rows_per_token: usize,
}

impl PatchRows {
    /// Those of an attention whose rows and heads can be read four elements at a time, and the layout that their keys and values have in
    /// workgroup memory, as a cache has it.
    pub(super) fn of(spec: &ImageAttentionSpec) -> Option<(PatchRows, CacheLayout)> {
        let [query_stride, key_stride, value_stride] = spec.input_strides;
        let patches = PatchRows {
            head_dim: spec.head_dim,
            strides: [key_stride, value_stride],
            firsts: spec.input_firsts,
            scale: spec.scale,
            rows_per_token: spec.rows_per_token,
        };
        let cache = CacheLayout {
            format: KvFormat::F16,
            n_kv_heads: spec.n_heads,
            head_dim: spec.head_dim.next_multiple_of(SIDE),
            page_tokens: TILE,
            latent_value: None,
        };
        patches.are_quads(query_stride).then_some((patches, cache))
    }

    /// Whether its rows can be read four elements at a time.
    pub(super) fn are_quads(&self, query_stride: usize) -> bool {
        let numbers = self.strides.into_iter().chain(self.firsts).chain([self.head_dim, query_stride]);
        numbers.into_iter().all(|number| number.is_multiple_of(4))
    }

    /// Values of the kernel, over those of rows with a cache.
    pub(super) fn values(patches: Option<&PatchRows>, values: Values) -> Values {
        let values = values.flag("PATCHES", patches.is_some());
        let Some(patches) = patches else { return values };
        let [query, key, value] = patches.firsts;
        let rows = rows_of_step(patches.rows_per_token);
        values
            .size("KEY_STRIDE", patches.strides[0])
            .size("VALUE_STRIDE", patches.strides[1])
            .size("QUERY_FIRST", query)
            .size("KEY_FIRST", key)
            .size("VALUE_FIRST", value)
            .number("SCALE", patches.scale.get())
            .text("ROWS_END", rows.clone())
            .text("ALL_ROWS", rows)
    }
}
