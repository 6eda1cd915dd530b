//! Describing files and listing directories.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use cove_protocol::message::{FileInfo, FileType, ListDir, Listing, PathRequest, ReplyKind};

use super::absolute;
use super::conn::Conn;
use super::identity::{Identity, Names};
use crate::call::Ended;
use crate::failure::{Doing, Result};

/// Entries of one listing, whatever was asked for.
const ENTRIES_MAX: usize = 100_000;
/// Directories that a deep listing goes down.
const DEPTH_MAX: u32 = 256;
/// Entries in one frame. A path has at most 4 KiB, a link's target as much.
const PER_FRAME: usize = 100;

pub fn stat(
    conn: &mut Conn,
    who: &Identity,
    request: &PathRequest,
) -> std::result::Result<(), Ended> {
    let path = absolute(&request.path)?;
    let metadata = if request.follow {
        std::fs::metadata(path)
    } else {
        std::fs::symlink_metadata(path)
    }
    .doing(&request.path)?;
    let info = describe(path, &metadata, &mut Names::new(who));
    conn.reply(ReplyKind::File(info))
}

pub fn describe(path: &Path, metadata: &Metadata, names: &mut Names<'_>) -> FileInfo {
    let kind = metadata.file_type();
    let r#type = if kind.is_file() {
        FileType::File
    } else if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_fifo() {
        FileType::Fifo
    } else if kind.is_char_device() || kind.is_block_device() {
        FileType::Device
    } else {
        FileType::Other
    };
    let symlink_target = match r#type {
        FileType::Symlink => std::fs::read_link(path)
            .map(|target| target.to_string_lossy().into_owned())
            .unwrap_or_default(),
        _ => String::new(),
    };
    FileInfo {
        name: path.file_name().map_or_else(
            || "/".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        ),
        path: path.to_string_lossy().into_owned(),
        r#type: r#type as i32,
        size: metadata.len(),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        owner: names.user(metadata.uid()),
        group: names.group(metadata.gid()),
        modified_unix_ms: metadata.mtime() * 1000 + metadata.mtime_nsec() / 1_000_000,
        symlink_target,
    }
}

pub fn serve(conn: &mut Conn, who: &Identity, request: &ListDir) -> std::result::Result<(), Ended> {
    let root = absolute(&request.path)?;
    let mut left = match request.limit as usize {
        0 => ENTRIES_MAX,
        limit => limit.min(ENTRIES_MAX),
    };
    let depth = request.depth.clamp(1, DEPTH_MAX);
    let mut names = Names::new(who);
    let mut frame = Listing::default();
    let mut truncated = false;
    let mut pending = vec![(root.to_owned(), depth)];
    // The first directory must be readable; one found on the way may not be, or may be gone.
    let mut first = true;
    while let Some((directory, depth)) = pending.pop() {
        let entries = match entries(&directory, left) {
            Ok((entries, more)) => {
                truncated |= more;
                entries
            }
            Err(failure) if first => return Err(failure.into()),
            Err(_) => continue,
        };
        first = false;
        left -= entries.len();
        let mut below = Vec::new();
        for (path, metadata) in entries {
            if depth > 1 && metadata.is_dir() {
                below.push((path.clone(), depth - 1));
            }
            frame.entries.push(describe(&path, &metadata, &mut names));
            if frame.entries.len() == PER_FRAME {
                conn.reply(ReplyKind::Listing(std::mem::take(&mut frame)))?;
            }
        }
        pending.extend(below.into_iter().rev());
        if left == 0 && !pending.is_empty() {
            truncated = true;
            break;
        }
    }
    frame.truncated = truncated;
    conn.reply(ReplyKind::Listing(frame))?;
    conn.done(0, 0)
}

/// At most `limit` entries in order of their names, and whether there are more.
fn entries(directory: &Path, limit: usize) -> Result<(Vec<(PathBuf, Metadata)>, bool)> {
    let shown = directory.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).doing(&shown)? {
        let entry = entry.doing(&shown)?;
        if found.len() == limit {
            return Ok((sorted(found), true));
        }
        // An entry that vanished since is no error.
        if let Ok(metadata) = entry.metadata() {
            found.push((entry.path(), metadata));
        }
    }
    Ok((sorted(found), false))
}

fn sorted(mut entries: Vec<(PathBuf, Metadata)>) -> Vec<(PathBuf, Metadata)> {
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    entries
}
