//! Sizes of pictures: scaled as Pillow does, and the size to which transformers scales one that a model takes in any size.

use crate::error::TextError;

/// What weighs the pixels around an output pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle: Pillow's `BILINEAR`.
    Triangle,
    /// Keys' cubic convolution with a = -0.5: Pillow's `BICUBIC`.
    Cubic,
}

impl Filter {
    /// Pixels to either side that have a weight, where the picture does not shrink.
    fn support(self) -> f64 {
        match self {
            Filter::Triangle => 1.0,
            Filter::Cubic => 2.0,
        }
    }

    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Filter::Triangle => (1.0 - x).max(0.0),
            Filter::Cubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Filter::Cubic if x < 2.0 => -0.5 * (((x - 5.0) * x + 8.0) * x - 4.0),
            Filter::Cubic => 0.0,
        }
    }
}

/// Which input pixels make each output pixel, and their weights.
pub struct Taps(Vec<(usize, Vec<i32>)>);

/// Weights are integers of this unit: Pillow's, so that sums round alike.
const UNIT_BITS: u32 = 22;

impl Taps {
    /// Of a line of `from` pixels that becomes one of `to`.
    pub fn of(from: usize, to: usize, filter: Filter) -> Taps {
        let scale = from as f64 / to as f64;
        // The filter is one of input pixels where the picture grows, else of output pixels.
        let unit_pixels = scale.max(1.0);
        let support = filter.support() * unit_pixels;
        let tap = |index: usize| {
            let center = (index as f64 + 0.5) * scale;
            // Truncated as C does; the first is not below 0.
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let weights: Vec<f64> =
                (first..end).map(|at| filter.weight((at as f64 - center + 0.5) / unit_pixels)).collect();
            let sum: f64 = weights.iter().sum();
            let rounded = |weight: &f64| {
                let units = weight / sum * f64::from(1 << UNIT_BITS);
                (units + 0.5_f64.copysign(units)) as i32
            };
            (first, weights.iter().map(rounded).collect())
        };
        Taps((0..to).map(tap).collect())
    }

    /// Scales a line of pixels of `width` elements each.
    pub fn scaled(&self, line: &[u8], width: usize) -> Vec<u8> {
        let mut scaled = Vec::with_capacity(self.0.len() * width);
        for (first, weights) in &self.0 {
            for element in 0..width {
                let pixels = line[first * width + element..].iter().step_by(width);
                let sum: i32 = pixels.zip(weights).map(|(&pixel, weight)| i32::from(pixel) * weight).sum();
                scaled.push(((sum + (1 << (UNIT_BITS - 1))) >> UNIT_BITS).clamp(0, 255) as u8);
            }
        }
        scaled
    }
}

/// Most times that a picture is wider than it is high, or higher than it is wide.
const MAX_ASPECT: usize = 200;

/// Width and height, multiples of `unit`, of about the shape of a picture of `width` × `height`, with at least `fewest` and at most `most`
/// pixels: transformers' `smart_resize` of Qwen2-VL. Where no such size has at least `fewest` and at most `most`, it has fewer.
///
/// # Errors
/// For a picture that is too long and narrow.
pub fn size_in_units(
    (width, height): (usize, usize),
    unit: usize,
    [fewest, most]: [usize; 2],
) -> Result<(usize, usize), TextError> {
    if width.max(height) > MAX_ASPECT * width.min(height) {
        let detail =
            format!("{width} × {height} pixels, expected a side at most {MAX_ASPECT} times as long as the other");
        return Err(TextError::Picture { detail });
    }
    let sides = [width as f64, height as f64];
    // Halves are rounded to even numbers, as in Python.
    let mut found = sides.map(|side| (side / unit as f64).round_ties_even() as usize * unit);
    let within_most = || {
        let shrink = (sides[0] * sides[1] / most as f64).sqrt();
        sides.map(|side| ((side / shrink / unit as f64).floor() as usize * unit).max(unit))
    };
    if found[0] * found[1] > most {
        found = within_most();
    } else if found[0] * found[1] < fewest {
        let grow = (fewest as f64 / (sides[0] * sides[1])).sqrt();
        found = sides.map(|side| (side * grow / unit as f64).ceil() as usize * unit);
        if found[0] * found[1] > most {
            found = within_most();
        }
    }
    if found[0] * found[1] > most {
        let detail =
            format!("{width} × {height} pixels become {} × {}, expected {most} pixels at most", found[0], found[1]);
        return Err(TextError::Picture { detail });
    }
    Ok((found[0], found[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes by transformers' `smart_resize`.
    #[test]
    fn sizes_are_those_of_transformers() {
        let of = |width, height| size_in_units((width, height), 32, [1 << 16, 1 << 19]).unwrap();
        assert_eq!(of(640, 480), (640, 480));
        assert_eq!(of(1920, 1080), (960, 512));
        assert_eq!(of(100, 80), (288, 256));
        assert_eq!(of(336, 304), (320, 320));
        assert!(size_in_units((2001, 10), 32, [1, 1 << 19]).is_err());
    }

    /// transformers then has more than the most: 320 × 224.
    #[test]
    fn a_picture_that_grows_is_as_large_as_the_limits_allow() {
        assert_eq!(size_in_units((300, 200), 32, [1 << 16, 1 << 16]).unwrap(), (288, 192));
    }
}
