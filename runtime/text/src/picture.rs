//! Pictures from files: decoded, scaled as Pillow does, and cut into the patches that a model's vision tower reads.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};
use unicorn_artifact::ImageSection;
use unicorn_runtime::ImagePatches;

use crate::error::TextError;
use crate::resize::{Filter, Taps, size_in_units};

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

/// Colours on white, as transformers' `convert_to_rgb` shows them.
fn on_white(picture: &image::RgbaImage) -> Vec<u8> {
    let shown = |color: u8, alpha: u8| {
        let (color, alpha) = (u32::from(color), u32::from(alpha));
        ((color * alpha + 255 * (255 - alpha) + 127) / 255) as u8
    };
    picture.pixels().flat_map(|pixel| [0, 1, 2].map(|channel| shown(pixel.0[channel], pixel.0[3]))).collect()
}

impl Picture {
    /// Decodes a PNG, JPEG, WebP, GIF (its first picture) or BMP file; a photo is turned as its orientation tells, and what is transparent is
    /// shown on white.
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
        let (width, height) = (decoded.width() as usize, decoded.height() as usize);
        let pixels =
            if decoded.color().has_alpha() { on_white(&decoded.into_rgba8()) } else { decoded.into_rgb8().into_raw() };
        Picture::new(width, height, pixels)
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

    /// Width and height, in pixels.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// The patches of this picture for [`Model::encode_image`](unicorn_runtime::Model::encode_image): scaled to the model's size whatever
    /// its shape, or to a size near its own where the model takes any, each channel normalised, patch by patch.
    ///
    /// # Errors
    /// [`TextError::Picture`] for a picture that is too long and narrow.
    pub fn patches(&self, section: &ImageSection) -> Result<ImagePatches, TextError> {
        let side = section.patch_size as usize;
        let Some(grid) = &section.grid else {
            let size = section.image_size as usize;
            let values = self.scaled(size, size, Filter::Triangle).cut(section, 1);
            return Ok(ImagePatches { values, rows_across: section.rows_across() });
        };
        let (of_row, pixels) = (grid.side as usize, [grid.min_pixels as usize, grid.max_pixels as usize]);
        let (width, height) = size_in_units((self.width, self.height), of_row * side, pixels)?;
        let values = self.scaled(width, height, Filter::Cubic).cut(section, of_row);
        Ok(ImagePatches { values, rows_across: (width / (of_row * side)) as u32 })
    }

    /// The patches of a picture whose sides are multiples of `of_row` patches: those of such squares follow one another.
    fn cut(&self, section: &ImageSection, of_row: usize) -> Vec<f32> {
        let side = section.patch_size as usize;
        let square = of_row * side;
        let mut values = Vec::with_capacity(self.pixels.len());
        let squares =
            (0..self.height / square).flat_map(|down| (0..self.width / square).map(move |right| (down, right)));
        let inside = || (0..of_row).flat_map(|down| (0..of_row).map(move |right| (down, right)));
        let places =
            squares.flat_map(|(down, right)| inside().map(move |(y, x)| (down * of_row + y, right * of_row + x)));
        for (top, left) in places.map(|(down, right)| (down * side, right * side)) {
            for channel in 0..CHANNELS {
                let normalized =
                    |byte: u8| (f32::from(byte) / 255.0 - section.mean[channel]) / section.deviation[channel];
                for row in self.pixels.chunks_exact(CHANNELS * self.width).skip(top).take(side) {
                    let pixels = row.chunks_exact(CHANNELS).skip(left).take(side);
                    values.extend(pixels.map(|pixel| normalized(pixel[channel])));
                }
            }
        }
        values
    }

    /// The picture in another size, by a filter over all pixels that an output pixel covers, first across and then down, each
    /// rounded to 8 bits: pixel by pixel what Pillow gives (Pillow 13 goes down first where that is less work).
    pub fn scaled(&self, width: usize, height: usize, filter: Filter) -> Picture {
        let across = Taps::of(self.width, width, filter);
        let narrow: Vec<u8> =
            self.pixels.chunks_exact(CHANNELS * self.width).flat_map(|row| across.scaled(row, CHANNELS)).collect();
        // Rows are the elements of a column of whole rows.
        let pixels = Taps::of(self.height, height, filter).scaled(&narrow, CHANNELS * width);
        Picture { width, height, pixels }
    }
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::ImageGrid;

    use super::*;

    /// A PNG file of these pixels.
    fn png(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let encoder = image::codecs::png::PngEncoder::new(&mut bytes);
        image::ImageEncoder::write_image(encoder, pixels, width, height, image::ExtendedColorType::Rgb8).unwrap();
        bytes
    }

    /// Opaque, half and wholly transparent: 255 × (1 - 128 / 255) and a share of the colour.
    #[test]
    fn what_is_transparent_is_shown_on_white() {
        let pixels = [10, 20, 30, 255, 10, 20, 30, 128, 10, 20, 30, 0];
        let mut bytes = Vec::new();
        let encoder = image::codecs::png::PngEncoder::new(&mut bytes);
        image::ImageEncoder::write_image(encoder, &pixels, 3, 1, image::ExtendedColorType::Rgba8).unwrap();
        let shown = vec![10, 20, 30, 132, 137, 142, 255, 255, 255];
        assert_eq!(Picture::decode(&bytes).unwrap(), Picture::new(3, 1, shown).unwrap());
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
            grid: None,
        };
        let ImagePatches { values: patches, rows_across } = picture.patches(&section).unwrap();
        assert_eq!((patches.len(), rows_across), (48, 2));
        // The second patch begins at the third pixel; its channels follow one another.
        let second: Vec<f32> = patches[12..24].iter().map(|value| value.round()).collect();
        assert_eq!(second, [6.0, 9.0, 18.0, 21.0, 7.0, 10.0, 19.0, 22.0, 8.0, 11.0, 20.0, 23.0]);
        // In a grid, four pixels of one patch each are a row's, before the next row's.
        let grid = Some(ImageGrid { side: 2, row_width: 32, min_pixels: 16, max_pixels: 16 });
        let section = ImageSection { rows: 4, image_size: 0, patch_size: 1, grid, ..section };
        let ImagePatches { values: patches, rows_across } = picture.patches(&section).unwrap();
        let red: Vec<f32> = patches.iter().step_by(3).map(|value| value.round()).collect();
        assert_eq!((&red[..8], rows_across), (&[0.0, 3.0, 12.0, 15.0, 6.0, 9.0, 18.0, 21.0][..], 2));
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
