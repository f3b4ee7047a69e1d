//! What a start sends to a keeper, over a Unix socket.
//!
//! ```text
//! start ──► keeper   length u32 · the three streams as SCM_RIGHTS · JSON of Request
//!       ◄──          ACCEPTED
//!       ──►          INTERRUPT, RESIZE                 any number of times
//!       ◄──          exit code
//! ```

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::stdio::{stderr, stdin, stdout};
use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::error::CliError;

/// The keeper does what the request asks for.
pub const ACCEPTED: u8 = b'a';
/// Ctrl-C was pressed.
pub const INTERRUPT: u8 = b'i';
/// The terminal has another size.
pub const RESIZE: u8 = b'r';

/// Longer than any command line with its prompt.
const MAX_BYTES: u32 = 256 << 20;

/// stdin, stdout and stderr.
pub type Streams = [OwnedFd; 3];

/// A start of `unicorn-run MODEL`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub key: String,
    /// The command line, the program's name included.
    pub arguments: Vec<OsString>,
    /// Folder to which paths are relative.
    pub folder: PathBuf,
    pub artifact: PathBuf,
    /// `None`: a chat.
    pub prompt: Option<String>,
}

impl Request {
    /// That of this process.
    ///
    /// # Errors
    /// When the working folder is gone.
    pub fn new(key: &Key, artifact: &Path, prompt: Option<&str>) -> Result<Request, CliError> {
        let folder = std::env::current_dir()
            .map_err(|error| CliError::new(format!("the working folder cannot be found: {error}")))?;
        let (arguments, artifact) = (std::env::args_os().collect(), folder.join(artifact));
        Ok(Request { key: key.0.clone(), arguments, folder, artifact, prompt: prompt.map(str::to_owned) })
    }

    /// Sends it with the streams of this process.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn send(&self, mut connection: &UnixStream) -> io::Result<()> {
        let json = serde_json::to_vec(self)?;
        let length = u32::try_from(json.len()).map_err(io::Error::other)?.to_le_bytes();
        let streams = [stdin(), stdout(), stderr()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&streams));
        sendmsg(connection, &[IoSlice::new(&length)], &mut ancillary, SendFlags::NOSIGNAL)?;
        connection.write_all(&json)
    }

    /// # Errors
    /// Errors of the socket, and when it is not a request that came.
    pub fn receive(connection: &UnixStream) -> io::Result<(Request, Streams)> {
        let mut length = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        recvmsg(connection, &mut [IoSliceMut::new(&mut length)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let streams: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(streams) => Some(streams),
                _ => None,
            })
            .flatten()
            .collect();
        let streams = Streams::try_from(streams).map_err(|_| io::Error::other("expected three streams"))?;
        let mut json = Vec::new();
        let length = u32::from_le_bytes(length).min(MAX_BYTES);
        connection.take(length.into()).read_to_end(&mut json)?;
        Ok((serde_json::from_slice(&json)?, streams))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_with_its_streams() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let key = Key("a key".into());
        let request = Request::new(&key, Path::new("m.unicorn"), Some("héllo")).unwrap();
        request.send(&sender).unwrap();
        let (received, streams) = Request::receive(&receiver).unwrap();
        assert_eq!((&received.key, received.prompt.as_deref()), (&key.0, Some("héllo")));
        assert_eq!(received.arguments, request.arguments);
        assert!(received.artifact.is_absolute() && received.artifact.ends_with("m.unicorn"));
        assert_eq!(streams.len(), 3);
    }

    #[test]
    fn other_bytes_are_an_error() {
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        sender.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(Request::receive(&receiver).is_err());
        drop(sender);
        assert!(Request::receive(&receiver).is_err());
    }
}
