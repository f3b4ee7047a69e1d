//! The kernel in plain loops, to check it by.

use super::spec::ImagePositionsSpec;

/// The kernel in plain loops: writes `output` of `input`, both (n_rows · side², stride), for an image of `across` rows of the step from
/// left to right; `learned`: (positions, positions, width).
pub fn twin(
    spec: &ImagePositionsSpec,
    input: &[f32],
    learned: &[f32],
    n_rows: usize,
    across: usize,
    output: &mut [f32],
) {
    let side = spec.side;
    let (patches_across, patches_down) = (across * side, n_rows / across * side);
    // The two nearest positions and the second one's share.
    let nearest = |index: usize, count: usize| {
        let place = (index * (spec.positions - 1)) as f32 / (count.max(2) - 1) as f32;
        let first = place.floor() as usize;
        (first, (first + 1).min(spec.positions - 1), place - place.floor())
    };
    for down in 0..patches_down {
        for right in 0..patches_across {
            let square = down / side * across + right / side;
            let row = (square * side + down % side) * side + right % side;
            let (top, bottom, of_bottom) = nearest(down, patches_down);
            let (left, rightmost, of_right) = nearest(right, patches_across);
            for column in 0..spec.width {
                let at = |down: usize, right: usize| learned[(down * spec.positions + right) * spec.width + column];
                let position = (1.0 - of_bottom) * ((1.0 - of_right) * at(top, left) + of_right * at(top, rightmost))
                    + of_bottom * ((1.0 - of_right) * at(bottom, left) + of_right * at(bottom, rightmost));
                output[row * spec.stride + column] = input[row * spec.stride + column] + position;
            }
        }
    }
}
