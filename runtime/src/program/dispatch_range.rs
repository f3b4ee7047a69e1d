//! A dispatch's grid in bands: consecutive workgroups, in the order in which devices count them (x fastest, then y, then z),
//! that can be submitted one after another instead of all at once.
//!
//! ```text
//! grid of 4 × 3, at most 4 a band        at most 3
//!   y 0  ■ ■ ■ ■  band 0                   ■ ■ □ □   bands 0 and 1
//!   y 1  □ □ □ □  band 1                   ■ ■ □ □   bands 2 and 3
//!   y 2  ■ ■ ■ ■  band 2                   ■ ■ □ □   bands 4 and 5
//! ```
//!
//! That the result is the same bit for bit is a property of the kernels. Workgroups of one dispatch never wait for each
//! other, since Vulkan promises no order among them. What one of them writes no other reads, but for the last one to
//! arrive, which puts together what the others left before they counted themselves (`kernels/src/decode_attention/`):
//! whichever it is, it adds in the same order. None asks how many there are (`shaders-gen/src/check.rs` refuses
//! `NumWorkgroups`, which a band would change); in a chain they are told the number of all bands together (`links.rs`).

/// Workgroups of one dispatch that are submitted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// The number of its first workgroup on each axis.
    pub first: [u32; 3],
    /// How many follow on each axis, the first included.
    pub workgroups: [u32; 3],
}

impl Band {
    /// All of a grid.
    pub fn whole(grid: [u32; 3]) -> Band {
        Band { first: [0; 3], workgroups: grid }
    }

    /// Workgroups in it.
    pub fn count(&self) -> u64 {
        self.workgroups.iter().map(|&count| u64::from(count)).product()
    }

    /// Whether another band of the same dispatch comes before it.
    pub fn continues(&self) -> bool {
        self.first != [0; 3]
    }
}

/// Bands of at most `most` workgroups that are `grid` together, in order; of one workgroup if `most` is 0. An axis of a grid
/// has 1 to 65535 workgroups, as the artifact's reader has checked.
pub fn bands(grid: [u32; 3], most: u64) -> Vec<Band> {
    let whole = Band::whole(grid);
    if whole.count() <= most {
        return vec![whole];
    }
    let mut bands = Vec::new();
    cut_axis(whole, 2, most.max(1), &mut bands);
    bands
}

/// Cuts along the slowest axis that is not cut yet, and within its single steps where that is not enough.
fn cut_axis(whole: Band, axis: usize, most: u64, bands: &mut Vec<Band>) {
    let steps = whole.workgroups[axis];
    let steps_that_fit = most / (whole.count() / u64::from(steps));
    if steps_that_fit == 0 {
        for step in 0..steps {
            let mut slice = whole;
            (slice.first[axis], slice.workgroups[axis]) = (step, 1);
            cut_axis(slice, axis - 1, most, bands);
        }
        return;
    }
    // Of nearly one length: a short rest would be a submission, too.
    let n_bands = u64::from(steps).div_ceil(steps_that_fit).max(1);
    let bound = |band: u64| (u64::from(steps) * band / n_bands) as u32;
    bands.extend((0..n_bands).map(|band| {
        let mut part = whole;
        (part.first[axis], part.workgroups[axis]) = (bound(band), bound(band + 1) - bound(band));
        part
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of a band's workgroups in the grid, in order.
    fn numbers(grid: [u32; 3], band: &Band) -> Vec<u64> {
        let [x, y, z] = [0, 1, 2].map(|axis| band.first[axis]..band.first[axis] + band.workgroups[axis]);
        let [width, height, _] = grid.map(u64::from);
        let number = |x: u32, y: u32, z: u32| u64::from(x) + width * (u64::from(y) + height * u64::from(z));
        let rows = z.flat_map(|z| y.clone().map(move |y| (y, z)));
        rows.flat_map(|(y, z)| x.clone().map(move |x| number(x, y, z))).collect()
    }

    #[test]
    fn the_drawing_is_right() {
        let firsts = |most| bands([4, 3, 1], most).iter().map(|band| (band.first, band.count())).collect::<Vec<_>>();
        assert_eq!(firsts(4), [([0, 0, 0], 4), ([0, 1, 0], 4), ([0, 2, 0], 4)]);
        assert_eq!(firsts(3)[..3], [([0, 0, 0], 2), ([2, 0, 0], 2), ([0, 1, 0], 2)]);
        assert_eq!(firsts(12), [([0, 0, 0], 12)]);
        assert_eq!(firsts(8), [([0, 0, 0], 4), ([0, 1, 0], 8)]);
    }

    #[test]
    fn bands_are_the_grid_in_order_and_none_is_too_large() {
        let sides = [1, 2, 3, 5, 7, 16];
        let grids = sides.iter().flat_map(|&x| sides.iter().flat_map(move |&y| sides.map(|z| [x, y, z])));
        for grid in grids {
            let all = Band::whole(grid).count();
            for most in [0, 1, 2, 3, 4, 6, 7, 15, 35, 100, all - 1, all, all + 1, u64::from(u32::MAX)] {
                let bands = bands(grid, most);
                let found: Vec<u64> = bands.iter().flat_map(|band| numbers(grid, band)).collect();
                assert_eq!(found, (0..all).collect::<Vec<_>>(), "{grid:?} by {most}: {bands:?}");
                assert!(bands.iter().all(|band| band.count() <= most.max(1)), "{grid:?} by {most}: {bands:?}");
                assert!(bands.iter().skip(1).all(Band::continues) && !bands[0].continues());
            }
        }
    }

    #[test]
    fn the_largest_grid_there_can_be_is_cut() {
        let found = bands([65_535; 3], 65_535 * 65_535 * 1000);
        assert_eq!(found.len(), 66);
        assert_eq!(found.iter().map(|band| u64::from(band.workgroups[2])).sum::<u64>(), 65_535);
    }
}
