//! Images of any size (Qwen3-VL) against transformers and Pillow: how they are scaled, the rows and features that a vision tower makes of
//! them, and texts around them, whose rotary positions are not those in the sequence. llvmpipe unless `UNICORN_DEVICE` names another device.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tests::image_golden::{F16_TOLERANCE, INT8_TOLERANCE, ImageGolden, compiled, load, with_rows};
use tests::programs::program;
use tests::reference::relative_error;
use tests::server::Server;
use unicorn_compiler::WeightsOption;
use unicorn_runtime::{Image, Model, Sampling};
use unicorn_text::{Filter, Picture};

/// The tiny model.
const MODEL: &str = "qwen3-vl";

/// What transformers made of pictures and a text around them.
struct Golden {
    pictures: Vec<Picture>,
    /// The same, scaled by Pillow.
    resized: Vec<Picture>,
    /// (rows of all, hidden of the row and of each feature)
    rows: Vec<f32>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

fn golden() -> Golden {
    let golden = ImageGolden::of(MODEL);
    let picture = |name: &str, number: usize| {
        let (shape, bytes) = golden.bytes_of(&format!("{name}.{number}"));
        let [height, width, _] = shape[..] else { panic!("a picture has three axes") };
        Picture::new(width, height, bytes).expect("a picture")
    };
    Golden {
        pictures: (0..2).map(|number| picture("picture", number)).collect(),
        resized: (0..2).map(|number| picture("resized", number)).collect(),
        rows: golden.floats("rows"),
        tokens: golden.words("tokens"),
        logits: golden.floats("logits"),
        greedy: golden.words("greedy"),
    }
}

fn encoded(model: &Model, golden: &Golden) -> Vec<Image> {
    let section = model.image().expect("the model takes images");
    let encode =
        |picture: &Picture| model.encode_image(&picture.patches(section).expect("a size")).expect("it is computed");
    golden.pictures.iter().map(encode).collect()
}

#[test]
fn pictures_are_scaled_as_pillow_scales_them() {
    let golden = golden();
    for (picture, expected) in golden.pictures.iter().zip(&golden.resized) {
        let (width, height) = expected.size();
        assert!(picture.scaled(width, height, Filter::Cubic) == *expected, "{width} × {height} differs");
    }
}

#[test]
fn rows_features_and_logits_are_those_of_transformers() {
    let golden = golden();
    let vocab_size = golden.logits.len() / golden.tokens.len();
    let expected = &golden.logits[golden.logits.len() - vocab_size..];
    for (weights, fuse, tolerance) in [
        (WeightsOption::F16, true, F16_TOLERANCE),
        (WeightsOption::F16, false, F16_TOLERANCE),
        (WeightsOption::Int8, true, INT8_TOLERANCE),
    ] {
        let model = load(&compiled(MODEL, weights, fuse));
        let images = encoded(&model, &golden);
        let counts: Vec<usize> = images.iter().map(|image| image.tokens().count()).collect();
        assert_eq!(counts, [32, 12]);
        let rows: Vec<f32> = images
            .iter()
            .zip(counts)
            .flat_map(|(image, count)| (0..count).flat_map(|row| image.row(row).to_vec()))
            .collect();
        let error = relative_error(&golden.rows, &rows);
        println!("{weights:?}, fused {fuse}: rows differ by {error:.1e}");
        assert!(error <= tolerance, "{weights:?}, fused {fuse}: rows differ by {error:.2e}");
        let tokens = with_rows(&model, &golden.tokens, &images);
        let mut session = model.session().expect("a free slot");
        for chunk in [0, 7, 1] {
            session.clear();
            session.set_chunk_tokens(chunk);
            let found = session.feed_and_read_logits(&tokens).expect("it runs");
            let error = relative_error(expected, &found);
            println!("{weights:?}, fused {fuse}, chunks of {chunk}: logits differ by {error:.1e}");
            assert!(error <= tolerance, "{weights:?}, fused {fuse}, chunks of {chunk}: logits differ by {error:.2e}");
        }
    }
}

/// Sampled tokens feed the next step on the device, where their rotary positions are as many less as the images left out; so they do after a
/// beginning that the session had already, and when a draft proposes them.
#[test]
fn a_text_behind_images_continues_as_transformers_continue_it() {
    let golden = golden();
    let model = load(&compiled(MODEL, WeightsOption::F16, true));
    let tokens = with_rows(&model, &golden.tokens, &encoded(&model, &golden));
    let mut session = model.session().expect("a free slot");
    let greedy = Sampling::default();
    let n_tokens = golden.greedy.len() as u32;
    let first = session.feed_and_sample(&tokens, &greedy).expect("it runs").token;
    let rest = session.generate(first, &greedy, n_tokens - 1);
    let found: Vec<u32> = [first].into_iter().chain(rest.map(|sampled| sampled.expect("it runs").token)).collect();
    assert_eq!(found, golden.greedy);
    // From the middle of the prompt on, behind the first image.
    let kept = golden.tokens.len() as u32 - 20;
    session.truncate(kept).expect("it is long enough");
    let again = session.feed_and_sample(&tokens[kept as usize..], &greedy).expect("it runs").token;
    assert_eq!(again, first);
}

/// A PNG file of a golden's picture.
fn picture_file(folder: &Path, number: usize) -> PathBuf {
    let (shape, bytes) = ImageGolden::of(MODEL).bytes_of(&format!("picture.{number}"));
    let [height, width, _] = shape[..] else { panic!("a picture has three axes") };
    let path = folder.join(format!("{number}.png"));
    image::RgbImage::from_raw(width as u32, height as u32, bytes).unwrap().save(&path).unwrap();
    path
}

#[test]
fn a_prompt_is_about_the_pictures_that_options_name() {
    let artifact = compiled(MODEL, WeightsOption::F16, true);
    let (artifact, folder) = (artifact.artifact_path(), tempfile::tempdir().unwrap());
    let files: Vec<PathBuf> = (0..2).map(|number| picture_file(folder.path(), number)).collect();
    let answer = |files: &[&PathBuf]| -> Value {
        let mut command = program("unicorn-run");
        command.arg(&artifact).args(files.iter().flat_map(|file| ["--image".as_ref(), file.as_os_str()]));
        command.args(["--raw", "-p", "w", "-n", "6", "--temp", "0", "--json", "--device"]);
        let found = command.arg(std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into())).output().unwrap();
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        serde_json::from_slice(&found.stdout).unwrap()
    };
    let tokens = |answer: &Value| answer["prefill_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    let alone = tokens(&answer(&[]));
    // Rows, and a token on either side.
    assert_eq!(tokens(&answer(&[&files[0]])), alone + 32 + 2);
    assert_eq!(tokens(&answer(&[&files[0], &files[1]])), alone + 32 + 12 + 2 * 2);
}

#[test]
fn a_server_takes_images_of_any_size() {
    const TEMPLATE: &str =
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>";
    let artifact = compiled(MODEL, WeightsOption::F16, true);
    let folder = tempfile::tempdir().unwrap();
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    let server = Server::start(command, &artifact.artifact_path(), &["--chat-template", TEMPLATE, "--parallel", "2"]);
    let ask = |pictures: &[usize]| {
        let part = |number: &usize| {
            let data = STANDARD.encode(fs::read(picture_file(folder.path(), *number)).unwrap());
            json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}})
        };
        let text = json!({"type": "text", "text": "what?"});
        let content: Vec<Value> = pictures.iter().map(part).chain([text]).collect();
        let messages = json!([{"role": "user", "content": content}]);
        server.whole("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 6, "temperature": 0}))
    };
    let prompt_tokens =
        |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    let alone = prompt_tokens(&ask(&[]));
    let both = ask(&[0, 1]);
    assert_eq!(prompt_tokens(&both), alone + 32 + 12 + 2 * 2);
    assert_eq!(ask(&[0, 1])["choices"], both["choices"]);
    assert_ne!(ask(&[1, 0])["choices"], both["choices"]);
}
