//! Signatures of artifacts, both ways with model-signing of PyPI: bundles that it made are verified here (`golden/signing`), and those
//! that are made here are verified by it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use tests::compiled::{Compiled, options};
use tests::models::models;
use tests::programs::program;
use tests::registry::Registry;
use tests::{packages, skip};
use unicorn_spirv::target;

static ARTIFACT: LazyLock<Compiled> = LazyLock::new(|| {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(target::by_name).collect();
    Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]))
});

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/signing").join(name)
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn succeeded(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

#[track_caller]
fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?} is refused");
    text(&output)
}

fn verify(file: &Path, signature: &Path, trust: &[&str]) -> Command {
    let mut command = program("unicorn-run");
    command.arg("verify").arg(file).arg("--signature").arg(signature).args(trust);
    command
}

/// Keys, certificates and a user's data.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn openssl(&self, arguments: &[&str]) {
        succeeded(Command::new("openssl").args(arguments).current_dir(self.0.path()));
    }

    /// `NAME.pem` and `NAME.pub`.
    fn make_key(&self, name: &str, curve: &str) {
        self.openssl(&["ecparam", "-name", curve, "-genkey", "-noout", "-out", &format!("{name}.pem")]);
        self.openssl(&["pkey", "-in", &format!("{name}.pem"), "-pubout", "-out", &format!("{name}.pub")]);
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = program("unicorn-run");
        command.args(arguments).env("XDG_DATA_HOME", self.0.path());
        command
    }
}

#[test]
fn bundles_of_model_signing_are_verified() {
    let (file, key, root) = (golden("model.txt"), golden("key.pub"), golden("root.pem"));
    let key = ["--key", key.to_str().unwrap()];
    let certificate = ["--certificate", root.to_str().unwrap()];
    succeeded(&mut verify(&file, &golden("by-key.sig"), &key));
    succeeded(&mut verify(&file, &golden("folder-by-key.sig"), &key));
    succeeded(&mut verify(&file, &golden("by-certificate.sig"), &certificate));
    let policy = golden("policy.json");
    for signature in ["by-key.sig", "by-certificate.sig"] {
        succeeded(&mut verify(&file, &golden(signature), &["--policy", policy.to_str().unwrap()]));
    }
    let untrusted = refused(&mut verify(&file, &golden("by-key.sig"), &certificate));
    assert!(untrusted.contains("which is not trusted here"), "{untrusted}");
    let untrusted = refused(&mut verify(&file, &golden("by-certificate.sig"), &key));
    assert!(untrusted.contains("no certificate is trusted here"), "{untrusted}");
    assert!(refused(&mut verify(&file, &golden("by-key.sig"), &[])).contains("--policy FILE"));

    let folder = Folder::new();
    let other = folder.path("model.txt");
    std::fs::write(&other, "another model\n").unwrap();
    for (signature, trust) in [("by-key.sig", key), ("folder-by-key.sig", key), ("by-certificate.sig", certificate)] {
        let refusal = refused(&mut verify(&other, &golden(signature), &trust));
        assert!(refusal.contains("it is not what was signed"), "{refusal}");
    }
}

/// Every bit of what was signed and of the signature counts.
#[test]
fn a_changed_bundle_is_refused() {
    let bundle: serde_json::Value = serde_json::from_slice(&std::fs::read(golden("by-key.sig")).unwrap()).unwrap();
    let folder = Folder::new();
    let changed = folder.path("changed.sig");
    let key = golden("key.pub");
    let flip = |field: &serde_json::Value, at: usize| {
        let text = field.as_str().unwrap();
        let letter = if &text[at..=at] == "A" { "B" } else { "A" };
        serde_json::Value::from(format!("{}{letter}{}", &text[..at], &text[at + 1..]))
    };
    for at in [20, 200] {
        let mut bundle = bundle.clone();
        bundle["dsseEnvelope"]["payload"] = flip(&bundle["dsseEnvelope"]["payload"], at);
        std::fs::write(&changed, bundle.to_string()).unwrap();
        let refusal = refused(&mut verify(&golden("model.txt"), &changed, &["--key", key.to_str().unwrap()]));
        assert!(refusal.contains("signature is not by the key"), "{refusal}");
    }
    let mut by_nobody = bundle.clone();
    let signature = &mut by_nobody["dsseEnvelope"]["signatures"][0]["sig"];
    *signature = flip(signature, 30);
    std::fs::write(&changed, by_nobody.to_string()).unwrap();
    refused(&mut verify(&golden("model.txt"), &changed, &["--key", key.to_str().unwrap()]));
}

#[test]
fn a_signed_artifact_is_pulled_by_those_who_trust_its_key() {
    let Some(registry) = Registry::start() else { return skip("registry", "docker-registry is not installed") };
    let folder = Folder::new();
    folder.make_key("alice", "prime256v1");
    folder.make_key("bob", "secp384r1");
    let (artifact, reference) = (ARTIFACT.artifact_path(), registry.reference("draft:1"));
    let push = |key: Option<&str>| {
        let mut command = program("unicorn-compile");
        command.arg("push").arg(&artifact).args([&reference, "--plain-http", "-q"]);
        if let Some(key) = key {
            command.arg("--sign").arg(folder.path(key));
        }
        command
    };
    let pull = |trust: &[&str]| folder.run(&[&["pull", &reference, "--plain-http", "--json"], trust].concat());
    let (alice, bob) = (folder.text("alice.pub"), folder.text("bob.pub"));

    succeeded(&mut push(None));
    let unsigned = refused(&mut pull(&["--key", &alice]));
    assert!(unsigned.contains("artifact has no signature"), "{unsigned}");
    for (signer, key, other) in [("alice.pem", &alice, &bob), ("bob.pem", &bob, &alice)] {
        succeeded(&mut push(Some(signer)));
        let stranger = refused(&mut pull(&["--key", other]));
        assert!(stranger.contains("is not trusted here"), "{stranger}");
        let output = folder.text("copy.unicorn");
        let pulled = succeeded(&mut pull(&["--key", key, "-o", &output]));
        assert!(pulled.contains("\"signed\":{\"trusted\""), "{pulled}");
        assert!(std::fs::read(&output).unwrap() == ARTIFACT.artifact());
        succeeded(&mut folder.run(&["verify", &reference, "--key", key]));
        succeeded(&mut folder.run(&["verify", &output, "--key", key]));
        refused(&mut folder.run(&["verify", &output, "--key", other]));
        model_signing(&["verify", "key", &output, "--signature", &format!("{output}.sig"), "--public_key", key]);

        // A bit of the file, whose own hashes are not checked here.
        let mut altered = std::fs::read(&output).unwrap();
        let middle = altered.len() / 2;
        altered[middle] ^= 1;
        std::fs::write(&output, altered).unwrap();
        assert!(refused(&mut folder.run(&["verify", &output, "--key", key])).contains("not what was signed"));
    }
    refused(&mut push(Some("alice.pub")));
}

#[test]
fn a_certificate_leads_to_its_issuer() {
    let Some(registry) = Registry::start() else { return skip("registry", "docker-registry is not installed") };
    let folder = Folder::new();
    for name in ["root", "signer", "stranger"] {
        folder.make_key(name, "prime256v1");
    }
    for name in ["root", "stranger"] {
        let subject = format!("/CN={name}");
        let (key, out) = (format!("{name}.pem"), format!("{name}.crt"));
        folder.openssl(&["req", "-x509", "-key", &key, "-subj", &subject, "-days", "9", "-out", &out]);
    }
    folder.openssl(&["req", "-new", "-key", "signer.pem", "-subj", "/CN=signer", "-out", "signer.csr"]);
    for (usage, name) in [
        ("keyUsage=critical,digitalSignature\nextendedKeyUsage=codeSigning", "signer"),
        ("extendedKeyUsage=serverAuth", "server"),
    ] {
        std::fs::write(folder.path("extensions"), format!("basicConstraints=CA:FALSE\n{usage}\n")).unwrap();
        let out = format!("{name}.crt");
        folder.openssl(&[
            "x509",
            "-req",
            "-in",
            "signer.csr",
            "-CA",
            "root.crt",
            "-CAkey",
            "root.pem",
            "-CAcreateserial",
            "-days",
            "9",
            "-extfile",
            "extensions",
            "-out",
            &out,
        ]);
    }
    let reference = registry.reference("draft:1");
    let push = |certificate: &str| {
        let mut command = program("unicorn-compile");
        command
            .arg("push")
            .arg(ARTIFACT.artifact_path())
            .args([&reference, "--plain-http", "-q", "--sign"])
            .arg(folder.path("signer.pem"));
        command.arg("--certificate").arg(folder.path(certificate));
        command
    };
    let pull = |certificate: &str, more: &[&str]| {
        let certificate = folder.text(certificate);
        folder.run(&[&["pull", &reference, "--plain-http", "--certificate", &certificate], more].concat())
    };
    let wrong = refused(&mut push("root.crt"));
    assert!(wrong.contains("first certificate is of another key"), "{wrong}");
    succeeded(&mut push("signer.crt"));
    refused(&mut pull("stranger.crt", &[]));
    let output = folder.text("copy.unicorn");
    succeeded(&mut pull("root.crt", &["-o", &output]));
    let (signature, root) = (format!("{output}.sig"), folder.text("root.crt"));
    model_signing(&["verify", "certificate", &output, "--signature", &signature, "--certificate_chain", &root]);
    succeeded(&mut push("server.crt"));
    let purpose = refused(&mut pull("root.crt", &[]));
    assert!(purpose.contains("does not lead to"), "{purpose}");
}

/// The other implementation, installed where pip can.
fn model_signing(arguments: &[&str]) {
    let packages = ["model-signing==1.1.1", "pyOpenSSL==26.4.0"];
    match packages::of_pypi(Path::new(env!("CARGO_TARGET_TMPDIR")), &packages) {
        Ok(packages) => {
            let mut command = Command::new("python3");
            let output =
                command.env("PYTHONPATH", packages).args(["-m", "model_signing"]).args(arguments).output().unwrap();
            assert!(output.status.success(), "{command:?}: {}", text(&output));
        }
        Err(error) => skip("model-signing", error),
    }
}
