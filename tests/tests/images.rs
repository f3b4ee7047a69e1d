//! Images against transformers: the rows that a vision tower makes of them, and texts around them. llvmpipe unless `UNICORN_DEVICE` names
//! another device.

use std::fs;

use safetensors::SafeTensors;
use tests::compiled::{Compiled, options, with};
use tests::models::models;
use tests::reference::relative_error;
use unicorn_artifact::ImageSection;
use unicorn_compiler::WeightsOption;
use unicorn_runtime::{DeviceChoice, Image, LoadOptions, Model, Sampling, Session};
use unicorn_spirv::target::by_name;

/// f16 weights and KV cache over a few layers, as in `e2e.rs`.
const F16_TOLERANCE: f64 = 5e-3;
/// INT8 weights and activations.
const INT8_TOLERANCE: f64 = 3e-2;

/// What transformers made of images and a text around them.
struct Golden {
    /// (n, height, width, 3)
    pictures: (Vec<usize>, Vec<u8>),
    /// The same, scaled to the model's size by Pillow.
    resized: (Vec<usize>, Vec<u8>),
    /// (n, rows, hidden)
    rows: Vec<f32>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

fn golden() -> Golden {
    let bytes = fs::read(models().join("tiny/gemma3-vision/image.safetensors")).expect("a golden");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let bytes_of = |name: &str| {
        let tensor = tensors.tensor(name).expect(name);
        (tensor.shape().to_vec(), tensor.data().to_vec())
    };
    let words = |name: &str| bytes_of(name).1.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let floats = |name: &str| {
        let words: Vec<u32> = words(name);
        words.into_iter().map(f32::from_bits).collect::<Vec<f32>>()
    };
    Golden {
        pictures: bytes_of("pictures"),
        resized: bytes_of("resized"),
        rows: floats("rows"),
        tokens: words("tokens"),
        logits: floats("logits"),
        greedy: words("greedy"),
    }
}

fn compiled(weights: WeightsOption, fuse: bool) -> Compiled {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(by_name).collect();
    let options = with(options(targets, vec![]), |options| {
        options.policy.weights = weights;
        options.fuse = fuse;
    });
    Compiled::of_folder(&models().join("tiny/gemma3-vision"), &options)
}

fn load(artifact: &Compiled) -> Model {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let options = LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(device);
        options.slots = 2;
    });
    Model::load(&artifact.artifact_path(), &options).expect("it loads")
}

/// Patches of a picture that has the model's size, in plain loops.
fn patches(section: &ImageSection, pixels: &[u8]) -> Vec<f32> {
    let (size, side) = (section.image_size as usize, section.patch_size as usize);
    let across = size / side;
    let mut found = Vec::new();
    for patch in 0..across * across {
        for channel in 0..3 {
            for y in 0..side {
                for x in 0..side {
                    let at = ((patch / across * side + y) * size + patch % across * side + x) * 3 + channel;
                    let value = f32::from(pixels[at]) / 255.0;
                    found.push((value - section.mean[channel]) / section.deviation[channel]);
                }
            }
        }
    }
    found
}

fn encoded(model: &Model, golden: &Golden) -> Vec<Image> {
    let section = model.image().expect("the model takes images");
    let pictures = golden.resized.1.chunks_exact(golden.resized.1.len() / golden.resized.0[0]);
    pictures.map(|pixels| model.encode_image(&patches(section, pixels)).expect("it is computed")).collect()
}

/// The golden's tokens with the images' rows in their places.
fn tokens_of(model: &Model, golden: &Golden, images: &[Image]) -> Vec<u32> {
    let row_token = model.image().expect("the model takes images").row_token;
    let mut rows = images.iter().flat_map(Image::tokens);
    let token = |&token: &u32| if token == row_token { rows.next().expect("as many rows") } else { token };
    golden.tokens.iter().map(token).collect()
}

/// Logits behind the last token, fed in steps of at most `chunk` tokens.
fn last_logits(session: &mut Session, tokens: &[u32], chunk: u32) -> Vec<f32> {
    session.set_chunk_tokens(chunk);
    session.feed_and_read_logits(tokens).expect("it runs")
}

#[test]
fn rows_and_logits_are_those_of_transformers() {
    let golden = golden();
    let vocab_size = golden.logits.len() / golden.tokens.len();
    let expected = &golden.logits[golden.logits.len() - vocab_size..];
    for (weights, fuse, tolerance) in [
        (WeightsOption::F16, true, F16_TOLERANCE),
        (WeightsOption::F16, false, F16_TOLERANCE),
        (WeightsOption::Int8, true, INT8_TOLERANCE),
    ] {
        let model = load(&compiled(weights, fuse));
        let images = encoded(&model, &golden);
        let rows: Vec<f32> = images.iter().flat_map(|image| (0..4).flat_map(|row| image.row(row).to_vec())).collect();
        let error = relative_error(&golden.rows, &rows);
        println!("{weights:?}, fused {fuse}: rows differ by {error:.1e}");
        assert!(error <= tolerance, "{weights:?}, fused {fuse}: rows differ by {error:.2e}");
        let tokens = tokens_of(&model, &golden, &images);
        let mut session = model.session().expect("a free slot");
        for chunk in [0, 5, 1] {
            session.clear();
            let found = last_logits(&mut session, &tokens, chunk);
            let error = relative_error(expected, &found);
            println!("{weights:?}, fused {fuse}, chunks of {chunk}: logits differ by {error:.1e}");
            assert!(error <= tolerance, "{weights:?}, fused {fuse}, chunks of {chunk}: logits differ by {error:.2e}");
        }
    }
}

#[test]
fn a_text_behind_images_continues_as_transformers_continue_it() {
    let golden = golden();
    let model = load(&compiled(WeightsOption::F16, true));
    let tokens = tokens_of(&model, &golden, &encoded(&model, &golden));
    let mut session = model.session().expect("a free slot");
    let greedy = Sampling::default();
    let first = session.feed_and_sample(&tokens, &greedy).expect("it runs").token;
    let rest = session.generate(first, &greedy, golden.greedy.len() as u32 - 1);
    let found: Vec<u32> = [first].into_iter().chain(rest.map(|sampled| sampled.expect("it runs").token)).collect();
    assert_eq!(found, golden.greedy);
}

#[test]
fn an_image_that_comes_again_has_the_same_tokens_and_another_has_others() {
    let golden = golden();
    let model = load(&compiled(WeightsOption::F16, true));
    let images = encoded(&model, &golden);
    let again = encoded(&model, &golden);
    let tokens = |images: &[Image]| images.iter().flat_map(Image::tokens).collect::<Vec<u32>>();
    assert_eq!(tokens(&images), tokens(&again));
    let mut all = tokens(&images);
    all.dedup();
    assert_eq!(all.len(), 8);
    // A prompt with the same beginning continues from it, and one with another image does not.
    let prompt = tokens_of(&model, &golden, &images);
    let other = tokens_of(&model, &golden, &[images[1].clone(), images[0].clone()]);
    let mut session = model.session().expect("a free slot");
    session.feed(&prompt).expect("it runs");
    assert_eq!(session.common_start(&prompt), prompt.len() as u32 - 1);
    let first = prompt.iter().zip(&other).take_while(|(a, b)| a == b).count();
    assert!(session.common_start(&other) <= first as u32);
}

#[test]
fn rows_of_unknown_images_are_refused() {
    let golden = golden();
    let model = load(&compiled(WeightsOption::F16, true));
    let images = encoded(&model, &golden);
    let mut tokens = tokens_of(&model, &golden, &images);
    let mut session = model.session().expect("a free slot");
    let last = tokens.len() - 1;
    tokens[last] = images[1].tokens().last().expect("a row") + 1;
    let error = session.feed(&tokens).expect_err("no image has that row").to_string();
    assert!(error.contains("image"), "{error}");
    assert_eq!(session.len_tokens(), 0);
}
