//! Rows of images, by the numbers under which sequences have them as tokens.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, Weak};

use unicorn_artifact::ImageSection;
use unicorn_artifact::step::{ImageNumbers, is_image_row};

use crate::program::chunks::{Chunk, ProgramShape, StepOutput, next_chunk};

/// The rows that an image became. A sequence has them as tokens, see [`Image::tokens`], and a caller keeps it until what it feeds them to
/// has them all.
#[derive(Clone, Debug)]
pub struct Image(Arc<ImageRows>);

/// Whether both are the same one.
impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Image {}

#[derive(Debug)]
struct ImageRows {
    /// The token of its first row.
    first_token: u32,
    hash: [u8; 32],
    shape: ImageShape,
    /// One row behind the other.
    rows: Vec<f32>,
}

/// Rows of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Elements of a row.
    pub width: usize,
    /// Rows from left to right, where rotary embeddings have their places; 0: rows have positions like those of tokens.
    pub across: u32,
}

/// The pixels of an image as [`crate::Model::encode_image`] takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagePatches {
    /// (patches, patch width), as [`unicorn_artifact::ImageSection`] describes them.
    pub values: Vec<f32>,
    /// Rows of the image from left to right.
    pub rows_across: u32,
}

impl Image {
    /// What stands for its rows in a sequence of this model, in order: numbers above those of all tokens.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + use<> {
        self.0.tokens()
    }

    /// Row `row`: as many f32 as the model's stream has, and the features that are added behind some layers.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.0.rows[row * self.0.shape.width..][..self.0.shape.width]
    }

    /// Rows from left to right, where rotary embeddings have their places; else 0.
    pub(crate) fn across(&self) -> u32 {
        self.0.shape.across
    }

    /// Whether a token is its last row.
    pub(crate) fn ends_with(&self, token: u32) -> bool {
        token == *self.0.tokens().end()
    }

    /// Positions that rotary embeddings leave out behind it: it has as many rows, and advances them by the larger of its sides.
    pub(crate) fn left_out(&self) -> u32 {
        let (rows, across) = (self.0.n_rows() as u32, self.0.shape.across);
        if across == 0 { 0 } else { rows - across.max(rows / across) }
    }

    /// Whether a token is one of its rows.
    pub(crate) fn has(&self, token: u32) -> bool {
        self.0.tokens().contains(&token)
    }
}

impl ImageRows {
    fn n_rows(&self) -> usize {
        self.rows.len() / self.shape.width
    }

    fn tokens(&self) -> RangeInclusive<u32> {
        self.first_token..=self.first_token + (self.n_rows() - 1) as u32
    }
}

/// Positions that rotary embeddings have left out before what follows `tokens`, which have rows of no other images than `images`.
pub fn rope_shift(tokens: &[u32], images: &[Image]) -> u32 {
    let of_image = |image: &Image| match image.left_out() {
        0 => 0,
        left_out => left_out * tokens.iter().filter(|&&token| image.ends_with(token)).count() as u32,
    };
    images.iter().map(of_image).sum()
}

/// Images of one model. Those that were used last are kept: an image that comes again, as it does with each turn of a conversation, has
/// the same tokens and is not computed again.
pub struct Images {
    numbers: ImageNumbers,
    /// Whether rows attend to those before them only, so that a step may end between two rows of an image.
    are_causal: bool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    next_number: u32,
    by_number: HashMap<u32, Weak<ImageRows>>,
    /// The one that was used longest ago first.
    recent: VecDeque<Arc<ImageRows>>,
}

/// Maximum number of images that are kept after their last use.
const MAX_RECENT: usize = 32;
/// Maximum size of these images, apart from the newest one. An image of Gemma 3 (256 rows of 2,560 elements) takes 2.6 MB, and one of 1,024 rows of
/// Qwen3-VL with features for three layers 42 MB.
const MAX_RECENT_BYTES: usize = 256 << 20;

impl Images {
    /// None yet, of a model with this section.
    pub fn new(section: Option<&ImageSection>) -> Images {
        let numbers = section.map_or_else(|| ImageNumbers::for_rows(0), ImageSection::numbers);
        let are_causal = section.is_some_and(|section| section.grid.is_some());
        Images { numbers, are_causal, known: Mutex::default() }
    }

    /// The image of this hash, if it is still there.
    pub fn find(&self, hash: &[u8; 32]) -> Option<Image> {
        let mut known = self.lock();
        let is_it = |image: &Arc<ImageRows>| image.hash == *hash;
        let found = match known.recent.iter().position(is_it) {
            Some(at) => known.recent.remove(at),
            None => known.by_number.values().filter_map(Weak::upgrade).find(is_it),
        }?;
        known.keep(found.clone());
        Some(Image(found))
    }

    /// Adds an image of these rows.
    pub fn add(&self, hash: [u8; 32], shape: ImageShape, rows: Vec<f32>) -> Image {
        let mut known = self.lock();
        let number = known.next_number;
        known.next_number = (number + 1) % self.numbers.images();
        known.by_number.retain(|_, image| image.strong_count() > 0);
        let image = Arc::new(ImageRows { first_token: self.numbers.token(number, 0), hash, shape, rows });
        known.by_number.insert(number, Arc::downgrade(&image));
        known.keep(image.clone());
        Image(image)
    }

    /// The image of which a token is a row, if somebody holds it; `None` for tokens of the vocabulary as well.
    pub fn of_token(&self, token: u32) -> Option<Image> {
        self.row_of_token(token).map(|(image, _)| image)
    }

    /// The same, and the number of the row.
    pub fn row_of_token(&self, token: u32) -> Option<(Image, usize)> {
        let (number, row) = self.numbers.place(token)?;
        let image = self.lock().by_number.get(&number)?.upgrade()?;
        (row < image.n_rows()).then_some((Image(image), row))
    }

    /// The largest number of `tokens`, at most `n_tokens`, that steps may take before the others. Where rows of an image attend to each other, no step
    /// has only its first rows; if the first image alone is longer, it is all of its rows.
    pub fn without_cut(&self, tokens: &[u32], n_tokens: usize) -> usize {
        let n_tokens = n_tokens.min(tokens.len());
        let place = |token: u32| self.numbers.place(token).filter(|_| !self.are_causal);
        let Some((image, row)) = tokens.get(n_tokens).and_then(|&token| place(token)) else { return n_tokens };
        match n_tokens.saturating_sub(row) {
            0 => tokens.iter().take_while(|&&token| place(token).is_some_and(|(number, _)| number == image)).count(),
            begin => begin,
        }
    }

    /// The next step for `rest` after `position` tokens: one for rows of images, where an image is near, or one of text before it.
    pub fn next_chunk(
        &self,
        shapes: &[ProgramShape],
        output: StepOutput,
        position: u32,
        rest: &[u32],
        limit: u32,
    ) -> Option<Chunk> {
        let first_image = rest.iter().position(|&token| is_image_row(token));
        let most_rows = shapes.iter().filter(|shape| shape.images).map(|shape| shape.rows).max().unwrap_or(0);
        let (n_tokens, limit) = match first_image {
            None => (rest.len(), limit),
            Some(first) if first >= limit.min(most_rows) as usize => (first, limit),
            Some(_) => {
                let n_tokens = self.without_cut(rest, limit.min(most_rows) as usize);
                (n_tokens, n_tokens as u32)
            }
        };
        // Only the last step of a feed samples.
        let output = if output == StepOutput::Token && n_tokens < rest.len() { StepOutput::Nothing } else { output };
        let images = rest[..n_tokens].iter().any(|&token| is_image_row(token));
        next_chunk(shapes, output, images, position, n_tokens as u32, limit)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Known {
    fn keep(&mut self, image: Arc<ImageRows>) {
        self.recent.push_back(image);
        let bytes = |recent: &VecDeque<Arc<ImageRows>>| recent.iter().map(|image| size_of_val(&image.rows[..])).sum();
        let mut all_bytes: usize = bytes(&self.recent);
        while self.recent.len() > MAX_RECENT || self.recent.len() > 1 && all_bytes > MAX_RECENT_BYTES {
            let oldest = self.recent.pop_front().expect("there are several");
            all_bytes -= size_of_val(&oldest.rows[..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::{ImageGrid, LogitsRows};

    use super::*;

    /// Of a model whose images have at most `rows` rows, which attend to each other only if there is no `grid`.
    fn images(rows: u32, grid: Option<ImageGrid>) -> Images {
        Images::new(Some(&ImageSection {
            rows,
            image_size: 0,
            patch_size: 2,
            patch_stride: 32,
            row_stride: 32,
            mean: [0.0; 3],
            deviation: [1.0; 3],
            around: String::new(),
            begin_token: 0,
            row_token: 1,
            end_token: 2,
            grid,
        }))
    }

    const GRID: ImageGrid = ImageGrid { side: 2, row_width: 2, min_pixels: 1, max_pixels: 1 };

    fn image(images: &Images, hash: u8) -> Image {
        images.add([hash; 32], ImageShape { width: 2, across: 0 }, vec![f32::from(hash); 6])
    }

    #[test]
    fn what_follows_an_image_continues_behind_its_larger_side() {
        let images = images(3, None);
        let of = |hash, across, rows: usize| images.add([hash; 32], ImageShape { width: 1, across }, vec![0.0; rows]);
        let (wide, high, plain) = (of(1, 4, 12), of(2, 1, 3), of(3, 0, 7));
        let tokens: Vec<u32> = [5].into_iter().chain(wide.tokens()).chain([6]).chain(wide.tokens()).collect();
        let all = [wide.clone(), high.clone(), plain.clone()];
        // Twelve rows take four positions.
        assert_eq!([1, 12, 13, 14, 25, 26].map(|len| rope_shift(&tokens[..len], &all)), [0, 0, 8, 8, 8, 16]);
        assert_eq!((high.left_out(), plain.left_out()), (0, 0));
    }

    #[test]
    fn an_image_is_found_by_its_content_and_by_its_tokens() {
        let images = images(3, None);
        let (one, other) = (image(&images, 1), image(&images, 2));
        let tokens: Vec<u32> = one.tokens().chain(other.tokens()).collect();
        assert_eq!(tokens.len(), 6);
        assert!(tokens[..3].iter().all(|&token| one.has(token) && !other.has(token)));
        assert_eq!(images.of_token(tokens[5]).expect("held").row(2), [2.0, 2.0]);
        assert_eq!(images.find(&[1; 32]).expect("held").tokens().next(), Some(tokens[0]));
        assert!(images.find(&[3; 32]).is_none() && images.of_token(7).is_none());
        assert!(images.of_token(tokens[5] + 1).is_none(), "a row that it does not have");
    }

    #[test]
    fn only_images_that_nobody_holds_are_forgotten() {
        let images = images(3, None);
        let held = image(&images, 0);
        let first = image(&images, 1).tokens().next().expect("a row");
        (2..40).for_each(|hash| drop(image(&images, hash)));
        assert!(images.find(&[1; 32]).is_none() && images.of_token(first).is_none());
        assert!(images.find(&[0; 32]).is_some_and(|found| found.tokens().eq(held.tokens())));
    }

    #[test]
    fn no_image_is_cut() {
        let images = images(3, None);
        let (one, other) = (image(&images, 1), image(&images, 2));
        let tokens: Vec<u32> = [5].into_iter().chain(one.tokens()).chain(other.tokens()).chain([6, 7]).collect();
        let found: Vec<usize> = (1..=10).map(|n_tokens| images.without_cut(&tokens, n_tokens)).collect();
        assert_eq!(found, [1, 1, 1, 4, 4, 4, 7, 8, 9, 9]);
        assert_eq!([1, 2, 3].map(|n_tokens| images.without_cut(&tokens[1..], n_tokens)), [3, 3, 3]);
        // The rest of an image whose first row is in the cache.
        assert_eq!(images.without_cut(&tokens[2..], 1), 2);
    }
    #[test]
    fn images_of_rows_that_see_only_those_before_are_cut_where_a_step_ends() {
        let images = images(600, Some(GRID));
        let image = images.add([0; 32], ImageShape { width: 1, across: 30 }, vec![0.0; 600]);
        let tokens: Vec<u32> = [5].into_iter().chain(image.tokens()).chain([6, 7]).collect();
        assert_eq!([1, 100, 603].map(|n_tokens| images.without_cut(&tokens, n_tokens)), [1, 100, 603]);
        let program = |rows, logits, samples, images| ProgramShape {
            rows,
            logits,
            samples,
            batch: false,
            images,
            from_tokens: 0,
        };
        let [text, feeds, samples] = [
            program(8, LogitsRows::One, true, false),
            program(512, LogitsRows::None, false, true),
            program(512, LogitsRows::One, true, true),
        ];
        let shapes = [text, feeds, samples];
        let mut steps = Vec::new();
        let mut position = 0;
        while position < tokens.len() {
            let rest = &tokens[position..];
            let chunk =
                images.next_chunk(&shapes, StepOutput::Token, position as u32, rest, u32::MAX).expect("a program");
            steps.push((chunk.program, chunk.n_rows));
            position += chunk.n_rows as usize;
        }
        assert_eq!(steps, [(1, 512), (2, 91)]);
        // The rotary positions of the image's other rows are as many less as before its first.
        assert_eq!([512, 601].map(|len| rope_shift(&tokens[..len], std::slice::from_ref(&image))), [0, 600 - 30]);
    }

    #[test]
    fn later_images_are_told_apart_by_as_many_numbers_as_an_image_may_have() {
        let images = images(600, Some(GRID));
        let of = |hash| images.add([hash; 32], ImageShape { width: 1, across: 30 }, vec![f32::from(hash); 600]);
        let both = [of(1), of(2)];
        let firsts = both.each_ref().map(|image| image.tokens().next().expect("a row"));
        assert_eq!(firsts[1] - firsts[0], 1024);
        let (found, row) = images.row_of_token(firsts[1] + 599).expect("held");
        assert_eq!((row, found.row(row)), (599, &[2.0][..]));
        assert!(images.row_of_token(firsts[1] + 600).is_none());
    }

    #[test]
    fn large_images_that_nobody_holds_are_few() {
        let images = images(600, Some(GRID));
        let large = MAX_RECENT_BYTES / size_of::<f32>() / 2 + 1;
        (0..3).for_each(|hash| drop(images.add([hash; 32], ImageShape { width: large, across: 1 }, vec![0.0; large])));
        assert_eq!([0, 1, 2].map(|hash| images.find(&[hash; 32]).is_some()), [false, false, true]);
    }
}
