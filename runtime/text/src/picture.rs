//! Pictures from files: decoded, scaled as Pillow does, and cut into the patches that a model's vision tower reads.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};
use unicorn_artifact::ImageSection;

use crate::error::TextError;

/// A picture of red, green and blue, 8 bits each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    /// (height, width, 3)
    pixels: Vec<u8>,
}

/// Longest side of a picture that is decoded, in pixels, most pixels of one, and most bytes that its decoder may have.
const MAX_SIDE: u32 = 1 << 14;
const MAX_PIXELS: u64 = 1 << 26;
const MAX_DECODER_BYTES: u64 = 512 << 20;

const CHANNELS: usize = 3;

impl Picture {
    /// Decodes a PNG, JPEG, WebP, GIF (its first picture) or BMP file; a photo is turned as its orientation tells.
    ///
    /// # Errors
    /// [`TextError::Picture`] for bytes of another kind, damaged ones, and pictures that are too large.
    pub fn decode(bytes: &[u8]) -> Result<Picture, TextError> {
        let damaged = |error: image::ImageError| TextError::Picture { detail: error.to_string() };
        let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| {
            // A cursor over memory reads without errors.
            TextError::Picture { detail: error.to_string() }
        })?;
        let mut limits = Limits::default();
        (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
        limits.max_alloc = Some(MAX_DECODER_BYTES);
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(damaged)?;
        // A small file may be of many pixels.
        let (width, height) = decoder.dimensions();
        if u64::from(width) * u64::from(height) > MAX_PIXELS {
            let detail = format!("{width} × {height} pixels, expected at most {MAX_PIXELS}");
            return Err(TextError::Picture { detail });
        }
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut decoded = DynamicImage::from_decoder(decoder).map_err(damaged)?;
        decoded.apply_orientation(orientation);
        let decoded = decoded.into_rgb8();
        let (width, height) = (decoded.width() as usize, decoded.height() as usize);
        Picture::new(width, height, decoded.into_raw())
    }

    /// A picture of these pixels, (height, width, 3).
    ///
    /// # Errors
    /// [`TextError::Picture`] for a picture without pixels, or with another number of them.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Result<Picture, TextError> {
        if pixels.is_empty()
            || width.checked_mul(height).and_then(|all| all.checked_mul(CHANNELS)) != Some(pixels.len())
        {
            let detail = format!("{width} × {height} pixels in {} bytes", pixels.len());
            return Err(TextError::Picture { detail });
        }
        Ok(Picture { width, height, pixels })
    }

    /// The patches of this picture for [`Model::encode_image`](unicorn_runtime::Model::encode_image): scaled to the model's size whatever
    /// its shape, each channel normalised, patch by patch from the top.
    pub fn patches(&self, section: &ImageSection) -> Vec<f32> {
        let (size, side) = (section.image_size as usize, section.patch_size as usize);
        let scaled = self.scaled(size, size);
        let across = size / side;
        let mut patches = Vec::with_capacity(across * across * CHANNELS * side * side);
        for (top, left) in (0..across).flat_map(|down| (0..across).map(move |right| (down * side, right * side))) {
            for channel in 0..CHANNELS {
                let normalized =
                    |byte: u8| (f32::from(byte) / 255.0 - section.mean[channel]) / section.deviation[channel];
                for row in scaled.pixels.chunks_exact(CHANNELS * size).skip(top).take(side) {
                    let pixels = row.chunks_exact(CHANNELS).skip(left).take(side);
                    patches.extend(pixels.map(|pixel| normalized(pixel[channel])));
                }
            }
        }
        patches
    }

    /// The picture in another size, by the triangle filter over all pixels that an output pixel covers, first across and then down, each
    /// rounded to 8 bits: pixel by pixel what Pillow's `BILINEAR` gives (Pillow 13 goes down first where that is less work).
    pub fn scaled(&self, width: usize, height: usize) -> Picture {
        let across = Taps::of(self.width, width);
        let narrow: Vec<u8> =
            self.pixels.chunks_exact(CHANNELS * self.width).flat_map(|row| across.scaled(row, CHANNELS)).collect();
        // Rows are the elements of a column of whole rows.
        let pixels = Taps::of(self.height, height).scaled(&narrow, CHANNELS * width);
        Picture { width, height, pixels }
    }
}

/// Which input pixels make each output pixel, and their weights.
struct Taps(Vec<(usize, Vec<i32>)>);

/// Weights are integers of this unit: Pillow's, so that sums round alike.
const UNIT_BITS: u32 = 22;

impl Taps {
    fn of(from: usize, to: usize) -> Taps {
        let scale = from as f64 / to as f64;
        // A triangle of one pixel where the picture grows, else of one output pixel.
        let support = scale.max(1.0);
        let tap = |index: usize| {
            let center = (index as f64 + 0.5) * scale;
            // Truncated as C does; the first is not below 0.
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let weight = |at: usize| (1.0 - ((at as f64 - center + 0.5) / support).abs()).max(0.0);
            let weights: Vec<f64> = (first..end).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let unit = f64::from(1 << UNIT_BITS);
            (first, weights.iter().map(|weight| (weight / sum * unit + 0.5) as i32).collect())
        };
        Taps((0..to).map(tap).collect())
    }

    /// Scales a line of pixels of `width` elements each.
    fn scaled(&self, line: &[u8], width: usize) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A PNG file of these pixels.
    fn png(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let encoder = image::codecs::png::PngEncoder::new(&mut bytes);
        image::ImageEncoder::write_image(encoder, pixels, width, height, image::ExtendedColorType::Rgb8).unwrap();
        bytes
    }

    #[test]
    fn a_file_is_decoded_and_cut_into_patches() {
        let pixels: Vec<u8> = (0..4 * 4 * 3).collect();
        let picture = Picture::decode(&png(4, 4, &pixels)).unwrap();
        assert_eq!(picture, Picture::new(4, 4, pixels).unwrap());
        let section = ImageSection {
            rows: 4,
            image_size: 4,
            patch_size: 2,
            patch_stride: 32,
            row_stride: 32,
            mean: [0.0; 3],
            deviation: [1.0 / 255.0; 3],
            around: String::new(),
            begin_token: 0,
            row_token: 1,
            end_token: 2,
        };
        let patches = picture.patches(&section);
        assert_eq!(patches.len(), 48);
        // The second patch begins at the third pixel; its channels follow one another.
        let second: Vec<f32> = patches[12..24].iter().map(|value| value.round()).collect();
        assert_eq!(second, [6.0, 9.0, 18.0, 21.0, 7.0, 10.0, 19.0, 22.0, 8.0, 11.0, 20.0, 23.0]);
    }

    #[test]
    fn a_picture_of_too_many_pixels_is_refused_before_it_is_decoded() {
        // BMP, whose header is without a checksum: 40 bytes of it, width and height, one plane of 24 bits.
        let header = |width: u32, height: u32| {
            let words = [54, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0];
            [b"BM".to_vec(), words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect()].concat()
        };
        let error = Picture::decode(&header(8193, 8192)).unwrap_err().to_string();
        assert!(error.contains("8193 × 8192 pixels, expected at most 67108864"), "{error}");
        // These would be few enough.
        let error = Picture::decode(&header(8192, 8192)).unwrap_err().to_string();
        assert!(!error.contains("expected at most"), "{error}");
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        let whole = png(4, 4, &[7; 48]);
        for bytes in [&b"no picture"[..], &whole[..whole.len() / 2], &[]] {
            let error = Picture::decode(bytes).unwrap_err().to_string();
            assert!(error.starts_with("not a picture that can be read"), "{error}");
        }
        assert!(Picture::new(2, 2, vec![0; 11]).is_err() && Picture::new(0, 0, Vec::new()).is_err());
    }
}
