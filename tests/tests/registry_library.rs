//! Push and pull by the library alone, against a real registry: layers, interruption, damage, sharing, signatures. Texts and command lines
//! are in `registry.rs` and `signing.rs` beside it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tempfile::TempDir;
use tests::registry::{Line, Proxy, Registry};
use unicorn_artifact::{ArtifactView, ArtifactWriter};
use unicorn_registry::{
    OciReference, PullOptions, Pulled, PushOptions, Pushed, RegistryError, SigningKey, Store, Targets, Trust, copy_to,
    pull, push,
};

/// The committed artifact with the kernels of its target under these names.
fn artifact(folder: &Path, targets: &[&str]) -> PathBuf {
    write_artifact(&folder.join(format!("{}.unicorn", targets.join("-"))), targets, None)
}

/// The same at `path`, and as its draft the same with kernels of these names.
fn write_artifact(path: &Path, targets: &[&str], of_draft: Option<&[&str]>) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../artifacts/golden/v8-tiny.unicorn");
    let bytes = std::fs::read(golden).unwrap();
    let view = ArtifactView::parse(&bytes).unwrap();
    let named = |name: &&str| {
        let mut target = view.kernels.targets[0].clone();
        target.name = (*name).into();
        target
    };
    let kernels = |targets: &[&str]| {
        let mut kernels = view.kernels.clone();
        kernels.targets = targets.iter().map(named).collect();
        kernels
    };
    let write_weights = |writer: &mut ArtifactWriter| {
        for section in view.weights() {
            writer.begin_slice().unwrap();
            writer.weight_bytes(section.bytes).unwrap();
        }
    };
    let n_slices = view.weights().len();
    let mut writer = ArtifactWriter::create(path, n_slices).unwrap();
    write_weights(&mut writer);
    let mut last = kernels(targets);
    if let Some(of_draft) = of_draft {
        writer = writer.begin_draft(&view.meta, &view.plan, &last, &view.tokenizer, n_slices).unwrap();
        write_weights(&mut writer);
        last = kernels(of_draft);
    }
    writer.finish(&view.meta, &view.plan, &last, &view.tokenizer).unwrap();
    path.to_owned()
}

fn push_to(path: &Path, reference: &str, key: Option<&SigningKey>) -> Pushed {
    let reference: OciReference = reference.parse().unwrap();
    let mut options = PushOptions::default();
    (options.plain_http, options.chunk_bytes, options.signing_key) = (true, 4 << 10, key);
    push(path, &reference, &options).unwrap()
}

fn pull_by(store: &Store, reference: &str, targets: Targets, trust: Option<&Trust>) -> Result<Pulled, RegistryError> {
    let reference: OciReference = reference.parse().unwrap();
    let last = Mutex::new(None);
    let progress = |transfer| *last.lock().unwrap() = Some(transfer);
    let mut options = PullOptions::default();
    (options.plain_http, options.targets, options.trust, options.progress) = (true, targets, trust, &progress);
    let pulled = pull(store, &reference, &options)?;
    if let Some(last) = last.into_inner().unwrap() {
        assert_eq!(
            (last.done_bytes, last.moved_bytes),
            (last.total_bytes, pulled.moved_bytes),
            "progress ends at its end"
        );
    }
    Ok(pulled)
}

fn store(folder: &TempDir) -> Store {
    Store::at(folder.path().join("store"))
}

/// The registry, and a folder; `None` where there is no registry, which the tests of `registry.rs` report.
fn start() -> Option<(Registry, TempDir)> {
    Some((Registry::start()?, tempfile::tempdir().unwrap()))
}

fn names(folder: &TempDir, kind: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path().join("store").join(kind)).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A draft is one layer, whichever kernels of its model are fetched.
#[test]
fn a_draft_arrives_with_its_model() {
    let Some((registry, folder)) = start() else { return };
    let both = folder.path().join("both.unicorn");
    write_artifact(&both, &["rdna3", "generic"], Some(&["generic"]));
    let (reference, store) = (registry.reference("tiny:1"), store(&folder));
    push_to(&both, &reference, None);
    let own = pull_by(&store, &reference, Targets::FirstOf(vec!["generic".into()]), None).unwrap();
    let expected = write_artifact(&folder.path().join("own.unicorn"), &["generic"], Some(&["generic"]));
    assert!(std::fs::read(&own.stored.path).unwrap() == std::fs::read(expected).unwrap(), "as if it were written so");
    let all = pull_by(&store, &reference, Targets::All, None).unwrap();
    assert!(std::fs::read(&all.stored.path).unwrap() == std::fs::read(&both).unwrap(), "the same bytes");
}

#[test]
fn the_same_bytes_arrive_and_fewer_kernels_are_an_artifact_too() {
    let Some((registry, folder)) = start() else { return };
    let (path, reference) = (artifact(folder.path(), &["rdna3", "generic"]), registry.reference("tiny:1"));
    let pushed = push_to(&path, &reference, None);
    assert_eq!(push_to(&path, &reference, None), Pushed { moved_bytes: 0, ..pushed.clone() });

    let store = store(&folder);
    let own = pull_by(&store, &reference, Targets::FirstOf(vec!["generic".into(), "gcn".into()]), None).unwrap();
    let bytes = std::fs::read(&own.stored.path).unwrap();
    let (small, whole) = (ArtifactView::parse(&bytes).unwrap(), std::fs::read(&path).unwrap());
    let view = ArtifactView::parse(&whole).unwrap();
    assert_eq!(small.kernels.targets, view.kernels.targets[1..]);
    assert_eq!((&small.meta, &small.plan, &small.tokenizer), (&view.meta, &view.plan, &view.tokenizer));
    assert!(small.weights().iter().zip(view.weights()).all(|(one, other)| one.bytes == other.bytes));
    // As the writer would have written it.
    assert!(bytes == std::fs::read(artifact(folder.path(), &["generic"])).unwrap());

    let all = pull_by(&store, &reference, Targets::All, None).unwrap();
    assert!(std::fs::read(&all.stored.path).unwrap() == whole, "the same bytes");
    assert!(all.moved_bytes < own.moved_bytes, "weights do not come again: {all:?}");
    let copy = folder.path().join("copy.unicorn");
    copy_to(&all.stored.path, &copy).unwrap();
    assert!(std::fs::read(&copy).unwrap() == whole);
    assert_eq!(pull_by(&store, &reference, Targets::All, None).unwrap().moved_bytes, 0);
    let refusal = pull_by(&store, &reference, Targets::Named(vec!["rdna9".into()]), None).unwrap_err().to_string();
    assert!(refusal.contains("no kernels for rdna9, only for rdna3, generic"), "{refusal}");

    assert_eq!(store.list().len(), 1);
    assert_eq!(store.gc().unwrap().artifacts, 1, "the smaller one has lost its name");
    assert_eq!(store.remove(&reference).unwrap().artifacts, 1);
    assert!(names(&folder, "artifacts").is_empty() && store.remove(&reference).is_err());
}

/// With sections of kinds that the registry does not read.
#[test]
fn an_artifact_with_npu_programs_arrives_whole() {
    let Some((registry, folder)) = start() else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../artifacts/golden/v8.1-npu.unicorn");
    let reference = registry.reference("npu:1");
    push_to(&path, &reference, None);
    let pulled = pull_by(&store(&folder), &reference, Targets::All, None).unwrap();
    assert!(std::fs::read(&pulled.stored.path).unwrap() == std::fs::read(&path).unwrap(), "the same bytes");
}

#[test]
fn new_kernels_cost_only_themselves() {
    let Some((registry, folder)) = start() else { return };
    let (store, reference) = (store(&folder), registry.reference("tiny:1"));
    let before = push_to(&artifact(folder.path(), &["generic"]), &reference, None);
    pull_by(&store, &reference, Targets::All, None).unwrap();
    let more = artifact(folder.path(), &["rdna3", "generic"]);
    let pushed = push_to(&more, &reference, None);
    let pulled = pull_by(&store, &reference, Targets::All, None).unwrap();
    assert!(std::fs::read(&pulled.stored.path).unwrap() == std::fs::read(&more).unwrap());
    // A head and a target, whose record differs from the other's by its name.
    let kernels = pushed.total_bytes - before.total_bytes;
    assert!((kernels..kernels + 1024).contains(&pushed.moved_bytes), "{pushed:?}");
    assert_eq!(pulled.moved_bytes, kernels);
}

#[test]
fn interruptions_cost_little() {
    let Some((registry, folder)) = start() else { return };
    let path = artifact(folder.path(), &["rdna3", "generic"]);
    let total = push_to(&path, &registry.reference("tiny:1"), None).total_bytes;
    let store = store(&folder);
    // A line that ends each connection within the largest layers: they go on where they were.
    let line = Proxy::to(registry.address(), Line::Cuts(total / 8));
    let pulled = pull_by(&store, &format!("oci://{}/tiny:1", line.address), Targets::All, None).unwrap();
    assert!(std::fs::read(&pulled.stored.path).unwrap() == std::fs::read(&path).unwrap());
    assert!(line.passed() < total * 2, "{} bytes came for {total}", line.passed());
    store.remove(&format!("oci://{}/tiny:1", line.address)).unwrap();
    assert!(names(&folder, "artifacts").is_empty() && names(&folder, "partial").is_empty());
}

#[test]
fn damage_is_named_and_what_is_sound_is_kept() {
    let Some((registry, folder)) = start() else { return };
    let (path, reference, store) =
        (artifact(folder.path(), &["generic"]), registry.reference("tiny:1"), store(&folder));
    let total = push_to(&path, &reference, None).total_bytes;
    let (_, manifest) = registry.manifest("tiny", "1");
    let layers = manifest["layers"].as_array().unwrap();
    let kernels =
        layers.iter().find(|layer| layer["annotations"]["org.cncf.model.filepath"] == "kernels/generic").unwrap();
    for (layer, name) in [(&layers[0], "head"), (&layers[2], "weights/0000/0001"), (kernels, "kernels/generic")] {
        // Else what an earlier pull kept would not be asked for again.
        store.gc().unwrap();
        let file = registry.blob(layer["digest"].as_str().unwrap());
        let sound = std::fs::read(&file).unwrap();
        let mut flipped = sound.clone();
        flipped[sound.len() / 2] ^= 1;
        std::fs::write(&file, flipped).unwrap();
        let refusal = pull_by(&store, &reference, Targets::All, None).unwrap_err().to_string();
        assert!(refusal.contains(&format!("layer {name} has sha256:")), "{refusal}");
        assert!(names(&folder, "artifacts").is_empty() && store.list().is_empty());
        std::fs::write(&file, sound).unwrap();
    }
    let pulled = pull_by(&store, &reference, Targets::All, None).unwrap();
    assert!(std::fs::read(&pulled.stored.path).unwrap() == std::fs::read(&path).unwrap());
    assert!(pulled.moved_bytes < total, "layers of the interrupted pulls were kept: {} of {total}", pulled.moved_bytes);
    assert!(names(&folder, "partial").is_empty());
}

#[test]
fn only_trusted_signatures_are_accepted() {
    let Some((registry, folder)) = start() else { return };
    let (path, reference, store) =
        (artifact(folder.path(), &["rdna3", "generic"]), registry.reference("tiny:1"), store(&folder));
    let file = |name: &str| folder.path().join(name);
    for (name, curve) in [("alice", "prime256v1"), ("bob", "secp384r1")] {
        let openssl = |arguments: &str| {
            let mut command = std::process::Command::new("openssl");
            command.args(arguments.split(' ')).current_dir(folder.path()).output().unwrap()
        };
        assert!(openssl(&format!("ecparam -name {curve} -genkey -noout -out {name}.pem")).status.success());
        assert!(openssl(&format!("pkey -in {name}.pem -pubout -out {name}.pub")).status.success());
    }
    let trust = |name: &str| {
        let mut trust = Trust::default();
        trust.add_key(&file(name)).unwrap();
        trust
    };
    push_to(&path, &reference, None);
    let unsigned = pull_by(&store, &reference, Targets::All, Some(&trust("alice.pub"))).unwrap_err().to_string();
    assert!(unsigned.contains("artifact has no signature"), "{unsigned}");
    for (signer, other) in [("alice", "bob"), ("bob", "alice")] {
        let (signer_key, other) =
            (SigningKey::read(&file(&format!("{signer}.pem")), &[]).unwrap(), trust(&format!("{other}.pub")));
        push_to(&path, &reference, Some(&signer_key));
        let stranger = pull_by(&store, &reference, Targets::All, Some(&other)).unwrap_err().to_string();
        assert!(stranger.contains("is not trusted here"), "{stranger}");
        let signer = trust(&format!("{signer}.pub"));
        // The kernels of all targets, which a signature covers.
        let pulled = pull_by(&store, &reference, Targets::Named(vec!["generic".into()]), Some(&signer)).unwrap();
        assert!(
            pulled.signed.is_some() && std::fs::read(&pulled.stored.path).unwrap() == std::fs::read(&path).unwrap()
        );
        let signature = pulled.stored.signature.unwrap();
        signer.verify(&pulled.stored.path, &signature).unwrap();
        assert!(other.verify(&pulled.stored.path, &signature).is_err());
        let altered = file("altered.unicorn");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[70_000] ^= 1;
        std::fs::write(&altered, bytes).unwrap();
        assert!(signer.verify(&altered, &signature).unwrap_err().to_string().contains("not what was signed"));
        store.remove(&reference).unwrap();
    }
    assert!(SigningKey::read(&file("alice.pub"), &[]).is_err());
}

/// What `tests/golden/signing/make.sh` made with PyPI's model-signing.
#[test]
fn bundles_of_model_signing_are_verified() {
    let golden = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/signing").join(name);
    let mut policy = Trust::default();
    policy.add_policy(&golden("policy.json")).unwrap();
    for signature in ["by-key.sig", "by-certificate.sig", "folder-by-key.sig"] {
        let signed = policy.verify(&golden("model.txt"), &golden(signature));
        assert!(signed.is_ok(), "{signature}: {}", signed.unwrap_err());
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("model.txt");
        std::fs::write(&other, "another model\n").unwrap();
        assert!(policy.verify(&other, &golden(signature)).is_err());
        assert!(Trust::default().verify(&golden("model.txt"), &golden(signature)).is_err());
    }
}
