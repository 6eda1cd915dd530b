//! What is written down of a container, and the process it names.

use std::io;
use std::os::fd::OwnedFd;

use cove_model::{NetworkPolicy, SandboxId};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::volumes::Place;

/// What finds a container again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    pub pid: i32,
    /// In clock ticks since boot: a pid that was given to another process has another start.
    pub start_time: u64,
    /// Names the slot.
    pub uid_base: u32,
    pub cpus: Vec<u32>,
    pub cpu: f64,
    /// The pool's block device, for I/O limits.
    pub device: Option<(u32, u32)>,
    /// The directory name of the guest it runs, which a restore must find again.
    #[serde(default)]
    pub guest: String,
    /// Absent in records from before sandboxes had a network.
    #[serde(default)]
    pub sandbox: Option<SandboxId>,
    #[serde(default)]
    pub network: NetworkPolicy,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Place>,
}

/// A pidfd for the process in the record, if it is still the same process.
pub fn find(detail: &Detail) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(detail.pid) else {
        return Ok(None);
    };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // Looked at after the pidfd is held: from here on the pid cannot be given to another process.
    Ok((start_time(detail.pid)? == Some(detail.start_time)).then_some(pidfd))
}

/// When a process started, from its stat line; `None` when there is none or it has ended.
pub fn start_time(pid: i32) -> io::Result<Option<u64>> {
    let text = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name is in parentheses and may hold anything; the fields after the last one are plain.
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .collect();
    let ended = matches!(fields.first(), Some(&"Z" | &"X"));
    Ok(fields
        .get(19)
        .filter(|_| !ended)
        .and_then(|field| field.parse().ok()))
}
