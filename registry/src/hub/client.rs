//! Requests to the hub, and its description of a repository.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, RANGE};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;

use crate::client::{CONNECT_TIMEOUT, READ_TIMEOUT, install_tls};
use crate::error::RegistryError;
use crate::hub::reference::HubReference;
use crate::hub::settings::HubSettings;

/// More bytes than the description of any repository has.
const MAX_DESCRIPTION_BYTES: usize = 64 << 20;
/// Requests without received bytes after which a fetch gives up; bytes that were fetched until then are kept.
pub const ATTEMPTS: u32 = 5;
/// Delay before the first of them is repeated; doubled each time.
pub const FIRST_WAIT: Duration = Duration::from_millis(200);

/// The hub's description of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// 40 digits.
    pub commit: String,
    pub files: Vec<HubFile>,
}

/// A file of a repository. Its name is a path that stays within the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    pub name: String,
    pub size: u64,
    pub hash: FileHash,
}

/// Hash of the content; its digits are also the name of the blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileHash {
    /// SHA-256 of a large file.
    Sha256(String),
    /// SHA-1 of a small file, as git computes it: with the file's length before its content.
    GitSha1(String),
}

impl FileHash {
    pub fn digits(&self) -> &str {
        let (FileHash::Sha256(digits) | FileHash::GitSha1(digits)) = self;
        digits
    }
}

/// A hub, for one reference.
pub struct Hub<'a> {
    pub reference: &'a HubReference,
    client: Client,
    endpoint: Url,
    has_token: bool,
}

/// Why a request failed or was cut.
pub enum Failure {
    /// The same request may succeed a moment later.
    Transient(String),
    Final(RegistryError),
}

impl Hub<'_> {
    pub fn open<'a>(reference: &'a HubReference, settings: &HubSettings) -> Result<Hub<'a>, RegistryError> {
        let wrong = |what: String| RegistryError::hub(reference, what);
        if settings.offline {
            return Err(wrong("not in the cache, and HF_HUB_OFFLINE forbids to fetch it".into()));
        }
        let endpoint = Url::parse(&settings.endpoint).ok().filter(|url| !url.cannot_be_a_base() && url.has_host());
        let endpoint = endpoint.ok_or_else(|| {
            wrong(format!("HF_ENDPOINT is {}, expected an address such as https://huggingface.co", settings.endpoint))
        })?;
        install_tls();
        let mut headers = HeaderMap::new();
        if let Some(token) = &settings.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| wrong("HF_TOKEN has characters that no token has".into()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = Client::builder()
            .user_agent(concat!("unicorn/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .https_only(endpoint.scheme() == "https")
            .read_timeout(READ_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .build();
        let client = client.map_err(|error| wrong(in_words(&error)))?;
        Ok(Hub { reference, client, endpoint, has_token: settings.token.is_some() })
    }

    /// Commit and files of the reference's revision.
    pub async fn repository(&self) -> Result<Repository, RegistryError> {
        let reference = self.reference;
        let path = ["api", "models", reference.owner(), reference.name(), "revision", reference.revision()];
        let mut url = self.url(&path);
        url.query_pairs_mut().append_pair("blobs", "true");
        let (mut attempt, mut wait) = (1, FIRST_WAIT);
        let description = loop {
            match self.small(&url).await {
                Ok(description) => break description,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Transient(what)) if attempt == ATTEMPTS => {
                    return Err(RegistryError::hub(reference, what));
                }
                Err(Failure::Transient(_)) => {
                    tokio::time::sleep(wait).await;
                    (attempt, wait) = (attempt + 1, wait * 2);
                }
            }
        };
        decode(&description).map_err(|what| RegistryError::hub(reference, what))
    }

    /// A file's content from byte `from` on, and whether it begins there instead of at 0.
    pub async fn content(&self, commit: &str, name: &str, from: u64) -> Result<(Response, bool), Failure> {
        let reference = self.reference;
        let mut path = vec![reference.owner(), reference.name(), "resolve", commit];
        path.extend(name.split('/'));
        let mut request = self.client.get(self.url(&path));
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let response = request.send().await.map_err(|error| Failure::Transient(in_words(&error)))?;
        match response.status() {
            StatusCode::OK => Ok((response, false)),
            StatusCode::PARTIAL_CONTENT if from > 0 => Ok((response, true)),
            status => Err(self.refusal(status, &response)),
        }
    }

    async fn small(&self, url: &Url) -> Result<Vec<u8>, Failure> {
        let response =
            self.client.get(url.clone()).send().await.map_err(|error| Failure::Transient(in_words(&error)))?;
        if response.status() != StatusCode::OK {
            return Err(self.refusal(response.status(), &response));
        }
        let mut body = Vec::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            body.extend(piece.map_err(|error| Failure::Transient(in_words(&error)))?);
            if body.len() > MAX_DESCRIPTION_BYTES {
                let what = format!("description of the repository has more than {MAX_DESCRIPTION_BYTES} bytes");
                return Err(Failure::Final(RegistryError::hub(self.reference, what)));
            }
        }
        Ok(body)
    }

    /// Escapes a name of the hub as one segment of a path.
    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// The error as a message that helps the user.
    fn refusal(&self, status: StatusCode, response: &Response) -> Failure {
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
        let revision = self.reference.revision();
        let what = match (status.as_u16(), code) {
            (404, "RevisionNotFound") => {
                format!("repository has no revision {revision}, expected a branch, a tag or a commit of it")
            }
            (403, "GatedRepo") | (401, "GatedRepo") => {
                "model is gated: accept its terms on its page, and set HF_TOKEN to a token of your account".into()
            }
            (401, _) if self.has_token => {
                "hub refuses the token, or has no such model; check HF_TOKEN and the name".into()
            }
            (401, _) => {
                "hub has no such public model: check the name, or for a private or gated one set HF_TOKEN".into()
            }
            (403, _) => "hub forbids it to this user; check what HF_TOKEN permits".into(),
            (404, "EntryNotFound") => "a file that the hub lists is not there; try again".into(),
            (404, _) => "hub has no such model; check the name".into(),
            (429, _) => "hub answers no more for a while (429); try again later, or set HF_TOKEN".into(),
            _ => format!("hub answers {status}"),
        };
        match status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            true => Failure::Transient(what),
            false => Failure::Final(RegistryError::hub(self.reference, what)),
        }
    }
}

/// An error with its causes.
pub fn in_words(error: &reqwest::Error) -> String {
    let mut what = String::from("connection to the hub failed");
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        what += &format!(": {error}");
        source = error.source();
    }
    what
}

/// Checks a hub's description of a repository and returns the names of its files: the only answer that is parsed before files are
/// fetched.
///
/// # Errors
/// A message for people, for bytes that are not such a description.
#[doc(hidden)]
pub fn describe(description: &[u8]) -> Result<Vec<String>, String> {
    decode(description).map(|repository| repository.files.into_iter().map(|file| file.name).collect())
}

fn decode(description: &[u8]) -> Result<Repository, String> {
    #[derive(Deserialize)]
    struct Found {
        sha: String,
        siblings: Vec<FoundFile>,
    }
    #[derive(Deserialize)]
    struct FoundFile {
        rfilename: String,
        size: Option<u64>,
        #[serde(rename = "blobId")]
        blob: Option<String>,
        lfs: Option<Lfs>,
    }
    #[derive(Deserialize)]
    struct Lfs {
        sha256: String,
        size: u64,
    }
    let found: Found = serde_json::from_slice(description)
        .map_err(|error| format!("answer is no description of a repository: {error}; check HF_ENDPOINT"))?;
    if !is_digits(&found.sha, 40) {
        return Err(format!("commit is {:?}, expected 40 hexadecimal digits", found.sha));
    }
    let mut files: Vec<HubFile> = Vec::new();
    for file in found.siblings {
        let name = file.rfilename;
        if !is_inside(&name) {
            return Err(format!("a file is called {name:?}, expected a path within the repository"));
        }
        let (size, hash) = match (file.lfs, file.size, file.blob) {
            (Some(Lfs { sha256, size }), ..) if is_digits(&sha256, 64) => (size, FileHash::Sha256(sha256)),
            (None, Some(size), Some(blob)) if is_digits(&blob, 40) => (size, FileHash::GitSha1(blob)),
            _ => return Err(format!("{name} has no size and hash")),
        };
        files.push(HubFile { name, size, hash });
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    if let Some(pair) = files.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(format!("{} is listed twice", pair[0].name));
    }
    Ok(Repository { commit: found.sha, files })
}

fn is_digits(text: &str, count: usize) -> bool {
    text.len() == count && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a relative path stays inside its folder.
fn is_inside(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    name.len() <= 1024
        && name.split('/').all(is_part)
        && !name.chars().any(|letter| letter.is_control() || letter == '\\')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn described(name: &str, more: serde_json::Value) -> Result<Repository, String> {
        let mut file = json!({"rfilename": name, "size": 3, "blobId": "a".repeat(40)});
        file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        decode(json!({"sha": "0".repeat(40), "siblings": [file]}).to_string().as_bytes())
    }

    #[test]
    fn large_files_have_sha256_and_small_ones_gits() {
        let small = described("config.json", json!({})).unwrap();
        assert_eq!(small.files[0].hash, FileHash::GitSha1("a".repeat(40)));
        let large = described("m.safetensors", json!({"lfs": {"sha256": "b".repeat(64), "size": 7, "pointerSize": 1}}))
            .unwrap();
        assert_eq!((large.files[0].size, large.files[0].hash.digits()), (7, &"b".repeat(64)[..]));
    }

    #[test]
    fn a_lying_hub_is_refused() {
        for name in ["../a", "/a", "a//b", "a/./b", "a/../../b", "", "a\\b", "a\nb"] {
            assert!(described(name, json!({})).is_err(), "{name:?}");
        }
        for more in [
            json!({"blobId": "../../a"}),
            json!({"blobId": null}),
            json!({"lfs": {"sha256": "..", "size": 1}}),
            json!({"size": -1}),
        ] {
            assert!(described("a", more.clone()).is_err(), "{more}");
        }
        let twice = json!({"rfilename": "a", "size": 1, "blobId": "a".repeat(40)});
        assert!(decode(json!({"sha": "0".repeat(40), "siblings": [twice, twice]}).to_string().as_bytes()).is_err());
        for text in ["", "<html>", "{}", r#"{"sha": "main", "siblings": []}"#] {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }
}
