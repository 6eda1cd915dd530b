//! Simple quotas: switching them on, reading what each subvolume is charged, setting limits.
//!
//! Figures are read from sysfs, which shows the kernel's counters in memory; the quota tree on disk
//! is only as new as the last transaction. Classic qgroups are never switched on: they make deletes
//! many times slower.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::{Context, PoolError};
use crate::sys;
use crate::volume::Usage;

/// Bit of `limit_flags` that says `max_referenced` is in force.
const LIMIT_MAX_REFERENCED: u64 = 1;

pub(crate) struct Quota {
    /// The sysfs folder of the counters, or why there are none.
    groups: Result<PathBuf, String>,
}

impl Quota {
    /// Switches simple quotas on where no quotas are on yet. The setting stays in the filesystem.
    pub fn open(root: &Path, fs_id: [u8; 16]) -> Result<Quota, PoolError> {
        let groups = Path::new("/sys/fs/btrfs").join(uuid(fs_id)).join("qgroups");
        let before = mode(&groups)?;
        if before.is_none() {
            let file = File::open(root).context("open", root)?;
            if let Err(e) = sys::quota_enable_simple(file.as_fd()) {
                let reason = format!(
                    "this kernel cannot switch on btrfs simple quotas ({e}); Linux 6.7 can"
                );
                return Ok(Quota {
                    groups: Err(reason),
                });
            }
        }
        let groups = match mode(&groups)?.as_deref() {
            Some("squota") => Ok(groups),
            Some(other) => Err(format!(
                "the filesystem uses {other} quotas, disk limits need simple quotas"
            )),
            None => Err("the counters of btrfs quotas are not visible in /sys/fs/btrfs".to_owned()),
        };
        Ok(Quota { groups })
    }

    pub fn available(&self) -> Result<(), String> {
        self.groups.as_ref().map(drop).map_err(Clone::clone)
    }

    /// What subvolume `id` is charged; `None` without simple quotas.
    pub fn usage(&self, id: u64) -> Result<Option<Usage>, PoolError> {
        let Ok(groups) = &self.groups else {
            return Ok(None);
        };
        let group = groups.join(format!("0_{id}"));
        let Some(charged) = number(&group.join("referenced"))? else {
            return Ok(None);
        };
        // Written by the guest but not yet on disk: reserved now, charged when it gets there.
        let waiting = number(&group.join("rsv_data"))?.unwrap_or(0);
        let exclusive = number(&group.join("exclusive"))?.unwrap_or(charged);
        let flags = number(&group.join("limit_flags"))?.unwrap_or(0);
        let limit_bytes = if flags & LIMIT_MAX_REFERENCED != 0 {
            number(&group.join("max_referenced"))?
        } else {
            None
        };
        Ok(Some(Usage {
            referenced_bytes: charged + waiting,
            exclusive_bytes: exclusive + waiting,
            limit_bytes,
        }))
    }

    pub fn set_limit(
        &self,
        volume: &File,
        path: &Path,
        id: u64,
        limit: Option<u64>,
    ) -> Result<(), PoolError> {
        if let Err(reason) = &self.groups {
            return match limit {
                None => Ok(()),
                Some(_) => Err(unsupported(reason.clone())),
            };
        }
        if let Some(limit) = limit {
            let used = self.usage(id)?.map_or(0, |usage| usage.referenced_bytes);
            if limit < used {
                return Err(PoolError::LimitBelowUse { limit, used });
            }
        }
        sys::qgroup_limit(volume.as_fd(), id, limit).context("limit", path)
    }

    /// Sets a limit whatever is used already.
    pub fn force_limit(
        &self,
        volume: &File,
        path: &Path,
        id: u64,
        limit: u64,
    ) -> Result<(), PoolError> {
        self.available().map_err(unsupported)?;
        sys::qgroup_limit(volume.as_fd(), id, Some(limit)).context("limit", path)
    }

    /// Data written into all subvolumes together that is not on disk yet.
    pub fn waiting(&self) -> Result<Option<u64>, PoolError> {
        let Ok(groups) = &self.groups else {
            return Ok(None);
        };
        let mut sum = 0u64;
        for entry in fs::read_dir(groups).context("list", groups)? {
            let entry = entry.context("list", groups)?;
            if entry.file_name().as_encoded_bytes().starts_with(b"0_") {
                let waiting = number(&entry.path().join("rsv_data"));
                // A subvolume may go while it is being looked at; then nothing of it waits.
                sum = sum.saturating_add(waiting.ok().flatten().unwrap_or(0));
            }
        }
        Ok(Some(sum))
    }

    /// Removes the counters of subvolumes that are gone and whose data nobody shares any more. The
    /// kernel does it for most; those whose data outlived them in a snapshot stay behind.
    pub fn drop_spent_groups(&self, root: &Path) -> Result<usize, PoolError> {
        let Ok(groups) = &self.groups else {
            return Ok(0);
        };
        let file = File::open(root).context("open", root)?;
        let mut dropped = 0;
        for entry in fs::read_dir(groups).context("list", groups)? {
            let entry = entry.context("list", groups)?;
            let name = entry.file_name();
            let id = name
                .to_str()
                .and_then(|n| n.strip_prefix("0_")?.parse::<u64>().ok());
            let Some(id) = id else { continue };
            if sys::subvol_exists(file.as_fd(), id).context("search", root)? {
                continue;
            }
            match sys::qgroup_remove(file.as_fd(), id) {
                Ok(()) => dropped += 1,
                // Still charged, or gone since the listing.
                Err(Errno::BUSY | Errno::NOENT) => {}
                Err(e) => return Err(PoolError::io("drop a quota group of", root, e)),
            }
        }
        Ok(dropped)
    }
}

fn unsupported(reason: String) -> PoolError {
    PoolError::Unsupported {
        operation: "limiting a volume's disk use",
        reason,
    }
}

/// The word in the `mode` file, `None` while quotas are off.
fn mode(groups: &Path) -> Result<Option<String>, PoolError> {
    let path = groups.join("mode");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(PoolError::io("read", path, e)),
    }
}

fn number(path: &Path) -> Result<Option<u64>, PoolError> {
    match fs::read_to_string(path) {
        Ok(text) => match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(PoolError::io("parse", path, io::ErrorKind::InvalidData)),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(PoolError::io("read", path, e)),
    }
}

fn uuid(id: [u8; 16]) -> String {
    let groups = [0..4, 4..6, 6..8, 8..10, 10..16];
    groups.map(|range| hex::encode(&id[range])).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_id_is_written_as_sysfs_names_it() {
        let id = std::array::from_fn(|i| u8::try_from(i * 16 + 1).expect("below 256"));
        assert_eq!(uuid(id), "01112131-4151-6171-8191-a1b1c1d1e1f1");
    }
}
