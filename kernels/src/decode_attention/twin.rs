//! The kernel's twin is that of `attention`, in one split and behind its prologue.

use super::spec::DecodeAttentionSpec;
use crate::attention::AttentionSpec;
use crate::split::Split;

impl DecodeAttentionSpec {
    /// The spec of `attention` for the same work, in one split: its twin is this kernel's.
    pub fn as_attention(&self) -> AttentionSpec {
        AttentionSpec {
            gqa: self.gqa,
            cache: self.cache,
            kv_group: self.kv_group,
            split: Split { splits: 1, max_splits: 1, ..self.split },
            heads_per_group: self.heads_per_group,
            words_ahead: self.words_ahead,
            input_stride: self.heads.input_stride,
            prologue: Some(self.heads.clone()),
            image_rows: 0,
            softcap: self.softcap,
            sinks: self.sinks,
            output_stride: self.output_stride,
            output: self.output,
            subgroup_size: self.subgroup_size,
        }
    }
}
