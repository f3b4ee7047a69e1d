//! What is resident: by every upload path, and whether a wrong bit is found.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tests::compiled::{Compiled, Silent, eight_layers, options};
use tests::launch::{Launch, Operand};
use tests::programs::program;
use tests::skip;
use tests::tiny_model::TinyModel;
use unicorn_artifact::hash::HashedRange;
use unicorn_artifact::{ArtifactView, MappedFile};
use unicorn_compiler::{Source, compile};
use unicorn_kernels::KernelSpec;
use unicorn_kernels::checksum::{self, ChecksumSpec};
use unicorn_runtime::{
    DeviceChoice, LoadError, LoadOptions, Model, Sampling, UploadPath, Verification, measure_transfers,
};
use unicorn_spirv::target;

const COPYING: [UploadPath; 3] = [UploadPath::Map, UploadPath::Host, UploadPath::Staging];

#[test]
fn every_upload_path_is_verified_on_the_device() {
    let artifact = artifact();
    for upload_path in UploadPath::ALL {
        let Some(model) = load(&artifact.path(), upload_path, &mut |_, _| ()) else { continue };
        let model = model.unwrap_or_else(|error| panic!("{upload_path}: {error}"));
        let upload = model.report().upload.expect("an eager load ends with everything there");
        assert!(matches!(upload.verification, Verification::OnDevice { .. }), "{upload_path}");
        assert!(!upload.audit.to_string().is_empty());
    }
}

/// What loading is compared with: a rate for every memory that there is, and none for what there is not.
#[test]
fn transfers_to_every_memory_are_measured() {
    let devices = unicorn_runtime::devices().expect("there is a Vulkan driver");
    assert!(!devices.is_empty());
    for facts in devices {
        let found = measure_transfers(&facts).unwrap_or_else(|error| panic!("{}: {error}", facts.name));
        let reads_host_memory = facts.memory_types.iter().any(|kind| kind.host_visible && !kind.device_local);
        assert_eq!([found.copied_to_host, found.mapped_host].map(|rate| rate.is_some()), [reads_host_memory; 2]);
        let rates = [Some(found.copied), found.copied_to_host, found.mapped_device, found.mapped_host];
        assert!(rates.into_iter().flatten().all(|rate| rate > 0.0 && rate.is_finite()), "{}: {found:?}", facts.name);
    }
}

/// The file is changed while it is read, and restored before it is read again: only the resident bytes are wrong.
#[test]
fn one_wrong_bit_in_device_memory_is_found() {
    let artifact = artifact();
    let wrong_at = 3 * (64 << 10) + 12_345;
    for upload_path in COPYING {
        let mut progress = |done, total| {
            if done == 0 || done == total {
                artifact.flip(wrong_at, 0x10);
            }
        };
        let Some(loaded) = load(&artifact.path(), upload_path, &mut progress) else { continue };
        let error = loaded.err().unwrap_or_else(|| panic!("{upload_path}: nothing was found"));
        match &error {
            LoadError::WrongBytes { slice: 0, range, wrong: 1, .. } => {
                assert!(range.contains(&wrong_at) && range.end - range.start == 64 << 10, "{upload_path}: {range:?}")
            }
            other => panic!("{upload_path}: {other}"),
        }
        assert!(
            error.to_string().starts_with("weight slice 0 is not resident as the artifact holds it: bytes 196608 to")
        );
    }
    // The file itself was mended each time.
    assert!(load(&artifact.path(), UploadPath::Staging, &mut |_, _| ()).expect("every device has this one").is_ok());
}

#[test]
fn a_damaged_file_is_not_taken_for_damaged_memory() {
    let artifact = artifact();
    artifact.flip(5, 1);
    for upload_path in UploadPath::ALL {
        let Some(loaded) = load(&artifact.path(), upload_path, &mut |_, _| ()) else { continue };
        let error = loaded.err().unwrap_or_else(|| panic!("{upload_path}: nothing was found"));
        assert!(matches!(error, LoadError::Artifact { .. }), "{upload_path}: {error}");
    }
}

/// Truncating a file while it is read is an error and does not end the process.
#[test]
fn a_file_that_is_cut_while_it_loads_is_an_error() {
    for upload_path in UploadPath::ALL {
        let artifact = artifact();
        let mut progress = |done, _| {
            if done == 0 {
                let file = OpenOptions::new().write(true).open(artifact.path()).unwrap();
                file.set_len(artifact.weights_at).unwrap();
            }
        };
        let Some(loaded) = load(&artifact.path(), upload_path, &mut progress) else { continue };
        let error = loaded.err().unwrap_or_else(|| panic!("{upload_path}: nothing was found"));
        assert!(matches!(error, LoadError::File { .. }), "{upload_path}: {error}");
    }
}

/// Steps begin before everything is there, and end as if it had been. Which of them do is shown by `faults`.
#[test]
fn a_lazy_load_samples_what_an_eager_one_samples() {
    let artifact = artifact();
    let text = |model: &Model| {
        let mut session = model.session().unwrap();
        let first = session.feed_and_sample(&[1, 5, 9, 2], &Sampling::default()).unwrap().token;
        let mut samples = vec![first];
        samples.extend(session.generate(first, &Sampling::default(), 20).map(|sampled| sampled.unwrap().token));
        samples
    };
    let expected =
        text(&load(&artifact.path(), UploadPath::Staging, &mut |_, _| ()).expect("every device has it").unwrap());
    for upload_path in UploadPath::ALL {
        // Measured at load, as on a GPU: while weights are being loaded.
        for submission in [None, Some(Duration::from_micros(100))] {
            let options = load_options(upload_path).with(|options| {
                options.lazy = true;
                options.submission = submission;
            });
            let Some(model) = load_with(&artifact.path(), &options, &mut |_, _| ()) else { continue };
            let model = model.unwrap_or_else(|error| panic!("{upload_path}: {error}"));
            assert_eq!(text(&model), expected, "{upload_path}");
            model.wait_for_weights().unwrap();
            let upload = model.report().upload.expect("the load has ended");
            assert!(matches!(upload.verification, Verification::OnDevice { .. }), "{upload_path}: {upload:?}");
            assert_eq!(text(&model), expected, "{upload_path}, everything there");
        }
    }
    assert_eq!(unicorn_runtime::validation_messages(), 0, "the validation layer reported messages");
}

/// `unicorn-run` prints the same error for a damaged file however it loads, and fails.
#[test]
fn a_lazy_load_of_a_damaged_file_fails_as_an_eager_one_does() {
    let artifact = artifact();
    let run = |lazy: bool| {
        let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
        let mut run = program("unicorn-run");
        run.arg(artifact.path()).args(["--device", &device, "-p", "a", "-n", "8", "--temp", "0", "--json"]);
        run.args(lazy.then_some("--lazy")).output().unwrap()
    };
    let sound = [false, true].map(|lazy| {
        let output = run(lazy);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{complaint}"));
        for key in ["first_token_s", "load_resident_s", "load_s"] {
            assert!(json[key].as_f64().is_some_and(|seconds| seconds > 0.0), "{key}: {json}");
        }
        assert_eq!(json["load_verified"], "device");
        json["tokens"].clone()
    });
    assert_eq!(sound[0], sound[1]);
    artifact.flip(5, 1);
    let errors = [false, true].map(|lazy| {
        let output = run(lazy);
        assert_eq!(output.status.code(), Some(1));
        let complaint = String::from_utf8(output.stderr).unwrap();
        complaint.lines().rfind(|line| line.starts_with("error: ")).expect("an error").to_owned()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].contains("hash"), "{}", errors[0]);
}

/// The kernel against its twin: every length from part of a word to several subtrees, and a range in the middle of its section.
#[test]
fn checksum_of_any_range() {
    let mut rng = StdRng::seed_from_u64(14);
    let lengths = [1, 17, 64, 65, 1000, 1024, 1025, 5000, 65_535, 65_536, 65_537, 3 << 16, 200_001];
    for len in lengths {
        let target = target::by_name("generic").expect("a preset");
        let mut bytes = vec![0u8; len];
        rng.fill_bytes(&mut bytes);
        let first_chunk = if len == 200_001 { 64 * 7 } else { 0 };
        let range = HashedRange { first_chunk, len_bytes: len as u32, is_root: len <= 1 << 16 };
        let expected = checksum::hashes(range, &bytes);
        // What lies behind the range does not count.
        bytes.resize(len.next_multiple_of(64), 0xa5);
        let hashes = Operand::Out { id: 0, words: 8 * expected.len() };
        let operands = vec![Operand::Bytes(bytes), Operand::words(&range.to_words()), hashes];
        let steps = vec![(KernelSpec::Checksum(ChecksumSpec {}), operands)];
        let (rows, none) = (expected.len(), Vec::new());
        let tokens = vec![1; rows];
        let launch =
            Launch { target, steps, kv: None, rows, rows_per_token: 1, other: none.clone(), before: none, tokens };
        assert_eq!(launch.run()[&0], expected.concat(), "{len} bytes");
    }
}

/// A process that may have 512 MiB beside the weights: no upload path makes a second copy, not even for a moment. On llvmpipe the
/// weights themselves are this process's memory, except where they are imported from the file.
#[test]
fn loading_takes_no_second_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (config, artifact) = (folder.path().join("config.json"), folder.path().join("large.unicorn"));
    // 302 million bytes of INT4.
    fs::write(&config, eight_layers(8192, 2048)).unwrap();
    // A token by `generic` takes seconds on a software device.
    let targets = ["llvmpipe", "generic"].map(|name| target::by_name(name).expect("a preset")).to_vec();
    compile(Source::Synthetic(&config), &artifact, &options(targets, Vec::new()), &mut Silent).expect("it compiles");
    let weight_bytes = fs::metadata(&artifact).unwrap().len();
    assert!(weight_bytes > 256 << 20, "{weight_bytes} bytes: a second copy would go unseen");
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    forget(&artifact);
    // A file system without a cache of its own, such as tmpfs, drops nothing.
    let is_watched = cached_bytes(&artifact) == 0;
    if !is_watched {
        skip("page cache", format_args!("{} stays in it", artifact.display()));
    }
    for upload_path in UploadPath::ALL {
        let beside_bytes = if upload_path == UploadPath::Import { 0 } else { weight_bytes };
        let limit_kib = (beside_bytes + (512 << 20)) >> 10;
        let run = program("unicorn-run");
        let output = Command::new("sh")
            .args(["-c", &format!("ulimit -d {limit_kib} && exec \"$0\" \"$@\"")])
            .arg(run.get_program())
            .arg("bench")
            .arg(&artifact)
            .args([
                "--device",
                &device,
                "--residency",
                upload_path.name(),
                "-p",
                "1",
                "-n",
                "1",
                "-r",
                "1",
                "--json",
                "--no-cache",
                "--direct-io",
            ])
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        if complaint.contains("weights cannot reach") && device != "llvmpipe" {
            skip("upload path", complaint);
            continue;
        }
        assert!(output.status.success(), "{upload_path} in {limit_kib} KiB: {complaint}");
        if is_watched && upload_path != UploadPath::Import {
            let left_bytes = cached_bytes(&artifact);
            assert!(left_bytes < weight_bytes / 8, "{upload_path} leaves {left_bytes} bytes in the page cache");
        }
    }
}

/// The second start finds the weights where the first one left them.
#[test]
fn weights_stay_in_the_page_cache_where_memory_is_plentiful() {
    let artifact = artifact();
    forget(&artifact.path());
    if cached_bytes(&artifact.path()) > 0 {
        return skip("page cache", format_args!("{} stays in it", artifact.path().display()));
    }
    let loaded = |direct_io| {
        let options = load_options(UploadPath::Map).with(|options| options.direct_io = direct_io);
        Model::load(&artifact.path(), &options).unwrap_or_else(|error| panic!("{error}"));
        cached_bytes(&artifact.path())
    };
    let file_bytes = fs::metadata(artifact.path()).unwrap().len();
    let left_bytes = loaded(true);
    assert!(left_bytes < file_bytes / 2, "direct reads leave {left_bytes} of {file_bytes} bytes");
    let kept_bytes = loaded(false);
    assert!(kept_bytes > file_bytes / 2, "{kept_bytes} of {file_bytes} bytes stay");
}

/// So `host` decides how it reads.
#[test]
fn the_state_of_the_page_cache_is_detected() {
    const MIB: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![1; 32 * MIB]).unwrap();
    let file = MappedFile::open(&path).unwrap();
    assert!(file.is_cached(5..7 * MIB), "it was just written");
    forget(&path);
    if cached_bytes(&path) > 0 {
        return skip("page cache", format_args!("{} stays in it", path.display()));
    }
    assert!(!file.is_cached(0..32 * MIB));
    file.file().read_exact_at(&mut vec![0; 4 * MIB], 8 * MIB as u64).unwrap();
    // How far the system reads ahead is its own affair.
    let found = [8 * MIB..12 * MIB, 8 * MIB + 5..8 * MIB + 6, 0..32 * MIB, 28 * MIB..32 * MIB];
    assert_eq!(found.map(|range| file.is_cached(range)), [true, true, false, false]);
}

/// Drops the file from the page cache, where its file system has one.
fn forget(file: &Path) {
    let mut of = OsString::from("of=");
    of.push(file);
    let dd = Command::new("dd").arg(of).args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0"]).output();
    assert!(dd.unwrap().status.success(), "dd fails");
}

/// How much of a file is in the page cache.
fn cached_bytes(file: &Path) -> u64 {
    let fincore = Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(file).output();
    let fincore = fincore.expect("fincore, which Debian keeps in util-linux-extra");
    String::from_utf8(fincore.stdout).unwrap().trim().parse().expect("a number of bytes")
}

struct Artifact {
    compiled: Compiled,
    /// First byte of the first weight section.
    weights_at: u64,
}

impl Artifact {
    fn path(&self) -> PathBuf {
        self.compiled.artifact_path()
    }

    /// Changes bits of the byte at `offset` of the first slice; twice changes nothing.
    fn flip(&self, offset: u64, bits: u8) {
        let file = OpenOptions::new().read(true).write(true).open(self.path()).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.weights_at + offset).unwrap();
        file.write_all_at(&[byte[0] ^ bits], self.weights_at + offset).unwrap();
    }
}

/// A slice of a few hundred KiB.
fn artifact() -> Artifact {
    let model = TinyModel { hidden: 256, intermediate: 512, ..TinyModel::default() };
    let targets = vec![target::by_name("generic").expect("a preset")];
    let compiled = Compiled::of(&model, &options(targets, Vec::new()));
    let bytes = fs::read(compiled.artifact_path()).unwrap();
    let weights = ArtifactView::parse(&bytes).unwrap().weights()[0];
    assert!(weights.bytes.len() > 4 * (64 << 10), "{} bytes", weights.bytes.len());
    Artifact { compiled, weights_at: weights.offset_bytes }
}

/// `None` if the device has no such upload path.
fn load(path: &Path, upload_path: UploadPath, progress: &mut dyn FnMut(u64, u64)) -> Option<Result<Model, LoadError>> {
    load_with(path, &load_options(upload_path), progress)
}

fn load_options(upload_path: UploadPath) -> LoadOptions {
    let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
    let (device, residency) = (DeviceChoice::Name(device), Some(upload_path));
    // However slow the device, decode has several steps in a submission, once the weights are there.
    LoadOptions::default().with(|options| {
        options.device = device;
        options.residency = residency;
        options.multistep = Duration::MAX;
    })
}

/// The same.
fn load_with(
    path: &Path,
    options: &LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Option<Result<Model, LoadError>> {
    let mut progress = |done, total| {
        progress(done, total);
        ControlFlow::Continue(())
    };
    match Model::load_with_progress(path, options, &mut progress) {
        Err(LoadError::Residency { refusals, .. }) => {
            skip("upload path", refusals.join("; "));
            None
        }
        loaded => Some(loaded),
    }
}
