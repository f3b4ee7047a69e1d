//! The inputs that the host writes before each step, and the outputs of the step. Defined once: the struct that the CPU
//! fills and the WGSL that kernels read are generated from the same lines.
//!
//! ```text
//! step buffer   ┌────────────┬────────────────┬─────────────────────────┬─────────────────────────────┬──────────────┬───────┐
//!               │ StepHeader │ MAX_ROWS × Row │ MAX_SAMPLERS × Sampler  │ MAX_SAMPLERS × MAX_HISTORY  │ block tables │ masks │
//!               └────────────┴────────────────┴─────────────────────────┴─────────────────────────────┴──────────────┴───────┘
//! block tables  [KV group][sequence slot][page of the sequence] → page of the pool, u32 each; a group's tables begin
//!               after `table_stride * table_slots` words of the one before
//! masks         of samplers that may not sample every token, where `Sampler::feeds_and_mask` locates them: [token / 32] u32, bit
//!               `token % 32` is 1 if the token may be sampled
//!               ┌────────────────────────┬────────────────────────┬───┬────────────────────────┐
//! outputs       │ MAX_SAMPLERS × Output, │ MAX_SAMPLERS × Output, │ … │ MAX_SAMPLERS × Output, │   a ring
//!               │ samples 0, 8, 16 …     │ samples 1, 9, 17 …     │   │ samples 7, 15, 23 …    │
//!               └────────────────────────┴────────────────────────┴───┴────────────────────────┘
//! ```
//!
//! A sampler that *feeds* writes its token to the row of its own number, at the next position, and counts its samples: the same
//! program can then run again before the host has read the token. The host reads the tokens of some steps while later ones are in
//! flight, up to `KEPT_SAMPLES` in all.

use std::fmt::Write;

/// Most token rows in one step.
pub const MAX_ROWS: usize = 512;
/// Most tokens that one step samples.
pub const MAX_SAMPLERS: usize = 64;
/// Most recent tokens of a sequence that the repeat penalty covers.
pub const MAX_HISTORY: usize = 256;
/// Sampled tokens of one sampler that are kept: a ring.
pub const KEPT_SAMPLES: usize = 8;
/// Outputs of `KEPT_SAMPLES` steps.
pub const MAX_OUTPUTS: usize = KEPT_SAMPLES * MAX_SAMPLERS;

// The ring also continues when the number of samples overflows.
const _: () = assert!(KEPT_SAMPLES.is_power_of_two());

/// Declares a struct of 32-bit words together with its WGSL declaration.
macro_rules! gpu_words {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ident,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $kind,)* }

        impl $name {
            /// Names and types of the fields, in order.
            pub const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), stringify!($kind)),)*];
            /// Length in words of 32 bits.
            pub const WORDS: usize = Self::FIELDS.len();

            /// The same struct in WGSL.
            pub fn wgsl() -> String {
                wgsl_struct(stringify!($name), Self::FIELDS)
            }

            /// The words of the fields in order, as the GPU reads them.
            pub fn to_words(&self) -> [u32; Self::WORDS] {
                [$(self.$field.to_word(),)*]
            }
        }
    };
}

gpu_words! {
    /// One step's parameters.
    pub struct StepHeader {
        /// Rows of this step in use, 1..=the program's rows.
        n_rows: u32,
        /// The row that `LogitsRows::One` programs give logits for.
        logits_row: u32,
        /// Sequences longer than this use LongRoPE's long frequencies.
        long_rope_above: u32,
        /// Block table entries of one sequence slot.
        table_stride: u32,
        /// Sequence slots of one KV group's tables.
        table_slots: u32,
        /// Tokens to sample: sampler `i` takes row `i` of the logits.
        n_samplers: u32,
        /// In steps that make rows of an image of any size: its rows from left to right.
        image_across: u32,
        /// Rows from the first on whose attention is computed one by one, whatever their sequences; those behind them belong to one sequence
        /// and have consecutive positions, or two such parts follow: see [`rows_apart`]. Only programs whose rows are mixed read it.
        apart_rows: u32,
    }
}

/// [`StepHeader::apart_rows`] of a program with [`crate::LogitsRows::SamplersBesideTwo`]: the first `apart` rows are computed one by one, and of those
/// behind them, row `second` is the first of a second sequence; 0: they are all of one.
///
/// # Panics
/// If a step cannot have so many rows.
pub fn rows_apart(apart: usize, second: usize) -> u32 {
    assert!(apart <= MAX_ROWS && second <= MAX_ROWS, "rows {apart} and {second} of {MAX_ROWS}");
    (second << SECOND_ROW_BIT | apart) as u32
}

/// First bit of the second number in [`rows_apart`].
pub const SECOND_ROW_BIT: usize = 16;

/// Set in [`Row::token`] if the row is one of an image: see [`ImageNumbers`].
pub const IMAGE_ROW: u32 = 1 << 31;
/// Most rows of one image. Those that attend to each other in both directions are in one step, and so at most [`MAX_ROWS`].
pub const MAX_IMAGE_ROWS: usize = 4096;

/// Whether a [`Row::token`] is a row of an image.
pub fn is_image_row(token: u32) -> bool {
    token >= IMAGE_ROW
}

/// The numbers that stand for rows of images in [`Row::token`]: `IMAGE_ROW + image * each + row`. Kernels, which know `each`, find a row's place in its image
/// from its number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageNumbers {
    each: u32,
}

impl ImageNumbers {
    /// Those of a model whose images have at most `rows` rows: a power of two for each image, which was 512 before images had more rows.
    ///
    /// # Panics
    /// If an image cannot have so many.
    pub fn for_rows(rows: u32) -> ImageNumbers {
        assert!(rows as usize <= MAX_IMAGE_ROWS, "{rows} rows of an image");
        ImageNumbers { each: rows.next_power_of_two().max(MAX_ROWS as u32) }
    }

    /// Numbers of each image, whether it has as many rows or not.
    pub fn each(self) -> u32 {
        self.each
    }

    /// Images that can be told apart; the numbers of later ones begin again from 0.
    pub fn images(self) -> u32 {
        IMAGE_ROW / self.each
    }

    /// [`Row::token`] of row `row` of an image.
    ///
    /// # Panics
    /// If there is no such image or row.
    pub fn token(self, image: u32, row: usize) -> u32 {
        assert!(image < self.images() && row < self.each as usize, "row {row} of image {image}");
        IMAGE_ROW + image * self.each + row as u32
    }

    /// The image, and the row in it, of a [`Row::token`]; `None`: it is a token of the vocabulary.
    pub fn place(self, token: u32) -> Option<(u32, usize)> {
        let number = token.checked_sub(IMAGE_ROW)?;
        Some((number / self.each, (number % self.each) as usize))
    }
}

/// Bits of [`Row::rope_variant`] in which a model that takes images of any size has the first part of [`rope_word`].
pub const ROPE_SHIFT_BITS: u32 = 22;
/// Most positions that are left out before a row.
pub const MAX_ROPE_SHIFT: u32 = (1 << ROPE_SHIFT_BITS) - 1;
/// Most rows of an image from left to right, in the other bits. One that is 200 times as wide as high has 905 in 4,096 rows.
pub const MAX_IMAGE_ACROSS: u32 = u32::MAX >> ROPE_SHIFT_BITS;

/// [`Row::rope_variant`] of a model that takes images of any size: rotary embeddings take the row's position less `shift`, since an image
/// advances them by the larger of its rows' numbers across and down, not by all rows. `across`: of a row of an image, the image's rows from left to
/// right; of others 0.
///
/// # Panics
/// If a number is too large.
pub fn rope_word(shift: u32, across: u32) -> u32 {
    assert!(shift <= MAX_ROPE_SHIFT && across <= MAX_IMAGE_ACROSS, "rotary positions {shift} less, {across} across");
    across << ROPE_SHIFT_BITS | shift
}

/// Positions that are left out before the row of this [`rope_word`].
pub fn rope_shift(word: u32) -> u32 {
    word & MAX_ROPE_SHIFT
}

/// Rows of the image from left to right, of the row of this [`rope_word`]; 0: it is none of an image.
pub fn image_across(word: u32) -> u32 {
    word >> ROPE_SHIFT_BITS
}

gpu_words! {
    /// One token of a step.
    pub struct Row {
        /// Id of the token, or what stands for a row of an image: see [`ImageNumbers`].
        token: u32,
        /// Position in the sequence, from 0.
        position: u32,
        /// Sequence slot: which block table.
        sequence: u32,
        /// 0, or 1 for LongRoPE's long frequencies; of a model that takes images of any size, a [`rope_word`].
        rope_variant: u32,
    }
}

gpu_words! {
    /// How one token is sampled.
    pub struct Sampler {
        /// 0: greedy.
        temperature: f32,
        /// 0: all.
        top_k: u32,
        /// 1: all.
        top_p: f32,
        /// 0: all.
        min_p: f32,
        /// 1: none.
        repeat_penalty: f32,
        /// Low half of the seed.
        seed_low: u32,
        /// High half of the seed.
        seed_high: u32,
        /// Number of this sample among those of its seed, which the random number depends on; modulo `KEPT_SAMPLES`, its place in the ring.
        sample: u32,
        /// Entries of the history in use.
        n_history: u32,
        /// Entries that it may have; 0: the sampler adds none.
        history_capacity: u32,
        /// Entry that the next token takes.
        history_next: u32,
        /// See [`feeds_and_mask`].
        feeds_and_mask: u32,
    }
}

/// [`Sampler::feeds_and_mask`] of a sampler whose token is the next step's, if it `feeds`, and whose mask begins at word `mask_at` of the step
/// buffer; 0: every token may be sampled, as it must be where [`crate::Program::takes_masks`] is false.
///
/// # Panics
/// If the buffer is larger than 8 GiB.
pub fn feeds_and_mask(feeds: bool, mask_at: usize) -> u32 {
    let mask_at = u32::try_from(mask_at).ok().filter(|at| *at < 1 << 31).expect("a step buffer has fewer words");
    mask_at << 1 | u32::from(feeds)
}

/// Words of the mask of a vocabulary of `vocab_size` tokens.
pub fn mask_words(vocab_size: u32) -> usize {
    vocab_size.div_ceil(32) as usize
}

gpu_words! {
    /// The output of a sampling program.
    pub struct Output {
        /// The sampled token.
        token: u32,
        /// Logit of the sampled token, after penalties and before temperature.
        logit: f32,
        /// Number of tokens that remain after top-k, top-p and min-p.
        candidates: u32,
        /// 1: a dispatch gave up waiting for the one before it, and the token is meaningless.
        stalled: u32,
    }
}

gpu_words! {
    /// Push constants of a dispatch where counters replace barriers: the dispatch that it waits for, and whether one waits for it.
    pub struct CounterWait {
        /// Workgroups of the dispatch before, for which it waits; 0: there was a barrier.
        waits_for: u32,
        /// Workgroups of this dispatch.
        workgroups: u32,
        /// 1: no dispatch waits for this one.
        ends: u32,
    }
}

/// Offset of the rows in the step buffer, in words.
pub const ROWS_AT: usize = StepHeader::WORDS;
/// Offset of the samplers, in words.
pub const SAMPLERS_AT: usize = ROWS_AT + MAX_ROWS * Row::WORDS;
/// Offset of the histories, in words.
pub const HISTORY_AT: usize = SAMPLERS_AT + MAX_SAMPLERS * Sampler::WORDS;
/// Offset of the block tables, in words.
pub const TABLES_AT: usize = HISTORY_AT + MAX_SAMPLERS * MAX_HISTORY;

/// WGSL declarations of the step buffer, for every kernel's preamble.
pub fn wgsl() -> String {
    let mut text = StepHeader::wgsl() + &Row::wgsl() + &Sampler::wgsl() + &Output::wgsl();
    let histories = MAX_SAMPLERS * MAX_HISTORY;
    write!(
        text,
        "const MAX_SAMPLERS: u32 = {MAX_SAMPLERS}u;\nconst MAX_HISTORY: u32 = {MAX_HISTORY}u;\nstruct Step {{\n    \
         header: StepHeader,\n    rows: array<Row, {MAX_ROWS}>,\n    samplers: array<Sampler, {MAX_SAMPLERS}>,\n    \
         history: array<u32, {histories}>,\n    tables: array<u32>,\n}}\n"
    )
    .expect("writing to a String");
    text
}

fn wgsl_struct(name: &str, fields: &[(&str, &str)]) -> String {
    let body: String = fields.iter().map(|(field, kind)| format!("    {field}: {kind},\n")).collect();
    format!("struct {name} {{\n{body}}}\n")
}

/// A 32-bit field as its word.
trait Word {
    fn to_word(self) -> u32;
}

impl Word for u32 {
    fn to_word(self) -> u32 {
        self
    }
}

impl Word for f32 {
    fn to_word(self) -> u32 {
        self.to_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_are_packed_words() {
        assert_eq!(size_of::<StepHeader>(), 4 * StepHeader::WORDS);
        assert_eq!(size_of::<Row>(), 4 * Row::WORDS);
        assert_eq!(size_of::<Output>(), 4 * Output::WORDS);
        assert_eq!(size_of::<Sampler>(), 4 * Sampler::WORDS);
        assert_eq!(std::mem::offset_of!(Sampler, sample), 4 * 7);
    }

    #[test]
    fn a_sampler_feeds_or_has_a_mask_or_both() {
        let words =
            [(false, 0), (true, 0), (false, TABLES_AT), (true, TABLES_AT)].map(|(feeds, at)| feeds_and_mask(feeds, at));
        // Runtimes of before masks write the first two.
        assert_eq!(words, [0, 1, 2 * TABLES_AT as u32, 2 * TABLES_AT as u32 + 1]);
        assert_eq!([1, 32, 33].map(mask_words), [1, 1, 2]);
    }

    #[test]
    fn rows_apart_of_one_prompt_are_a_plain_number() {
        assert_eq!(rows_apart(33, 0), 33, "as programs beside one prompt read it");
        assert_eq!(rows_apart(33, 300), 33 | 300 << 16);
    }

    #[test]
    fn each_image_has_a_power_of_two_of_numbers() {
        assert_eq!(
            [1, 256, 512, 513, 4096].map(|rows| ImageNumbers::for_rows(rows).each()),
            [512, 512, 512, 1024, 4096]
        );
        let numbers = ImageNumbers::for_rows(600);
        assert_eq!(numbers.token(3, 599), IMAGE_ROW + 3 * 1024 + 599);
        assert_eq!(numbers.place(IMAGE_ROW + 3 * 1024 + 599), Some((3, 599)));
        assert_eq!((numbers.token(numbers.images() - 1, 1023), numbers.place(IMAGE_ROW - 1)), (u32::MAX, None));
        // As wide as an image may be.
        let word = rope_word(MAX_ROPE_SHIFT, 1023);
        assert_eq!((word, rope_shift(word), image_across(word)), (u32::MAX, MAX_ROPE_SHIFT, 1023));
    }

    #[test]
    fn wgsl_names_every_field() {
        let text = wgsl();
        for (field, kind) in StepHeader::FIELDS.iter().chain(Row::FIELDS).chain(Sampler::FIELDS).chain(Output::FIELDS) {
            assert!(text.contains(&format!("{field}: {kind},")));
        }
    }
}
