//! Pseudo-terminals.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use cove_protocol::message::PtySize;
use rustix::fs::{Mode, OFlags};

use crate::account::Account;
use crate::failure::{Doing, Failure, Result};

/// The group that owns terminals by convention.
const TTY_GROUP: &str = "tty";
const TERMINAL_MODE: u32 = 0o620;

pub struct Pair {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// A new terminal that belongs to `account`, so that programs can open it again by name.
pub fn open(size: PtySize, account: &Account, tty_gid: Option<u32>) -> Result<Pair> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master =
        rustix::fs::open("/dev/ptmx", flags, Mode::empty()).doing("cannot open a terminal")?;
    let unlock: libc::c_int = 0;
    // SAFETY: both requests act on the master; the first reads one int, the second returns a new
    // descriptor that nobody else owns.
    let slave = unsafe {
        if libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock) < 0 {
            return Err(last_error());
        }
        let open = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        match libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, open) {
            // gVisor opens the other end by its name alone.
            -1 if rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
                == Some(rustix::io::Errno::NOTTY) =>
            {
                by_name(&master, flags)?
            }
            -1 => return Err(last_error()),
            slave => OwnedFd::from_raw_fd(slave),
        }
    };
    set_size(&master, size)?;
    let gid = tty_gid.unwrap_or(account.gid);
    // A devpts that forbids this leaves the terminal root's, which still works.
    let _ = rustix::fs::fchown(
        &slave,
        Some(rustix::fs::Uid::from_raw(account.uid)),
        Some(rustix::fs::Gid::from_raw(gid)),
    );
    let _ = rustix::fs::fchmod(&slave, Mode::from_raw_mode(TERMINAL_MODE));
    Ok(Pair { master, slave })
}

fn by_name(master: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    let mut number: libc::c_uint = 0;
    // SAFETY: writes one number.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &mut number) } < 0 {
        return Err(last_error());
    }
    rustix::fs::open(format!("/dev/pts/{number}"), flags, Mode::empty())
        .doing("cannot open a terminal")
}

pub fn tty_gid(databases: &crate::account::Databases) -> Option<u32> {
    databases.group_number(TTY_GROUP)
}

pub fn set_size(master: impl AsFd, size: PtySize) -> Result<()> {
    let (Ok(cols), Ok(rows)) = (u16::try_from(size.cols), u16::try_from(size.rows)) else {
        return Err(Failure::invalid(
            "a terminal has at most 65535 columns and rows",
        ));
    };
    if cols == 0 || rows == 0 {
        return Err(Failure::invalid(
            "a terminal has at least one column and one row",
        ));
    }
    let size = libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: reads one winsize.
    if unsafe { libc::ioctl(master.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &size) } < 0 {
        return Err(last_error());
    }
    Ok(())
}

fn last_error() -> Failure {
    Failure::io(
        "cannot set up the terminal",
        &std::io::Error::last_os_error(),
    )
}
