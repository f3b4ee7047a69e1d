//! Artifacts in a registry: pushed, pulled into another data folder, the same bytes, the same text; interrupted, damaged, shared.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tests::compiled::{Compiled, Silent, options};
use tests::models::models;
use tests::programs::program;
use tests::registry::{Line, Proxy, Registry};
use tests::skip;
use unicorn_artifact::ArtifactView;
use unicorn_compiler::{Additions, reproduce, retarget};
use unicorn_registry::{OciReference, PushOptions, push};
use unicorn_spirv::target;

/// Chunks of a few dozen KiB: small models then have as many layers as large ones.
const SMALL_CHUNK_BYTES: u64 = 64 << 10;

/// Kernels for three kinds of devices, one of which is here.
static ARTIFACT: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["rdna3", "llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]))
});

fn artifact() -> PathBuf {
    ARTIFACT.artifact_path()
}

fn registry() -> Option<Registry> {
    let registry = Registry::start();
    if registry.is_none() {
        skip("registry", "docker-registry is not installed");
    }
    registry
}

/// A user of `unicorn-run` with a data folder of its own.
struct User {
    data: TempDir,
}

impl User {
    fn new() -> User {
        User { data: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program("unicorn-run");
        command.args(arguments).env("XDG_DATA_HOME", self.data.path()).stdin(Stdio::null());
        command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }

    #[track_caller]
    fn pull(&self, reference: &str, more: &[&str]) -> Value {
        self.json(&[&["pull", reference, "--plain-http"], more].concat())
    }

    #[track_caller]
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(!output.status.success(), "{arguments:?} is refused");
        stderr(&output)
    }

    fn files(&self, folder: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.data.path().join("unicorn").join(folder)).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn push_command(artifact: &Path, reference: &str) -> Output {
    program("unicorn-compile").arg("push").arg(artifact).args([reference, "--plain-http", "--json"]).output().unwrap()
}

#[track_caller]
fn push_by_command(artifact: &Path, reference: &str) -> Value {
    let output = push_command(artifact, reference);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn push_in_small_chunks(artifact: &Path, reference: &str) {
    let reference: OciReference = reference.parse().unwrap();
    let options = PushOptions::default().with(|options| {
        (options.plain_http, options.chunk_bytes) = (true, SMALL_CHUNK_BYTES);
    });
    push(artifact, &reference, &options).unwrap();
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// Bytes of the layers whose names begin so.
fn layer_bytes(registry: &Registry, name: &str, tag: &str, begin: &str) -> u64 {
    let (_, manifest) = registry.manifest(name, tag);
    let layers = manifest["layers"].as_array().unwrap().clone();
    let is_meant =
        |layer: &&Value| layer["annotations"]["org.cncf.model.filepath"].as_str().unwrap().starts_with(begin);
    layers.iter().filter(is_meant).map(|layer| bytes(&layer["size"])).sum()
}

const PROMPT: [&str; 7] = ["who", "lives", "there", "-n", "12", "--temp", "0"];

#[test]
fn an_artifact_is_pushed_and_pulled_with_the_same_bytes_and_text() {
    let Some(registry) = registry() else { return };
    let (user, reference) = (User::new(), registry.reference("models/draft:1"));
    let pushed = push_by_command(&artifact(), &reference);
    assert!(bytes(&pushed["pushed_bytes"]) > 0);
    let again = push_by_command(&artifact(), &reference);
    assert_eq!((&again["digest"], bytes(&again["pushed_bytes"])), (&pushed["digest"], 0), "a function of the artifact");

    let output = user.data.path().join("travelled.unicorn");
    let pulled = user.pull(&reference, &["--target", "all", "-o", output.to_str().unwrap()]);
    assert!(std::fs::read(&output).unwrap() == ARTIFACT.artifact(), "the same bytes");
    assert_eq!(bytes(&user.pull(&reference, &["--target", "all"])["pulled_bytes"]), 0, "it is there");
    let by_digest = format!("{}@{}", registry.reference("models/draft"), pushed["digest"].as_str().unwrap());
    assert_eq!(
        bytes(&user.pull(&by_digest, &["--target", "all"])["pulled_bytes"]),
        0,
        "it is there under another name"
    );
    assert_eq!(user.json(&["list"]).as_array().unwrap().len(), 2);
    assert!(user.text(&["list"]).contains(&pulled["id"].as_str().unwrap()[..12]));

    let expected = user.text(&[&[artifact().to_str().unwrap()], &PROMPT[..]].concat());
    // A name that the store has needs no registry.
    drop(registry);
    assert!(!expected.is_empty());
    assert_eq!(user.text(&[&[&reference[..]], &PROMPT[..]].concat()), expected);
    assert_eq!(user.text(&[&["run", &reference], &PROMPT[..]].concat()), expected);

    assert_eq!(user.json(&["rm", &reference])["artifacts"], 0, "its other name keeps it");
    assert_eq!(user.json(&["rm", &by_digest])["artifacts"], 1);
    assert!(user.files("artifacts").is_empty() && user.files("names").is_empty());
    assert!(user.refusal(&["rm", &reference]).contains("is not in the store"));
    let gone = user.refusal(&[&[&reference[..]], &PROMPT[..], &["--plain-http"]].concat());
    assert!(gone.contains("registry does not answer") && gone.contains("refused"), "{gone}");
}

#[test]
fn the_manifest_is_modelpacks() {
    let Some(registry) = registry() else { return };
    push_by_command(&artifact(), &registry.reference("draft:1"));
    let (_, manifest) = registry.manifest("draft", "1");
    assert_eq!(manifest["schemaVersion"], 2);
    assert_eq!(manifest["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(manifest["artifactType"], "application/vnd.cncf.model.manifest.v1+json");
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.cncf.model.config.v1+json");
    let config = std::fs::read(registry.blob(manifest["config"]["digest"].as_str().unwrap())).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let layers = manifest["layers"].as_array().unwrap();
    let digests: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
    assert_eq!(config["modelfs"]["type"], "layers");
    assert_eq!(config["modelfs"]["diffIds"].as_array().unwrap().iter().collect::<Vec<_>>(), digests);
    assert_eq!((&config["config"]["format"], &config["config"]["quantization"]), (&"unicorn".into(), &"int4".into()));
    assert_eq!(config["descriptor"]["licenses"], serde_json::json!(["apache-2.0"]));
    let name = |layer: &Value| layer["annotations"]["org.cncf.model.filepath"].as_str().unwrap().to_owned();
    let names: Vec<String> = layers.iter().map(name).collect();
    assert_eq!(
        names,
        [
            "head",
            "weights/0000/0000",
            "section/1.0",
            "section/2.0",
            "kernels/rdna3",
            "kernels/llvmpipe",
            "kernels/generic",
            "section/4.0",
            "hidden/rdna3",
            "hidden/llvmpipe",
            "hidden/generic",
            "beside-two/rdna3",
            "beside-two/llvmpipe",
            "beside-two/generic",
            "section/10.0"
        ]
    );
}

#[test]
fn a_client_fetches_the_kernels_of_its_own_target() {
    let Some(registry) = registry() else { return };
    let (user, reference) = (User::new(), registry.reference("draft:1"));
    push_by_command(&artifact(), &reference);
    let expected = user.text(&[&[artifact().to_str().unwrap()], &PROMPT[..]].concat());
    assert_eq!(user.text(&[&[&reference[..], "--plain-http"], &PROMPT[..]].concat()), expected);

    let stored = &user.json(&["list"])[0];
    assert_eq!(stored["targets"], serde_json::json!(["llvmpipe"]));
    let path = PathBuf::from(stored["path"].as_str().unwrap());
    let file = std::fs::read(&path).unwrap();
    let (own, all) = (ArtifactView::parse(&file).unwrap(), ARTIFACT.artifact());
    let all = ArtifactView::parse(&all).unwrap();
    assert_eq!((&own.meta, &own.plan, &own.tokenizer), (&all.meta, &all.plan, &all.tokenizer));
    assert_eq!(own.kernels.targets[..], all.kernels.targets[1..2]);
    assert_eq!(reproduce(&path, None, &mut Silent).unwrap().targets, ["llvmpipe"], "verify finds nothing in it");

    let kernels = |target: &str| {
        let parts = ["kernels", "hidden", "beside-two"].map(|part| format!("{part}/{target}"));
        parts.map(|part| layer_bytes(&registry, "draft", "1", &part)).iter().sum::<u64>()
    };
    let pulled = user.pull(&reference, &["--target", "all"]);
    assert_eq!(bytes(&pulled["pulled_bytes"]), kernels("rdna3") + kernels("generic"), "the rest is there");
    assert!(std::fs::read(pulled["path"].as_str().unwrap()).unwrap() == ARTIFACT.artifact());
    assert_eq!(user.json(&["gc"])["artifacts"], 1, "no name leads to the smaller one");
    assert!(!path.exists());

    let refusal = user.refusal(&["pull", &reference, "--plain-http", "--target", "rdna9"]);
    assert!(refusal.contains("no kernels for rdna9, only for rdna3, llvmpipe, generic"), "{refusal}");
    assert!(refusal.contains("--target all"), "{refusal}");
}

#[test]
fn new_kernels_cost_only_themselves() {
    let Some(registry) = registry() else { return };
    let (user, reference) = (User::new(), registry.reference("draft:new"));
    push_by_command(&artifact(), &reference);
    user.pull(&reference, &["--target", "all"]);
    let more = user.data.path().join("more.unicorn");
    let rdna2 = Additions { targets: vec![target::by_name("rdna2").unwrap()], alternatives: false };
    retarget(&artifact(), &more, &rdna2, &mut Silent).unwrap();
    let pushed = push_by_command(&more, &reference);
    let weights = layer_bytes(&registry, "draft", "new", "weights/");
    let total: u64 = layer_bytes(&registry, "draft", "new", "");
    let kernels = layer_bytes(&registry, "draft", "new", "kernels/rdna2");
    let pulled = user.pull(&reference, &["--target", "all"]);
    assert!(std::fs::read(pulled["path"].as_str().unwrap()).unwrap() == std::fs::read(&more).unwrap());
    for moved in [bytes(&pushed["pushed_bytes"]), bytes(&pulled["pulled_bytes"])] {
        // Head, metadata and plan name another target.
        assert!(
            moved > kernels && moved < total - weights,
            "{moved} bytes of {total}, {weights} of them weights, {kernels} new kernels"
        );
    }
}

#[test]
fn a_killed_pull_goes_on_where_it_was() {
    let Some(registry) = registry() else { return };
    let user = User::new();
    push_in_small_chunks(&artifact(), &registry.reference("draft:1"));
    let total = layer_bytes(&registry, "draft", "1", "");
    let slow = Proxy::to(registry.address(), Line::Stalls(total / 2));
    let through = format!("oci://{}/draft:1", slow.address);
    let mut child = user.command(&["pull", &through, "--plain-http", "--target", "all", "-q"]).spawn().unwrap();
    let begun = Instant::now();
    while slow.passed() <= total / 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} of {total} bytes", slow.passed());
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(200));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((user.files("partial").len(), user.files("artifacts").len()), (1, 0));
    assert_eq!(user.json(&["list"]), serde_json::json!([]));

    // Another name for the same content: what counts is the content.
    let pulled = user.pull(&registry.reference("draft:1"), &["--target", "all"]);
    assert!(std::fs::read(pulled["path"].as_str().unwrap()).unwrap() == ARTIFACT.artifact());
    let moved = bytes(&pulled["pulled_bytes"]);
    // What was on its way on four connections came again.
    assert!(moved < total * 3 / 4, "{moved} of {total} bytes came after the interruption");
    assert!(user.files("partial").is_empty());
}

#[test]
fn a_connection_that_is_cut_goes_on_within_a_layer() {
    let Some(registry) = registry() else { return };
    let (user, total) = (User::new(), std::fs::metadata(artifact()).unwrap().len());
    push_by_command(&artifact(), &registry.reference("draft:1"));
    let cut_after = total / 6;
    let line = Proxy::to(registry.address(), Line::Cuts(cut_after));
    let pulled = user.pull(&format!("oci://{}/draft:1", line.address), &["--target", "all"]);
    assert!(std::fs::read(pulled["path"].as_str().unwrap()).unwrap() == ARTIFACT.artifact());
    // Nothing but heads of answers, and what was under way when a connection ended, came twice.
    assert!(line.passed() < total + total / 4, "{} bytes came for {total}", line.passed());
}

#[test]
fn a_flipped_byte_in_the_registry_is_refused() {
    let Some(registry) = registry() else { return };
    let (user, reference) = (User::new(), registry.reference("draft:1"));
    push_in_small_chunks(&artifact(), &reference);
    let (_, manifest) = registry.manifest("draft", "1");
    for (number, name) in [(5, "weights/0000/0004"), (0, "head")] {
        let layer = &manifest["layers"][number];
        let file = registry.blob(layer["digest"].as_str().unwrap());
        let sound = std::fs::read(&file).unwrap();
        let mut flipped = sound.clone();
        flipped[sound.len() / 2] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        let refusal = user.refusal(&["pull", &reference, "--plain-http", "--target", "all"]);
        assert!(refusal.contains(&format!("layer {name} has sha256:")) && refusal.contains("is damaged"), "{refusal}");
        let answer = user.refusal(&[&[&reference[..], "--plain-http"], &PROMPT[..]].concat());
        assert!(answer.contains("is damaged"), "{answer}");
        assert!(user.files("artifacts").is_empty(), "nothing is run or stored");
        // Cut short, which the registry does not notice either.
        std::fs::write(&file, &sound[..sound.len() - 1]).unwrap();
        user.refusal(&["pull", &reference, "--plain-http", "--target", "all"]);
        std::fs::write(&file, &sound).unwrap();
    }
    let pulled = user.pull(&reference, &["--target", "all"]);
    assert!(std::fs::read(pulled["path"].as_str().unwrap()).unwrap() == ARTIFACT.artifact());
}

#[test]
fn two_processes_fetch_once_and_gc_spares_them() {
    let Some(registry) = registry() else { return };
    let (user, reference) = (User::new(), registry.reference("draft:1"));
    push_by_command(&artifact(), &reference);
    let pull = || {
        let mut command = user.command(&["pull", &reference, "--plain-http", "--target", "all", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = [pull(), pull()].map(|child| child.wait_with_output().unwrap());
    let moved = both.each_ref().map(|output| {
        assert!(output.status.success(), "{}", stderr(output));
        bytes(&serde_json::from_slice::<Value>(&output.stdout).unwrap()["pulled_bytes"])
    });
    let total = layer_bytes(&registry, "draft", "1", "") - layer_bytes(&registry, "draft", "1", "head");
    assert_eq!(moved.iter().sum::<u64>(), total, "{moved:?}");
    assert_eq!(user.json(&["gc"])["artifacts"], 0);
    assert!(user.files("partial").is_empty() && user.json(&["list"]).as_array().unwrap().len() == 1);
}

/// `draft` in docker-registry's form: bcrypt of the word `secret`.
const PASSWORDS: &str = "draft:$2b$04$gdWzctID407GJqfeF/iqFOG1/AYNe/nayNlTOyBUwlH1EZnJCKxNy\n";

#[test]
fn a_registry_with_passwords_and_tls_is_reached() {
    let keys = tempfile::tempdir().unwrap();
    let path = |name: &str| keys.path().join(name);
    let openssl = |arguments: &str| {
        let made = Command::new("openssl").args(arguments.split(' ')).current_dir(keys.path()).output();
        made.is_ok_and(|output| output.status.success())
    };
    let names = "basicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n";
    std::fs::write(path("extensions"), names).unwrap();
    let commands = [
        "ecparam -name prime256v1 -genkey -noout -out authority.key",
        "req -x509 -key authority.key -subj /CN=authority -days 9 -out authority.pem",
        "ecparam -name prime256v1 -genkey -noout -out key.pem",
        "req -new -key key.pem -subj /CN=localhost -out request.pem",
        "x509 -req -in request.pem -CA authority.pem -CAkey authority.key -CAcreateserial -days 9 -extfile extensions -out certificate.pem",
    ];
    if !commands.into_iter().all(openssl) {
        return skip("registry with TLS", "openssl is not installed");
    }
    std::fs::write(path("passwords"), PASSWORDS).unwrap();
    let http =
        format!("  tls: {{certificate: {}, key: {}}}\n", path("certificate.pem").display(), path("key.pem").display());
    let top = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", path("passwords").display());
    let Some(registry) = Registry::start_with(&http, &top) else {
        return skip("registry", "docker-registry is not installed");
    };
    let reference = registry.reference("draft:1");
    let push = |auth: bool, certificate: bool| {
        let mut command = program("unicorn-compile");
        command
            .arg("push")
            .arg(artifact())
            .arg(&reference)
            .env("DOCKER_CONFIG", if auth { keys.path() } else { Path::new("/none") });
        if certificate {
            command.env("SSL_CERT_FILE", path("authority.pem"));
        }
        command.output().unwrap()
    };
    let login = format!(r#"{{"auths": {{"{}": {{"auth": "ZHJhZnQ6c2VjcmV0"}}}}}}"#, registry.address());
    std::fs::write(path("config.json"), login).unwrap();
    let stranger = stderr(&push(true, false));
    assert!(stranger.contains("UnknownIssuer"), "a certificate that nobody vouches for: {stranger}");
    let nobody = stderr(&push(false, true));
    assert!(nobody.contains("user name and a password"), "{nobody}");
    let pushed = push(true, true);
    assert!(pushed.status.success(), "{}", stderr(&pushed));
    let user = User::new();
    let mut pull = user.command(&["pull", &reference, "--json"]);
    pull.env("SSL_CERT_FILE", path("authority.pem")).env("DOCKER_CONFIG", keys.path());
    let pulled = pull.output().unwrap();
    assert!(pulled.status.success(), "{}", stderr(&pulled));
}

#[test]
fn mistakes_are_answered_with_what_to_type() {
    let user = User::new();
    for (arguments, expected) in [
        (&["pull", "smol"][..], "expected oci://REGISTRY/NAME:TAG"),
        (&["pull", "oci://smol:1"], "no registry is named"),
        (&["oci://Registry.example/UPPER:1", "hello"], "expected oci://REGISTRY/NAME:TAG"),
        (&["rm", "oci://registry.example/smol:1"], "unicorn-run list shows what is"),
    ] {
        let refusal = user.refusal(arguments);
        assert!(refusal.contains(expected), "{arguments:?}: {refusal}");
    }
    assert!(user.output(&["list"]).stdout.is_empty());
    assert_eq!(user.json(&["gc"])["artifacts"], 0);
    let Some(registry) = registry() else { return };
    let missing = user.refusal(&["pull", &registry.reference("draft:none"), "--plain-http"]);
    assert!(missing.contains("no such name or tag"), "{missing}");
    let tls = user.refusal(&["pull", &registry.reference("draft:none")]);
    assert!(tls.contains("--plain-http"), "{tls}");
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("notes.txt");
    std::fs::write(&other, "mine").unwrap();
    let occupied =
        user.refusal(&["pull", &registry.reference("draft:1"), "--plain-http", "-o", other.to_str().unwrap()]);
    assert!(occupied.contains("is no artifact"), "{occupied}");
    let refused = stderr(&push_command(&other, &registry.reference("draft:1")));
    assert!(refused.contains("expected an artifact"), "{refused}");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
}

/// A registry's manifest is checked before a layer is fetched: everything that is wrong is named, and nothing is trusted.
#[test]
fn manifests_that_do_not_fit_their_head_are_refused() {
    let Some(registry) = registry() else { return };
    push_in_small_chunks(&artifact(), &registry.reference("draft:1"));
    let (digest, sound) = registry.manifest("draft", "1");
    let head = std::fs::read(registry.blob(sound["layers"][0]["digest"].as_str().unwrap())).unwrap();
    let check = |manifest: &Value, head: &[u8]| {
        unicorn_registry::check_description(&serde_json::to_vec(manifest).unwrap(), head)
    };
    assert_eq!(check(&sound, &head).unwrap(), ["rdna3", "llvmpipe", "generic"]);
    assert!(std::fs::read(registry.blob(&digest)).is_ok());

    let kernels = sound["layers"]
        .as_array()
        .unwrap()
        .iter()
        .position(|layer| layer["annotations"]["org.cncf.model.filepath"] == "kernels/rdna3");
    let kernels = kernels.unwrap();
    type Change<'a> = (&'a str, Box<dyn Fn(&mut Vec<Value>)>);
    let changes: [Change; 7] = [
        ("expected head", Box::new(|layers| drop(layers.remove(0)))),
        ("layer 2 is weights/0000/0002, expected weights/0000/0001", Box::new(|layers| drop(layers.remove(2)))),
        ("is of no section", Box::new(|layers| layers.push(layers[0].clone()))),
        ("expected 1 to", Box::new(|layers| layers[1]["size"] = u64::MAX.into())),
        ("expected 1 to", Box::new(|layers| layers[1]["size"] = 0.into())),
        (
            "target rdna3 is there twice",
            Box::new(move |layers| {
                let name = layers[kernels]["annotations"].clone();
                layers[kernels + 1]["annotations"] = name;
            }),
        ),
        (
            "layer section/1.0 has",
            Box::new(move |layers| {
                let at = layers
                    .iter()
                    .position(|layer| layer["annotations"]["org.cncf.model.filepath"] == "section/1.0")
                    .unwrap();
                layers[at]["size"] = 1.into();
            }),
        ),
    ];
    for (expected, change) in changes {
        let mut manifest = sound.clone();
        change(manifest["layers"].as_array_mut().unwrap());
        let refusal = check(&manifest, &head).expect_err(expected);
        assert!(refusal.contains(expected), "{refusal}, expected {expected}");
    }
    for cut in [0, 16, 64, head.len() - 1] {
        assert!(check(&sound, &head[..cut]).is_err(), "{cut} bytes of the head");
    }
    let mut endless = head.clone();
    endless[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(check(&sound, &endless).is_err());
}
