//! What a file is like, and changes of it.

use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use super::Refusal;
use super::wire::{Body, Packet};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const MODE: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 0x8000_0000;
/// The bits of a mode that can be set.
const MODE_BITS: u32 = 0o7777;
/// Pairs of attributes nobody knows that are skipped.
const EXTENDED_MAX: u32 = 64;

#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes {
    pub size: u64,
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub accessed: u32,
    pub modified: u32,
}

fn seconds(time: i64) -> u32 {
    u32::try_from(time.max(0)).unwrap_or(u32::MAX)
}

impl From<&Metadata> for Attributes {
    fn from(metadata: &Metadata) -> Self {
        Self {
            size: metadata.size(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode(),
            accessed: seconds(metadata.atime()),
            modified: seconds(metadata.mtime()),
        }
    }
}

impl Attributes {
    pub fn write(&self, packet: &mut Packet<'_>) {
        packet
            .number(SIZE | OWNER | MODE | TIMES)
            .long(self.size)
            .number(self.uid)
            .number(self.gid)
            .number(self.mode)
            .number(self.accessed)
            .number(self.modified);
    }
}

/// What a client wants different.
#[derive(Debug, Default)]
pub struct Change {
    size: Option<u64>,
    owner: Option<(u32, u32)>,
    mode: Option<u32>,
    times: Option<(u32, u32)>,
}

impl Change {
    pub fn read(body: &mut Body<'_>) -> Result<Self, Refusal> {
        let flags = body.needed_number()?;
        let mut change = Self::default();
        if flags & SIZE != 0 {
            change.size = Some(body.long()?);
        }
        if flags & OWNER != 0 {
            change.owner = Some((body.needed_number()?, body.needed_number()?));
        }
        if flags & MODE != 0 {
            change.mode = Some(body.needed_number()? & MODE_BITS);
        }
        if flags & TIMES != 0 {
            change.times = Some((body.needed_number()?, body.needed_number()?));
        }
        if flags & EXTENDED != 0 {
            let count = body.needed_number()?;
            if count > EXTENDED_MAX {
                return Err(Refusal::Malformed);
            }
            for _ in 0..count {
                body.text()?;
                body.text()?;
            }
        }
        Ok(change)
    }

    /// For a file or directory that is being made.
    pub fn mode(&self) -> Option<u32> {
        self.mode
    }

    pub fn apply_to(&self, file: &File) -> Result<(), Refusal> {
        if let Some(size) = self.size {
            file.set_len(size)?;
        }
        if let Some(mode) = self.mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        if let Some(times) = self.times {
            rustix::fs::futimens(file, &timestamps(times))?;
        }
        if let Some((uid, gid)) = self.owner {
            std::os::unix::fs::fchown(file, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    /// Of a link's target, or with `follow` false of the link itself.
    pub fn apply(&self, path: &Path, follow: bool) -> Result<(), Refusal> {
        if let Some(size) = self.size {
            let file = super::files::open_existing(path)?;
            file.set_len(size)?;
        }
        if let Some(mode) = self.mode {
            if follow {
                std::fs::set_permissions(path, Permissions::from_mode(mode))?;
            } else {
                let mode = rustix::fs::Mode::from_raw_mode(mode);
                rustix::fs::chmodat(CWD, path, mode, AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        if let Some(times) = self.times {
            let flags = match follow {
                true => AtFlags::empty(),
                false => AtFlags::SYMLINK_NOFOLLOW,
            };
            rustix::fs::utimensat(CWD, path, &timestamps(times), flags)?;
        }
        if let Some((uid, gid)) = self.owner {
            match follow {
                true => std::os::unix::fs::chown(path, Some(uid), Some(gid))?,
                false => std::os::unix::fs::lchown(path, Some(uid), Some(gid))?,
            }
        }
        Ok(())
    }
}

fn timestamps((accessed, modified): (u32, u32)) -> Timestamps {
    let at = |seconds: u32| Timespec {
        tv_sec: seconds.into(),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: at(accessed),
        last_modification: at(modified),
    }
}
