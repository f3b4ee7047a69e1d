//! Parts of sequences' KV caches in a folder, so that a conversation goes on in another session, or another process, without being
//! computed again. A segment is used only where its hash is right and the same artifact's kernels for the same target computed it.
//!
//! ```text
//! segment 0..40 ─┬─ 40..90 ─── 90..130      the tokens of each follow those of its parent
//!                └─ 40..75
//! ```
//!
//! When the folder is full, the segment that was used longest ago goes first, of those that no other one follows.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use unicorn_artifact::kv_segment::{KvPages, KvStep};
use unicorn_artifact::{KvGroupPlan, KvSegment};

use crate::session::kv_payload::Payload;

/// Segments in a folder. Programs may share the folder; each knows what was there when it began, and what it has written itself.
pub struct KvStore {
    folder: PathBuf,
    max_bytes: u64,
    artifact: [u8; 32],
    target: String,
    groups: Vec<KvGroupPlan>,
    /// By key, also those of other models.
    segments: HashMap<Key, Stored>,
    /// The file of the last segment, until it is known to be complete.
    writing: Option<Writing>,
    /// The error of a file that could not be written, until [`KvStore::finish`] returns it.
    failed: Option<io::Error>,
}

type Key = [u8; 32];

struct Stored {
    segment: KvSegment,
    len_bytes: u64,
    used: SystemTime,
}

/// A file that is being written.
struct Writing {
    key: Key,
    /// The segment with its payload's hash, and the length of the file.
    thread: JoinHandle<io::Result<(KvSegment, u64)>>,
}

/// Segments that a prompt begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// One behind the other.
    keys: Vec<Key>,
    /// Tokens of the prompt that they hold: of the last one, perhaps not all.
    pub len_tokens: u32,
}

const EXTENSION: &str = "kv";
const PARTIAL: &str = "kv-partial";
/// Longer than any segment takes to write.
const MAX_WRITING: Duration = Duration::from_secs(600);

impl KvStore {
    /// The segments in `folder`, which is made if it is not there, of at most `max_bytes` together. Other files stay, but for what programs
    /// left that were ended while they wrote.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub fn open(
        folder: &Path,
        max_bytes: u64,
        artifact: [u8; 32],
        target: &str,
        groups: &[KvGroupPlan],
    ) -> io::Result<KvStore> {
        fs::create_dir_all(folder)?;
        let mut segments = HashMap::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            segments.extend(read(&path));
            if is_left_over(&path) {
                // Another program may have removed it.
                let _ = fs::remove_file(&path);
            }
        }
        let groups = groups.to_vec();
        Ok(KvStore {
            folder: folder.to_owned(),
            max_bytes,
            artifact,
            target: target.to_owned(),
            groups,
            segments,
            writing: None,
            failed: None,
        })
    }

    /// The segments that hold most of `prompt`, but not its last token, whose logits are needed. A part of a segment's tokens is used only
    /// where all pages are kept.
    pub fn find(&mut self, prompt: &[u32], rope_variant: u32) -> Found {
        let found = self.find_listed(prompt, rope_variant);
        match found.keys.iter().any(|key| !self.is_complete(key)) {
            true => self.find_listed(prompt, rope_variant),
            false => found,
        }
    }

    fn find_listed(&self, prompt: &[u32], rope_variant: u32) -> Found {
        let is_cut_anywhere = self.groups.iter().all(|group| group.window_tokens.is_none() && !group.is_state());
        let max_tokens = prompt.len().saturating_sub(1);
        let mut best = Found::default();
        let mut open = vec![best.clone()];
        while let Some(found) = open.pop() {
            let begun = found.len_tokens as usize;
            for (key, stored) in &self.segments {
                let segment = &stored.segment;
                if segment.parent.as_ref() != found.keys.last() || !self.is_usable(segment, rope_variant) {
                    continue;
                }
                let both = segment.tokens.iter().zip(&prompt[begun..max_tokens]);
                let common = both.take_while(|(one, other)| one == other).count();
                if common == 0 {
                    continue;
                }
                let is_whole = common == segment.tokens.len();
                let mut next = found.clone();
                next.keys.push(*key);
                next.len_tokens += common as u32;
                if (is_whole || is_cut_anywhere) && next.len_tokens > best.len_tokens {
                    best = next.clone();
                }
                if is_whole {
                    open.push(next);
                }
            }
        }
        best
    }

    /// The segments that hold the first of `tokens`, each of them whole.
    pub fn find_whole(&self, tokens: &[u32], rope_variant: u32) -> Found {
        let mut found = Found::default();
        loop {
            let rest = &tokens[found.len_tokens as usize..];
            let next = self.segments.iter().find(|(_, stored)| {
                let segment = &stored.segment;
                segment.parent.as_ref() == found.keys.last()
                    && self.is_usable(segment, rope_variant)
                    && rest.starts_with(&segment.tokens)
            });
            let Some((key, stored)) = next else { return found };
            found.keys.push(*key);
            found.len_tokens = stored.segment.end();
        }
    }

    /// The records of what was found.
    pub fn segments(&self, found: &Found) -> Vec<&KvSegment> {
        found.keys.iter().filter_map(|key| Some(&self.segments.get(key)?.segment)).collect()
    }

    /// The payload of a segment that was found, of which nothing is read yet; `None`: its file is gone or has another length.
    pub fn payload(&self, found: &Found, number: usize) -> Option<Payload<'_>> {
        let key = &found.keys[number];
        let segment = &self.segments.get(key)?.segment;
        let file = File::open(self.path(key)).ok()?;
        Payload::open(segment, file, segment.payload_bytes(&self.groups)).ok()
    }

    /// What was found has just been used.
    pub fn touch(&mut self, found: &Found) {
        let now = SystemTime::now();
        for key in &found.keys {
            if let Some(stored) = self.segments.get_mut(key) {
                stored.used = now;
                // Where that fails, later programs take it for older than it is.
                let _ = File::options().append(true).open(self.path(key)).and_then(|file| file.set_modified(now));
            }
        }
    }

    /// What was found cannot be read from this segment on: that is not found again.
    pub fn forget(&mut self, found: &Found, number: usize) {
        found.keys[number..].iter().for_each(|key| self.remove(key));
    }

    /// Writes the segment that follows `found`, on a thread of its own, once the one before is complete. One that is larger than all may be is
    /// not written.
    ///
    /// # Errors
    /// When the file before could not be written, of which no part is left, or no thread can be started.
    pub fn add(
        &mut self,
        found: &Found,
        tokens: Vec<u32>,
        steps: Vec<KvStep>,
        groups: Vec<KvPages>,
        payload: Vec<u8>,
    ) -> io::Result<()> {
        self.finish()?;
        let segment = KvSegment {
            artifact: self.artifact,
            target: self.target.clone(),
            parent: found.keys.last().copied(),
            first_token: found.len_tokens,
            tokens,
            steps,
            groups,
            payload_hash: [0; 32],
        };
        let key = segment.key();
        let len_bytes = payload.len() as u64 + 4 * segment.tokens.len() as u64;
        if len_bytes > self.max_bytes {
            return Ok(());
        }
        self.make_room(len_bytes, found);
        let (path, mut written) = (self.path(&key), segment.clone());
        let write = move || write(&mut written, &payload, &path).map(|len_bytes| (written, len_bytes));
        let thread = thread::Builder::new().name("kv-store".into()).spawn(write)?;
        self.writing = Some(Writing { key, thread });
        self.segments.insert(key, Stored { segment, len_bytes, used: SystemTime::now() });
        Ok(())
    }

    /// Whether a file is being written at this moment.
    pub fn is_writing(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| !writing.thread.is_finished())
    }

    /// Whether [`KvStore::finish`] has something to wait for, or an error to return.
    pub fn has_to_finish(&self) -> bool {
        self.writing.is_some() || self.failed.is_some()
    }

    /// Waits until the last file is complete.
    ///
    /// # Errors
    /// When it could not be written; no part of it is left then.
    pub fn finish(&mut self) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let Some(Writing { key, thread }) = self.writing.take() else { return Ok(()) };
        let written = thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes has panicked")));
        match written {
            Ok((segment, len_bytes)) => {
                if let Some(stored) = self.segments.get_mut(&key) {
                    (stored.segment, stored.len_bytes) = (segment, len_bytes);
                }
                Ok(())
            }
            Err(error) => {
                self.segments.remove(&key);
                Err(error)
            }
        }
    }

    /// Waits until the file of a segment is complete; false: it could not be written, and the segment is gone.
    fn is_complete(&mut self, key: &Key) -> bool {
        if self.writing.as_ref().is_some_and(|writing| writing.key == *key) {
            self.failed = self.finish().err();
        }
        self.segments.contains_key(key)
    }

    fn is_usable(&self, segment: &KvSegment, rope_variant: u32) -> bool {
        segment.artifact == self.artifact
            && segment.target == self.target
            && segment.steps.iter().all(|step| step.rope_variant == rope_variant)
            && segment.check_groups(&self.groups).is_ok()
    }

    /// Removes segments until `len_bytes` more are within the limit, but none of `kept`.
    fn make_room(&mut self, len_bytes: u64, kept: &Found) {
        let mut all: u64 = self.segments.values().map(|stored| stored.len_bytes).sum();
        while all + len_bytes > self.max_bytes {
            let is_followed =
                |key: &Key| self.segments.values().any(|other| other.segment.parent.as_ref() == Some(key));
            let leaves = self.segments.iter().filter(|(key, _)| !kept.keys.contains(key) && !is_followed(key));
            let Some((&key, stored)) = leaves.min_by_key(|(_, stored)| stored.used) else { return };
            all -= stored.len_bytes;
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        self.is_complete(key);
        self.segments.remove(key);
        // Another program may have removed it.
        let _ = fs::remove_file(self.path(key));
    }

    fn path(&self, key: &Key) -> PathBuf {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(name).with_extension(EXTENSION)
    }
}

impl Drop for KvStore {
    fn drop(&mut self) {
        // A caller that needs the error calls `finish` itself.
        let _ = self.finish();
    }
}

/// Writes the file of a segment, and returns its length.
///
/// # Errors
/// When it cannot be written; no part of it is left then.
fn write(segment: &mut KvSegment, payload: &[u8], path: &Path) -> io::Result<u64> {
    let partial = path.with_extension(format!("{}.{PARTIAL}", std::process::id()));
    // What people say to a model is theirs alone.
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial);
    let written = file.and_then(|mut file| {
        segment.write(payload, &mut file)?;
        let len_bytes = file.metadata()?.len();
        fs::rename(&partial, path)?;
        Ok(len_bytes)
    });
    // It may not be there; the first error is the one to report.
    written.inspect_err(|_| drop(fs::remove_file(&partial)))
}

/// The segment in a file; `None`: it holds none.
fn read(path: &Path) -> Option<(Key, Stored)> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    if path.extension()? != EXTENSION {
        return None;
    }
    let segment = KvSegment::read(&mut File::open(path).ok()?).ok()?;
    let stored = Stored { len_bytes: metadata.len(), used: metadata.modified().ok()?, segment };
    Some((stored.segment.key(), stored))
}

/// Whether a file was being written long ago, by a program that was ended.
fn is_left_over(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let age = modified.and_then(|modified| modified.elapsed().ok()).unwrap_or_default();
    path.extension().is_some_and(|is| is == PARTIAL) && age > MAX_WRITING
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::kv_segment::pages_of;

    use crate::memory::kv_pages::tests::group;

    use super::*;

    fn open(folder: &Path, max_bytes: u64, groups: &[KvGroupPlan]) -> KvStore {
        KvStore::open(folder, max_bytes, [1; 32], "generic", groups).unwrap()
    }

    /// Adds the part of `tokens` that is not there yet, and returns where it begins.
    fn add(store: &mut KvStore, tokens: &[u32]) -> u32 {
        let from = begin(store, tokens);
        store.finish().unwrap();
        from
    }

    /// The same without waiting for the file.
    fn begin(store: &mut KvStore, tokens: &[u32]) -> u32 {
        let found = store.find_whole(tokens, 0);
        let from = found.len_tokens;
        let step = KvStep { program: 0, n_tokens: tokens.len() as u32 - from, rope_variant: 0 };
        let pages = |group: &KvGroupPlan| {
            let pages = pages_of(group, from..tokens.len() as u32);
            KvPages { first_page: pages.start, n_pages: pages.len() as u32 }
        };
        let pages: Vec<KvPages> = store.groups.iter().map(pages).collect();
        let bytes: u64 = pages.iter().zip(&store.groups).map(|(pages, group)| group.bytes(pages.n_pages)).sum();
        let payload = vec![from as u8; bytes as usize];
        store.add(&found, tokens[from as usize..].to_vec(), vec![step], pages, payload).unwrap();
        from
    }

    /// The payload of a segment if it is right.
    fn payload(store: &KvStore, found: &Found, number: usize) -> Option<Vec<u8>> {
        let payload = store.payload(found, number)?;
        let mut bytes = vec![0; payload.len_bytes() as usize];
        let subtrees = payload.read(0, &mut bytes)?;
        payload.is_right(subtrees).then_some(bytes)
    }

    #[test]
    fn what_a_prompt_shares_with_earlier_sequences_is_found_also_later() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), 1 << 20, &[group(None)]);
        assert_eq!(add(&mut store, &[1, 2, 3, 4, 5, 6]), 0);
        assert_eq!(add(&mut store, &[1, 2, 3, 4, 5, 6, 7, 8]), 6);
        assert_eq!(add(&mut store, &[1, 2, 3, 4, 5, 6, 9, 9, 9]), 6);
        for mut store in [store, open(folder.path(), 1 << 20, &[group(None)])] {
            let mut len = |prompt: &[u32]| (store.find(prompt, 0).len_tokens, store.find(prompt, 0).keys.len());
            assert_eq!(len(&[1, 2, 3, 4, 5, 6, 7, 8, 100]), (8, 2));
            // The last token is fed.
            assert_eq!(len(&[1, 2, 3, 4, 5, 6, 7, 8]), (7, 2));
            assert_eq!(len(&[1, 2, 3, 4, 5, 6, 9, 100]), (7, 2));
            assert_eq!((len(&[1, 2, 100]), len(&[100]), len(&[])), ((2, 1), (0, 0), (0, 0)));
            let found = store.find(&[1, 2, 3, 4, 5, 6, 7, 8, 100], 0);
            let payloads = [0, 1].map(|number| payload(&store, &found, number));
            assert_eq!(payloads, [Some(vec![0; 1024]), Some(vec![6; 512])]);
            assert_eq!(store.segments(&found)[1].tokens, [7, 8]);
            assert_eq!(store.find(&[1, 2, 3], 1), Found::default());
        }
        let mut other = KvStore::open(folder.path(), 1 << 20, [2; 32], "generic", &[group(None)]).unwrap();
        assert_eq!(other.find(&[1, 2, 3], 0), Found::default());
        let mut other = KvStore::open(folder.path(), 1 << 20, [1; 32], "nvidia", &[group(None)]).unwrap();
        assert_eq!(other.find(&[1, 2, 3], 0), Found::default());
        let mut other = open(folder.path(), 1 << 20, &[group(None), group(None)]);
        assert_eq!(other.find(&[1, 2, 3], 0), Found::default());
    }

    #[test]
    fn a_file_that_is_being_written_is_waited_for_and_one_that_cannot_be_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), 1 << 20, &[group(None)]);
        begin(&mut store, &[1, 2, 3, 4, 5, 6]);
        let found = store.find(&[1, 2, 3, 4, 5, 6, 7], 0);
        assert_eq!(payload(&store, &found, 0).map(|payload| payload.len()), Some(1024));
        assert!(!store.has_to_finish());

        fs::remove_dir_all(folder.path()).unwrap();
        begin(&mut store, &[8, 8, 8, 8, 8, 8]);
        assert_eq!(store.find(&[8, 8, 8, 8, 8, 8, 8], 0), Found::default());
        assert!(store.has_to_finish());
        assert!(store.finish().is_err() && store.finish().is_ok());
    }

    #[test]
    fn a_window_needs_whole_segments() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), 1 << 20, &[group(None), group(Some(6))]);
        add(&mut store, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(store.find(&[1, 2, 3, 4, 100], 0), Found::default());
        assert_eq!(store.find(&[1, 2, 3, 4, 5, 6, 100], 0).len_tokens, 6);
    }

    #[test]
    fn damaged_and_foreign_files_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), 1 << 20, &[group(None)]);
        add(&mut store, &[1, 2, 3, 4, 5, 6]);
        let found = store.find(&[1, 2, 3], 0);
        let path = store.path(&found.keys[0]);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(payload(&store, &found, 0), None);
        store.forget(&found, 0);
        assert!(!path.exists() && store.find(&[1, 2, 3], 0) == Found::default());
        bytes[60] ^= 1;
        fs::write(&path, &bytes).unwrap();
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        let [old, new] = ["1.kv-partial", "2.kv-partial"].map(|name| folder.path().join(name));
        for (path, age) in [(&old, 1000), (&new, 1)] {
            let file = File::create(path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        let again = open(folder.path(), 1 << 20, &[group(None)]);
        assert!(again.segments.is_empty() && path.exists() && folder.path().join("notes.txt").exists());
        assert!(new.exists() && !old.exists());
    }

    #[test]
    fn the_segment_that_was_used_longest_ago_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), 1 << 20, &[group(None)]);
        let sequences = [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]];
        for (sequence, seconds) in sequences.iter().zip(1..) {
            add(&mut store, sequence);
            let key = store.find_whole(sequence, 0).keys[0];
            store.segments.get_mut(&key).unwrap().used = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        }
        add(&mut store, &[2, 2, 2, 2, 5]);
        let used = store.find(&[1, 1, 1, 1, 9], 0);
        store.touch(&used);
        let all: u64 = store.segments.values().map(|stored| stored.len_bytes).sum();
        store.max_bytes = all + 8;
        add(&mut store, &[4, 4, 4, 4]);
        let len = |store: &mut KvStore, token: u32| store.find(&[token, token, token, token, 9], 0).len_tokens;
        // The second one is followed by another, and the first was used since.
        assert_eq!([1, 2, 3, 4].map(|token| len(&mut store, token)), [4, 4, 0, 4]);
        store.max_bytes = 8;
        add(&mut store, &[5, 5, 5, 5]);
        assert_eq!(len(&mut store, 5), 0);
    }
}
