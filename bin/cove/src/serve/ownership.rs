//! Giving the control side's directory to the account it has: also when that is another one than before.
//!
//! Whoever had the account before may have left anything there, and root must not be led elsewhere by it:
//! no link is followed, and a file that has another name somewhere is refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, fchown, openat, statat};

use super::ServeError;
use super::privileges::Account;

/// Directories below each other at most.
const DEPTH_MAX: u32 = 8;

pub fn give(directory: &Path, account: Account) -> Result<(), ServeError> {
    let failed =
        |source| ServeError::io(format!("cannot give away {}", directory.display()), source);
    let opened = open(CWD, directory).map_err(|errno| failed(errno.into()))?;
    give_below(opened.as_fd(), account, DEPTH_MAX).map_err(failed)
}

fn open(at: BorrowedFd<'_>, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

fn give_below(directory: BorrowedFd<'_>, account: Account, depth: u32) -> std::io::Result<()> {
    let owner = (
        Some(Uid::from_raw(account.uid)),
        Some(Gid::from_raw(account.gid)),
    );
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let strange = |what: &str| {
            let name = name.to_string_lossy();
            std::io::Error::other(format!("{name:?} in it {what}; remove it"))
        };
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory if depth == 0 => return Err(strange("is too deep")),
            FileType::Directory => {
                let below = open(directory, name)?;
                give_below(below.as_fd(), account, depth - 1)?;
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = openat(directory, name, flags, Mode::empty())?;
                if rustix::fs::fstat(&file)?.st_nlink != 1 {
                    return Err(strange("has other hard links"));
                }
                fchown(&file, owner.0, owner.1)?;
            }
            _ => return Err(strange("is neither a file nor a directory")),
        }
    }
    Ok(fchown(directory, owner.0, owner.1)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const ACCOUNT: Account = Account {
        uid: 71_234,
        gid: 71_234,
    };

    #[test]
    fn everything_in_it_changes_hands() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        for name in ["cove.db", "below/journal"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        give(dir.path(), ACCOUNT).unwrap();
        for name in ["", "below", "cove.db", "below/journal"] {
            let found = fs::metadata(dir.path().join(name)).unwrap();
            assert_eq!(
                (found.uid(), found.gid()),
                (ACCOUNT.uid, ACCOUNT.gid),
                "{name}"
            );
        }
    }

    #[test]
    fn nothing_outside_of_it_is_given_away() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, precious) = (dir.path().join("control"), dir.path().join("precious"));
        type Plant = fn(&Path, &Path) -> std::io::Result<()>;
        let plants: [(&str, Plant); 2] = [
            ("a link", |from, to| symlink(from, to)),
            ("another name", |from, to| fs::hard_link(from, to)),
        ];
        for (name, plant) in plants {
            fs::create_dir(&ours).unwrap();
            fs::write(&precious, "x").unwrap();
            plant(&precious, &ours.join("cove.db")).unwrap();
            assert!(give(&ours, ACCOUNT).is_err(), "{name} was followed");
            assert_ne!(
                fs::metadata(&precious).unwrap().uid(),
                ACCOUNT.uid,
                "{name}"
            );
            fs::remove_dir_all(&ours).unwrap();
        }
    }
}
