//! The journal's files, opened for the process that is about to start.
//!
//! Those who come after must be able to read what was logged, but nobody needs it in order to serve: a
//! disk that is full or broken costs the log, never the network of every sandbox.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::journal::{FILES, Kept, merged, read};

/// Where the text is written before it takes the first file's place.
const FRESH: &str = "egress.new";
/// Keeps nothing, and takes everything.
const NOWHERE: &str = "/dev/null";

/// The files, cleared up, and what they held. The process before has ended.
pub fn open(directory: &Path) -> io::Result<([File; FILES], Vec<Kept>)> {
    let mut files = match open_files(directory) {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(%error, "the egress log cannot be kept on disk; it ends with the gateway's process");
            let nowhere = || OpenOptions::new().read(true).append(true).open(NOWHERE);
            return Ok(([nowhere()?, nowhere()?], Vec::new()));
        }
    };
    let (kept, text) = merged(read(&files));
    if let Err(error) = clear_up(directory, &mut files, &text) {
        // As they are they say the same, and the process bounds them.
        tracing::warn!(%error, "cannot clean up the files of the egress log; leaving them as they are");
    }
    Ok((files, kept))
}

fn open_file(directory: &Path, number: usize) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(directory.join(format!("egress.{number}")))
}

fn open_files(directory: &Path) -> io::Result<[File; FILES]> {
    Ok([open_file(directory, 0)?, open_file(directory, 1)?])
}

/// Puts the text into the first file, and empties the others.
fn clear_up(directory: &Path, files: &mut [File; FILES], text: &[u8]) -> io::Result<()> {
    if !text.is_empty() {
        let fresh = directory.join(FRESH);
        let replaced = replace(directory, &fresh, text);
        if replaced.is_err() {
            // Half a text is of no use, and takes room on a disk that may have none.
            let _ = fs::remove_file(&fresh);
        }
        // Also when it failed: it may have failed after the file took its place.
        files[0] = open_file(directory, 0)?;
        replaced?;
    } else {
        files[0].set_len(0)?;
    }
    files[1].set_len(0)
}

/// Written beside and put in its place at once: a host that crashes here keeps the one or the other, and
/// the other files lose nothing before it is certain which.
fn replace(directory: &Path, fresh: &Path, text: &[u8]) -> io::Result<()> {
    match fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(fresh)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(fresh, directory.join("egress.0"))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::path::PathBuf;

    use cove_model::SandboxId;
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
        fsopen,
    };

    use super::*;
    use crate::journal::FILE_BYTES_MAX;

    /// Lines as a process writes them, each sandbox's as many as its log has room for, until both files
    /// are full.
    fn fill(directory: &Path) -> usize {
        let files = open_files(directory).expect("files");
        let mut sequence = 1;
        let mut lines = 0;
        for mut file in files {
            let mut text = Vec::new();
            while text.len() as u64 <= FILE_BYTES_MAX - 200 * 1024 {
                let sandbox = SandboxId::random();
                for number in 0..40 {
                    let verdict = ["allowed", "denied"][number % 2];
                    let (name, rule) = ("n".repeat(1500), "r".repeat(1500));
                    let line = format!(
                        "{sandbox}\t\t\t{sequence}\t0\tdns\t{verdict}\t={name}\t\t\t0\t0\t{rule}\n"
                    );
                    text.extend_from_slice(line.as_bytes());
                    sequence += 1;
                    lines += 1;
                }
            }
            assert!(text.len() as u64 <= FILE_BYTES_MAX);
            file.write_all(&text).expect("room");
        }
        lines
    }

    fn counts(kept: &[Kept]) -> BTreeMap<SandboxId, usize> {
        let counts = kept
            .iter()
            .map(|log| (log.sandbox.clone(), log.entries.len()));
        counts.collect()
    }

    #[test]
    fn full_files_outlast_any_number_of_processes() {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = fill(folder.path());
        let (_, first) = open(folder.path()).expect("it opens");
        let total: usize = counts(&first).values().sum();
        assert_eq!(total, lines, "something was lost at once");
        for _ in 0..2 {
            let (files, again) = open(folder.path()).expect("it opens");
            assert_eq!(counts(&again), counts(&first));
            assert_eq!(files[1].metadata().expect("a file").len(), 0);
        }
    }

    fn line() -> String {
        let sandbox = SandboxId::random();
        format!("{sandbox}\t\t\t5\t0\tdns\tdenied\t=a\t\t\t0\t0\tr\n")
    }

    /// A filesystem of its own that is mounted nowhere and ends with its descriptor.
    fn small_disk() -> rustix::io::Result<OwnedFd> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "size", "256k")?;
        fsconfig_create(&context)?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        fsmount(&context, flags, MountAttrFlags::empty())
    }

    #[test]
    fn a_full_disk_loses_nothing_and_keeps_nobody_from_starting() {
        let disk = match small_disk() {
            Ok(disk) => disk,
            Err(rustix::io::Errno::PERM) => {
                return println!("skipped: mounting a filesystem needs CAP_SYS_ADMIN");
            }
            Err(error) => panic!("no filesystem: {error}"),
        };
        let directory = PathBuf::from(format!("/proc/self/fd/{}", disk.as_raw_fd()));
        let (mut files, _) = open(&directory).expect("it opens");
        for file in &mut files {
            file.write_all(line().as_bytes()).expect("room");
        }
        let filler = directory.join("filler");
        let mut full = File::create(&filler).expect("room");
        let ended = std::iter::repeat_with(|| full.write_all(&[0; 4096])).find(Result::is_err);
        let error = ended.and_then(Result::err).expect("it was full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        for _ in 0..2 {
            let (_, kept) = open(&directory).expect("it opens all the same");
            assert_eq!(kept.len(), 2);
            assert!(!directory.join(FRESH).exists());
        }
        drop(full);
        fs::remove_file(filler).expect("it is there");
        let (files, kept) = open(&directory).expect("it opens");
        let emptied = files[1].metadata().expect("a file").len();
        assert_eq!((kept.len(), emptied), (2, 0));
    }

    #[test]
    fn without_files_there_is_a_journal_that_keeps_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("egress.1")).expect("a folder");
        let (mut files, kept) = open(folder.path()).expect("it opens all the same");
        assert_eq!(kept, []);
        files[0].write_all(b"anything").expect("taken");
    }
}
