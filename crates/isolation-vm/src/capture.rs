//! Has the supervisor of a machine capture it. The engine opens the files; what is written to them it does not read.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cove_isolation::{Afterwards, AtRest, Captured, IsolationError};
use cove_seats::{Body, spawner};
use cove_spawner::message::{SAVE_SOCKET, Save, SaveReply};
use cove_wire::packet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;

use crate::shape::Shape;

/// What captured memory consists of, beside its shape: the devices' state, and the memory itself.
const STATE: &str = "state";
const MEMORY: &str = "memory";
/// How long calls under way may hold a capture up.
const WAIT: Duration = Duration::from_secs(10);
/// How long the rest may take, and what each gigabyte adds to it.
const LIMIT: Duration = Duration::from_secs(240);
const LIMIT_PER_GB: Duration = Duration::from_secs(60);
/// How long a machine may take to go on.
const GO_ON_LIMIT: Duration = Duration::from_secs(120);
/// Characters kept of what a supervisor says.
const TEXT_MAX: usize = 700;

/// A captured machine, which stands still as long as this lives.
pub struct Held(OwnedFd);

impl Held {
    /// Returns when the machine runs. May wait.
    pub fn go_on(self) -> Result<(), IsolationError> {
        let failed = |errno: rustix::io::Errno| {
            IsolationError::failed("let the machine go on")(errno.into())
        };
        match rustix::net::shutdown(&self.0, Shutdown::Write) {
            // It ended meanwhile.
            Err(rustix::io::Errno::NOTCONN) => return Ok(()),
            done => done.map_err(failed)?,
        }
        let limit = rustix::time::Timespec {
            tv_sec: GO_ON_LIMIT.as_secs() as i64,
            tv_nsec: 0,
        };
        let fd = self.0.as_fd();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).map_err(failed)? {
            0 => Err(IsolationError::TimedOut {
                step: "letting the machine go on",
                seconds: GO_ON_LIMIT.as_secs(),
            }),
            _ => Ok(()),
        }
    }
}

/// May wait. The machine stands still if it is held, and goes on otherwise, also after a failure.
pub fn capture(
    body: &Body,
    shape: &Shape,
    memory: &Path,
    at_rest: AtRest,
    afterwards: Afterwards,
) -> Result<(Captured, Option<Held>), IsolationError> {
    let open = |name: &str| {
        let mut options = fs::File::options();
        options.write(true).create_new(true).mode(0o600);
        options.open(memory.join(name))
    };
    let file = |name| open(name).map_err(IsolationError::failed("make files for the memory"));
    let files = [file(STATE)?, file(MEMORY)?];
    let connection = body
        .connect(SAVE_SOCKET)
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => older(),
            _ => IsolationError::failed("reach the machine's supervisor")(error),
        })?;
    let save = Save {
        wait_ms: u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX),
    };
    packet::send(&connection, &save, &[files[0].as_fd(), files[1].as_fd()])
        .map_err(IsolationError::failed("ask for the memory"))?;
    let gigabytes = u32::try_from(shape.memory_bytes() >> 30).unwrap_or(u32::MAX);
    let limit = WAIT + LIMIT + LIMIT_PER_GB.saturating_mul(gigabytes);
    let (stood_us, memory_bytes) = saved(&connection, limit)?;
    let since = Instant::now();
    let held = Held(connection);
    let finished = check(&files, shape)
        .and_then(|()| shape.keep(memory))
        .map_err(IsolationError::failed("keep the captured memory"))
        .and_then(|()| {
            at_rest().map_err(IsolationError::failed("copy the disk while at rest"))?;
            match afterwards {
                // What this engine does not end goes on with the next one.
                Afterwards::Hold => body.freeze(),
                Afterwards::Continue => Ok(()),
            }
        });
    let held = match (&finished, afterwards) {
        (Ok(()), Afterwards::Hold) => Some(held),
        _ => {
            held.go_on()?;
            None
        }
    };
    finished?;
    let captured = Captured {
        stopped_us: stood_us.saturating_add(microseconds(since)),
        memory_bytes,
        needs: shape.needs(),
    };
    Ok((captured, held))
}

fn microseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

pub fn older() -> IsolationError {
    IsolationError::Unsupported(
        "this machine was started by an earlier version, which cannot capture memory; stop the sandbox and start it again"
            .into(),
    )
}

/// How long it stands still, and how much was written.
fn saved(connection: &OwnedFd, limit: Duration) -> Result<(u64, u64), IsolationError> {
    let step = "capture the machine";
    match spawner::receive_within(connection, limit) {
        Ok((SaveReply::Saved { stood_us, bytes }, _)) => Ok((stood_us, bytes)),
        Ok((SaveReply::Refused(quote), _)) => Err(IsolationError::Uncapturable {
            process: "the sandbox's own guest".into(),
            reason: format!("it says {}; try again when they are over", plain(&quote)),
        }),
        Ok((SaveReply::Failed(failure), _)) => Err(IsolationError::Failed {
            step: format!("{step}: {}", plain(&failure.step)),
            source: io::Error::from_raw_os_error(failure.errno),
        }),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(IsolationError::TimedOut {
            step: "capturing the machine",
            seconds: limit.as_secs(),
        }),
        Err(error) => Err(IsolationError::failed(step)(error)),
    }
}

/// What the supervisor says is partly QEMU's and the guest's.
fn plain(text: &str) -> String {
    let kept = text.chars().filter(|c| !c.is_control());
    kept.take(TEXT_MAX).collect()
}

/// The supervisor has no rights, and QEMU beside it may be anybody's.
fn check([state, memory]: &[fs::File; 2], shape: &Shape) -> io::Result<()> {
    let length = memory.metadata()?.len();
    if state.metadata()?.len() == 0 || length != shape.memory_bytes() {
        return Err(io::Error::other(format!(
            "the supervisor wrote {length} bytes of memory, and the machine has {}",
            shape.memory_bytes()
        )));
    }
    Ok(())
}

/// What a supervisor restores a machine from.
pub fn open(memory: &Path) -> io::Result<Vec<OwnedFd>> {
    let open = |name| Ok(fs::File::open(memory.join(name))?.into());
    [STATE, MEMORY].into_iter().map(open).collect()
}
