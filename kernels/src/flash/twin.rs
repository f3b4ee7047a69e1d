//! The kernel in plain loops, to check it by.

use super::spec::FlashSpec;
use crate::attention::{self, AttentionInputs, AttentionSpec};
use crate::split::Split;

/// The kernel in plain loops, all rows of one sequence: the twin of `attention` in one split. `output`: words of the spec's format.
pub fn twin(spec: &FlashSpec, inputs: &AttentionInputs, output: &mut [u32]) {
    let rows_per_group = spec.rows_per_group();
    let attention = AttentionSpec {
        gqa: spec.gqa,
        cache: spec.cache,
        kv_group: spec.kv_group,
        split: Split {
            rows_per_group,
            rows: spec.rows,
            tile: spec.cache.page_tokens,
            window: spec.window,
            first_token: 0,
            splits: 1,
            max_splits: 1,
            newest_apart: false,
        },
        heads_per_group: spec.heads_per_group,
        words_ahead: 1,
        input_stride: spec.input_stride,
        prologue: None,
        softcap: spec.softcap,
        sinks: spec.sinks,
        image_rows: spec.image_rows,
        output_stride: spec.output_stride,
        output: spec.output,
        subgroup_size: spec.subgroup_size,
    };
    attention::twin(&attention, inputs, output);
}
