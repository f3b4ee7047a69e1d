//! Places of the NPU's weights in sections of their own, and the NPU's memory, which is system memory, in the plan.

use unicorn_artifact::header::MAX_SLICE_BYTES;
use unicorn_artifact::plan::BUFFER_ALIGN;
use unicorn_artifact::{BufferPlan, NpuSection, Tier};

/// A slice and an offset for each length, in order, and the bytes of each slice.
pub fn places(lengths: impl IntoIterator<Item = u64>) -> (Vec<(u32, u64)>, Vec<u64>) {
    let (mut places, mut slices): (Vec<(u32, u64)>, Vec<u64>) = (Vec::new(), Vec::new());
    for len_bytes in lengths {
        assert!(len_bytes <= MAX_SLICE_BYTES, "weights of {len_bytes} bytes fit into a section");
        let offset_bytes = slices.last().map(|bytes| bytes.next_multiple_of(BUFFER_ALIGN));
        let offset_bytes = offset_bytes.filter(|offset| offset + len_bytes <= MAX_SLICE_BYTES).unwrap_or_else(|| {
            slices.push(0);
            0
        });
        *slices.last_mut().expect("one is open") = offset_bytes + len_bytes;
        places.push((slices.len() as u32 - 1, offset_bytes));
    }
    (places, slices)
}

/// The NPU's memory, for the plan's account. `parts`: most parts in which it takes a step's rows.
pub fn buffers(section: &NpuSection, parts: usize) -> impl Iterator<Item = BufferPlan> + use<> {
    let buffer = |(name, bytes, reason): (&str, u64, &str)| BufferPlan {
        name: name.into(),
        bytes,
        tier: Tier::Host,
        reason: reason.into(),
    };
    section.memory(parts as u32).into_iter().map(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_each_other_and_begin_a_section_where_the_last_is_full() {
        let third = MAX_SLICE_BYTES / 3 + 4;
        let (places, slices) = places([100, third, third, third, 8]);
        assert_eq!(places[..2], [(0, 0), (0, BUFFER_ALIGN)]);
        let second = (BUFFER_ALIGN + third).next_multiple_of(BUFFER_ALIGN);
        assert_eq!(places[2..4], [(0, second), (1, 0)]);
        assert_eq!(places[4], (1, third.next_multiple_of(BUFFER_ALIGN)));
        assert_eq!(slices, [second + third, third.next_multiple_of(BUFFER_ALIGN) + 8]);
        assert_eq!(super::places([]), (vec![], vec![]));
    }
}
