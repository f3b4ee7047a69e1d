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

/// f16 weights and KV cache over a few layers, as in `e2e`.
pub const F16_TOLERANCE: f64 = 5e-3;
/// INT8 weights and activations.
pub const INT8_TOLERANCE: f64 = 3e-2;

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
