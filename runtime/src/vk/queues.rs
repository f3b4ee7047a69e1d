//! Which queue families a device is opened with. Pure.

use ash::vk;

/// Queue family indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueChoice {
    pub compute: u32,
    /// A family that only copies, so that weights are uploaded while a step runs; `None`: the device has none.
    pub transfer: Option<u32>,
}

impl QueueChoice {
    /// `None`: no family supports compute.
    pub fn of(families: &[vk::QueueFamilyProperties]) -> Option<QueueChoice> {
        let find = |is_match: &dyn Fn(vk::QueueFlags) -> bool| {
            let index = families.iter().position(|family| family.queue_count > 0 && is_match(family.queue_flags));
            index.map(|index| index as u32)
        };
        // Video engines copy, too, but no faster. Sparse binding and protected memory make no difference.
        let ignored = vk::QueueFlags::SPARSE_BINDING | vk::QueueFlags::PROTECTED;
        Some(QueueChoice {
            compute: find(&|flags| flags.contains(vk::QueueFlags::COMPUTE))?,
            transfer: find(&|flags| flags & !ignored == vk::QueueFlags::TRANSFER),
        })
    }

    /// The families that share a buffer that copies write and kernels read; `None`: a single one.
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
    fn copies_use_a_transfer_queue_where_there_is_one() {
        // llvmpipe and many small GPUs.
        let one = choice(&[GRAPHICS | COMPUTE | TRANSFER]).unwrap();
        assert_eq!((one, one.sharing()), (QueueChoice { compute: 0, transfer: None }, None));
        // NVIDIA's driver: everything, transfer, compute, video.
        let all = GRAPHICS | COMPUTE | TRANSFER | SPARSE;
        let many = choice(&[all, TRANSFER | SPARSE, COMPUTE | TRANSFER | SPARSE, VIDEO | TRANSFER]).unwrap();
        assert_eq!((many, many.sharing()), (QueueChoice { compute: 0, transfer: Some(1) }, Some([0, 1])));
        // RADV: everything, compute, video, transfer.
        let radv = choice(&[GRAPHICS | COMPUTE | TRANSFER, COMPUTE | TRANSFER, VIDEO, TRANSFER | SPARSE]).unwrap();
        assert_eq!(radv, QueueChoice { compute: 0, transfer: Some(3) });
    }

    #[test]
    fn a_video_family_is_not_used_for_copies_and_compute_is_required() {
        assert_eq!(choice(&[COMPUTE, VIDEO | TRANSFER]).unwrap().transfer, None);
        assert_eq!(choice(&[TRANSFER, GRAPHICS]), None);
        assert_eq!(choice(&[]), None);
    }

    #[test]
    fn a_family_without_queues_is_ignored() {
        let families = [(COMPUTE, 1), (TRANSFER, 0)].map(|(queue_flags, queue_count)| vk::QueueFamilyProperties {
            queue_flags,
            queue_count,
            ..Default::default()
        });
        assert_eq!(QueueChoice::of(&families).unwrap().transfer, None);
    }
}
