//! The image section: how the pixels of an image become the numbers that its program reads, and what stands for an image in a text.

use serde::{Deserialize, Serialize};

use crate::error::ParseError;
use crate::step::{ImageNumbers, MAX_IMAGE_ROWS, MAX_ROWS};

/// The image section. An image is scaled to a square or, by an [`ImageGrid`], to a size like its own, cut into square patches, and becomes
/// rows of the model's stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageSection {
    /// Rows that an image becomes, which attend to each other in both directions and are in one step; with a grid, the most, which attend to
    /// those before them only, so that steps may end between them. Rows are numbered by [`ImageSection::numbers`].
    pub rows: u32,
    /// Pixels of a side of the image; 0: there is a grid.
    pub image_size: u32,
    /// Pixels of a side of a patch.
    pub patch_size: u32,
    /// f32 elements between patches, each of which is its pixels in rows from the top, channel by channel; patches are in rows as well, or
    /// in those of the grid.
    pub patch_stride: u32,
    /// f32 elements between rows of images where a step reads them.
    pub row_stride: u32,
    /// What is subtracted from each channel, which is 0 to 1: red, green and blue.
    pub mean: [f32; 3],
    /// What each channel is then divided by.
    pub deviation: [f32; 3],
    /// Text between an image and the text before and behind it.
    pub around: String,
    /// The token before an image's rows.
    pub begin_token: u32,
    /// The token that stands for a row of an image where a text is written as tokens.
    pub row_token: u32,
    /// The token behind an image's rows.
    pub end_token: u32,
    /// What there is for images of any size, a section of its own.
    #[serde(skip)]
    pub grid: Option<ImageGrid>,
}

/// The image grid section: images of any size. One is scaled so that its sides are whole rows and it has not too few pixels nor too many; the
/// patches of a row are a square and follow one another, and rows are from left to right and from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageGrid {
    /// Patches of a row from left to right, and from top to bottom.
    pub side: u32,
    /// Elements of a row where a step reads it: those of the stream, and of the features that are added behind some layers.
    pub row_width: u32,
    /// Fewest pixels of an image.
    pub min_pixels: u32,
    /// Most pixels of an image.
    pub max_pixels: u32,
}

/// Largest sizes of an image, its patches and rows, in pixels and elements.
const MAX_IMAGE_SIZE: u32 = 1 << 12;
const MAX_PATCH_SIZE: u32 = 1 << 8;
const MAX_SIDE: u32 = 1 << 4;
const MAX_STRIDE: u32 = 1 << 20;
/// Most bytes that the host writes for a step.
const MAX_INPUT_BYTES: u64 = 128 << 20;

impl ImageSection {
    /// The numbers of rows of images among tokens.
    pub fn numbers(&self) -> ImageNumbers {
        ImageNumbers::for_rows(self.rows)
    }

    /// Patches of an image; with a grid, the most.
    pub fn patches(&self) -> u32 {
        if let Some(grid) = &self.grid {
            return self.rows.saturating_mul(grid.side.saturating_mul(grid.side));
        }
        let across = self.image_size / self.patch_size.max(1);
        across * across
    }

    /// Rows from left to right of an image that has all rows; with a grid, in a rectangle that is as near to a square as their number
    /// allows.
    pub fn rows_across(&self) -> u32 {
        (1..=self.rows.isqrt()).rev().find(|across| self.rows.is_multiple_of(*across)).unwrap_or(1)
    }

    /// Patches of a row.
    pub fn patches_per_row(&self) -> u32 {
        self.patches() / self.rows.max(1)
    }

    /// Elements of a patch.
    pub fn patch_width(&self) -> u32 {
        3 * self.patch_size * self.patch_size
    }

    /// Elements of a row where a step reads it, of a model with a stream of `hidden_size`.
    pub fn row_width(&self, hidden_size: u32) -> u32 {
        self.grid.map_or(hidden_size, |grid| grid.row_width)
    }

    /// Bytes of the buffer through which the host passes the patches of an image, or rows of images to a step.
    pub fn input_bytes(&self) -> u64 {
        self.patches_bytes().max(4 * MAX_ROWS as u64 * u64::from(self.row_stride))
    }

    /// Bytes of the patches of an image.
    pub(crate) fn patches_bytes(&self) -> u64 {
        4 * u64::from(self.patches()) * u64::from(self.patch_stride)
    }

    /// Rows of logits of this stride that are as long as the rows of an image, which its program writes in their place.
    pub(crate) fn logits_rows(&self, logits_stride: u32) -> u64 {
        (u64::from(self.rows) * u64::from(self.row_stride)).div_ceil(u64::from(logits_stride.max(1)))
    }

    pub(crate) fn check(&self, hidden_size: u32, vocab_size: u32) -> Result<(), ParseError> {
        let in_range = |(what, value, least, most): (&str, u32, u32, u32)| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(ParseError::invalid(what, format!("{least} to {most}"), value)),
        };
        let (least, most) = if self.grid.is_some() { (0, 0) } else { (1, MAX_IMAGE_SIZE) };
        let most_rows = if self.grid.is_some() { MAX_IMAGE_ROWS } else { MAX_ROWS };
        let largest_patch = if self.grid.is_some() { MAX_PATCH_SIZE } else { self.image_size.min(MAX_PATCH_SIZE) };
        let sizes = [
            ("rows of an image", self.rows, 1, most_rows as u32),
            ("size of an image", self.image_size, least, most),
            ("size of a patch", self.patch_size, 1, largest_patch),
        ];
        sizes.into_iter().try_for_each(in_range)?;
        if let Some(grid) = &self.grid {
            in_range(("patches of a side of a row", grid.side, 1, MAX_SIDE))?;
            in_range(("elements of a row of an image", grid.row_width, hidden_size, MAX_STRIDE))?;
            let of_row = grid.side * grid.side * self.patch_size * self.patch_size;
            let less_than_a_row_more = (self.rows + 1).saturating_mul(of_row) - 1;
            in_range(("most pixels of an image", grid.max_pixels, of_row, less_than_a_row_more))?;
            in_range(("fewest pixels of an image", grid.min_pixels, 1, grid.max_pixels))?;
        }
        let last_token = self.begin_token.max(self.row_token).max(self.end_token);
        let others = [
            ("elements between patches", self.patch_stride, self.patch_width(), MAX_STRIDE),
            ("elements between rows of images", self.row_stride, self.row_width(hidden_size), MAX_STRIDE),
            ("token of an image", last_token, 0, vocab_size - 1),
        ];
        others.into_iter().try_for_each(in_range)?;
        let bytes = self.input_bytes();
        if bytes > MAX_INPUT_BYTES {
            return Err(ParseError::invalid(
                "bytes of an image's patches",
                format!("at most {MAX_INPUT_BYTES}"),
                bytes,
            ));
        }
        let divides = |number: &f32| number.is_finite() && *number != 0.0;
        if !(self.mean.iter().all(|number| number.is_finite()) && self.deviation.iter().all(divides)) {
            let found = format!("{:?} and {:?}", self.mean, self.deviation);
            return Err(ParseError::invalid("mean and deviation of pixels", "finite numbers, which divide", found));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_that_steps_may_cut_have_more_rows_than_a_step() {
        let grid = Some(ImageGrid { side: 2, row_width: 128, min_pixels: 64, max_pixels: 64 });
        let of = |rows: u32, grid: Option<ImageGrid>| ImageSection {
            rows,
            image_size: if grid.is_some() { 0 } else { 56 },
            patch_size: 4,
            patch_stride: 64,
            row_stride: 128,
            mean: [0.5; 3],
            deviation: [0.5; 3],
            around: String::new(),
            begin_token: 0,
            row_token: 1,
            end_token: 2,
            grid,
        };
        let refusal = |section: ImageSection| section.check(64, 320).err().map(|error| error.to_string());
        assert_eq!(
            [(512, None), (512, grid), (4096, grid)].map(|(rows, grid)| refusal(of(rows, grid))),
            [None, None, None]
        );
        for (rows, grid, most) in
            [(513, None, "512"), (4097, grid, "4096"), (u32::MAX, grid, "4096"), (0, grid, "4096")]
        {
            let found = refusal(of(rows, grid)).expect("it is refused");
            assert!(found.contains("rows of an image") && found.contains(most), "{found}");
        }
        let found = refusal(ImageSection { patch_stride: 1 << 20, ..of(4096, grid) }).expect("it is refused");
        assert!(found.contains("bytes of an image's patches"), "{found}");
        // As long as rows of the stream with their features, on logits of 320 elements.
        assert_eq!(
            (of(600, grid).logits_rows(320), of(u32::MAX, grid).logits_rows(0)),
            (240, u64::from(u32::MAX) * 128)
        );
    }
}
