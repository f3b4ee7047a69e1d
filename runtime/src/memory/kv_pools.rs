//! How the K and V regions of a KV group's layers are packed into buffers. Pure.

use unicorn_artifact::KvGroupPlan;

/// Layout of one KV group: K and V of each layer are regions of `region_bytes` in a few buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPools {
    /// Size of one layer's K, and of its V, rounded up to the alignment of bindings.
    pub region_bytes: u64,
    /// Size of each buffer.
    pub buffers: Vec<u64>,
    regions_per_buffer: u64,
}

/// KV buffers stay below this size: some drivers address larger ones incorrectly.
const MAX_BUFFER_BYTES: u64 = 1 << 30;

impl KvPools {
    /// Packs K and V of each of the group's layers, `pages` pages each, into buffers of at most `max_allocation_bytes`.
    pub fn new(group: &KvGroupPlan, pages: u32, align_bytes: u64, max_allocation_bytes: u64) -> KvPools {
        let region_bytes = (group.page_bytes * u64::from(pages)).next_multiple_of(align_bytes);
        let regions_per_buffer = (max_allocation_bytes.min(MAX_BUFFER_BYTES) / region_bytes).max(1);
        let mut left = 2 * u64::from(group.n_layers);
        let mut buffers = Vec::new();
        while left > 0 {
            let now = left.min(regions_per_buffer);
            buffers.push(now * region_bytes);
            left -= now;
        }
        KvPools { region_bytes, buffers, regions_per_buffer }
    }

    /// Index of the buffer, and byte offset in it, of a layer's keys.
    pub fn keys(&self, layer: u32) -> (usize, u64) {
        self.region(2 * u64::from(layer))
    }

    /// Index of the buffer, and byte offset in it, of a layer's values.
    pub fn values(&self, layer: u32) -> (usize, u64) {
        self.region(2 * u64::from(layer) + 1)
    }

    fn region(&self, index: u64) -> (usize, u64) {
        ((index / self.regions_per_buffer) as usize, index % self.regions_per_buffer * self.region_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::requirements::tests::plan;

    #[test]
    fn pools_are_cut_at_the_largest_allocation() {
        let group = &plan(None).kv_groups[0];
        let pools = KvPools::new(group, 3, 256, 100 << 10);
        assert_eq!(pools.region_bytes, 24 << 10);
        assert_eq!(pools.buffers, [96 << 10, 96 << 10, 96 << 10, 96 << 10]);
        assert_eq!(pools.keys(0), (0, 0));
        assert_eq!(pools.values(1), (0, 72 << 10));
        assert_eq!(pools.keys(2), (1, 0));
        assert_eq!(pools.values(7), (3, 72 << 10));
    }
}
