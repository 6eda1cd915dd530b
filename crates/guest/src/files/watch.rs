//! Watching a file or a tree for changes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cove_protocol::message::{Change, ChangeKind, ErrorCode, Quiesced, ReplyKind, Watch};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::absolute;
use super::conn::Conn;
use crate::call::Ended;
use crate::failure::{Doing, Failure, Result};

/// Directories watched by one call.
const WATCHES_MAX: usize = 8192;
/// Read from the kernel at once.
const BUFFER: usize = 16 * 1024;
/// How long the second half of a rename may come after the first: the kernel writes them one after the other, and
/// whoever renames may lose the processor in between.
const HALF_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ATTRIB);

pub fn serve(
    conn: &mut Conn,
    request: &Watch,
    quiet: Option<OwnedFd>,
) -> std::result::Result<(), Ended> {
    let path = absolute(&request.path)?;
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
        .doing("cannot watch for changes")?;
    let mut watcher = Watcher {
        inotify,
        paths: HashMap::new(),
        recursive: request.recursive,
        root: None,
        moved: None,
        changes: Vec::new(),
    };
    watcher.root = Some(watcher.add(path).doing(&request.path)?);
    if request.recursive && watcher.add_below(path, false)? {
        return Err(Failure::new(
            ErrorCode::Limit,
            format!(
                "more than {WATCHES_MAX} directories are below {}",
                request.path
            ),
        )
        .into());
    }
    tell(conn, ChangeKind::Ready, path, false)?;
    loop {
        let limit = watcher.moved.is_some().then_some(&HALF_WAIT);
        let open = match wait(conn, &watcher.inotify, quiet.as_ref(), limit)? {
            Event::Changes => watcher.read()?,
            Event::Nothing => {
                watcher.flush_moved();
                true
            }
            Event::HungUp => return Err(Ended::Lost),
            Event::Quiet => return conn.reply(ReplyKind::Quiesce(Quiesced { taken: 0 })),
        };
        if !open {
            watcher.flush_moved();
        }
        for change in watcher.changes.drain(..) {
            conn.reply(ReplyKind::Change(change))?;
        }
        if !open {
            return conn.done(0, 0);
        }
    }
}

fn tell(
    conn: &mut Conn,
    kind: ChangeKind,
    path: &Path,
    directory: bool,
) -> std::result::Result<(), Ended> {
    conn.reply(ReplyKind::Change(change(kind, path, directory)))
}

fn change(kind: ChangeKind, path: &Path, directory: bool) -> Change {
    Change {
        kind: kind as i32,
        path: path.to_string_lossy().into_owned(),
        from: String::new(),
        directory,
    }
}

enum Event {
    Changes,
    /// None came in time.
    Nothing,
    HungUp,
    /// The sandbox is about to be captured.
    Quiet,
}

fn wait(
    conn: &Conn,
    inotify: &OwnedFd,
    quiet: Option<&OwnedFd>,
    limit: Option<&Timespec>,
) -> std::result::Result<Event, Ended> {
    loop {
        let mut fds = vec![
            PollFd::new(inotify, PollFlags::IN),
            PollFd::new(conn.stream(), PollFlags::IN | PollFlags::RDHUP),
        ];
        fds.extend(quiet.map(|quiet| PollFd::new(quiet, PollFlags::IN)));
        match rustix::event::poll(&mut fds, limit) {
            Ok(0) => return Ok(Event::Nothing),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return Err(Ended::Lost),
        }
        // The caller has nothing to say in this call: whatever it does ends it.
        if !fds[1].revents().is_empty() {
            return Ok(Event::HungUp);
        }
        if !fds[0].revents().is_empty() {
            return Ok(Event::Changes);
        }
        if fds.get(2).is_some_and(|quiet| !quiet.revents().is_empty()) {
            return Ok(Event::Quiet);
        }
    }
}

struct Watcher {
    inotify: OwnedFd,
    /// What each watch descriptor stands for.
    paths: HashMap<i32, PathBuf>,
    recursive: bool,
    root: Option<i32>,
    /// The first half of a rename, waiting for the second.
    moved: Option<(u32, PathBuf, bool)>,
    changes: Vec<Change>,
}

struct Notice {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<Vec<u8>>,
}

impl Watcher {
    fn add(&mut self, path: &Path) -> rustix::io::Result<i32> {
        let watch = inotify::add_watch(&self.inotify, path, EVENTS)?;
        self.paths.insert(watch, path.to_owned());
        Ok(watch)
    }

    /// Watches every directory below `root`; true when there are too many. With `announce` what
    /// is found there is reported as created, because it was made before the watch stood.
    fn add_below(&mut self, root: &Path, announce: bool) -> Result<bool> {
        let mut pending = vec![root.to_owned()];
        while let Some(directory) = pending.pop() {
            let Ok(entries) = std::fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries.flatten() {
                let path = entry.path();
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if announce {
                    self.changes
                        .push(change(ChangeKind::Created, &path, is_dir));
                }
                if !is_dir {
                    continue;
                }
                if self.paths.len() >= WATCHES_MAX {
                    return Ok(true);
                }
                match self.add(&path) {
                    Ok(_) => pending.push(path),
                    Err(Errno::NOSPC | Errno::NOMEM) => return Ok(true),
                    // Gone again, or not this user's to read.
                    Err(_) => {}
                }
            }
        }
        Ok(false)
    }

    /// Turns what the kernel has into changes; false when the watched path itself is gone.
    fn read(&mut self) -> Result<bool> {
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; BUFFER];
        let mut events = Vec::new();
        {
            let mut reader = Reader::new(&self.inotify, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => events.push(Notice {
                        watch: event.wd(),
                        flags: event.events(),
                        cookie: event.cookie(),
                        name: event.file_name().map(|name| name.to_bytes().to_vec()),
                    }),
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(Failure::io("the watch", &errno.into())),
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
        let mut open = true;
        for event in events {
            open &= self.event(&event)?;
        }
        Ok(open)
    }

    fn event(&mut self, event: &Notice) -> Result<bool> {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.changes
                .push(change(ChangeKind::Overflow, Path::new(""), false));
            return Ok(true);
        }
        let Some(base) = self.paths.get(&event.watch) else {
            return Ok(true);
        };
        let path = match &event.name {
            Some(name) => base.join(OsStr::from_bytes(name)),
            None => base.clone(),
        };
        if event.flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&event.watch);
            return Ok(self.root != Some(event.watch));
        }
        let directory = event.flags.contains(ReadFlags::ISDIR);
        if event.name.is_none() {
            self.own_event(event, &path, directory);
            return Ok(true);
        }
        if event.flags.contains(ReadFlags::MOVED_TO) {
            self.moved_to(event.cookie, &path, directory)?;
            return Ok(true);
        }
        self.flush_moved();
        if event.flags.contains(ReadFlags::MOVED_FROM) {
            self.moved = Some((event.cookie, path, directory));
        } else if event.flags.contains(ReadFlags::CREATE) {
            self.changes
                .push(change(ChangeKind::Created, &path, directory));
            self.appeared(&path, directory, true)?;
        } else if event.flags.contains(ReadFlags::DELETE) {
            self.changes
                .push(change(ChangeKind::Removed, &path, directory));
        } else if event
            .flags
            .intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MODIFY)
        {
            self.written(&path);
        } else if event.flags.contains(ReadFlags::ATTRIB) {
            self.changes
                .push(change(ChangeKind::Attributes, &path, directory));
        }
        Ok(true)
    }

    /// Something happened to a watched path itself. Directories below the root are reported by their
    /// parents already.
    fn own_event(&mut self, event: &Notice, path: &Path, directory: bool) {
        if self.root != Some(event.watch) {
            return;
        }
        let is_gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
        if event.flags.intersects(is_gone) {
            self.changes
                .push(change(ChangeKind::Removed, path, directory));
            if event.flags.contains(ReadFlags::MOVE_SELF) {
                // Its new place is not what was asked for; the kernel answers with IGNORED.
                let _ = inotify::remove_watch(&self.inotify, event.watch);
            }
        } else if event.flags.contains(ReadFlags::ATTRIB) {
            self.changes
                .push(change(ChangeKind::Attributes, path, directory));
        } else {
            self.written(path);
        }
    }

    /// A burst of writes to one file is one change.
    fn written(&mut self, path: &Path) {
        let written = change(ChangeKind::Written, path, false);
        if self.changes.last() != Some(&written) {
            self.changes.push(written);
        }
    }

    fn moved_to(&mut self, cookie: u32, path: &Path, directory: bool) -> Result<()> {
        match self.moved.take_if(|(first, _, _)| *first == cookie) {
            Some((_, from, _)) => {
                for known in self.paths.values_mut() {
                    if let Ok(rest) = known.strip_prefix(&from) {
                        // Joining nothing would leave a slash behind the name.
                        *known = match rest.as_os_str().is_empty() {
                            true => path.to_owned(),
                            false => path.join(rest),
                        };
                    }
                }
                self.changes.push(Change {
                    from: from.to_string_lossy().into_owned(),
                    ..change(ChangeKind::Renamed, path, directory)
                });
                Ok(())
            }
            None => {
                self.flush_moved();
                self.changes
                    .push(change(ChangeKind::Created, path, directory));
                self.appeared(path, directory, true)
            }
        }
    }

    /// A rename whose other end was not watched is a removal.
    fn flush_moved(&mut self) {
        if let Some((_, from, directory)) = self.moved.take() {
            let watches: Vec<i32> = self
                .paths
                .iter()
                .filter(|(_, path)| path.starts_with(&from))
                .map(|(watch, _)| *watch)
                .collect();
            for watch in watches {
                let _ = inotify::remove_watch(&self.inotify, watch);
                self.paths.remove(&watch);
            }
            self.changes
                .push(change(ChangeKind::Removed, &from, directory));
        }
    }

    fn appeared(&mut self, path: &Path, directory: bool, announce: bool) -> Result<()> {
        if !directory || !self.recursive {
            return Ok(());
        }
        let too_many = self.paths.len() >= WATCHES_MAX
            || matches!(self.add(path), Err(Errno::NOSPC | Errno::NOMEM))
            || self.add_below(path, announce)?;
        if too_many {
            // From here on something may go unseen, and the caller has to know.
            self.changes.push(change(ChangeKind::Overflow, path, true));
        }
        Ok(())
    }
}
