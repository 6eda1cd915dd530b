//! The context of a build: a tar archive from outside, and an index of it.
//!
//! The archive lies in a file without a name, so that nothing is left of it whatever happens. Only headers are parsed,
//! here in the unprivileged control plane; no path of it is ever opened on this machine.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use cove_limits::{
    BUILD_CONTEXT_DEPTH_MAX, BUILD_CONTEXT_ENTRIES_MAX, BUILD_CONTEXT_MAX, PATH_MAX,
};
use cove_template::copy::{Files, Item, Kind};
use cove_template::ignore::Ignore;
use sha2::{Digest, Sha256};
use tar::EntryType;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Live;
use super::archive::{Named, Stoppable, each, odd};
use crate::error::{ControlError, ErrorCode};

/// Bytes that the names of a context take in memory.
const NAMES_MAX: usize = 64 * 1024 * 1024;

/// Where a file's bytes are in the archive, and their hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub offset: u64,
    pub size: u64,
    pub hash: [u8; 32],
}

/// One archive in the file of a context. What it has lies below the prefix.
pub struct Segment {
    pub prefix: String,
    pub offset: u64,
    pub bytes: u64,
}

/// Archives that have arrived whole.
pub struct Context {
    pub file: Arc<File>,
    pub segments: Vec<Segment>,
    /// Its build's place among those under way.
    _place: Arc<()>,
}

/// Tells a build of its context.
pub type Arrival = oneshot::Sender<Result<Context, ControlError>>;

/// A context on its way in.
pub struct ContextUpload {
    file: File,
    bytes: u64,
    live: Arc<Live>,
    place: Arc<()>,
    begin: Option<Arrival>,
}

pub(super) fn unwritable(error: io::Error) -> ControlError {
    let full = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    );
    match full {
        true => ControlError::new(
            ErrorCode::NoCapacity,
            "the server has no room for the context",
        )
        .because(error),
        false => ControlError::internal("cannot write the context").because(error),
    }
}

impl ContextUpload {
    pub(super) fn new(
        directory: Option<PathBuf>,
        live: Arc<Live>,
        begin: Arrival,
    ) -> Result<Self, ControlError> {
        let file = match directory {
            Some(directory) => tempfile::tempfile_in(directory),
            None => tempfile::tempfile(),
        };
        Ok(Self {
            file: file.map_err(unwritable)?,
            bytes: 0,
            place: Arc::clone(&live.place),
            live,
            begin: Some(begin),
        })
    }

    pub async fn write(&mut self, piece: Bytes) -> Result<(), ControlError> {
        let at = self.bytes;
        self.bytes += piece.len() as u64;
        if self.bytes > BUILD_CONTEXT_MAX as u64 {
            return Err(ControlError::new(
                ErrorCode::PayloadTooLarge,
                format!("a context has at most {BUILD_CONTEXT_MAX} bytes"),
            )
            .hint("leave files out in .dockerignore"));
        }
        if self.is_over() {
            return Err(super::cancelled());
        }
        let file = self.file.try_clone().map_err(unwritable)?;
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&piece, at)).await;
        match written {
            Ok(written) => written.map_err(unwritable),
            Err(error) => Err(ControlError::internal("cannot write the context").because(error)),
        }
    }

    fn is_over(&self) -> bool {
        let begin = self.begin.as_ref();
        self.live.cancel.is_cancelled() || begin.is_none_or(oneshot::Sender::is_closed)
    }

    /// Returns, with what the sender should hear, once the build waits for its context no longer.
    pub async fn given_up(&mut self) -> ControlError {
        if let Some(begin) = &mut self.begin {
            begin.closed().await;
        }
        super::cancelled()
    }

    /// The build goes on with it.
    pub fn finish(mut self) -> Result<(), ControlError> {
        let context = Context {
            file: Arc::new(self.file.try_clone().map_err(unwritable)?),
            segments: vec![Segment {
                prefix: String::new(),
                offset: 0,
                bytes: self.bytes,
            }],
            _place: self.place,
        };
        let Some(begin) = self.begin.take() else {
            return Ok(());
        };
        begin.send(Ok(context)).map_err(|_| super::cancelled())
    }
}

/// Reads a part of a file that others read too.
pub struct Part {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Part {
    pub fn new(file: &Arc<File>, offset: u64, size: u64) -> Self {
        Self {
            file: Arc::clone(file),
            at: offset,
            left: size,
        }
    }
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// A path as an archive has it, relative and without anything that could lead elsewhere.
pub fn plain(text: &str) -> Result<String, String> {
    let mut parts = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(format!("'{}' leads out of it", text.escape_debug())),
            part => parts.push(part),
        }
    }
    if parts.len() > BUILD_CONTEXT_DEPTH_MAX {
        return Err(format!(
            "a path has more than {BUILD_CONTEXT_DEPTH_MAX} components"
        ));
    }
    let plain = parts.join("/");
    match plain.len() > PATH_MAX {
        true => Err(format!("a path has more than {PATH_MAX} bytes")),
        false => Ok(plain),
    }
}

impl Context {
    pub fn new(file: File, segments: Vec<Segment>, place: Arc<()>) -> Self {
        Self {
            file: Arc::new(file),
            segments,
            _place: place,
        }
    }

    /// Blocks: reads the whole archive, or what it can until `stop`.
    pub fn index(
        &self,
        ignore: &Ignore,
        stop: &CancellationToken,
    ) -> Result<Files<Content>, String> {
        let mut files: Files<Content> = Files::default();
        let mut count = 0;
        for segment in &self.segments {
            let read = self.index_one(segment, ignore, stop, &mut files, &mut count);
            read.map_err(|error| error.to_string())?;
        }
        Ok(files)
    }

    fn index_one(
        &self,
        segment: &Segment,
        ignore: &Ignore,
        stop: &CancellationToken,
        files: &mut Files<Content>,
        count: &mut usize,
    ) -> io::Result<()> {
        let prefix = match segment.prefix.as_str() {
            "" => String::new(),
            prefix => {
                files.insert(Item {
                    path: prefix.to_owned(),
                    kind: Kind::Directory,
                    mode: 0o755,
                    uid: 0,
                    gid: 0,
                    mtime: 0,
                });
                format!("{prefix}/")
            }
        };
        let mut archive = tar::Archive::new(Stoppable::new(
            Part::new(&self.file, segment.offset, segment.bytes),
            stop,
            u64::MAX,
        ));
        each(&mut archive, |named| {
            let Named {
                path,
                link,
                mut entry,
            } = named;
            if stop.is_cancelled() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            *count += 1;
            if *count > BUILD_CONTEXT_ENTRIES_MAX || files.len() > BUILD_CONTEXT_ENTRIES_MAX {
                return Err(odd(format!(
                    "it has more than {BUILD_CONTEXT_ENTRIES_MAX} files"
                )));
            }
            if files.name_bytes() > NAMES_MAX {
                return Err(odd(format!("names in it have more than {NAMES_MAX} bytes")));
            }
            let path = plain(&path).map_err(odd)?;
            if path.is_empty() || ignore.leaves_out(&path) {
                return Ok(());
            }
            let kind = match entry.header().entry_type() {
                EntryType::Directory => Kind::Directory,
                EntryType::Regular | EntryType::Continuous => {
                    let (offset, size) = (segment.offset + entry.raw_file_position(), entry.size());
                    let mut hash = Sha256::new();
                    let copied = io::copy(&mut entry, &mut hash)?;
                    if copied != size {
                        return Err(odd(format!("'{path}' is truncated")));
                    }
                    Kind::File(Content {
                        offset,
                        size,
                        hash: hash.finalize().into(),
                    })
                }
                EntryType::Symlink => match link {
                    Some(target) if target.len() > PATH_MAX => {
                        return Err(odd(format!("a link has more than {PATH_MAX} bytes")));
                    }
                    Some(target) => Kind::Symlink(target),
                    None => return Err(odd(format!("'{path}' links to nothing"))),
                },
                EntryType::Link => {
                    let target = plain(&link.unwrap_or_default()).map_err(odd)?;
                    match files
                        .get(&format!("{prefix}{target}"))
                        .map(|item| item.kind.clone())
                    {
                        Some(kind @ Kind::File(_)) => kind,
                        _ => {
                            let text =
                                format!("'{path}' is a link to '{target}', which is not in it");
                            return Err(odd(text));
                        }
                    }
                }
                other => {
                    let text =
                        format!("'{path}' is of a kind ({other:?}) that a context cannot have");
                    return Err(odd(text));
                }
            };
            let header = entry.header();
            files.insert(Item {
                path: format!("{prefix}{path}"),
                kind,
                mode: header.mode()? & 0o7777,
                // As if root had made them: who owns them outside means nothing inside.
                uid: 0,
                gid: 0,
                mtime: header.mtime()?,
            });
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn context(paths: &[&str]) -> Context {
        let mut builder = tar::Builder::new(Vec::new());
        for path in paths {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o644);
            header.set_mtime(0);
            builder
                .append_data(&mut header, path, b"x".as_slice())
                .unwrap();
        }
        let bytes = builder.into_inner().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        Context {
            file: Arc::new(file),
            segments: vec![Segment {
                prefix: String::new(),
                offset: 0,
                bytes: bytes.len() as u64,
            }],
            _place: Arc::default(),
        }
    }

    #[test]
    fn deep_paths_are_refused_and_an_index_ends_with_its_build() {
        let stop = CancellationToken::new();
        let ignore = Ignore::default();
        let deep = "d/".repeat(BUILD_CONTEXT_DEPTH_MAX);
        let kept = format!("{}f", &deep[2..]);
        let indexed = context(&[&kept]).index(&ignore, &stop);
        assert_eq!(
            indexed.map(|files| files.len()),
            Ok(BUILD_CONTEXT_DEPTH_MAX)
        );
        let refused = context(&[&format!("{deep}f")]).index(&ignore, &stop);
        assert!(refused.is_err_and(|problem| problem.contains("components")));
        stop.cancel();
        assert!(context(&["a"]).index(&ignore, &stop).is_err());
    }
}
