//! Files on their way into a build's sandbox: from the context, from another sandbox, or out of an archive in the
//! context. They pass as a tar stream that is written here and unpacked by the guest. No more than a few pieces are in
//! memory at a time, and no file is written on this machine.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cove_protocol::client::{ArchiveReader, FileReader, GuestError};
use cove_protocol::message::{
    ArchiveIn, ArchiveOut, ErrorCode as GuestCode, FileInfo, FileType, ListDir, PathRequest,
    ReadFile,
};
use cove_template::copy::{self, Item, Kind, Rules, Tree};
use cove_template::pattern::{clean, is_pattern, matches_path};
use tar::{EntryType, Header};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Live;
use super::archive::{Named, Stoppable, each, odd};
use super::context::{Content, Part, plain};
use super::run::or_cancelled;
use crate::error::ControlError;
use crate::guest::GuestAccess;

/// Pieces on their way at once.
const PIECES: usize = 4;
const PIECE: usize = 256 * 1024;
/// What a zstd archive may ask for in memory: what the format says that every reader should have.
const WINDOW_MAX: u64 = 8 * 1024 * 1024;
/// Bytes read of `/etc/passwd` or `/etc/group`.
const DATABASE_MAX: u64 = 1024 * 1024;

/// What becomes of one source.
pub(super) enum Payload {
    Document(String),
    Context(Content),
}

/// A tar stream that is made on a thread of its own.
struct Outgoing {
    pieces: mpsc::Sender<Bytes>,
    buffer: BytesMut,
}

impl Outgoing {
    fn send(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = self.buffer.split().freeze();
        let sent = self.pieces.blocking_send(piece);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Outgoing {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= PIECE {
            self.send()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// The other direction: bytes of a guest, read on a thread.
struct Incoming {
    pieces: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

type Builder = tar::Builder<Outgoing>;

fn header(item: &Item<impl Sized>) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(item.mode);
    header.set_uid(item.uid.into());
    header.set_gid(item.gid.into());
    header.set_mtime(item.mtime);
    header.set_size(0);
    header
}

fn append(builder: &mut Builder, item: &Item<(u64, Box<dyn Read + Send>)>) -> io::Result<()> {
    let mut header = header(item);
    match &item.kind {
        Kind::Directory => {
            header.set_entry_type(EntryType::Directory);
            builder.append_data(&mut header, &item.path, io::empty())
        }
        Kind::Symlink(target) => {
            header.set_entry_type(EntryType::Symlink);
            builder.append_link(&mut header, &item.path, target)
        }
        Kind::File(_) => Ok(()),
    }
}

fn append_file(
    builder: &mut Builder,
    item: &Item<impl Sized>,
    size: u64,
    contents: impl Read,
) -> io::Result<()> {
    let mut header = header(item);
    header.set_size(size);
    builder.append_data(&mut header, &item.path, contents)
}

fn bare<C>(item: &Item<C>) -> Item<(u64, Box<dyn Read + Send>)> {
    Item {
        path: item.path.clone(),
        kind: match &item.kind {
            Kind::Directory | Kind::File(_) => Kind::Directory,
            Kind::Symlink(target) => Kind::Symlink(target.clone()),
        },
        mode: item.mode,
        uid: item.uid,
        gid: item.gid,
        mtime: item.mtime,
    }
}

/// Has the guest unpack at `/` what `produce` writes, on a thread that is over when this is. It reads through a
/// [`Stoppable`] with the token.
async fn send(
    live: &Live,
    access: &GuestAccess,
    produce: impl FnOnce(&mut Builder, &CancellationToken) -> io::Result<()> + Send + 'static,
) -> Result<(), ControlError> {
    let request = ArchiveIn {
        path: "/".into(),
        user: String::new(),
        keep_owner: true,
    };
    let mut upload = access.guest().archive_in(request).await?;
    let (pieces, mut incoming) = mpsc::channel(PIECES);
    let stop = live.cancel.child_token();
    let stopped = stop.clone();
    let producer = tokio::task::spawn_blocking(move || {
        let outgoing = Outgoing {
            pieces,
            buffer: BytesMut::new(),
        };
        let mut builder = tar::Builder::new(outgoing);
        produce(&mut builder, &stopped)?;
        builder.into_inner()?.flush()
    });
    let passing = async {
        while let Some(piece) = incoming.recv().await {
            upload.write(piece).await?;
        }
        Ok::<(), ControlError>(())
    };
    let passed = or_cancelled(live, passing).await.flatten();
    if passed.is_err() {
        stop.cancel();
    }
    // Closed before the producer is waited for, which may wait for room in it.
    drop(incoming);
    let produced = producer.await;
    passed?;
    let produced =
        produced.map_err(|error| ControlError::internal("cannot copy files").because(error))?;
    match produced {
        Ok(()) => {
            or_cancelled(live, upload.finish()).await??;
            Ok(())
        }
        Err(error) => {
            upload.abort();
            Err(ControlError::invalid(format!("cannot copy files: {error}")))
        }
    }
}

/// Files of the context and here-documents, each at its place.
pub(super) async fn send_items(
    live: &Live,
    access: &GuestAccess,
    archive: Arc<File>,
    items: Vec<Item<Payload>>,
) -> Result<(), ControlError> {
    send(live, access, move |builder, _| {
        for item in &items {
            match &item.kind {
                Kind::File(Payload::Document(text)) => {
                    append_file(builder, item, text.len() as u64, text.as_bytes())?;
                }
                Kind::File(Payload::Context(content)) => {
                    let part = Part::new(&archive, content.offset, content.size);
                    append_file(builder, item, content.size, part)?;
                }
                _ => append(builder, &bare(item))?,
            }
        }
        Ok(())
    })
    .await
}

/// How entries of another archive change on their way.
pub(super) struct Moved {
    /// What comes before them.
    pub parents: Vec<Item<()>>,
    /// Relative to `/`; empty for `/` itself.
    pub root: String,
    pub rules: Rules,
    pub exclude: Vec<String>,
}

impl Moved {
    fn place(&self, path: &str) -> String {
        match (self.root.is_empty(), path.is_empty()) {
            (_, true) => self.root.clone(),
            (true, false) => path.to_owned(),
            (false, false) => format!("{}/{path}", self.root),
        }
    }

    fn rewrite(&self, source: impl Read, builder: &mut Builder) -> io::Result<()> {
        for parent in &self.parents {
            append(builder, &bare(parent))?;
        }
        each(&mut tar::Archive::new(source), |named| {
            let Named { path, link, entry } = named;
            let kind = entry.header().entry_type();
            let path = plain(&path).map_err(odd)?;
            if path.is_empty() || copy::is_excluded(&path, &self.exclude) {
                return Ok(());
            }
            let mut header = Header::new_gnu();
            let old = entry.header();
            header.set_entry_type(kind);
            header.set_mode(match self.rules.chmod {
                Some(mode) => mode,
                None => old.mode()? & 0o7777,
            });
            let (uid, gid) = match self.rules.chown {
                Some((uid, gid)) => (uid.into(), gid.into()),
                None => (old.uid()?, old.gid()?),
            };
            header.set_uid(uid);
            header.set_gid(gid);
            header.set_mtime(old.mtime()?);
            header.set_size(0);
            let to = self.place(&path);
            let target = || link.ok_or_else(|| odd(format!("'{path}' links to nothing")));
            match kind {
                EntryType::Regular | EntryType::Continuous => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(entry.size());
                    builder.append_data(&mut header, to, entry)
                }
                EntryType::Symlink => builder.append_link(&mut header, to, target()?),
                EntryType::Link => {
                    let target = self.place(&plain(&target()?).map_err(odd)?);
                    builder.append_link(&mut header, to, target)
                }
                EntryType::Directory | EntryType::Fifo => {
                    builder.append_data(&mut header, to, io::empty())
                }
                other => Err(odd(format!(
                    "'{path}' is of a kind ({other:?}) that cannot be unpacked"
                ))),
            }
        })
    }
}

/// How an archive in a context is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packed {
    Tar,
    Gzip,
    Zstd,
}

/// Whether `ADD` unpacks a file, by its first bytes as other builders decide. Blocks.
pub(super) fn packed(archive: &Arc<File>, content: &Content) -> Result<Option<Packed>, String> {
    let mut first = [0; 512];
    let mut count = 0;
    let mut part = Part::new(archive, content.offset, content.size);
    while count < first.len() {
        match part.read(&mut first[count..]) {
            Ok(0) => break,
            Ok(read) => count += read,
            Err(error) => return Err(error.to_string()),
        }
    }
    let first = &first[..count];
    Ok(match first {
        [0x1f, 0x8b, ..] => Some(Packed::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Packed::Zstd),
        [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            return Err("bzip2 and xz archives are not unpacked; COPY the archive and unpack it in a RUN step".into());
        }
        _ if first.len() > 262 && &first[257..262] == b"ustar" => Some(Packed::Tar),
        _ => None,
    })
}

/// An archive of the context, unpacked at its place. It may have `most` bytes.
pub(super) async fn send_unpacked(
    live: &Live,
    access: &GuestAccess,
    archive: Arc<File>,
    content: Content,
    packed: Packed,
    moved: Moved,
    most: u64,
) -> Result<(), ControlError> {
    send(live, access, move |builder, stop| {
        let part = Part::new(&archive, content.offset, content.size);
        moved.rewrite(unpacked(part, packed, stop, most)?, builder)
    })
    .await
}

/// Both sides end with the build: one byte of input can be much output, and much input no output.
fn unpacked(
    part: impl Read + Send + 'static,
    packed: Packed,
    stop: &CancellationToken,
    most: u64,
) -> io::Result<impl Read> {
    let part = Stoppable::new(part, stop, u64::MAX);
    let decoder: Box<dyn Read + Send> = match packed {
        Packed::Tar => Box::new(part),
        Packed::Gzip => Box::new(flate2::read::MultiGzDecoder::new(part)),
        Packed::Zstd => Box::new(
            ruzstd::decoding::StreamingDecoder::new_with_max_window_size(part, WINDOW_MAX)
                .map_err(io::Error::other)?,
        ),
    };
    Ok(Stoppable::new(decoder, stop, most))
}

enum From {
    Directory(ArchiveReader),
    File(FileReader),
}

/// A source in another sandbox.
pub(super) struct Found {
    pub path: String,
    pub name: String,
    pub info: FileInfo,
}

impl Found {
    pub fn is_directory(&self) -> bool {
        self.info.r#type == FileType::Directory as i32
    }
}

async fn stat(access: &GuestAccess, path: &str) -> Result<Option<FileInfo>, ControlError> {
    let request = PathRequest {
        path: path.to_owned(),
        user: String::new(),
        follow: true,
    };
    match access.guest().stat(request).await {
        Ok(info) => Ok(Some(info)),
        Err(GuestError::Refused {
            code: GuestCode::NotFound | GuestCode::NotADirectory,
            ..
        }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What a path or a pattern stands for in another sandbox.
pub(super) async fn find(access: &GuestAccess, source: &str) -> Result<Vec<Found>, ControlError> {
    let wanted = clean(source);
    let mut paths = Vec::new();
    if is_pattern(&wanted) {
        let parts: Vec<&str> = wanted.split('/').collect();
        let fixed = parts.iter().take_while(|part| !is_pattern(part)).count();
        let above = format!("/{}", parts[..fixed].join("/"));
        let request = ListDir {
            path: above.clone(),
            user: String::new(),
            depth: u32::try_from(parts.len() - fixed).unwrap_or(1),
            limit: cove_limits::LIST_ENTRIES_MAX,
        };
        let listing = access.guest().list(request).await?;
        if listing.truncated {
            return Err(ControlError::invalid(format!(
                "{above} has too many files for the pattern {source}"
            )));
        }
        let entries = listing.entries.into_iter().map(|entry| clean(&entry.path));
        paths.extend(entries.filter(|path| matches_path(&wanted, path)));
        paths.sort();
    } else {
        paths.push(wanted);
    }
    let mut found = Vec::new();
    for path in paths {
        let path = format!("/{path}");
        let Some(info) = stat(access, &path).await? else {
            return Err(ControlError::invalid(format!("'{path}' does not exist")));
        };
        found.push(Found {
            name: path.rsplit('/').next().unwrap_or_default().to_owned(),
            path,
            info,
        });
    }
    Ok(found)
}

/// One source of another sandbox, to its place.
pub(super) async fn send_from(
    live: &Live,
    from: &GuestAccess,
    access: &GuestAccess,
    found: &Found,
    moved: Moved,
) -> Result<(), ControlError> {
    let mut source = match found.is_directory() {
        true => {
            let request = ArchiveOut {
                // What a link leads to, not the link.
                path: format!("{}/.", found.path.trim_end_matches('/')),
                user: String::new(),
            };
            From::Directory(from.guest().archive_out(request).await?)
        }
        false => {
            let request = ReadFile {
                path: found.path.clone(),
                ..ReadFile::default()
            };
            From::File(from.guest().read_file(request).await?)
        }
    };
    let (pieces, incoming) = mpsc::channel(PIECES);
    let reading = async {
        loop {
            let next = match &mut source {
                From::Directory(reader) => or_cancelled(live, reader.next()).await?,
                From::File(reader) => or_cancelled(live, reader.next()).await?,
            };
            let Some(piece) = next? else { break };
            if pieces.send(piece).await.is_err() {
                break;
            }
        }
        drop(pieces);
        Ok::<(), ControlError>(())
    };
    let incoming = Incoming {
        pieces: incoming,
        rest: Bytes::new(),
    };
    let info = found.info.clone();
    let is_directory = found.is_directory();
    let writing = send(live, access, move |builder, stop| {
        let incoming = Stoppable::new(incoming, stop, u64::MAX);
        if is_directory {
            return moved.rewrite(incoming, builder);
        }
        for parent in &moved.parents {
            append(builder, &bare(parent))?;
        }
        let (uid, gid) = moved.rules.chown.unwrap_or((info.uid, info.gid));
        let item = Item {
            path: moved.root.clone(),
            kind: Kind::File(()),
            mode: moved.rules.chmod.unwrap_or(info.mode & 0o7777),
            uid,
            gid,
            mtime: u64::try_from(info.modified_unix_ms / 1000).unwrap_or(0),
        };
        // Nobody writes in that sandbox, so the file has the size that it had.
        append_file(builder, &item, info.size, incoming.take(info.size))
    });
    let (read, written) = tokio::join!(reading, writing);
    written?;
    read
}

/// What the image has at a destination: whether it is a directory, and which directories above it are there.
pub(super) async fn look(
    access: &GuestAccess,
    dest: &str,
) -> Result<(bool, HashSet<String>), ControlError> {
    let path = clean(dest);
    let mut there = HashSet::from([String::new()]);
    let mut is_directory = path.is_empty();
    let ends = path
        .match_indices('/')
        .map(|(at, _)| at)
        .chain([path.len()]);
    for end in ends {
        let above = &path[..end];
        if above.is_empty() {
            continue;
        }
        match stat(access, &format!("/{above}")).await? {
            Some(info) if info.r#type == FileType::Directory as i32 => {
                there.insert(above.to_owned());
                is_directory |= end == path.len();
            }
            _ => break,
        }
    }
    Ok((is_directory, there))
}

async fn database(access: &GuestAccess, path: &str) -> Result<String, ControlError> {
    let request = ReadFile {
        path: path.to_owned(),
        length: DATABASE_MAX,
        ..ReadFile::default()
    };
    let mut reader = match access.guest().read_file(request).await {
        Ok(reader) => reader,
        Err(GuestError::Refused { .. }) => return Ok(String::new()),
        Err(error) => return Err(error.into()),
    };
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await? {
        if all.len() as u64 + piece.len() as u64 > DATABASE_MAX {
            break;
        }
        all.extend_from_slice(&piece);
    }
    Ok(String::from_utf8_lossy(&all).into_owned())
}

/// `user[:group]` of `--chown`, by the image's own databases. A number without a group is its own group's number.
pub(super) async fn owner(access: &GuestAccess, text: &str) -> Result<(u32, u32), ControlError> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let line = |database: &str, name: &str, field: usize| -> Option<u32> {
        let mut lines = database
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>());
        let found = lines.find(|fields| fields.first() == Some(&name))?;
        found.get(field)?.parse().ok()
    };
    let missing = |what: &str, name: &str| {
        ControlError::invalid(format!("--chown: there is no {what} '{name}' in the image"))
    };
    let (uid, own_group) = match user.parse::<u32>() {
        Ok(uid) => (uid, uid),
        Err(_) => {
            let passwd = database(access, "/etc/passwd").await?;
            let uid = line(&passwd, user, 2).ok_or_else(|| missing("user", user))?;
            (uid, line(&passwd, user, 3).unwrap_or(uid))
        }
    };
    let gid = match group {
        None | Some("") => own_group,
        Some(group) => match group.parse() {
            Ok(gid) => gid,
            Err(_) => {
                let groups = database(access, "/etc/group").await?;
                line(&groups, group, 2).ok_or_else(|| missing("group", group))?
            }
        },
    };
    Ok((uid, gid))
}

/// Where one source of another sandbox, or an archive, goes.
pub(super) fn moved(
    name: &str,
    is_directory: bool,
    dest: (&str, bool),
    rules: Rules,
    exclude: &[String],
    there: &HashSet<String>,
) -> Result<Moved, ControlError> {
    let tree: Tree<()> = match is_directory {
        true => Tree {
            name: name.to_owned(),
            items: Vec::new(),
        },
        false => copy::file(name, (), 0),
    };
    let placed = copy::place(vec![tree], dest.0, dest.1, rules, |path| {
        there.contains(path)
    });
    let mut parents = placed.map_err(ControlError::invalid)?;
    let root = match is_directory {
        true => clean(dest.0),
        false => parents.pop().map(|item| item.path).unwrap_or_default(),
    };
    Ok(Moved {
        parents,
        root,
        rules,
        exclude: exclude.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zstd frame with a window of `2^log` bytes and one block that repeats a zero.
    fn frame(log: u8, zeros: u32) -> Vec<u8> {
        let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3];
        // The last block; its kind is "repeat".
        let block = 1 | (1 << 1) | (zeros << 3);
        bytes.extend_from_slice(&block.to_le_bytes()[..3]);
        bytes.push(0);
        bytes
    }

    #[test]
    fn what_an_archive_unpacks_to_is_limited() {
        let stop = CancellationToken::new();
        let read = |bytes: Vec<u8>, most| {
            let mut all = Vec::new();
            unpacked(io::Cursor::new(bytes), Packed::Zstd, &stop, most)?.read_to_end(&mut all)
        };
        assert_eq!(read(frame(20, 100_000), 100_000).unwrap(), 100_000);
        assert!(read(frame(20, 100_000), 99_999).is_err());
        assert!(read(frame(23, 100_000), 100_000).is_ok());
        assert!(read(frame(24, 100_000), 100_000).is_err());
        stop.cancel();
        assert!(read(frame(20, 100_000), 100_000).is_err());
    }
}
