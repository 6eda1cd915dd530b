//! Programs of a virtual machine stand still from before its capture until the host said what time it is, in the
//! original as in every copy: none of them sees an old clock or random numbers that a sibling has as well.
//!
//! The kernel's freezer holds all groups of programs. This program leaves its own group for that time. Root inside can
//! move processes where it wants, and only fools itself.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use cove_protocol::message::{ErrorCode, MachineIdentity, Renew};
use tokio::time::{Instant, sleep};

use crate::call::{Call, Ended};
use crate::failure::{Doing, Failure, Result};
use crate::machine::GROUP;
use crate::quiesce;
use crate::state::State;

mod outside;

const GROUPS: &str = "/sys/fs/cgroup";
const PROCESSES: &str = "cgroup.procs";
const SWITCH: &str = "cgroup.freeze";
/// How long the kernel may take to stop every program. One that waits for a disk holds the others up.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// In the guest's own file system in memory.
const OWN_BOOT_ID: &str = "/.cove/boot_id";
/// Bytes of a seed.
const SEED_MAX: usize = 512;
/// `RNDADDENTROPY` and `RNDRESEEDCRNG`.
const ADD_ENTROPY: libc::c_ulong = 0x4008_5203;
const RESEED: libc::c_ulong = 0x5207;

/// Of a virtual machine.
pub struct Standstill {
    /// The sandbox that it is.
    sandbox: RefCell<String>,
    /// Its address, where it has an interface.
    address: Option<Ipv4Addr>,
    /// Groups that stand still because of this.
    held: RefCell<Vec<PathBuf>>,
}

impl Standstill {
    pub fn new((sandbox, address): (String, Option<Ipv4Addr>)) -> Self {
        Self {
            sandbox: RefCell::new(sandbox),
            address,
            held: RefCell::default(),
        }
    }

    /// Returns when no program runs. After a failure [`Standstill::end`] lets those go on that do not.
    pub async fn begin(&self) -> Result<()> {
        let deadline = Instant::now() + STOP_LIMIT;
        fs::write(Path::new(GROUPS).join(PROCESSES), "1").doing("leave the programs' group")?;
        let groups = running_groups().doing("list the groups of programs")?;
        for group in &groups {
            self.held.borrow_mut().push(group.clone());
            fs::write(group.join(SWITCH), "1").doing("stop the programs")?;
        }
        for group in &groups {
            while !is_still(group).doing("look at the programs")? {
                if Instant::now() > deadline {
                    let message = "a program could not be stopped in time";
                    return Err(Failure::new(ErrorCode::Limit, message));
                }
                sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Programs go on. May be repeated.
    pub fn end(&self) {
        for group in self.held.borrow_mut().drain(..) {
            // One that is gone has no programs.
            let _ = fs::write(group.join(SWITCH), "0");
        }
        // Should that fail, what this program takes is not counted with the programs'.
        let _ = fs::write(Path::new(GROUP).join(PROCESSES), "1");
    }

    fn become_other(&self, identity: &MachineIdentity) -> Result<()> {
        rustix::system::sethostname(identity.hostname.as_bytes()).doing("set the name")?;
        let pids = identity.pids.to_string();
        fs::write(Path::new(GROUP).join("pids.max"), pids).doing("limit processes")?;
        if *self.sandbox.borrow() == identity.sandbox {
            return Ok(());
        }
        fs::write(OWN_BOOT_ID, format!("{}\n", identity.boot_id)).doing("write the boot id")?;
        rustix::mount::mount_bind(OWN_BOOT_ID, BOOT_ID).doing("show the boot id")?;
        self.sandbox.replace(identity.sandbox.clone());
        Ok(())
    }
}

/// Those at the top that do not stand still anyway; what is below them follows.
fn running_groups() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(GROUPS)? {
        let path = entry?.path();
        let switch = path.join(SWITCH);
        if path.is_dir() && fs::read_to_string(switch).is_ok_and(|state| state.trim() == "0") {
            found.push(path);
        }
    }
    Ok(found)
}

fn is_still(group: &Path) -> io::Result<bool> {
    match fs::read_to_string(group.join("cgroup.events")) {
        Ok(events) => Ok(events.lines().any(|line| line == "frozen 1")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// The host says what time it is and who the machine is now. Programs go on once all of that is in force, and not at
/// all where it cannot be.
pub async fn renew(
    state: &Rc<State>,
    call: &mut Call,
    renew: Renew,
) -> std::result::Result<(), Ended> {
    let Some(standstill) = &state.standstill else {
        let message = "only a virtual machine is renewed";
        return Err(Failure::new(ErrorCode::Unsupported, message).into());
    };
    set_clock(renew.unix_nanos).doing("set the clock")?;
    reseed(&renew.seed).doing("renew the random numbers")?;
    if let Some(identity) = &renew.identity {
        standstill.become_other(identity)?;
        if let Some(own) = standstill.address {
            outside::hang_up(own);
        }
        quiesce::look_around(state)?;
    }
    quiesce::go_on(state);
    call.done(0).await?;
    Ok(())
}

fn set_clock(unix_nanos: u64) -> io::Result<()> {
    let time = rustix::time::Timespec {
        tv_sec: i64::try_from(unix_nanos / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(unix_nanos % 1_000_000_000).unwrap_or(0),
    };
    Ok(rustix::time::clock_settime(
        rustix::time::ClockId::Realtime,
        time,
    )?)
}

/// What `RNDADDENTROPY` reads.
#[repr(C)]
struct Entropy {
    bits: libc::c_int,
    length: libc::c_int,
    bytes: [u8; SEED_MAX],
}

fn reseed(seed: &[u8]) -> io::Result<()> {
    let mut entropy = Entropy {
        bits: 0,
        length: 0,
        bytes: [0; SEED_MAX],
    };
    let length = seed.len().min(SEED_MAX);
    let counted = libc::c_int::try_from(length).map_err(io::Error::other)?;
    (entropy.bits, entropy.length) = (counted * 8, counted);
    entropy.bytes[..length].copy_from_slice(&seed[..length]);
    let device = fs::File::options().write(true).open("/dev/random")?;
    // SAFETY: the struct lives through the calls and has the layout that the first one reads; the second takes nothing.
    let done = unsafe {
        libc::ioctl(device.as_raw_fd(), ADD_ENTROPY, &raw const entropy) == 0
            && libc::ioctl(device.as_raw_fd(), RESEED) == 0
    };
    match done {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}
