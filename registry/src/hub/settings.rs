//! The address of the hub, the access token, and the cache folder: the variables that the hub's own programs read.

use std::path::{Path, PathBuf};

/// Settings of a user. There is no default, because the cache needs a folder, from [`HubSettings::of_user`] or [`HubSettings::at`].
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubSettings {
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// The access token; `None`: requests are anonymous.
    pub token: Option<String>,
    /// Folder of repositories.
    pub cache: PathBuf,
    /// Whether nothing is fetched.
    pub offline: bool,
}

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

impl HubSettings {
    /// Settings from the environment: HF_ENDPOINT, HF_TOKEN or the file that `hf auth login` writes, HF_HOME and HF_HUB_CACHE,
    /// HF_HUB_OFFLINE; `None` where no folder is named.
    pub fn of_user() -> Option<HubSettings> {
        HubSettings::of(|name| std::env::var(name).ok())
    }

    /// The defaults: the hub at its own address, anonymous, with repositories in the folder `cache`.
    pub fn at(cache: PathBuf) -> HubSettings {
        HubSettings { endpoint: DEFAULT_ENDPOINT.into(), token: None, cache, offline: false }
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Option<HubSettings> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let folder = |name: &str| given(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        let home = folder("HF_HOME").or_else(|| Some(caches()?.join("huggingface")));
        let cache = folder("HF_HUB_CACHE").or_else(|| Some(home.as_ref()?.join("hub")))?;
        let token_file = folder("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token")));
        let token = given("HF_TOKEN").or_else(|| read(token_file.as_deref()?));
        let is_true = |value: String| ["1", "true", "yes", "on"].contains(&&value.to_lowercase()[..]);
        Some(HubSettings {
            endpoint: given("HF_ENDPOINT").unwrap_or(DEFAULT_ENDPOINT.into()).trim_end_matches('/').to_owned(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            cache,
            offline: given("HF_HUB_OFFLINE").is_some_and(is_true),
        })
    }
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_are_those_of_the_hubs_programs() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().to_str().unwrap().to_owned();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let of = |variables: &[(&str, &str)]| {
            let found =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            HubSettings::of(found)
        };
        let plain = of(&[("HOME", "/u")]).unwrap();
        assert_eq!((&plain.endpoint[..], plain.token), (DEFAULT_ENDPOINT, None));
        assert_eq!(plain.cache, Path::new("/u/.cache/huggingface/hub"));
        assert!(!plain.offline);

        let set = of(&[("HF_HOME", &folder), ("HF_ENDPOINT", "http://h/"), ("HF_HUB_OFFLINE", "1")]).unwrap();
        assert_eq!((&set.endpoint[..], set.token.as_deref(), set.offline), ("http://h", Some("hf_file"), true));
        assert_eq!(set.cache, home.path().join("hub"));
        let token = of(&[("HF_HOME", &folder), ("HF_TOKEN", "hf_own"), ("HF_HUB_CACHE", "/c")]).unwrap();
        assert_eq!((token.token.as_deref(), &token.cache), (Some("hf_own"), &PathBuf::from("/c")));
        assert!(of(&[]).is_none());
        assert!(of(&[("HF_HUB_CACHE", "/c")]).unwrap() == HubSettings::at("/c".into()));
    }
}
