//! What people give to `unicorn-compile` that is no model, and the error: what it is, and the command to type next.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tests::models::models;
use tests::programs::program;
use tests::tiny_model::TinyModel;

use crate::outputs::wait_for_half_written;
use crate::refusal::{assert_refused, compile_command};

/// A folder of what people have lying around, each by the name that its row below gives.
fn lay_out(folder: &Path) {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    TinyModel::default().write(folder.join("model"));
    assert!(compile_command(&folder.join("model"), &folder.join("made.unicorn")).status().unwrap().success());
    write("lora/adapter_config.json", br#"{ "base_model_name_or_path": "org/base" }"#);
    write("lora/adapter_model.safetensors", b"");
    write("torch/config.json", b"{}");
    write("torch/pytorch_model.bin", b"PK\x03\x04");
    let gguf = tests::generators::smallest_gguf();
    for name in ["several/a-Q4_K_M.gguf", "several/b-Q8_0.gguf", "only/model.gguf", "split/m-00001-of-00003.gguf"] {
        write(name, &gguf);
    }
    write("iq/model.gguf", &tests::generators::with_tensor_type(&gguf, 16));
    write("notes.txt", b"what I have to buy");
    let mut strange: Value = TinyModel::default().config();
    strange["architectures"] = json!(["\u{1b}[2J\u{7}\nerror: none"]);
    strange["model_type"] = Value::Null;
    write("strange/config.json", strange.to_string().as_bytes());
    write("strange/model.safetensors", b"");
}

/// The command in `folder`, as it is typed there.
fn typed(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program("unicorn-compile");
    command.current_dir(folder).args(arguments).arg("-q");
    // Commands have targets of their own, or none.
    let is_compile = !["replan", "verify", "upgrade", "retarget", "push"].contains(&arguments[0]);
    command.args(is_compile.then_some(["--target", "generic"]).into_iter().flatten());
    command
}

#[test]
fn each_mistake_is_named_with_the_command_to_type_next() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let rows: [(&[&str], &str); 29] = [
        (
            &["made.unicorn", "-o", "out.unicorn"],
            "made.unicorn: file is an artifact, which is compiled already; run it: unicorn-run made.unicorn",
        ),
        (
            &["lora", "-o", "out.unicorn"],
            "lora: folder is a LoRA adapter of org/base, expected a whole model; compile its model with it: \
             unicorn-compile MODEL --lora lora -o lora.unicorn",
        ),
        (
            &["torch", "-o", "out.unicorn"],
            "torch: weights are a PyTorch checkpoint, expected safetensors or GGUF; convert it: python -c \"from transformers \
             import AutoModelForCausalLM as M; M.from_pretrained('torch').save_pretrained('torch', safe_serialization=True)\"; \
             then: unicorn-compile torch -o torch.unicorn",
        ),
        (
            &["torch/pytorch_model.bin", "-o", "out.unicorn"],
            "torch/pytorch_model.bin: weights are a PyTorch checkpoint, expected safetensors or GGUF; convert it: python -c \"from \
             transformers import AutoModelForCausalLM as M; M.from_pretrained('torch').save_pretrained('torch', \
             safe_serialization=True)\"; then: unicorn-compile torch -o torch.unicorn",
        ),
        (
            &["model/model.safetensors", "-o", "out.unicorn"],
            "model/model.safetensors: file has weights alone, expected the folder with config.json that it lies in; \
             compile that: unicorn-compile model -o model.unicorn",
        ),
        (
            &["several", "-o", "out.unicorn"],
            "several: folder has 2 models, expected one of a-Q4_K_M.gguf, b-Q8_0.gguf; such as: unicorn-compile \
             several/a-Q4_K_M.gguf -o a-Q4_K_M.unicorn",
        ),
        (
            &["iq/model.gguf", "-o", "out.unicorn"],
            "iq/model.gguf: tensor token_embd.weight has GGUF type IQ2_XXS, supported are: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, \
             Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4; take a GGUF of one of these, or make one: \
             llama-quantize --allow-requantize iq/model.gguf requantized.gguf Q8_0; then: unicorn-compile requantized.gguf -o \
             requantized.unicorn",
        ),
        (
            &["split/m-00001-of-00003.gguf", "-o", "out.unicorn"],
            "split/m-00001-of-00003.gguf: file is one of 3 parts of a model, m-00002-of-00003.gguf is missing beside it; copy it \
             there, or download it: hf download OWNER/NAME m-00002-of-00003.gguf --local-dir split; then the same command again",
        ),
        (
            &["HuggingFaceTB/SmolLM2-135M-Instruct", "-o", "out.unicorn"],
            "HuggingFaceTB/SmolLM2-135M-Instruct: no such file or folder; it reads like a model's name on Hugging Face, expected a \
             folder or a file on this machine; fetch it, and compile it for this machine's device: unicorn-run pull \
             hf:HuggingFaceTB/SmolLM2-135M-Instruct -o SmolLM2-135M-Instruct.unicorn",
        ),
        (
            &["hf:HuggingFaceTB/SmolLM2-135M@main", "-o", "out.unicorn"],
            "unicorn-run pull hf:HuggingFaceTB/SmolLM2-135M@main -o SmolLM2-135M.unicorn",
        ),
        // Commands that take an artifact.
        (
            &["replan", "only/model.gguf", "--context", "512"],
            "only/model.gguf is a GGUF file, expected an artifact; compile it first: unicorn-compile only/model.gguf -o \
             model.unicorn",
        ),
        (
            &["replan", "only"],
            "only is a folder with a GGUF file, expected an artifact; compile it first: unicorn-compile only -o",
        ),
        (
            &["verify", "model"],
            "model is a Hugging Face folder, expected an artifact; compile it first: unicorn-compile model -o model.unicorn",
        ),
        (&["upgrade", "only/model.gguf"], "only/model.gguf is a GGUF file, expected an artifact; compile it first: "),
        (
            &["retarget", "model", "--target", "llvmpipe"],
            "model is a Hugging Face folder, expected an artifact; compile it",
        ),
        (
            &["push", "only/model.gguf", "oci://registry.example/m:1"],
            "only/model.gguf is a GGUF file, expected an artifact; compile it first: ",
        ),
        (
            &["verify", "lora"],
            "lora is a LoRA adapter, expected an artifact; compile its model with it: unicorn-compile MODEL --lora lora -o",
        ),
        (&["verify", "notes.txt"], "notes.txt is no model, it begins with \"what I h\", expected an artifact"),
        (&["verify", "nowhere"], "nowhere does not exist, expected an artifact; see what is there: ls"),
        (
            &["nowhere", "-o", "out.unicorn"],
            "nowhere: no such file or folder, expected a Hugging Face folder or a GGUF file; see what is there: ls",
        ),
        // A wrong path is named before a missing option.
        (&["nowhere"], "nowhere: no such file or folder"),
        (&["model"], "artifact has no name, expected -o FILE"),
        (
            &["./model/lost/m.gguf", "-o", "out.unicorn"],
            "./model/lost/m.gguf: no such file or folder, expected a Hugging Face folder or a GGUF file; see what is there: ls ./model",
        ),
        (
            &["notes.txt", "-o", "out.unicorn"],
            "notes.txt: file is neither a folder with config.json and model.safetensors nor a GGUF file (magic GGUF); it begins with \
             \"what I h\"",
        ),
        (
            &["model", "-o", "notes.txt"],
            "notes.txt: file exists and is no artifact, expected a new name or an artifact to replace; replace it with --force, or \
             write elsewhere: -o notes.txt.unicorn",
        ),
        (
            &["model", "-o", "missing/out.unicorn"],
            "missing/out.unicorn: file cannot be written: No such file or directory (os error 2) at path",
        ),
        (&["model", "-o", "missing/out.unicorn"], "; make its folder: mkdir -p missing"),
        (&["model", "-o", "out.unicorn", "--budget", "vram=1MiB,gtt=1MiB"], "try --budget gtt="),
        (
            &["strange", "-o", "out.unicorn"],
            "architecture \\u{1b}[2J\\u{7}\\nerror: none is not supported; supported are:\n",
        ),
    ];
    for (arguments, expected) in rows {
        let expected = expected.replace("  ", " ");
        if expected.starts_with("try ") {
            let output = typed(folder.path(), arguments).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            let last = stderr.lines().last().unwrap_or_default();
            assert!(last.contains("--budget gtt=") && last.ends_with("iB"), "{stderr}");
            continue;
        }
        assert_refused(&mut typed(folder.path(), arguments), folder.path(), &[&expected]);
    }
}

#[test]
fn supported_architectures_are_listed_on_lines_that_one_can_read() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let output = typed(folder.path(), &["strange", "-o", "out.unicorn"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let list: Vec<&str> = stderr.lines().skip_while(|line| !line.starts_with("error: ")).skip(1).collect();
    assert!(list.len() > 1 && list.iter().all(|line| line.starts_with("  ") && line.len() <= 100), "{stderr}");
    let names: Vec<&str> =
        list.iter().flat_map(|line| line.split([',', ' '])).filter(|name| !name.is_empty()).collect();
    assert!(names.contains(&"LlamaForCausalLM") && names.contains(&"Gemma2ForCausalLM"), "{stderr}");
}

#[test]
fn a_folder_with_one_gguf_is_compiled() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let output = typed(folder.path(), &["only", "-o", "out.unicorn"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let forced = typed(folder.path(), &["only", "-o", "notes.txt", "--force"]).output().unwrap();
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    let [whole, forced] = ["out.unicorn", "notes.txt"].map(|name| std::fs::read(folder.path().join(name)).unwrap());
    assert!(whole == forced, "the same model is the same artifact");
}

/// The summary is short, and ends with the command to type next; what is missing for a chat is said before the work.
#[test]
fn a_compile_prints_a_summary_of_ten_lines() {
    let folder = tempfile::tempdir().unwrap();
    let compile = |model: &Path, more: &[&str]| {
        let mut command = program("unicorn-compile");
        command.current_dir(folder.path()).arg(model).args(["-o", "out.unicorn", "--target", "generic"]);
        let output = command.args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let model = folder.path().join("a model");
    TinyModel::default().write(&model);
    let (summary, notes) = compile(&model, &[]);
    assert_eq!(summary.lines().count(), 10, "{summary}");
    assert!(summary.starts_with("a model: LlamaForCausalLM, "), "{summary}");
    assert_eq!(summary.lines().last(), Some("  run it    unicorn-run out.unicorn"));
    assert!(
        summary.contains("int4 in groups of 32, ")
            && summary.contains("\n  fits      ")
            && !summary.contains("layers.0.")
    );
    let place = |line: &str| notes.find(line).unwrap_or_else(|| panic!("no {line} in {notes}"));
    let work = place("kernels\n");
    assert!(place("artifact: about ") < work && place("warning: model has no chat template") < work);
    let (with_tensors, _) = compile(&model, &["-v"]);
    assert!(with_tensors.contains("layers.0.mlp.down_proj.weight"), "{with_tensors}");
    let (_, notes) = compile(&models().join("gemma3-2m-draft"), &[]);
    assert!(!notes.contains("warning"), "{notes}");
}

/// For example, a download that begins again: the system ends a process that reads after the end of a mapped file, without a
/// message.
#[test]
fn weights_that_are_cut_while_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (folder.path().join("model"), folder.path().join("out"));
    std::fs::create_dir(&out).unwrap();
    let rows = 1 << 20;
    TinyModel { vocab_size: 320, layers: 1, ..TinyModel::default() }.write(&model);
    let weights = grow_embeddings(&model, rows);
    // f16 alone is made without a look at all weights first.
    let mut compile = compile_command(&model, &out.join("model.unicorn"));
    compile.args(["--weights", "f16"]).stderr(std::process::Stdio::piped());
    let mut running = compile.spawn().unwrap();
    wait_for_half_written(&out, &mut running);
    std::fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(8192).unwrap();
    let output = running.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}: {stderr}", output.status);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.starts_with("error: ") && stderr.contains("model.safetensors: file was cut while it was read"),
        "{stderr}"
    );
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0, "something was left");
}

/// Rewrites the weights with `rows` rows of embeddings, all zero and none of them on the disk; returns their file.
fn grow_embeddings(model: &Path, rows: usize) -> std::path::PathBuf {
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["vocab_size"] = json!(rows);
    config["tie_word_embeddings"] = json!(true);
    std::fs::write(path, config.to_string()).unwrap();
    std::fs::remove_file(model.join("tokenizer.json")).unwrap();
    let hidden = config["hidden_size"].as_u64().unwrap() as usize;
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for tensor in (TinyModel { vocab_size: 320, layers: 1, tied: true, ..TinyModel::default() }).tensors() {
        let shape = if tensor.name.contains("embed_tokens") { vec![rows, hidden] } else { tensor.shape };
        let bytes = 2 * shape.iter().product::<usize>();
        header.insert(tensor.name, json!({ "dtype": "BF16", "shape": shape, "data_offsets": [end, end + bytes] }));
        end += bytes;
    }
    let mut header = Value::Object(header).to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let path = model.join("model.safetensors");
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    path
}
