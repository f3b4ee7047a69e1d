//! Whole models whose device is lost while they generate: the text continues unchanged. The kernels are those of real
//! families, whose sums come out otherwise in another order; `runtime/tests/faults.rs` fails every call, of a toy.
//!
//! `cargo test -p tests --features fault-injection --test faults`

use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tests::compiled::{Compiled, Silent, eight_layers, options, with};
use tests::http::{get, post};
use tests::known_texts::known_texts;
use tests::models::models;
use tests::skip;
use unicorn_compiler::{NpuOptions, NpuWork, Source, compile};
use unicorn_npu_simulator::Simulator;
use unicorn_runtime::npu::{NpuOpener, NpuUse};
use unicorn_runtime::{
    BatchRow, DeviceChoice, Fault, FaultKind, LoadError, LoadOptions, Model, RunError, Sampling, Session, UploadPath,
    Verification,
};
use unicorn_runtime::{inject, inject_into, injected, limit_reads, made_calls};
use unicorn_serve::{HttpLimits, HttpListener, ServeOptions, Server};
use unicorn_spirv::target;

/// How many of the calls after loading are failed, one a run.
const FAULTS: u64 = 12;

/// Faults are counted for the whole process: one test at a time.
static ONE_TEST: Mutex<()> = Mutex::new(());

fn one_test() -> MutexGuard<'static, ()> {
    ONE_TEST.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn load_options() -> LoadOptions {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    // However slow the device, decode has several steps in a submission.
    LoadOptions::default().with(|options| {
        options.device = DeviceChoice::Name(device);
        options.slots = 2;
        options.multistep = Duration::MAX;
    })
}

/// A seeded text: a prompt of several steps, some of them long, then samples, the same with drafts, some more beside another text, and the
/// logits of three tokens at its end.
fn text(model: &Model) -> Result<(Vec<u32>, Vec<u32>), RunError> {
    let vocab_size = model.meta().model.vocab_size;
    let prompt: Vec<u32> = (0..90).map(|index| (index * 7919 + 13) % vocab_size).collect();
    let sampling = Sampling::default().with(|sampling| {
        sampling.temperature = 1.0;
        sampling.repeat_penalty = 1.3;
        sampling.seed = 11;
    });
    let mut session = model.session()?;
    let mut samples = sampled(&mut session, &prompt, &sampling)?;
    // The same with drafts of it, a part of which is rejected.
    session.clear();
    session.set_speculation(Some(&known_texts(vec![[&prompt[..], &samples].concat()])))?;
    samples.extend(sampled(&mut session, &prompt, &sampling)?);
    let counts = session.take_draft_counts();
    assert!(counts.accepted > 0 && counts.accepted < counts.proposed, "{counts:?}");
    let mut other = model.session()?;
    other.feed(&prompt[..7])?;
    let rows = [&mut session, &mut other].map(|session| BatchRow { session, token: samples[0], sampling: &sampling });
    for sampled in model.generate_batch(rows, 6) {
        samples.extend(sampled?.iter().map(|one| one.token));
    }
    let mut bits = Vec::new();
    session.feed_with_logits(&prompt[..3], &mut |_, row| bits.extend(row.iter().map(|logit| logit.to_bits())))?;
    Ok((samples, bits))
}

/// Samples behind a prompt that is fed in parts.
fn sampled(session: &mut Session, prompt: &[u32], sampling: &Sampling) -> Result<Vec<u32>, RunError> {
    session.feed(&prompt[..60])?;
    let first = session.feed_and_sample(&prompt[60..], sampling)?.token;
    let rest = session.generate(first, sampling, 24).map(|sampled| Ok(sampled?.token));
    std::iter::once(Ok(first)).chain(rest).collect()
}

#[test]
fn the_text_after_a_lost_device_is_the_text_without_it() {
    let _lock = one_test();
    for name in ["gemma3-text", "phi3-longrope-long", "qwen35-delta"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny").join(name);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.unicorn");
        let targets = ["llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
        compile(Source::Model(&source), &path, &options(targets, Vec::new()), &mut Silent).expect("it compiles");
        let model = Model::load(&path, &load_options()).expect("it loads");

        inject(None);
        let expected = text(&model).expect("the steps run");
        let (calls, _) = injected();
        for number in 0..FAULTS {
            let fault = Fault { call: number * calls / FAULTS, kind: FaultKind::DeviceLost };
            inject(Some(fault));
            let found = text(&model).unwrap_or_else(|error| panic!("{name}, {fault:?}: {error}"));
            assert!(found == expected, "{name}, {fault:?}: the text differs");
        }
        assert!(!model.take_recoveries().is_empty(), "{name}: no fault occurred");
    }
}

/// A GPU that is lost while an NPU works on another part of the step's rows: the NPU's commands end, and the step runs again with both.
#[test]
fn a_gpu_that_is_lost_beside_an_npu_comes_back() {
    let _lock = one_test();
    let made = with(options(vec![target::by_name("generic").unwrap()], Vec::new()), |options| {
        let work = Some(vec![NpuWork::Qkv, NpuWork::Ffn]);
        options.npu = Some(NpuOptions::default().with(|npu| (npu.rows, npu.work) = (8, work)));
    });
    let compiled = Compiled::of_folder(&models().join("tiny/llama3-rope"), &made);
    let simulator = Simulator::default();
    simulator.run_late();
    let opened = simulator.clone();
    let options = load_options().with(|options| {
        (options.npu, options.npu_opener) = (NpuUse::Required, NpuOpener::new(move || opened.open()));
    });
    inject(None);
    let model = Model::load(&compiled.artifact_path(), &options).expect("it loads");
    let tokens: Vec<u32> = (0..64).map(|index| index * 37 % 500).collect();
    let logits = |model: &Model| {
        let mut bits = Vec::new();
        let mut session = model.session()?;
        session.feed_with_logits(&tokens, &mut |_, row| bits.extend(row.iter().map(|logit| logit.to_bits())))?;
        Ok::<_, RunError>(bits)
    };
    inject(None);
    let expected = logits(&model).expect("the step runs");
    let calls = made_calls();
    let mut faults = 0;
    for name in ["vkQueueSubmit", "vkWaitSemaphores", "vkWaitForFences"] {
        let count = calls.iter().filter(|call| **call == name).count() as u64;
        for call in [0, count / 2, count - 1] {
            for kind in [FaultKind::DeviceLost, FaultKind::DeviceLostAfter] {
                inject_into(name, Fault { call, kind });
                let found = logits(&model).unwrap_or_else(|error| panic!("{name} {call}, {kind:?}: {error}"));
                assert!(found == expected, "{name} {call}, {kind:?}: other logits");
                faults += usize::from(injected().1.is_some());
            }
        }
    }
    inject(None);
    let recoveries = model.take_recoveries();
    assert!(faults >= 12 && recoveries.len() >= faults, "{faults} faults, {} recoveries", recoveries.len());
    assert!(recoveries.iter().all(|recovery| !recovery.without_npu), "{recoveries:?}");
    assert_eq!(simulator.errors(), Vec::<String>::new());
}

/// A server reports a device that cannot be made ready again as long as it cannot, and then that it was lost.
#[test]
fn a_lost_device_shows_in_a_server_s_health() {
    let _lock = one_test();
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
    let compiled = Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, Vec::new()));
    inject(None);
    let model = Model::load(&compiled.artifact_path(), &load_options()).expect("it loads");
    let listener = HttpListener::bind("127.0.0.1:0").expect("a free port");
    let mut served = ServeOptions::default();
    served.address = listener.address().tcp();
    served.metrics = true;
    let address = served.address.expect("it is no socket in a folder").to_string();
    let server = Server::new(&model, served).expect("it begins");
    let _serving = listener.serve("http", server.router(), HttpLimits::default()).expect("it listens");
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || server.run(&mut |_| ()));

    let health = || {
        let (head, body) = get(&address, "/health");
        (head.split(' ').nth(1).expect("a status").to_owned(), body)
    };
    let ask = || post(&address, "/v1/completions", r#"{"prompt": "The sea", "max_tokens": 4, "temperature": 0}"#);
    let (_, before) = ask();
    assert_eq!(health(), ("200".to_owned(), r#"{"status":"ok"}"#.to_owned()));

    inject(Some(Fault { call: 2, kind: FaultKind::DeviceRemoved }));
    let (head, body) = ask();
    assert!(head.starts_with("HTTP/1.0 500 "), "{head}\n{body}");
    let (status, body) = health();
    assert!(status == "503" && body.contains(r#""status":"unavailable""#) && body.contains("tries again"), "{body}");

    inject(None);
    let (head, after) = ask();
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}\n{after}");
    let text = |body: &str| body.split("\"text\":").nth(1).map(|rest| rest.split(',').next().map(str::to_owned));
    assert_eq!(text(&after), text(&before));
    let (status, body) = health();
    assert!(status == "200" && body.contains(r#""status":"degraded""#), "{body}");
    let (_, metrics) = get(&address, "/metrics");
    assert!(metrics.contains("\nunicorn:device_losses_total 1\n"), "{metrics}");
    stopper.stop();
    thread.join().expect("no panic");
}

/// Reads are suspended after the first layers, so that the first step runs while the last layers are missing.
#[test]
fn a_lazy_load_computes_beside_its_reads_and_gives_the_text_of_an_eager_one() {
    let _lock = one_test();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (config, path) = (folder.path().join("config.json"), folder.path().join("model.unicorn"));
    // 150 million bytes.
    std::fs::write(&config, eight_layers(16384, 1024)).expect("there is room");
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
    compile(Source::Synthetic(&config), &path, &options(targets, Vec::new()), &mut Silent).expect("it compiles");
    inject(None);
    let eager = Model::load(&path, &load_options()).expect("it loads");
    let expected = text(&eager).expect("the steps run");
    drop(eager);
    // The toy of `runtime/tests/faults.rs` covers all four upload paths; steps of this model take long on a software device.
    for (upload_path, first_reads) in [(UploadPath::Map, FIRST_MIB), (UploadPath::Staging, FIRST_MIB / 4)] {
        inject(None);
        limit_reads(Some(first_reads));
        let options = load_options().with(|options| {
            options.residency = Some(upload_path);
            options.lazy = true;
        });
        let model = match Model::load(&path, &options) {
            Err(LoadError::Residency { refusals, .. }) => {
                skip("upload path", refusals.join("; "));
                continue;
            }
            loaded => loaded.unwrap_or_else(|error| panic!("{upload_path}: {error}")),
        };
        // The loader allocates and copies meanwhile; then it waits without calls.
        let mut before = injected().0;
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let now = injected().0;
            if now == before {
                break;
            }
            before = now;
        }
        let found = std::thread::scope(|scope| {
            let found = scope.spawn(|| text(&model).expect("the steps run"));
            while injected().0 == before {
                std::thread::yield_now();
            }
            assert!(model.report().upload.is_none() && !found.is_finished(), "{upload_path}");
            limit_reads(None);
            found.join().expect("no panic")
        });
        assert!(found == expected, "{upload_path}: the text differs");
        model.wait_for_weights().expect("the load succeeds");
        let upload = model.report().upload.expect("the load has ended");
        assert!(matches!(upload.verification, Verification::OnDevice { .. }), "{upload_path}: {upload:?}");
        // Now with the ordinary programs.
        assert!(text(&model).expect("the steps run") == expected, "{upload_path}: the text differs");
    }
}

/// MiB that are read before reads are suspended, of some 150: the embedding, and a layer or two. Reads in place are of 1 MiB, reads
/// to be copied of 4 MiB.
const FIRST_MIB: u64 = 64;
