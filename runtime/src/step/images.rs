//! Rows of images, by the numbers under which sequences have them as tokens.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use unicorn_artifact::step::{MAX_IMAGES, image_of, image_row};

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
    number: u32,
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
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        let number = self.0.number;
        (0..self.0.n_rows()).map(move |row| image_row(number, row))
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
        token == image_row(self.0.number, self.0.n_rows() - 1)
    }

    /// Positions that rotary embeddings leave out behind it: it has as many rows, and advances them by the larger of its sides.
    pub(crate) fn left_out(&self) -> u32 {
        let (rows, across) = (self.0.n_rows() as u32, self.0.shape.across);
        if across == 0 { 0 } else { rows - across.max(rows / across) }
    }

    /// Whether a token is one of its rows.
    pub(crate) fn has(&self, token: u32) -> bool {
        image_of(token).is_some_and(|(number, _)| number == self.0.number)
    }
}

impl ImageRows {
    fn n_rows(&self) -> usize {
        self.rows.len() / self.shape.width
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
#[derive(Default)]
pub struct Images(Mutex<Known>);

#[derive(Default)]
struct Known {
    next_number: u32,
    by_number: HashMap<u32, Weak<ImageRows>>,
    /// The one that was used longest ago first.
    recent: VecDeque<Arc<ImageRows>>,
}

/// Images that are kept though nobody holds them: 256 rows of 2560 elements are 2.6 MB.
const MAX_RECENT: usize = 32;

impl Images {
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
        known.next_number = (number + 1) % MAX_IMAGES;
        known.by_number.retain(|_, image| image.strong_count() > 0);
        let image = Arc::new(ImageRows { number, hash, shape, rows });
        known.by_number.insert(number, Arc::downgrade(&image));
        known.keep(image.clone());
        Image(image)
    }

    /// The image of which a token is a row, if somebody holds it; `None` for tokens of the vocabulary as well.
    pub fn of_token(&self, token: u32) -> Option<Image> {
        let (number, row) = image_of(token)?;
        let image = self.lock().by_number.get(&number)?.upgrade()?;
        (row < image.n_rows()).then_some(Image(image))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Known {
    fn keep(&mut self, image: Arc<ImageRows>) {
        self.recent.push_back(image);
        if self.recent.len() > MAX_RECENT {
            self.recent.pop_front();
        }
    }
}

/// The largest number of `tokens`, at most `n_tokens`, of which no step has only the first rows of an image; if the first image alone is
/// longer, all of its rows.
pub fn without_cut(tokens: &[u32], n_tokens: usize) -> usize {
    let n_tokens = n_tokens.min(tokens.len());
    let Some((image, row)) = tokens.get(n_tokens).and_then(|&token| image_of(token)) else { return n_tokens };
    match n_tokens.saturating_sub(row) {
        0 => tokens.iter().take_while(|&&token| image_of(token).is_some_and(|(number, _)| number == image)).count(),
        begin => begin,
    }
}

/// The next step for `rest` after `position` tokens: one with whole images, where an image is near, or one of text before it.
pub fn chunk_of(shapes: &[ProgramShape], output: StepOutput, position: u32, rest: &[u32], limit: u32) -> Option<Chunk> {
    let first_image = rest.iter().position(|&token| image_of(token).is_some());
    let most_rows = shapes.iter().filter(|shape| shape.images).map(|shape| shape.rows).max().unwrap_or(0);
    let (n_tokens, limit) = match first_image {
        None => (rest.len(), limit),
        Some(first) if first >= limit.min(most_rows) as usize => (first, limit),
        Some(_) => {
            let n_tokens = without_cut(rest, limit.min(most_rows) as usize);
            (n_tokens, n_tokens as u32)
        }
    };
    // Only the last step of a feed samples.
    let output = if output == StepOutput::Token && n_tokens < rest.len() { StepOutput::Nothing } else { output };
    let images = rest[..n_tokens].iter().any(|&token| image_of(token).is_some());
    next_chunk(shapes, output, images, position, n_tokens as u32, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(images: &Images, hash: u8) -> Image {
        images.add([hash; 32], ImageShape { width: 2, across: 0 }, vec![f32::from(hash); 6])
    }

    #[test]
    fn what_follows_an_image_continues_behind_its_larger_side() {
        let images = Images::default();
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
        let images = Images::default();
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
        let images = Images::default();
        let held = image(&images, 0);
        let first = image(&images, 1).tokens().next().expect("a row");
        (2..40).for_each(|hash| drop(image(&images, hash)));
        assert!(images.find(&[1; 32]).is_none() && images.of_token(first).is_none());
        assert!(images.find(&[0; 32]).is_some_and(|found| found.tokens().eq(held.tokens())));
    }

    #[test]
    fn no_image_is_cut() {
        let images = Images::default();
        let (one, other) = (image(&images, 1), image(&images, 2));
        let tokens: Vec<u32> = [5].into_iter().chain(one.tokens()).chain(other.tokens()).chain([6, 7]).collect();
        let found: Vec<usize> = (1..=10).map(|n_tokens| without_cut(&tokens, n_tokens)).collect();
        assert_eq!(found, [1, 1, 1, 4, 4, 4, 7, 8, 9, 9]);
        assert_eq!([1, 2, 3].map(|n_tokens| without_cut(&tokens[1..], n_tokens)), [3, 3, 3]);
        // The rest of an image whose first row is in the cache.
        assert_eq!(without_cut(&tokens[2..], 1), 2);
    }
}
