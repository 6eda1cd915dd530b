//! OpenSSH's extensions: what scp, sshfs and editors use beyond version 3.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfs;

use super::wire::{Body, Packet, Status};
use super::{Answer, DATA_MAX, HANDLES_MAX, PACKET_MAX, Refusal, Server, done, files};

pub const OFFERED: &[(&str, &str)] = &[
    ("posix-rename@openssh.com", "1"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];

impl Server {
    pub fn extended(&mut self, body: &mut Body<'_>) -> Result<Answer, Refusal> {
        match body.text()? {
            b"posix-rename@openssh.com" => {
                fs::rename(body.path()?, body.path()?)?;
                Ok(done())
            }
            b"hardlink@openssh.com" => {
                fs::hard_link(body.path()?, body.path()?)?;
                Ok(done())
            }
            b"fsync@openssh.com" => {
                self.file(body)?.sync_all()?;
                Ok(done())
            }
            b"lsetstat@openssh.com" => files::set_stat(body, false),
            b"statvfs@openssh.com" => Ok(figures(&rustix::fs::statvfs(body.path()?)?)),
            b"fstatvfs@openssh.com" => Ok(figures(&rustix::fs::fstatvfs(self.file(body)?)?)),
            b"limits@openssh.com" => Ok(limits()),
            b"expand-path@openssh.com" => {
                let path = expanded(body.text()?)?;
                Ok(files::one_name(&files::resolved(&path)?))
            }
            _ => Err(Refusal::Status(
                Status::Unsupported,
                "this server does not know the extension",
            )),
        }
    }
}

fn body_of(fill: impl FnOnce(&mut Packet<'_>)) -> Answer {
    let mut bytes = Vec::new();
    let mut packet = Packet::begin(&mut bytes, 0);
    fill(&mut packet);
    // The answer gets a head of its own.
    Answer::Extended(bytes.split_off(5))
}

fn limits() -> Answer {
    body_of(|packet| {
        for limit in [PACKET_MAX, DATA_MAX, DATA_MAX, HANDLES_MAX] {
            packet.long(limit as u64);
        }
    })
}

fn figures(found: &StatVfs) -> Answer {
    body_of(|packet| {
        for figure in [
            found.f_bsize,
            found.f_frsize,
            found.f_blocks,
            found.f_bfree,
            found.f_bavail,
            found.f_files,
            found.f_ffree,
            found.f_favail,
            found.f_fsid,
            found.f_flag.bits(),
            found.f_namemax,
        ] {
            packet.long(figure);
        }
    })
}

/// `~` is the user's own home; other users' are not looked for.
fn expanded(bytes: &[u8]) -> Result<PathBuf, Refusal> {
    if bytes.contains(&0) {
        return Err(Refusal::Malformed);
    }
    let home = || std::env::var_os("HOME").unwrap_or_else(|| "/".into());
    match bytes {
        [] => Ok(PathBuf::from(".")),
        b"~" => Ok(PathBuf::from(home())),
        [b'~', b'/', rest @ ..] => Ok(Path::new(&home()).join(OsStr::from_bytes(rest))),
        [b'~', ..] => Err(Refusal::Status(
            Status::NoSuchFile,
            "only ~ and ~/ are expanded",
        )),
        bytes => Ok(PathBuf::from(OsStr::from_bytes(bytes))),
    }
}
