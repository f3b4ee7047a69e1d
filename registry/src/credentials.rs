//! Names and passwords for registries, as `docker login` and `podman login` store them.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oci_client::secrets::RegistryAuth;
use serde_json::Value;

/// Larger than any real file.
const MAX_BYTES: u64 = 1 << 20;

/// The credentials for a registry in the user's files; anonymous if there are none. Files that cannot be read are skipped.
pub fn of(registry: &str) -> RegistryAuth {
    let files = files();
    let found = files.iter().find_map(|path| {
        let is_small = std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= MAX_BYTES);
        let text = is_small.then(|| std::fs::read_to_string(path).ok()).flatten()?;
        in_file(&text, registry)
    });
    found.unwrap_or(RegistryAuth::Anonymous)
}

/// The files in the order in which they are read.
fn files() -> Vec<PathBuf> {
    let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let docker = folder("DOCKER_CONFIG").or_else(|| Some(folder("HOME")?.join(".docker")));
    let places = [
        folder("REGISTRY_AUTH_FILE"),
        docker.map(|docker| docker.join("config.json")),
        folder("XDG_RUNTIME_DIR").map(|run| run.join("containers/auth.json")),
    ];
    places.into_iter().flatten().collect()
}

fn in_file(text: &str, registry: &str) -> Option<RegistryAuth> {
    let file: Value = serde_json::from_str(text).ok()?;
    let auths = file.get("auths")?.as_object()?;
    let host = |key: &str| key.trim_start_matches("https://").split('/').next().unwrap_or_default().to_owned();
    let (_, entry) = auths.iter().find(|(key, _)| host(key) == registry)?;
    let pair = STANDARD.decode(entry.get("auth")?.as_str()?).ok()?;
    let pair = String::from_utf8(pair).ok()?;
    let (name, password) = pair.split_once(':')?;
    Some(RegistryAuth::Basic(name.into(), password.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_found_by_its_host() {
        let text =
            r#"{"auths": {"https://registry.example/v1/": {"auth": "bmFtZTpwYTpzcw=="}, "broken": {"auth": "-"}}}"#;
        let expected = RegistryAuth::Basic("name".into(), "pa:ss".into());
        assert_eq!(in_file(text, "registry.example"), Some(expected));
        for (text, registry) in [(text, "broken"), (text, "other.example"), ("{}", "registry.example"), ("", "")] {
            assert_eq!(in_file(text, registry), None, "{registry}");
        }
    }
}
