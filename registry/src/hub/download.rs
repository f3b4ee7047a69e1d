//! Downloads one file of a repository into the cache: existing bytes are kept, an interrupted download continues, and all bytes are
//! hashed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use futures_util::StreamExt;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use unicorn_artifact::header::hex;
use unicorn_artifact::write::new_file_permissions;

use crate::error::RegistryError;
use crate::hub::cache::Cache;
use crate::hub::client::{ATTEMPTS, FIRST_WAIT, Failure, FileHash, Hub, HubFile, in_words};
use crate::progress::Counter;

/// Downloads a file into the cache unless it is there.
pub async fn blob(
    hub: &Hub<'_>,
    cache: &Cache,
    commit: &str,
    file: &HubFile,
    counter: &Counter<'_>,
    on_wait: &(dyn Fn() + Sync),
) -> Result<(), RegistryError> {
    if cache.has(file) {
        counter.kept(file.size);
        return Ok(());
    }
    let (path, mut content, _lock) = tokio::task::block_in_place(|| cache.incomplete(file, on_wait))?;
    // Another process may have downloaded it meanwhile.
    if cache.has(file) {
        counter.kept(file.size);
        return Ok(());
    }
    let in_file = |error: io::Error| RegistryError::io(&path)(error);
    let mut done = content.metadata().map_err(in_file)?.len();
    if done > file.size {
        done = 0;
    }
    content.set_len(done).map_err(in_file)?;
    let mut hasher = tokio::task::block_in_place(|| Hasher::of(file, &mut content, done)).map_err(in_file)?;
    counter.kept(done);
    let (mut attempt, mut wait) = (0, FIRST_WAIT);
    while done < file.size {
        let begun = done;
        match piece_by_piece(hub, commit, file, counter, &mut content, &mut hasher, &mut done).await {
            Ok(()) => break,
            Err(Broken::Here(error)) => return Err(in_file(error)),
            Err(Broken::There(Failure::Final(error))) => return Err(error),
            Err(Broken::There(Failure::Transient(what))) => {
                // Any received bytes count as progress.
                (attempt, wait) = if done > begun { (1, FIRST_WAIT) } else { (attempt + 1, wait) };
                if attempt == ATTEMPTS {
                    return Err(RegistryError::hub(hub.reference, format!("{}: {what}", file.name)));
                }
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
        }
    }
    let found = hasher.finish();
    if found != file.hash.digits() {
        counter.lost(done);
        let _ = std::fs::remove_file(&path);
        let (name, expected) = (&file.name, file.hash.digits());
        let what =
            format!("{name} has hash {found}, expected {expected}: it was damaged on its way or at the hub; try again");
        return Err(RegistryError::hub(hub.reference, what));
    }
    let keep = || {
        content.set_permissions(new_file_permissions())?;
        content.sync_all()?;
        std::fs::rename(&path, cache.blob(file))
    };
    tokio::task::block_in_place(keep).map_err(in_file)
}

/// Why a request ended early.
enum Broken {
    Here(io::Error),
    There(Failure),
}

/// One request: the rest of a file from byte `done` on.
async fn piece_by_piece(
    hub: &Hub<'_>,
    commit: &str,
    file: &HubFile,
    counter: &Counter<'_>,
    content: &mut File,
    hasher: &mut Hasher,
    done: &mut u64,
) -> Result<(), Broken> {
    let (response, is_rest) = hub.content(commit, &file.name, *done).await.map_err(Broken::There)?;
    if !is_rest && *done > 0 {
        // This hub does not support ranges.
        counter.lost(std::mem::take(done));
        *hasher = Hasher::new(file);
    }
    content.seek(SeekFrom::Start(*done)).map_err(Broken::Here)?;
    let mut pieces = response.bytes_stream();
    while *done < file.size {
        let piece = match pieces.next().await {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Err(Broken::There(Failure::Transient(in_words(&error)))),
            None => return Err(Broken::There(Failure::Transient("connection ended early".into()))),
        };
        if piece.len() as u64 > file.size - *done {
            let (name, found) = (&file.name, *done + piece.len() as u64);
            let what = format!("{name} has at least {found} bytes, expected {}", file.size);
            return Err(Broken::There(Failure::Final(RegistryError::hub(hub.reference, what))));
        }
        content.write_all(&piece).map_err(Broken::Here)?;
        hasher.update(&piece);
        *done += piece.len() as u64;
        counter.moved(piece.len() as u64);
    }
    Ok(())
}

enum Hasher {
    Sha256(Sha256),
    GitSha1(Sha1),
}

impl Hasher {
    fn new(file: &HubFile) -> Hasher {
        match file.hash {
            FileHash::Sha256(_) => Hasher::Sha256(Sha256::new()),
            FileHash::GitSha1(_) => Hasher::GitSha1(Sha1::new_with_prefix(format!("blob {}\0", file.size))),
        }
    }

    /// Hasher of the first `len_bytes` of `content`, which were downloaded before.
    fn of(file: &HubFile, content: &mut File, len_bytes: u64) -> io::Result<Hasher> {
        let mut hasher = Hasher::new(file);
        content.seek(SeekFrom::Start(0))?;
        let mut piece = vec![0; 1 << 20];
        let mut rest = content.take(len_bytes);
        loop {
            match rest.read(&mut piece)? {
                0 => return Ok(hasher),
                bytes => hasher.update(&piece[..bytes]),
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitSha1(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Hasher::Sha256(hasher) => hex(&hasher.finalize()),
            Hasher::GitSha1(hasher) => hex(&hasher.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_hashes_as_git_hashes_it() {
        let file = HubFile { name: "a".into(), size: 6, hash: FileHash::GitSha1(String::new()) };
        let mut content = tempfile::tempfile().unwrap();
        content.write_all(b"hello\nmore").unwrap();
        // As `git hash-object` prints.
        assert_eq!(Hasher::of(&file, &mut content, 6).unwrap().finish(), "ce013625030ba8dba906f756967f9e9ca394464a");
        let mut parts = Hasher::of(&file, &mut content, 3).unwrap();
        parts.update(b"lo\n");
        assert_eq!(parts.finish(), "ce013625030ba8dba906f756967f9e9ca394464a");
    }
}
