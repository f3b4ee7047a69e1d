//! Which queues a device is opened with: a pure function of its families.

use ash::vk;

/// Families of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueChoice {
    pub compute: u32,
    /// One that does nothing but copy, so that weights travel beside a step; `None`: the device has no such family.
    pub transfer: Option<u32>,
}

impl QueueChoice {
    /// `None`: no family computes.
    pub fn of(families: &[vk::QueueFamilyProperties]) -> Option<QueueChoice> {
        let find = |wanted: &dyn Fn(vk::QueueFlags) -> bool| {
            let index = families.iter().position(|family| family.queue_count > 0 && wanted(family.queue_flags));
            index.map(|index| index as u32)
        };
        // Video engines copy, too, and are no faster for it. Sparse binding and protected memory are beside the point.
        let beside = vk::QueueFlags::SPARSE_BINDING | vk::QueueFlags::PROTECTED;
        Some(QueueChoice {
            compute: find(&|flags| flags.contains(vk::QueueFlags::COMPUTE))?,
            transfer: find(&|flags| flags & !beside == vk::QueueFlags::TRANSFER),
        })
    }

    /// The families that share a buffer which is filled by copies and read by kernels.
    pub fn sharing(&self) -> Option<[u32; 2]> {
        self.transfer.map(|transfer| [self.compute, transfer])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPHICS: vk::QueueFlags = vk::QueueFlags::GRAPHICS;
    const COMPUTE: vk::QueueFlags = vk::QueueFlags::COMPUTE;
    const TRANSFER: vk::QueueFlags = vk::QueueFlags::TRANSFER;
    const SPARSE: vk::QueueFlags = vk::QueueFlags::SPARSE_BINDING;
    const VIDEO: vk::QueueFlags = vk::QueueFlags::VIDEO_DECODE_KHR;

    fn choice(families: &[vk::QueueFlags]) -> Option<QueueChoice> {
        let family = |&queue_flags| vk::QueueFamilyProperties { queue_flags, queue_count: 1, ..Default::default() };
        QueueChoice::of(&families.iter().map(family).collect::<Vec<_>>())
    }

    #[test]
    fn copies_get_a_queue_of_their_own_where_there_is_one() {
        // As llvmpipe and many small GPUs have it.
        let one = choice(&[GRAPHICS | COMPUTE | TRANSFER]).unwrap();
        assert_eq!((one, one.sharing()), (QueueChoice { compute: 0, transfer: None }, None));
        // As NVIDIA's driver has it: everything, copies, computing, video.
        let all = GRAPHICS | COMPUTE | TRANSFER | SPARSE;
        let many = choice(&[all, TRANSFER | SPARSE, COMPUTE | TRANSFER | SPARSE, VIDEO | TRANSFER]).unwrap();
        assert_eq!((many, many.sharing()), (QueueChoice { compute: 0, transfer: Some(1) }, Some([0, 1])));
        // As RADV has it: computing beside everything, copies behind.
        let radv = choice(&[GRAPHICS | COMPUTE | TRANSFER, COMPUTE | TRANSFER, VIDEO, TRANSFER | SPARSE]).unwrap();
        assert_eq!(radv, QueueChoice { compute: 0, transfer: Some(3) });
    }

    #[test]
    fn a_video_engine_is_no_copier_and_nothing_computes_without_a_family_for_it() {
        assert_eq!(choice(&[COMPUTE, VIDEO | TRANSFER]).unwrap().transfer, None);
        assert_eq!(choice(&[TRANSFER, GRAPHICS]), None);
        assert_eq!(choice(&[]), None);
    }

    #[test]
    fn a_family_without_queues_is_none() {
        let families = [(COMPUTE, 1), (TRANSFER, 0)].map(|(queue_flags, queue_count)| vk::QueueFamilyProperties {
            queue_flags,
            queue_count,
            ..Default::default()
        });
        assert_eq!(QueueChoice::of(&families).unwrap().transfer, None);
    }
}
