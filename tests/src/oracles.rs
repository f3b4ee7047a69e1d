//! What must hold for any bytes from outside. Fuzz targets and tests that replay a fuzzer's findings call these.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use unicorn_artifact::header::{SECTION_ALIGN, Section, encode_header};
use unicorn_artifact::npu::cdo::CdoCommand;
use unicorn_artifact::npu::control::check_control;
use unicorn_artifact::npu::pdi::{read_pdi, write_pdi};
use unicorn_artifact::{
    Account, ArtifactView, Budget, BufferRef, KvGroupPlan, KvSegment, Tier, TokenizerSection, codec, fit,
};
use unicorn_compiler::import::{self, Checkpoint, parse_gguf, parse_projector};
use unicorn_compiler::place::replace::replace;
use unicorn_compiler::{Machine, TRIAL_THREAD};
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::{gemm, stream};
use unicorn_runtime::Sampling;
use unicorn_serve::{Endpoint, MAX_CHOICES, Request};
use unicorn_structure::{Constraint, Start, Structure, Vocabulary};
use unicorn_text::{ChatTemplate, Message, Picture, TemplateArguments};
use unicorn_text::{Delta, ReplyFormat, ReplyParser, Tokenizer, ToolFormat};

use crate::control_image::with_checksums;
use crate::generators::{
    artifact_of_parts, smallest_config, smallest_gemm, smallest_gguf, smallest_image_section, smallest_mxfp4_config,
    smallest_safetensors, with_stream_header, with_valid_preamble,
};
use crate::models::models;
use crate::mutated_module;
use crate::mutated_plan::load_and_run;

/// Parsing an artifact returns. What it accepts encodes to the bytes that were read, and nothing in it points outside.
pub fn artifact(bytes: &[u8]) {
    drop(ArtifactView::parse(bytes));
    drop(ArtifactView::parse(&with_valid_preamble(bytes)));
    let whole = artifact_of_parts(bytes);
    let Ok(view) = ArtifactView::parse(&whole) else { return };
    let structured = [
        codec::encode(&view.meta),
        codec::encode(&view.plan),
        codec::encode(&view.kernels),
        codec::encode(&view.tokenizer),
    ]
    .concat();
    assert!(bytes[16..].starts_with(&structured), "what was read encodes to what was there");
    for weight in &view.plan.weights {
        let section = &view.weights()[weight.slice as usize].bytes;
        assert!(section.len() as u64 >= weight.offset_bytes + weight.len_bytes, "weight {} is inside", weight.name);
    }
    for binding in bindings(&view) {
        if let BufferRef::Weights { slice } = binding.buffer {
            let section = &view.weights()[slice as usize].bytes;
            assert!(section.len() as u64 >= binding.offset_bytes + binding.len_bytes, "binding is inside");
        }
    }
    // Adding up a plan's numbers, and giving it other tiers, must work for any plan.
    drop(Account::of(&view.plan).to_string());
    let machine = Machine::generic().plan(&Budget::default()).expect("a preset");
    let replaced = replace(&view.plan, &machine, view.meta.model.max_positions).expect("generic refuses nothing");
    drop(Account::of(&replaced).to_string());
    let small = Machine::named("phoenix-16gb").and_then(|machine| machine.plan(&Budget::default())).expect("a preset");
    fit::longest_context(u32::MAX, |tokens| fit::on(&view.plan, &small, tokens).is_ok());
    for section in view.weights() {
        section.verify().expect("the generator's hashes are right");
    }
}

/// An artifact whose plan has changed parts, and right hashes, is refused or runs: it neither panics nor takes the device away.
pub fn plan(bytes: &[u8]) {
    drop(load_and_run(bytes));
}

/// A registry's manifest, before the first zero, and the head of an artifact behind it: reading them returns, and what is accepted is
/// a plan for a file of the length in the head. The same for a head whose hash is right, with a section and a layer for each four bytes.
pub fn manifest(bytes: &[u8]) {
    let at = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (manifest, head) = bytes.split_at(at);
    drop(unicorn_registry::check_description(manifest, head));

    let (mut sections, mut layers, mut end) = (Vec::new(), Vec::new(), 64 + 64 * (bytes.len() as u64 / 4));
    for (number, word) in (0u32..).zip(bytes.chunks_exact(4)) {
        let (kind, len_bytes, size) =
            (u32::from(word[0] % 8), u64::from(word[1]) << (word[2] % 40), u64::from(word[3]) << (word[2] % 40));
        let offset_bytes = u64::next_multiple_of(end, SECTION_ALIGN);
        end = offset_bytes + len_bytes;
        sections.push(Section { kind, index: number, offset_bytes, len_bytes, hash: [0; 32] });
        let name = match kind {
            3 => format!("kernels/t{}", word[3] % 4),
            5 => format!("weights/{number}/0"),
            kind => format!("section/{kind}.{number}"),
        };
        layers.push((name, size));
    }
    let head = encode_header(&sections, end);
    layers.insert(0, ("head".into(), head.len() as u64));
    let layer = |(name, size): &(String, u64)| {
        let digest = format!("sha256:{}", "0".repeat(64));
        serde_json::json!({"mediaType": "", "digest": digest, "size": size, "annotations": {"org.cncf.model.filepath": name}})
    };
    let layers: Vec<serde_json::Value> = layers.iter().map(layer).collect();
    let manifest = serde_json::json!({
        "schemaVersion": 2, "artifactType": "application/vnd.cncf.model.manifest.v1+json", "config": layers[0], "layers": layers
    });
    drop(unicorn_registry::check_description(manifest.to_string().as_bytes(), &head));
}

/// A hub's description of a repository: reading it returns, and no file that it names lies outside of the repository's folder. The same with
/// these bytes as the name of a file.
pub fn repository(bytes: &[u8]) {
    let name = String::from_utf8_lossy(bytes);
    let file = serde_json::json!({"rfilename": name, "size": 1, "blobId": "0".repeat(40)});
    let whole = serde_json::json!({"sha": "0".repeat(40), "siblings": [file]}).to_string();
    for description in [bytes, whole.as_bytes()] {
        for name in unicorn_registry::hub::describe(description).unwrap_or_default() {
            let parts = Path::new(&name).components();
            assert!(
                parts.into_iter().all(|part| matches!(part, std::path::Component::Normal(_))),
                "{name:?} is inside"
            );
        }
    }
}

/// The same with changed words of a SPIR-V module: what a driver gets does not crash it.
pub fn module(bytes: &[u8]) {
    drop(mutated_module::load_and_run(&bytes[..bytes.len().min(13)]));
}

/// An instruction stream of the NPU: what is read encodes to the bytes that were there, and a design takes or refuses it.
pub fn npu_stream(bytes: &[u8]) {
    static DESIGN: LazyLock<Lowered> = LazyLock::new(|| lower(&gemm::design(&smallest_gemm())));
    for bytes in [bytes, &with_stream_header(bytes)] {
        let Ok(instructions) = stream::decode(bytes) else { continue };
        assert!(stream::encode_instructions(&instructions) == bytes, "what was read encodes to what was there");
        drop(stream::commands(&instructions, &DESIGN));
    }
}

/// A control image of an NPU program: reading returns, what is accepted for one column is accepted for more, and its commands are written and
/// read again.
pub fn npu_control(bytes: &[u8]) {
    for bytes in [bytes, &with_checksums(bytes)] {
        if let Ok(control) = check_control(bytes, 1) {
            assert_eq!(check_control(bytes, 4), Ok(control));
            let mut commands = read_pdi(bytes).expect("it has been read");
            let mut again = read_pdi(&write_pdi(&[commands.clone()])).expect("what was written is read");
            // Blocks are aligned by commands that do nothing.
            for all in [&mut commands, &mut again] {
                all.retain(|one| !matches!(one, CdoCommand::Nothing { .. }));
            }
            assert_eq!(commands, again);
        }
    }
}

/// The NPU section of an otherwise sound artifact: what is accepted has streams that stay inside of their buffers.
pub fn npu_section(bytes: &[u8]) {
    let Ok(view) = ArtifactView::parse(&crate::mutated_plan::with_npu(bytes)).map(|view| view.npu) else { return };
    for program in view.iter().flat_map(|section| &section.programs) {
        let instructions = stream::decode(&program.instructions).expect("the reader has decoded it");
        let commands = unicorn_artifact::npu::shim_commands(&instructions, program.shape.columns);
        for (_, command) in commands.expect("the reader has followed it") {
            let unicorn_artifact::npu::ShimCommand::Start { task, .. } = command else { continue };
            let last = task.at(task.runs - 1, task.words - 1);
            assert!((last as u64) < program.arguments[task.argument].bytes, "{task:?}");
        }
    }
}

/// A segment of a KV cache: what is accepted is written as it was read, and its pages are checked without a panic. With a record alone,
/// the head that it needs is made.
pub fn kv_segment(bytes: &[u8]) {
    for bytes in [bytes, &with_segment_head(bytes)] {
        let Ok(mut segment) = KvSegment::read(&mut &bytes[..]) else { continue };
        let groups = [None, Some(6)].map(|window_tokens| KvGroupPlan {
            window_tokens,
            n_layers: 2,
            page_tokens: 4,
            page_bytes: 8,
            tier: Tier::Vram,
            reason: String::new(),
        });
        if segment.check_groups(&groups).is_ok() {
            assert_eq!(segment.groups[0].first_page * 4, segment.first_token / 4 * 4);
        }
        let mut written = Vec::new();
        segment.payload_hash = unicorn_artifact::hash::hash(&[]);
        segment.write(&[], &mut written).expect("memory");
        assert_eq!(KvSegment::read(&mut &written[..]).expect("it was just written"), segment);
    }
}

fn with_segment_head(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    [&b"UNIKVC1\n"[..], &length, &unicorn_artifact::hash::hash(record), record].concat()
}

fn bindings<'a>(view: &'a ArtifactView) -> impl Iterator<Item = &'a unicorn_artifact::Binding> {
    let programs = view.kernels.targets.iter().flat_map(|target| &target.programs);
    programs.flat_map(|program| &program.dispatches).flat_map(|dispatch| &dispatch.bindings)
}

/// Opening a folder with these bytes as `model.safetensors` returns, of floats or of MXFP4, and every row of what it accepts can be read.
pub fn safetensors(bytes: &[u8]) {
    for config in [smallest_config(), smallest_mxfp4_config()] {
        open_folder(config.to_string().as_bytes(), bytes);
    }
}

/// Merging an adapter returns, and every row of what it accepts can be read. The first two bytes are the length of adapter_config.json, whose highest bit
/// chooses a mixture of experts as the model; the rest is its weights.
pub fn lora(bytes: &[u8]) {
    const MIXTURE: usize = 1 << 15;
    let (length, rest) = bytes.split_at(bytes.len().min(2));
    let length = length.iter().rev().fold(0, |length, byte| 256 * length + usize::from(*byte));
    let (config, weights) = rest.split_at((length % MIXTURE).min(rest.len()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("a temporary file");
    let base = match length < MIXTURE {
        true => {
            write("config.json", smallest_config().to_string().as_bytes());
            write("model.safetensors", &smallest_safetensors());
            folder.path().to_owned()
        }
        false => models().join("tiny/qwen3-moe"),
    };
    let mut checkpoint = import::open_model(&base).expect("a sound model");
    write("adapter_config.json", config);
    write("adapter_model.safetensors", weights);
    let adapter = import::Adapter { folder: folder.path().to_owned(), scale: 1.0 };
    if import::merge(&mut checkpoint, &[adapter]).is_ok() {
        read_all(&checkpoint);
    }
}

/// Opening a folder with these bytes as `config.json` returns, whatever weights they describe.
pub fn config_json(bytes: &[u8]) {
    open_folder(bytes, &smallest_safetensors());
}

/// Reading a client's request returns, and the requests that it accepts can be ordered.
pub fn request(bytes: &[u8]) {
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Completions] {
        let Ok(request) = Request::parse(endpoint, bytes, &Sampling::default()) else { continue };
        assert!((1..=MAX_CHOICES).contains(&(request.prompts.len() * request.n as usize)), "choices of {request:?}");
        assert!(request.max_tokens != Some(0), "tokens of {request:?}");
        let sampling = &request.sampling;
        assert!(sampling.temperature >= 0.0 && (0.0..=1.0).contains(&sampling.top_p), "sampling of {request:?}");
    }
}

/// Reading a model's reply returns the same however the text is cut. The first byte chooses the format.
pub fn reply(bytes: &[u8]) {
    let [choice, text @ ..] = bytes else { return };
    let text = String::from_utf8_lossy(text);
    let mut format = ReplyFormat::default();
    let choice = usize::from(*choice);
    format.thinks = [None, Some(false), Some(true)][choice % 3];
    let tools = [
        ToolFormat::Hermes,
        ToolFormat::Llama,
        ToolFormat::Mistral,
        ToolFormat::Gemma,
        ToolFormat::Json,
        ToolFormat::Tagged,
        ToolFormat::Pythonic,
        ToolFormat::Gemma4,
        ToolFormat::Lfm2,
        ToolFormat::Glm,
        ToolFormat::Granite,
        ToolFormat::Glm4,
        ToolFormat::Olmo3,
        ToolFormat::DeepSeek,
    ];
    format.tools = tools.get(choice / 3 % (tools.len() + 1)).copied();
    format.harmony = choice / 3 / (tools.len() + 1) % 2 == 1;
    let read = |pieces: &mut dyn Iterator<Item = &str>| {
        let mut parser = ReplyParser::new(&format, ["f"]);
        let mut deltas: Vec<Delta> = pieces.flat_map(|piece| parser.push(piece)).collect();
        deltas.extend(parser.finish());
        let part = |wanted: &dyn Fn(&Delta) -> Option<&str>| deltas.iter().filter_map(wanted).collect::<String>();
        [
            part(&|delta| if let Delta::Reasoning(text) = delta { Some(text) } else { None }),
            part(&|delta| if let Delta::Content(text) = delta { Some(text) } else { None }),
            part(&|delta| if let Delta::CallBegin { name, .. } = delta { Some(name) } else { None }),
            part(&|delta| if let Delta::CallArguments { json, .. } = delta { Some(json) } else { None }),
        ]
    };
    let whole = read(&mut std::iter::once(text.as_ref()));
    let letters = read(&mut text.split_inclusive(|_| true));
    assert_eq!(whole, letters, "{format:?}: {text:?}");
}

/// A structure that a client sends is read or refused, and a token that it permits may follow. The first byte chooses what the text is, the
/// second the tokens.
pub fn structure(bytes: &[u8]) {
    const EOS: u32 = 2;
    const VOCAB_SIZE: u32 = 320;
    static VOCABULARY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
        let path = models().join("tiny/llama-tied/tokenizer.json");
        let tokenizer_json = std::fs::read_to_string(path).expect("a tokenizer");
        let section = TokenizerSection { tokenizer_json, ..TokenizerSection::default() };
        Arc::new(Vocabulary::new(&Tokenizer::new(&section).expect("a sound one"), VOCAB_SIZE, &[EOS]))
    });
    let [kind, choice, text @ ..] = bytes else { return };
    let Ok(text) = String::from_utf8(text.to_vec()) else { return };
    let structure = match kind % 4 {
        0 => Structure::from_grammar(text),
        1 => Structure::from_schema_text(&text),
        2 => Ok(Structure::Regex(text)),
        _ => Ok(Structure::Choice(text.lines().map(str::to_owned).collect())),
    };
    let Ok(structure) = structure else { return };
    let Ok(mut constraint) = Constraint::whole(VOCABULARY.clone(), &structure, Start::at_once()) else { return };
    for number in 0..16 {
        // What takes too long to find out ends a reply.
        let Ok(Some(allowed)) = constraint.allowed() else { return };
        let tokens: Vec<u32> = (0..VOCAB_SIZE).filter(|&token| allowed.is_allowed(token)).collect();
        let Some(&token) = tokens.get((usize::from(*choice) + number) % tokens.len().max(1)) else { return };
        if token == EOS {
            return;
        }
        constraint.observe(token).unwrap_or_else(|error| panic!("token {token} of {structure:?}: {error}"));
    }
}

fn open_folder(config_json: &[u8], safetensors: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("config.json"), config_json).expect("a temporary file");
    std::fs::write(folder.path().join("model.safetensors"), safetensors).expect("a temporary file");
    if let Ok(checkpoint) = import::open_model(folder.path()) {
        read_all(&checkpoint);
    }
}

/// Parsing a GGUF file returns, and every row of what it accepts can be read.
pub fn gguf(bytes: &[u8]) {
    let mut text = parse_gguf(Path::new("text.gguf"), &smallest_gguf()).expect("a sound model");
    drop(parse_projector(Path::new("fuzz.gguf"), bytes, &mut text));
    if parse_gguf(Path::new("fuzz.gguf"), bytes).is_err() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("fuzz.gguf");
    std::fs::write(&path, bytes).expect("a temporary file");
    read_all(&import::open_model(&path).unwrap_or_else(|error| panic!("what parses opens: {error}")));
}

fn read_all(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors.values() {
        let mut row = vec![0.0; tensor.cols];
        (0..tensor.rows).for_each(|index| tensor.read_rows(index..index + 1, &mut row));
    }
}

/// Trying a tokenizer.json returns, whatever the library that runs it does.
pub fn tokenizer_json(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    drop(import::tried(text));
}

/// Panics of a trial are answers of [`tokenizer_json`]: a fuzzer must not report them as its own.
pub fn leave_out_panics_of_trials() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |found| {
        if std::thread::current().name() != Some(TRIAL_THREAD) {
            tell(found);
        }
    }));
}

/// Decoding a picture returns. What is decoded becomes patches of finite numbers, as many as the model's size has.
pub fn picture(bytes: &[u8]) {
    let Ok(picture) = Picture::decode(bytes) else { return };
    let section = smallest_image_section();
    let patches = picture.patches(&section).expect("a size that all pictures have").values;
    assert_eq!(patches.len(), (section.patches() * section.patch_width()) as usize);
    assert!(patches.iter().all(|value| value.abs() <= 1.0), "pixels of 0 to 1, less a half, in halves");
}

/// Parsing a chat template and rendering a conversation with it return, and the text is no longer than any context of as many
/// tokens holds.
pub fn chat_template(bytes: &[u8]) {
    const CONTEXT_TOKENS: u32 = 256;
    /// Longer than any token.
    const TOKEN_BYTES: usize = 1 << 12;
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let section = TokenizerSection { chat_template: Some(source.into()), ..TokenizerSection::default() };
    let Ok(template) = ChatTemplate::new(&section, CONTEXT_TOKENS) else { return };
    let messages = [("system", "Be brief."), ("user", "Hello?"), ("assistant", "Hello."), ("user", "{{ bos_token }}")];
    let messages = messages.map(|(role, content)| Message::new(role, content));
    if let Ok(text) = template.render(&messages, &TemplateArguments::default()) {
        assert!(text.len() <= CONTEXT_TOKENS as usize * TOKEN_BYTES, "{} bytes of text", text.len());
    }
}
