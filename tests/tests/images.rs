//! Images against transformers and Pillow: how they are scaled, the rows that a vision tower makes of them, and texts around them; by the
//! library, the programs and a server. llvmpipe unless `UNICORN_DEVICE` names
//! another device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tests::compiled::{Compiled, Silent, options, with};
use tests::http::post;
use tests::image_golden::{Expected, ImageGolden, assert_as_transformers, compiled, load, with_rows};
use tests::models::models;
use tests::programs::program;
use tests::server::Server;
use unicorn_artifact::header::SectionKind;
use unicorn_artifact::{ArtifactView, ImageSection, LogitsRows};
use unicorn_compiler::{WeightsOption, reproduce};
use unicorn_runtime::{Image, ImagePatches, Model, Sampling};
use unicorn_spirv::target::by_name;
use unicorn_text::{Filter, Picture};

/// The tiny model.
const MODEL: &str = "gemma3-vision";

/// What transformers made of images and a text around them.
struct Golden {
    /// (n, height, width, 3)
    pictures: (Vec<usize>, Vec<u8>),
    /// The same, scaled to the model's size by Pillow.
    resized: (Vec<usize>, Vec<u8>),
    /// (n, rows, hidden)
    rows: Vec<f32>,
    tokens: Vec<u32>,
    /// Behind the last token.
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

fn golden() -> Golden {
    let golden = ImageGolden::of(MODEL);
    Golden {
        pictures: golden.bytes_of("pictures"),
        resized: golden.bytes_of("resized"),
        rows: golden.floats("rows"),
        tokens: golden.words("tokens"),
        logits: golden.last_logits(),
        greedy: golden.words("greedy"),
    }
}

/// Patches of a picture that has the model's size, in plain loops.
fn patches(section: &ImageSection, pixels: &[u8]) -> ImagePatches {
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
    ImagePatches { values: found, rows_across: section.rows_across() }
}

fn encoded(model: &Model, golden: &Golden) -> Vec<Image> {
    let section = model.image().expect("the model takes images");
    let pictures = golden.resized.1.chunks_exact(golden.resized.1.len() / golden.resized.0[0]);
    pictures.map(|pixels| model.encode_image(&patches(section, pixels)).expect("it is computed")).collect()
}

#[test]
fn rows_and_logits_are_those_of_transformers() {
    let golden = golden();
    let Golden { rows, tokens, logits, .. } = &golden;
    let expected = Expected { counts: [4, 4], rows, every: 1, tokens, logits };
    assert_as_transformers(
        |weights, fuse| compiled(MODEL, weights, fuse),
        |model| encoded(model, &golden),
        &expected,
        [0, 5, 1],
    );
}

#[test]
fn a_text_behind_images_continues_as_transformers_continue_it() {
    let golden = golden();
    let model = load(&compiled(MODEL, WeightsOption::F16, true));
    let tokens = with_rows(&model, &golden.tokens, &encoded(&model, &golden));
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
    let model = load(&compiled(MODEL, WeightsOption::F16, true));
    let images = encoded(&model, &golden);
    let again = encoded(&model, &golden);
    let tokens = |images: &[Image]| images.iter().flat_map(Image::tokens).collect::<Vec<u32>>();
    assert_eq!(tokens(&images), tokens(&again));
    let mut all = tokens(&images);
    all.dedup();
    assert_eq!(all.len(), 8);
    // A prompt with the same beginning continues from it, and one with another image does not.
    let prompt = with_rows(&model, &golden.tokens, &images);
    let other = with_rows(&model, &golden.tokens, &[images[1].clone(), images[0].clone()]);
    let mut session = model.session().expect("a free slot");
    session.feed(&prompt).expect("it runs");
    assert_eq!(session.common_start(&prompt), prompt.len() as u32 - 1);
    let first = prompt.iter().zip(&other).take_while(|(a, b)| a == b).count();
    assert!(session.common_start(&other) <= first as u32);
}

#[test]
fn rows_of_unknown_images_are_refused() {
    let golden = golden();
    let model = load(&compiled(MODEL, WeightsOption::F16, true));
    let images = encoded(&model, &golden);
    let mut tokens = with_rows(&model, &golden.tokens, &images);
    let mut session = model.session().expect("a free slot");
    let last = tokens.len() - 1;
    tokens[last] = images[1].tokens().last().expect("a row") + 1;
    let error = session.feed(&tokens).expect_err("no image has that row").to_string();
    assert!(error.contains("image"), "{error}");
    assert_eq!(session.len_tokens(), 0);
}

#[test]
fn pictures_are_scaled_as_pillow_scales_them() {
    let golden = golden();
    let [n, height, width, _] = golden.pictures.0[..] else { panic!("a list of pictures") };
    let size = golden.resized.0[1];
    let of = |bytes: &[u8], index: usize| bytes.chunks_exact(bytes.len() / n).nth(index).unwrap().to_vec();
    for index in 0..n {
        let picture = Picture::new(width, height, of(&golden.pictures.1, index)).unwrap();
        let expected = Picture::new(size, size, of(&golden.resized.1, index)).unwrap();
        assert!(picture.scaled(size, size, Filter::Triangle) == expected, "picture {index} differs");
    }
}

/// A file of a golden's picture.
fn picture_file(folder: &Path, index: usize) -> PathBuf {
    let golden = golden();
    let [n, height, width, _] = golden.pictures.0[..] else { panic!("a list of pictures") };
    let pixels = golden.pictures.1.chunks_exact(golden.pictures.1.len() / n).nth(index).unwrap().to_vec();
    let path = folder.join(format!("{index}.png"));
    image::RgbImage::from_raw(width as u32, height as u32, pixels).unwrap().save(&path).unwrap();
    path
}

fn unicorn_run(arguments: &[&str]) -> Output {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let mut command = program("unicorn-run");
    command.args(arguments).args(["--device", &device]).output().unwrap()
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_prompt_is_about_the_pictures_that_options_name() {
    let artifact = compiled(MODEL, WeightsOption::F16, true);
    let (artifact, folder) = (artifact.artifact_path(), tempfile::tempdir().unwrap());
    let files: Vec<PathBuf> = (0..2).map(|index| picture_file(folder.path(), index)).collect();
    let answer = |files: &[&PathBuf]| -> Value {
        let images = files.iter().flat_map(|file| ["--image", file.to_str().unwrap()]);
        let common = ["--raw", "-p", "w", "-n", "6", "--temp", "0", "--json"];
        let arguments: Vec<&str> = [artifact.to_str().unwrap()].into_iter().chain(images).chain(common).collect();
        let found = unicorn_run(&arguments);
        assert!(found.status.success(), "{}", text_of(&found.stderr));
        serde_json::from_slice(&found.stdout).unwrap()
    };
    let tokens = |answer: &Value| answer["prefill_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    let alone = answer(&[]);
    let (first, second) = (answer(&[&files[0]]), answer(&[&files[1]]));
    // Rows, the tokens around them, and two line breaks on either side.
    assert_eq!(tokens(&first), tokens(&alone) + 4 + 2 + 4);
    assert_eq!(tokens(&answer(&[&files[0], &files[1]])), tokens(&alone) + 2 * (4 + 2 + 4));
    assert_ne!(first["text"], second["text"]);
    assert_eq!(first["text"], answer(&[&files[0]])["text"]);
}

#[test]
fn pictures_that_cannot_be_read_are_errors_and_so_are_models_without_eyes() {
    let folder = tempfile::tempdir().unwrap();
    let (file, text) = (picture_file(folder.path(), 0), folder.path().join("text.png"));
    fs::write(&text, "no picture").unwrap();
    let seeing = compiled(MODEL, WeightsOption::F16, true);
    let seeing_path = seeing.artifact_path();
    let blind = Compiled::of_folder(
        &models().join("tiny").join(MODEL),
        &with(options(vec![by_name("llvmpipe").unwrap()], vec![]), |options| options.vision = false),
    );
    let refusal = |artifact: &Path, file: &Path| {
        let found = unicorn_run(&[
            artifact.to_str().unwrap(),
            "--image",
            file.to_str().unwrap(),
            "--raw",
            "-p",
            "a",
            "-n",
            "1",
        ]);
        assert_eq!(found.status.code(), Some(1), "{}", text_of(&found.stderr));
        text_of(&found.stderr)
    };
    assert!(refusal(&seeing_path, &text).contains("text.png: not a picture that can be read (PNG, JPEG"));
    assert!(refusal(&seeing_path, &folder.path().join("gone.png")).contains("gone.png"));
    assert!(
        refusal(&blind.artifact_path(), &file).contains("takes text alone: --image needs a model with a vision tower")
    );
}

/// Messages as Gemma 3's template writes them.
const TEMPLATE: &str =
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>";

#[test]
fn a_server_takes_images_of_every_api() {
    let artifact = compiled(MODEL, WeightsOption::F16, true);
    let folder = tempfile::tempdir().unwrap();
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    let server = Server::start(command, &artifact.artifact_path(), &["--chat-template", TEMPLATE, "--parallel", "2"]);
    let data: Vec<String> =
        (0..2).map(|index| STANDARD.encode(fs::read(picture_file(folder.path(), index)).unwrap())).collect();
    let address = |index: usize| format!("data:image/png;base64,{}", data[index]);
    let chat = |content: Value| {
        let messages = json!([{"role": "user", "content": content}]);
        server.whole(
            "/v1/chat/completions",
            &json!({"messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": true}),
        )
    };
    let about = |index: usize| {
        chat(json!([{"type": "image_url", "image_url": {"url": address(index)}}, {"type": "text", "text": "what?"}]))
    };
    let said = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let prompt_tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let (alone, first, second) = (chat(json!("what?")), about(0), about(1));
    assert_eq!(prompt_tokens(&first), prompt_tokens(&alone) + 4 + 2 + 4);
    let logprob = |answer: &Value| answer["choices"][0]["logprobs"]["content"][0]["logprob"].as_f64().unwrap();
    assert_ne!(logprob(&first), logprob(&second));
    // The same image is not computed again, and gives the same text.
    let again = about(0);
    assert_eq!(said(&again), said(&first));

    let of_responses = server.whole(
        "/v1/responses",
        &json!({
            "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": address(0)}, {"type": "input_text", "text": "what?"},
            ]}],
            "max_output_tokens": 6, "temperature": 0,
        }),
    );
    assert_eq!(of_responses["usage"]["input_tokens"], first["usage"]["prompt_tokens"]);
    let source = json!({"type": "base64", "media_type": "image/png", "data": data[0]});
    let messages =
        json!([{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]}]);
    let of_anthropic = server.whole("/v1/messages", &json!({"messages": messages, "max_tokens": 6, "temperature": 0}));
    assert_eq!(of_anthropic["content"][0]["text"].as_str(), Some(&*said(&first)));
    let messages = json!([{"role": "user", "content": "what?", "images": [data[0]]}]);
    let ollama = json!({"messages": messages, "stream": false, "options": {"num_predict": 6, "temperature": 0}});
    assert_eq!(server.whole("/api/chat", &ollama)["message"]["content"].as_str(), Some(&*said(&first)));
    let shown = server.whole("/api/show", &json!({"model": "gemma3-vision"}));
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("vision")), "{shown}");

    let refused = |content: Value| {
        let request = json!({"messages": [{"role": "user", "content": content}]}).to_string();
        let (head, body) = post(&server.address, "/v1/chat/completions", &request);
        assert!(head.starts_with("HTTP/1.0 400 "), "{head}");
        body
    };
    let image = |address: &str| json!([{"type": "image_url", "image_url": {"url": address}}]);
    assert!(refused(image("https://example.org/a.png")).contains("not fetched from the network"));
    assert!(refused(image("data:image/png;base64,AAAA")).contains("not a picture that can be read"));
    // Nobody else's marks stand for images, and no client writes rows of images as numbers.
    chat(json!("a\u{fffc}b"));
    let request = json!({"prompt": [1, 2_147_483_648_u32], "max_tokens": 1}).to_string();
    let (head, _) = post(&server.address, "/v1/completions", &request);
    assert!(head.starts_with("HTTP/1.0 400 "), "{head}");
}

fn unicorn_compile(arguments: &[&str]) -> String {
    let found = program("unicorn-compile").args(arguments).output().unwrap();
    assert!(found.status.success(), "{}", text_of(&found.stderr));
    text_of(&found.stdout) + &text_of(&found.stderr)
}

#[test]
fn an_artifact_keeps_its_images_whatever_else_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.unicorn");
    let (model, file) = (models().join("tiny").join(MODEL), path.to_str().unwrap());
    unicorn_compile(&[model.to_str().unwrap(), "-o", file, "--target", "llvmpipe", "--weights", "f16"]);
    let programs = |bytes: &[u8]| {
        let view = ArtifactView::parse(bytes).unwrap();
        let of_target = |target: &unicorn_artifact::TargetKernels| {
            let of_images = target.programs.iter().filter(|program| program.is_of_images());
            (of_images.clone().count(), of_images.filter(|program| program.logits == LogitsRows::Image).count())
        };
        (view.image, view.kernels.targets.iter().map(of_target).collect::<Vec<_>>())
    };
    let (image, of_targets) = programs(&fs::read(&path).unwrap());
    assert_eq!((image.as_ref().map(|image| image.rows), of_targets), (Some(4), vec![(3, 1)]));
    reproduce(&path, Some(&model), &mut Silent).unwrap();
    unicorn_compile(&["replan", file, "--context", "64"]);
    unicorn_compile(&["retarget", file, "--target", "generic"]);
    assert_eq!(programs(&fs::read(&path).unwrap()), (image, vec![(3, 1), (3, 1)]));
    reproduce(&path, Some(&model), &mut Silent).unwrap();
    // Without its tower, it is another artifact of the same model.
    unicorn_compile(&[model.to_str().unwrap(), "-o", file, "--target", "llvmpipe", "--no-vision"]);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(programs(&bytes), (None, vec![(0, 0)]));
    assert!(unicorn_artifact::header::decode_header(&bytes).unwrap().iter().all(|section| {
        section.kind != SectionKind::Image as u32 && section.kind != SectionKind::ImagePrograms as u32
    }));
    reproduce(&path, Some(&model), &mut Silent).unwrap();
}

/// The artifact with another image section.
fn with_image(bytes: &[u8], change: impl FnOnce(&mut ImageSection)) -> Vec<u8> {
    let mut sections = unicorn_artifact::header::decode_header(bytes).unwrap();
    let mut changed = bytes.to_vec();
    let at = sections.iter().position(|section| section.kind == SectionKind::Image as u32).unwrap();
    let mut image = ArtifactView::parse(bytes).unwrap().image.unwrap();
    change(&mut image);
    let body = unicorn_artifact::codec::encode(&image);
    assert_eq!(body.len() as u64, sections[at].len_bytes, "numbers alone change");
    changed[sections[at].offset_bytes as usize..][..body.len()].copy_from_slice(&body);
    sections[at].hash = *blake3::hash(&body).as_bytes();
    let head = unicorn_artifact::header::encode_header(&sections, bytes.len() as u64);
    changed[..head.len()].copy_from_slice(&head);
    changed
}

/// What llama.cpp's converter made of the folder's tower gives the same artifact.
#[test]
fn a_tower_from_a_gguf_file_is_that_of_the_folder() {
    let folder = models().join("tiny").join(MODEL);
    let projected = |projector: Option<PathBuf>| {
        let generic = by_name("generic").expect("a target");
        let options = with(options(vec![generic], Vec::new()), |options| {
            options.policy.weights = WeightsOption::F16;
            options.projector = projector;
        });
        Compiled::of_folder(&folder, &options)
    };
    let (of_folder, of_file) = (projected(None), projected(Some(folder.join("mmproj.gguf"))));
    let bytes = [of_folder.artifact(), of_file.artifact()];
    let [expected, found] = [&bytes[0], &bytes[1]].map(|bytes| ArtifactView::parse(bytes).expect("an artifact"));
    assert_eq!(found.image, expected.image);
    for (found, expected) in found.weights().iter().zip(expected.weights()) {
        assert!(found.bytes == expected.bytes, "weights differ");
    }
    assert_ne!(found.meta.provenance.source_hash, expected.meta.provenance.source_hash);
    let path = of_file.artifact_path();
    reproduce(&path, None, &mut Silent).expect("plan and kernels are made again");
    let refused = reproduce(&path, Some(&folder), &mut Silent).expect_err("the folder is not all of it").to_string();
    assert!(refused.contains("the vision tower of the artifact is mmproj"), "{refused}");
}

/// The option gives the same, and what is no tower is refused.
#[test]
fn a_tower_of_its_own_is_an_option() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (model, artifact) = (models().join("tiny").join(MODEL), folder.path().join("model.unicorn"));
    let compile = |projector: &Path| {
        let mut command = program("unicorn-compile");
        command.arg(&model).args(["--target", "generic", "-q", "-o"]).arg(&artifact).arg("--mmproj").arg(projector);
        command.output().expect("it starts")
    };
    let refused = compile(&model.join("model.safetensors"));
    assert!(!refused.status.success() && !artifact.exists());
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(
        message.contains("model.safetensors: is no GGUF file, expected the one with the vision tower"),
        "{message}"
    );
    let done = compile(&model.join("mmproj.gguf"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let bytes = fs::read(&artifact).expect("it was written");
    assert!(ArtifactView::parse(&bytes).expect("an artifact").image.is_some());

    // A model that is compiled when it is run, and one that is compiled already.
    let (picture, projector) = (picture_file(folder.path(), 0), model.join("mmproj.gguf"));
    let run = |model: &Path| {
        let mut command = program("unicorn-run");
        command.arg(model).arg("--mmproj").arg(&projector).arg("--image").arg(&picture);
        command.args(["--raw", "-n", "2", "what"]).env("XDG_CACHE_HOME", folder.path());
        command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        command.output().expect("it starts")
    };
    let answered = run(&model);
    assert!(answered.status.success(), "{}", text_of(&answered.stderr));
    let refused = run(&artifact);
    assert!(
        !refused.status.success() && text_of(&refused.stderr).contains("--mmproj has an effect only when"),
        "{}",
        text_of(&refused.stderr)
    );
}

#[test]
fn image_sections_that_do_not_fit_their_programs_are_refused() {
    let bytes = compiled(MODEL, WeightsOption::F16, true).artifact();
    let refusal = |change: fn(&mut ImageSection)| {
        ArtifactView::parse(&with_image(&bytes, change)).err().expect("it is refused").to_string()
    };
    ArtifactView::parse(&with_image(&bytes, |_| ())).expect("nothing changed");
    for (change, what) in [
        ((|image| image.rows = 0) as fn(&mut ImageSection), "rows of an image"),
        (|image| image.rows = 5, "rows of a program that makes rows of images"),
        (|image| image.rows = 513, "rows of an image"),
        (|image| image.patch_size = 0, "size of a patch"),
        (|image| image.patch_size = u32::MAX, "size of a patch"),
        (|image| image.image_size = u32::MAX, "size of an image"),
        (|image| image.image_size = 28, "bytes of an image's patches"),
        (|image| image.patch_stride = 3, "elements between patches"),
        (|image| image.row_stride = u32::MAX, "elements between rows of images"),
        (|image| image.end_token = 320, "token of an image"),
        (|image| image.deviation[1] = 0.0, "mean and deviation"),
        (|image| image.mean[0] = f32::NAN, "mean and deviation"),
    ] {
        let found = refusal(change);
        assert!(found.contains(what), "{found}, expected {what}");
    }
}
