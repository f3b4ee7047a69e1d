//! Images of any size (Qwen3-VL) against transformers and Pillow: how they are scaled, the rows and features that a vision tower makes of
//! them, and texts around them, whose rotary positions are not those in the sequence. llvmpipe unless `UNICORN_DEVICE` names another device.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tests::compiled::{Compiled, Silent, with};
use tests::image_golden::{Expected, ImageGolden, assert_as_transformers, compiled, load, options_for, with_rows};
use tests::models::models;
use tests::programs::program;
use tests::server::Server;
use unicorn_artifact::ArtifactView;
use unicorn_compiler::{WeightsOption, reproduce};
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
    /// Behind the last token.
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

impl Golden {
    /// The golden of two pictures, of which the first `n_resized` are there scaled, too.
    fn of(golden: &ImageGolden, n_resized: usize) -> Golden {
        Golden {
            pictures: (0..2).map(|number| golden.picture(&format!("picture.{number}"))).collect(),
            resized: (0..n_resized).map(|number| golden.picture(&format!("resized.{number}"))).collect(),
            rows: golden.floats("rows"),
            tokens: golden.words("tokens"),
            logits: golden.last_logits(),
            greedy: golden.words("greedy"),
        }
    }
}

fn golden() -> Golden {
    Golden::of(&ImageGolden::of(MODEL), 2)
}

fn encoded(model: &Model, pictures: &[Picture]) -> Vec<Image> {
    let section = model.image().expect("the model takes images");
    let encode =
        |picture: &Picture| model.encode_image(&picture.patches(section).expect("a size")).expect("it is computed");
    pictures.iter().map(encode).collect()
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
    let Golden { pictures, rows, tokens, logits, .. } = &golden();
    let expected = Expected { counts: [32, 12], rows, every: 1, tokens, logits };
    assert_as_transformers(
        |weights, fuse| compiled(MODEL, weights, fuse),
        |model| encoded(model, pictures),
        &expected,
        [0, 7, 1],
    );
}

/// Sampled tokens feed the next step on the device, where their rotary positions are as many less as the images left out; so they do after a
/// beginning that the session had already, and when a draft proposes them.
#[test]
fn a_text_behind_images_continues_as_transformers_continue_it() {
    let golden = golden();
    let model = load(&compiled(MODEL, WeightsOption::F16, true));
    let tokens = with_rows(&model, &golden.tokens, &encoded(&model, &golden.pictures));
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
    file_of(folder, &ImageGolden::of(MODEL), number)
}

fn file_of(folder: &Path, golden: &ImageGolden, number: usize) -> PathBuf {
    let (shape, bytes) = golden.bytes_of(&format!("picture.{number}"));
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

/// Rows of the second of the large pictures, more than a step takes.
const LARGE_ROWS: usize = 24 * 26;

/// Of a picture of 3 × 4 rows and one of 24 × 26 behind it, with each 16th row of all.
fn large_golden() -> Golden {
    Golden::of(&ImageGolden::named(MODEL, "large_image.safetensors"), 0)
}

/// The tiny model in another folder, with a context in which such a picture has a place.
fn with_long_context(folder: &Path) {
    let model = models().join("tiny").join(MODEL);
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"] {
        fs::copy(model.join(name), folder.join(name)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    config["text_config"]["max_position_embeddings"] = 1024.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn compiled_for_large_pictures(weights: WeightsOption, fuse: bool) -> Compiled {
    let folder = tempfile::tempdir().unwrap();
    with_long_context(folder.path());
    let options = with(options_for(weights, fuse), |options| options.image_max_tokens = Some(640));
    Compiled::of_folder(folder.path(), &options)
}

#[test]
fn an_image_of_more_rows_than_a_step_takes_is_that_of_transformers() {
    let Golden { pictures, rows, tokens, logits, .. } = &large_golden();
    let expected = Expected { counts: [12, LARGE_ROWS], rows, every: 16, tokens, logits };
    // Whole steps, and parts that begin and end at other rows of the image.
    assert_as_transformers(compiled_for_large_pictures, |model| encoded(model, pictures), &expected, [0, 100, 29]);
}

/// A prompt that is cut within an image continues there, as it does where a session already has the image's first rows.
#[test]
fn a_text_behind_a_large_image_continues_as_transformers_continue_it() {
    let golden = large_golden();
    let artifact = compiled_for_large_pictures(WeightsOption::F16, true);
    let model = load(&artifact);
    let tokens = with_rows(&model, &golden.tokens, &encoded(&model, &golden.pictures));
    let mut session = model.session().expect("a free slot");
    let greedy = Sampling::default();
    let n_tokens = golden.greedy.len() as u32;
    let first = session.feed_and_sample(&tokens, &greedy).expect("it runs").token;
    let rest = session.generate(first, &greedy, n_tokens - 1);
    let found: Vec<u32> = [first].into_iter().chain(rest.map(|sampled| sampled.expect("it runs").token)).collect();
    assert_eq!(found, golden.greedy);
    for kept in [200, 600] {
        session.truncate(kept).expect("it is long enough");
        assert_eq!(session.common_start(&tokens), kept);
        let again = session.feed_and_sample(&tokens[kept as usize..], &greedy).expect("it runs").token;
        assert_eq!(again, first, "from row {kept} of the prompt");
    }

    // As a whole by the program, and twice by a server, which continues the second prompt from the first one's cache.
    let folder = tempfile::tempdir().unwrap();
    let file = file_of(folder.path(), &ImageGolden::named(MODEL, "large_image.safetensors"), 1);
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let mut command = program("unicorn-run");
    command.arg(artifact.artifact_path()).arg("--image").arg(&file);
    command.args(["--raw", "-p", "w", "-n", "6", "--temp", "0", "--json", "--device", &device]);
    let answered = command.output().unwrap();
    assert!(answered.status.success(), "{}", String::from_utf8_lossy(&answered.stderr));
    let answer: Value = serde_json::from_slice(&answered.stdout).unwrap();
    // The rows, a token on either side, and the word.
    assert_eq!(answer["prefill_tokens"].as_u64(), Some(LARGE_ROWS as u64 + 2 + 1), "{answer}");

    const TEMPLATE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", device);
    let server = Server::start(command, &artifact.artifact_path(), &["--chat-template", TEMPLATE, "--parallel", "2"]);
    let url = format!("data:image/png;base64,{}", STANDARD.encode(fs::read(&file).unwrap()));
    let ask = |text: &str| {
        let content = json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]);
        let messages = json!([{"role": "user", "content": content}]);
        server.whole("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 6, "temperature": 0}))["usage"]
            .clone()
    };
    assert!(ask("what?")["prompt_tokens"].as_u64().unwrap() > LARGE_ROWS as u64);
    let cached = ask("who?")["prompt_tokens_details"]["cached_tokens"].clone();
    assert!(cached.as_u64().unwrap_or_else(|| panic!("{cached}")) >= LARGE_ROWS as u64, "{cached}");
}

#[test]
fn options_set_the_fewest_and_the_most_tokens_of_an_image() {
    const FEWEST: &str = "--image-min-tokens";
    const MOST: &str = "--image-max-tokens";
    let folder = tempfile::tempdir().unwrap();
    let artifact = folder.path().join("model.unicorn");
    let compile = |model: &str, option: &str, tokens: &str, more: &[&str]| {
        let mut command = program("unicorn-compile");
        command.arg(models().join("tiny").join(model)).args(["--target", "generic", "-q", "-o"]).arg(&artifact);
        let done = command.args([option, tokens]).args(more).output().expect("it starts");
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let compiled_for = |tokens: &str, more: &[&str]| {
        let (is_done, message) = compile(MODEL, MOST, tokens, more);
        assert!(is_done, "{message}");
        let bytes = fs::read(&artifact).expect("it was written");
        let image = ArtifactView::parse(&bytes).expect("an artifact").image.expect("it takes images");
        (image.rows, image.grid.expect("of any size"), image.numbers().each())
    };
    // Rows of 8 × 8 pixels; the model's own limit is 40.
    let (rows, grid, numbers) = compiled_for("700", &[]);
    assert_eq!((rows, grid.max_pixels, grid.min_pixels, numbers), (700, 700 * 64, 640, 1024));
    // It is made again from its own numbers, and compared with the model.
    reproduce(&artifact, Some(&models().join("tiny").join(MODEL)), &mut Silent).expect("the same is made");
    let (rows, grid, numbers) = compiled_for("4", &[]);
    assert_eq!((rows, grid.max_pixels, grid.min_pixels, numbers), (4, 4 * 64, 4 * 64, 512));
    let (rows, grid, _) = compiled_for("40", &[FEWEST, "20"]);
    assert_eq!((rows, grid.max_pixels, grid.min_pixels), (40, 40 * 64, 20 * 64));
    reproduce(&artifact, None, &mut Silent).expect("the same is made");
    for (model, option, tokens, more, expected) in [
        (MODEL, MOST, "4097", &[][..], "most tokens of an image are 4097, expected 1 to 4096 for this model"),
        (MODEL, FEWEST, "41", &[], "fewest tokens of an image are 41, expected 1 to the most, 40"),
        ("gemma3-vision", FEWEST, "512", &[], "expected no number, since each image has 4 in this model"),
        ("gemma3-vision", MOST, "512", &[], "expected no number, since each image has 4 in this model"),
        ("qwen3-qknorm", MOST, "512", &[], "expected no number, since the model is compiled without a vision tower"),
        (MODEL, MOST, "0", &[], "--image-max-tokens"),
        (MODEL, MOST, "9", &["--no-vision"], "cannot be used with"),
        (MODEL, FEWEST, "9", &["--no-vision"], "cannot be used with"),
    ] {
        let (is_done, message) = compile(model, option, tokens, more);
        assert!(!is_done && message.contains(expected), "{message}");
    }
    // Of a model that is compiled already, nothing can be changed.
    let mut command = program("unicorn-run");
    let refused = command.arg(&artifact).args([FEWEST, "9", "what"]).output().expect("it starts");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && message.contains("--image-min-tokens has an effect only when"), "{message}");
}
