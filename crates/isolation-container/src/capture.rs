//! Writing the processes of a container and their memory into a directory.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cove_criu::message::Options;
use cove_criu::{Moment, Session, SessionError};
use cove_isolation::{Afterwards, AtRest, Captured, IsolationError};
use cove_parser::{Finding, Parser, ParserError};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

use crate::capturer::{Capturer, common_options};
use crate::external;
use cove_seats::cgroup::Group;
use cove_seats::guest_program;
use cove_seats::volumes::{self, Place};

/// Memory up to this size is written to memory first and copied once the sandbox goes on: four times
/// faster than to the pool, and the sandbox stands still only for that.
const THROUGH_MEMORY_MAX: u64 = 512 << 20;
/// What images take beyond the memory they hold.
const IMAGES_EXTRA: u64 = 64 << 20;
/// The part of the host's free memory that one capture may take for a moment.
const FREE_MEMORY_SHARE: u64 = 4;
/// How long a dump may take, and what each gigabyte adds to it.
const DUMP_LIMIT: Duration = Duration::from_secs(60);
const DUMP_LIMIT_PER_GB: Duration = Duration::from_secs(20);
/// How long CRIU may try to stop every process.
const STOP_LIMIT_SECONDS: u32 = 10;
const LOG: &str = "dump.log";
/// What a log may take.
pub const WORK_BYTES: u64 = 64 << 20;
/// Kept of a log of a failed dump for the operator.
const LOG_MAX: u64 = 8 << 20;
/// Images whose bytes are pages of memory begin like this.
pub const PAGES: &str = "pages-";

pub struct Subject<'a> {
    pub pid: i32,
    pub uid_base: u32,
    pub group: &'a Group,
    /// The directory name of the guest it runs.
    pub guest: &'a str,
    pub volumes: &'a [Place],
}

/// Blocking. The caller made sure that nobody outside holds a connection to the guest.
pub fn capture(
    capturer: &Capturer,
    subject: &Subject<'_>,
    memory: &Path,
    at_rest: AtRest,
    afterwards: Afterwards,
) -> Result<Captured, IsolationError> {
    fs::set_permissions(memory, fs::Permissions::from_mode(0o700))
        .map_err(IsolationError::failed("close the directory to others"))?;
    let target = openat(
        rustix::fs::CWD,
        memory,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| IsolationError::failed("open the directory")(errno.into()))?;
    let used = subject
        .group
        .usage()
        .map_err(IsolationError::failed("read the cgroup"))?;
    let unreclaimable = used
        .memory_bytes
        .saturating_sub(used.memory_reclaimable_bytes);
    let through =
        through_memory(unreclaimable).map_err(IsolationError::failed("make room in memory"))?;
    let images = through.as_ref().unwrap_or(&target);

    let needs = capturer.needs(subject.guest)?;
    let mut at_rest = Some(at_rest);
    let limit = DUMP_LIMIT + DUMP_LIMIT_PER_GB * u32::try_from(unreclaimable >> 30).unwrap_or(64);
    let mut began = Instant::now();
    let mut holder = None;
    let dumped = dump(capturer, subject, images, limit, |moment| {
        if moment == Moment::PreDump {
            began = Instant::now();
        }
        if !matches!(moment, Moment::PreDump | Moment::PostDump) {
            return Ok(());
        }
        // Before, so that CRIU does not touch files of volumes in vain; and once everything stands still.
        let processes = subject.group.processes();
        holder = volumes::open::holder(subject.pid, &processes, subject.volumes)?;
        if holder.is_some() {
            return Err(io::Error::other("a file of a volume is open"));
        }
        if moment == Moment::PreDump {
            return Ok(());
        }
        if afterwards == Afterwards::Hold {
            // Every task is stopped by CRIU now, and goes from its hands into the freezer's.
            subject.group.ask_to_freeze()?;
        }
        let done = match at_rest.take() {
            Some(at_rest) => at_rest(),
            None => Ok(()),
        };
        if done.is_err() && afterwards == Afterwards::Hold {
            subject.group.thaw()?;
        }
        done
    });
    let dumped = dumped.map_err(|error| match &holder {
        Some(holder) => IsolationError::Uncapturable {
            process: name_of(holder.pid, subject).unwrap_or_else(|| "a process".to_owned()),
            reason: format!(
                "it has {} open on a volume, which others may change meanwhile; close it, and leave the volume's directories",
                holder.what
            ),
        },
        None => error,
    });
    let finished = dumped.and_then(|()| {
        // Until CRIU was gone: what it did after it let the tasks go is a few milliseconds.
        let stopped_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let memory_bytes =
            page_bytes(images).map_err(IsolationError::failed("measure the captured memory"))?;
        if afterwards == Afterwards::Hold {
            subject
                .group
                .freeze()
                .map_err(IsolationError::failed("hold the sandbox"))?;
        }
        match &through {
            Some(from) => copy_all(from, memory),
            None => give_to_root(memory),
        }
        .map_err(IsolationError::failed("copy the memory to the disk"))?;
        guest_program::keep(&capturer.runtime_dir, subject.guest, memory)
            .map_err(IsolationError::failed("keep the guest's program"))?;
        volumes::keep(subject.volumes, memory)
            .map_err(IsolationError::failed("keep what volumes it has"))?;
        Ok(Captured {
            stopped_us,
            memory_bytes,
            needs,
        })
    });
    if finished.is_err()
        && through.is_some()
        && let Ok(log) = open_in(images, LOG)
    {
        // For whoever wants to know more than the error tells; the directory is the caller's.
        let _ = keep_log(log, &memory.join(LOG));
    }
    if finished.is_err() && afterwards == Afterwards::Hold {
        // Whatever was reached: it goes on as before.
        let _ = subject.group.thaw();
    }
    finished
}

/// A filesystem in memory that no name leads to; `None` when the pool must do.
fn through_memory(bytes: u64) -> io::Result<Option<OwnedFd>> {
    let size = bytes + IMAGES_EXTRA;
    if size > THROUGH_MEMORY_MAX || size > free_memory()? / FREE_MEMORY_SHARE {
        return Ok(None);
    }
    // Room for surprises; it takes only what is written.
    nameless_dir(size * 2).map(Some)
}

/// A directory on a tmpfs that is attached nowhere and goes with the descriptor.
pub fn nameless_dir(bytes: u64) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "size", bytes.to_string())?;
    fsconfig_set_string(&context, "mode", "700")?;
    fsconfig_create(&context)?;
    let mount = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    // The mount itself is only a path; listing and syncing want an open directory.
    Ok(openat(
        &mount,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn free_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    Ok(text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| {
            rest.trim()
                .trim_end_matches("kB")
                .trim()
                .parse::<u64>()
                .ok()
        })
        .unwrap_or(0)
        << 10)
}

fn dump(
    capturer: &Capturer,
    subject: &Subject<'_>,
    images: &OwnedFd,
    limit: Duration,
    at: impl FnMut(Moment) -> io::Result<()>,
) -> Result<(), IsolationError> {
    let (session, theirs) =
        Session::pair().map_err(IsolationError::failed("make a socket for criu"))?;
    let criu = capturer.run(subject.uid_base, None, &[theirs.as_fd()])?;
    drop(theirs);
    let options = Options {
        images_dir_fd: images.as_raw_fd(),
        work_dir_fd: Some(images.as_raw_fd()),
        log_file: Some(LOG.into()),
        pid: Some(subject.pid),
        leave_running: Some(true),
        timeout: Some(STOP_LIMIT_SECONDS),
        external: external::on_dump(subject.group, subject.volumes),
        ..common_options()
    };
    let outcome = session.dump(options, limit, at);
    if matches!(outcome, Err(SessionError::TimedOut(_))) {
        // It lets go of every process when it ends; they are distinguished from dead ones by the caller.
        let _ = rustix::process::pidfd_send_signal(&criu, rustix::process::Signal::KILL);
    }
    drop(session);
    // Only when CRIU is gone has it let go of everything.
    wait_gone(&criu);
    outcome.map_err(|error| explain(error, capturer, subject, images))
}

/// How long CRIU may take to end once its conversation is over.
const FAREWELL: Duration = Duration::from_secs(10);

pub fn wait_gone(pidfd: &OwnedFd) {
    use rustix::event::{PollFd, PollFlags, poll};
    let timeout = rustix::time::Timespec {
        tv_sec: FAREWELL.as_secs() as i64,
        tv_nsec: 0,
    };
    let fd = pidfd.as_fd();
    let gone = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
    if !matches!(gone, Ok(1..)) {
        let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
    }
}

fn explain(
    error: SessionError,
    capturer: &Capturer,
    subject: &Subject<'_>,
    images: &OwnedFd,
) -> IsolationError {
    match error {
        SessionError::TimedOut(limit) => IsolationError::TimedOut {
            step: "capturing the memory",
            seconds: limit.as_secs(),
        },
        SessionError::Step(source) => IsolationError::failed("copy the disk while at rest")(source),
        SessionError::Failed { .. } => match finding(&capturer.parser, images, LOG) {
            Some(finding) => IsolationError::Uncapturable {
                process: finding
                    .pid
                    .and_then(|pid| name_of(pid, subject))
                    .unwrap_or_else(|| "a process".to_owned()),
                reason: finding.reason.text().to_owned(),
            },
            None => IsolationError::failed("capture the memory")(io::Error::other(error)),
        },
        other => IsolationError::failed("capture the memory")(io::Error::other(other)),
    }
}

/// Why CRIU failed. Its own words are for the operator: they tell about the host, and part of them is a
/// guest's.
pub fn finding(parser: &Parser, dir: &OwnedFd, log: &str) -> Option<Finding> {
    let found = open_in(dir, log)
        .map_err(ParserError::Start)
        .and_then(|log| parser.read_log(log));
    match found {
        Ok(found) => {
            if let Some(Finding { quote, .. }) = &found {
                tracing::info!(quote, "criu failed");
            }
            found
        }
        Err(error) => {
            tracing::warn!(%error, "cannot read the log of criu");
            None
        }
    }
}

/// Bytes of a process's name, as the kernel bounds it.
const COMM_BYTES: usize = 16;

/// A process as its owner knows it: by name and the pid inside. `None` when it is none of the sandbox's: a
/// log may name any process of the host, because a guest can write into it.
fn name_of(pid: i32, subject: &Subject<'_>) -> Option<String> {
    if pid == subject.pid {
        return Some("the sandbox's own guest".into());
    }
    let comm = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    // Looked at last: a pid that went to another process meanwhile is not the group's any more.
    if !subject.group.processes().contains(&pid) {
        return None;
    }
    let comm = comm.trim_ascii_end();
    let name = comm[..comm.len().min(COMM_BYTES)].escape_ascii();
    // The kernel escapes line breaks in the name, so no other line can pass for this one.
    let inside: Option<u32> = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .and_then(|pids| pids.split_whitespace().last()?.parse().ok());
    Some(match inside {
        Some(inside) => format!("{name} (pid {inside})"),
        None => name.to_string(),
    })
}

fn open_in(dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

fn keep_log(log: OwnedFd, path: &Path) -> io::Result<()> {
    let mut kept = fs::File::create(path)?;
    io::copy(&mut io::Read::take(fs::File::from(log), LOG_MAX), &mut kept).map(drop)
}

/// How many bytes of memory lie in a directory of images.
fn page_bytes(images: &OwnedFd) -> io::Result<u64> {
    let mut total = 0;
    for entry in rustix::fs::Dir::read_from(images)? {
        let entry = entry?;
        if entry.file_name().to_bytes().starts_with(PAGES.as_bytes()) {
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            let stat = rustix::fs::statat(images, entry.file_name(), flags)?;
            total += u64::try_from(stat.st_size).unwrap_or(0);
        }
    }
    Ok(total)
}

/// CRIU writes as the sandbox's uid, which means nothing to whoever restores.
fn give_to_root(memory: &Path) -> io::Result<()> {
    fs::remove_file(memory.join(LOG))?;
    for entry in fs::read_dir(memory)? {
        std::os::unix::fs::lchown(entry?.path(), Some(0), Some(0))?;
    }
    Ok(())
}

/// Copies plain files; CRIU makes nothing else.
fn copy_all(from: &OwnedFd, to: &Path) -> io::Result<()> {
    let mut buffer = rustix::fs::Dir::read_from(from)?;
    while let Some(entry) = buffer.read() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        let source = openat(
            from,
            name.as_str(),
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut source = fs::File::from(source);
        // The log tells about the host, and nobody needs it once all went well.
        if !source.metadata()?.is_file() || name == LOG {
            continue;
        }
        let mut target = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(to.join(&name))?;
        target.set_permissions(fs::Permissions::from_mode(0o600))?;
        io::copy(&mut source, &mut target)?;
    }
    Ok(())
}
