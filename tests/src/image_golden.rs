//! What tests of images share: what transformers made of pictures and a text around them, the model compiled for the tests' device, and the
//! text's tokens with rows of images.

use std::fs;

use safetensors::SafeTensors;
use unicorn_compiler::{CompileOptions, WeightsOption};
use unicorn_runtime::{DeviceChoice, Image, LoadOptions, Model};
use unicorn_spirv::target::by_name;
use unicorn_text::Picture;

use crate::compiled::{Compiled, options, with};
use crate::models::models;
use crate::reference::relative_error;

/// f16 weights and KV cache over a few layers, as in `e2e`.
const F16_TOLERANCE: f64 = 5e-3;
/// INT8 weights and activations.
const INT8_TOLERANCE: f64 = 3e-2;

/// A golden file beside a model.
pub struct ImageGolden {
    bytes: Vec<u8>,
}

impl ImageGolden {
    /// That of the tiny model of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(model: &str) -> ImageGolden {
        ImageGolden::named(model, "image.safetensors")
    }

    /// The file of this name beside the tiny model.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(model: &str, file: &str) -> ImageGolden {
        ImageGolden { bytes: fs::read(models().join("tiny").join(model).join(file)).expect("a golden") }
    }

    /// Shape and bytes of a tensor.
    ///
    /// # Panics
    /// If there is none.
    pub fn bytes_of(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("safetensors");
        let tensor = tensors.tensor(name).expect(name);
        (tensor.shape().to_vec(), tensor.data().to_vec())
    }

    /// A picture, (height, width, 3).
    ///
    /// # Panics
    /// If there is none.
    pub fn picture(&self, name: &str) -> Picture {
        let (shape, bytes) = self.bytes_of(name);
        let [height, width, _] = shape[..] else { panic!("a picture has three axes") };
        Picture::new(width, height, bytes).expect("a picture")
    }

    /// Elements of a tensor of 32-bit words.
    pub fn words(&self, name: &str) -> Vec<u32> {
        self.bytes_of(name).1.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// Logits behind the last token.
    pub fn last_logits(&self) -> Vec<f32> {
        let (logits, vocab_size) = (self.floats("logits"), self.bytes_of("logits").0[1]);
        logits[logits.len() - vocab_size..].to_vec()
    }

    /// Elements of a tensor of f32.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_bits).collect()
    }
}

/// The tiny model of this name, for llvmpipe and all other devices.
pub fn compiled(model: &str, weights: WeightsOption, fuse: bool) -> Compiled {
    Compiled::of_folder(&models().join("tiny").join(model), &options_for(weights, fuse))
}

/// Options of a compile for llvmpipe and all other devices.
pub fn options_for(weights: WeightsOption, fuse: bool) -> CompileOptions {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(by_name).collect();
    with(options(targets, vec![]), |options| {
        options.policy.weights = weights;
        options.fuse = fuse;
    })
}

/// The model on llvmpipe, unless `UNICORN_DEVICE` names another device.
///
/// # Panics
/// If it does not load.
pub fn load(artifact: &Compiled) -> Model {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(device);
        options.slots = 2;
    });
    Model::load(&artifact.artifact_path(), &options).expect("it loads")
}

/// A golden's tokens with the images' rows in their places.
///
/// # Panics
/// If the model takes no images, or there are fewer rows than places.
pub fn with_rows(model: &Model, tokens: &[u32], images: &[Image]) -> Vec<u32> {
    let row_token = model.image().expect("the model takes images").row_token;
    let mut rows = images.iter().flat_map(Image::tokens);
    let token = |&token: &u32| if token == row_token { rows.next().expect("as many rows") } else { token };
    tokens.iter().map(token).collect()
}

/// What transformers made of images, and of a text around them.
pub struct Expected<'a> {
    /// Rows of each image.
    pub counts: [usize; 2],
    /// Elements of the first of all rows, and of each `every`-th behind it.
    pub rows: &'a [f32],
    pub every: usize,
    pub tokens: &'a [u32],
    /// Behind the last token.
    pub logits: &'a [f32],
}

/// Compares the rows of images, and the logits behind a text around them that is fed in parts of at most so many tokens, 0 being no limit: in f16 with and
/// without fusion, and in INT8.
///
/// # Panics
/// If they differ by more than the tolerance of the weights' format.
pub fn assert_as_transformers(
    compiled: impl Fn(WeightsOption, bool) -> Compiled,
    encoded: impl Fn(&Model) -> Vec<Image>,
    expected: &Expected,
    parts: [u32; 3],
) {
    for (weights, fuse, tolerance) in [
        (WeightsOption::F16, true, F16_TOLERANCE),
        (WeightsOption::F16, false, F16_TOLERANCE),
        (WeightsOption::Int8, true, INT8_TOLERANCE),
    ] {
        let close = |what: &str, expected: &[f32], found: &[f32]| {
            let error = relative_error(expected, found);
            println!("{weights:?}, fused {fuse}: {what} differ by {error:.1e}");
            assert!(error <= tolerance, "{weights:?}, fused {fuse}: {what} differ by {error:.2e}");
        };
        let model = load(&compiled(weights, fuse));
        let images = encoded(&model);
        let counts: Vec<usize> = images.iter().map(|image| image.tokens().count()).collect();
        assert_eq!(counts, expected.counts);
        let all = images.iter().zip(counts).flat_map(|(image, count)| (0..count).map(|row| image.row(row)));
        let rows: Vec<f32> = all.step_by(expected.every).flatten().copied().collect();
        close("rows", expected.rows, &rows);
        let tokens = with_rows(&model, expected.tokens, &images);
        let mut session = model.session().expect("a free slot");
        for part in parts {
            session.clear();
            session.set_chunk_tokens(part);
            let found = session.feed_and_read_logits(&tokens).expect("it runs");
            close(&format!("logits in parts of {part}"), expected.logits, &found);
        }
    }
}
