//! What is known of KVM on this host. That its device is there says little: on some hosts stock kernels hang on it. So
//! a machine is booted with it, once for each boot of the host and each version of the programs, beside everything else.

use std::fs;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cove_isolation::{IsolationError, TierHost};
use cove_model::SandboxId;
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use rustix::process::{Signal, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::programs::Programs;

const DEVICE: &str = "/dev/kvm";
/// In the host-wide directory, which a reboot empties: what the last try came to.
const VERDICT: &str = "vm-kvm.json";
/// Held while it is tried: one engine of the host at a time.
const LOCK: &str = "vm-kvm.lock";
/// In the engine's directory: KVM booted machines here before.
const SEEN: &str = "kvm-seen";
/// In the pool, which has device files: the one that machines are shown.
const SHOWN: &str = "vm-dev";
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What the supervisor calls it.
const BOOT_STEP: &str = "boot the machine";
const VERDICT_MAX: u64 = 16 * 1024;
/// Of a reason that is kept and shown.
const REASON_MAX: usize = 600;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    Trying,
    /// With what to say of it.
    Boots(String),
    Fails(String),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Verdict {
    /// The programs that were tried.
    programs: String,
    boots: bool,
    told: String,
}

pub struct Kvm {
    programs: String,
    known: watch::Sender<Known>,
    verdict: PathBuf,
    lock: PathBuf,
    seen: PathBuf,
    shown: PathBuf,
    /// The first process of the machine that is tried.
    pub first: Arc<OnceLock<OwnedFd>>,
    task: Mutex<Option<tokio::task::JoinHandle<()>>>,
    closing: AtomicBool,
}

impl Kvm {
    pub fn open(programs: Result<&Programs, &String>, host: &TierHost) -> io::Result<Self> {
        let kvm = Self {
            programs: programs.map(Programs::sources).unwrap_or_default(),
            known: watch::Sender::new(Known::Trying),
            verdict: host.host_dir.join(VERDICT),
            lock: host.host_dir.join(LOCK),
            seen: host.data_dir.join(SEEN),
            shown: host.pool_dir.join(SHOWN),
            first: Arc::default(),
            task: Mutex::default(),
            closing: AtomicBool::new(false),
        };
        let found = match programs {
            Err(reason) => Some(Known::Fails(reason.clone())),
            Ok(_) => match device_number(Path::new(DEVICE)) {
                Err(error) => Some(Known::Fails(format!("{DEVICE}: {error}"))),
                Ok(_) => kvm.verdict(),
            },
        };
        if let Some(found) = found {
            kvm.learn(found);
        }
        Ok(kvm)
    }

    pub fn known(&self) -> Known {
        self.known.borrow().clone()
    }

    pub async fn settled(&self) {
        let mut known = self.known.subscribe();
        // The sender lives as long as this.
        let _ = known.wait_for(|known| *known != Known::Trying).await;
    }

    /// Whether the host counts as one whose machines KVM boots.
    pub fn counts(&self) -> bool {
        matches!(self.known(), Known::Boots(_)) || self.seen.exists()
    }

    pub fn fix(&self) -> String {
        format!(
            "KVM needs hardware virtualisation; to try again, remove {} and restart the server",
            self.verdict.display()
        )
    }

    /// Tries it in a task of its own, unless another engine just did.
    pub fn find_out(
        self: &Arc<Self>,
        attempt: impl Future<Output = Result<String, IsolationError>> + Send + 'static,
    ) {
        let kvm = Arc::clone(self);
        let task = tokio::spawn(async move {
            let found = kvm.turn_and_try(attempt).await;
            if let Known::Fails(reason) = &found {
                tracing::info!(reason, "KVM boots no machines here");
            }
            kvm.learn(found);
        });
        *self.task.lock() = Some(task);
    }

    async fn turn_and_try(
        &self,
        attempt: impl Future<Output = Result<String, IsolationError>>,
    ) -> Known {
        let lock = match fs::File::create(&self.lock) {
            Ok(lock) => lock,
            Err(error) => return Known::Fails(format!("{}: {error}", self.lock.display())),
        };
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if let Some(found) = self.verdict() {
            return found;
        }
        let tried = attempt.await;
        let verdict = Verdict {
            programs: self.programs.clone(),
            boots: tried.is_ok(),
            told: match &tried {
                Ok(told) => told.clone(),
                Err(error) => reason_of(error),
            },
        };
        if says_of_kvm(&tried)
            && !self.is_closing()
            && let Err(error) = self.keep(&verdict)
        {
            tracing::warn!(%error, "cannot keep what is known of KVM");
        }
        verdict.into()
    }

    fn learn(&self, found: Known) {
        if matches!(found, Known::Boots(_))
            && let Err(error) = fs::write(&self.seen, "")
        {
            tracing::warn!(%error, "cannot note that KVM boots machines");
        }
        self.known.send_replace(found);
    }

    /// What was found out before, of the same programs.
    fn verdict(&self) -> Option<Known> {
        use std::io::Read;
        let mut text = Vec::new();
        let file = fs::File::open(&self.verdict).ok()?;
        file.take(VERDICT_MAX).read_to_end(&mut text).ok()?;
        let verdict: Verdict = serde_json::from_slice(&text).ok()?;
        (verdict.programs == self.programs).then(|| verdict.into())
    }

    fn keep(&self, verdict: &Verdict) -> io::Result<()> {
        let draft = self.verdict.with_extension("draft");
        fs::write(&draft, serde_json::to_vec(verdict)?)?;
        fs::rename(&draft, &self.verdict)
    }

    /// A device file that QEMU without rights can open. Only root reaches it where it lies.
    pub fn device(&self) -> Result<PathBuf, IsolationError> {
        let path = self.shown.join("kvm");
        let made = || -> io::Result<()> {
            let number = device_number(Path::new(DEVICE))?;
            if device_number(&path).is_ok_and(|found| found == number) {
                return Ok(());
            }
            fs::create_dir_all(&self.shown)?;
            fs::set_permissions(&self.shown, fs::Permissions::from_mode(0o700))?;
            let draft = self.shown.join(format!("kvm-{}", SandboxId::random()));
            mknodat(
                CWD,
                &draft,
                FileType::CharacterDevice,
                Mode::from_raw_mode(0o666),
                number,
            )?;
            // The umask may have taken bits away.
            fs::set_permissions(&draft, fs::Permissions::from_mode(0o666))?;
            fs::rename(&draft, &path)
        };
        made().map_err(IsolationError::failed("make the device file of KVM"))?;
        Ok(path)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Ends a try, so that nobody waits for it.
    pub async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let Some(task) = self.task.lock().take() else {
            return;
        };
        if let Some(first) = self.first.get() {
            let _ = pidfd_send_signal(first, Signal::KILL);
        } else {
            task.abort();
        }
        let _ = task.await;
    }
}

impl From<Verdict> for Known {
    fn from(verdict: Verdict) -> Self {
        match verdict.boots {
            true => Self::Boots(verdict.told),
            false => Self::Fails(verdict.told),
        }
    }
}

fn device_number(path: &Path) -> io::Result<u64> {
    let found = fs::metadata(path)?;
    match found.file_type().is_char_device() {
        true => Ok(found.rdev()),
        false => Err(io::Error::other("it is no device")),
    }
}

/// Only what QEMU did is kept, and not a host that is full or slow for a moment.
fn says_of_kvm(tried: &Result<String, IsolationError>) -> bool {
    match tried {
        Ok(_) => true,
        Err(IsolationError::Failed { step, source }) => {
            step.starts_with(BOOT_STEP) && source.kind() != io::ErrorKind::TimedOut
        }
        Err(_) => false,
    }
}

fn reason_of(error: &IsolationError) -> String {
    let mut text = cove_model::error::chain(error);
    text.truncate(text.floor_char_boundary(REASON_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kvm(dir: &Path, programs: &str) -> Arc<Kvm> {
        Arc::new(Kvm {
            programs: programs.into(),
            known: watch::Sender::new(Known::Trying),
            verdict: dir.join(VERDICT),
            lock: dir.join(LOCK),
            seen: dir.join(SEEN),
            shown: dir.join(SHOWN),
            first: Arc::default(),
            task: Mutex::default(),
            closing: AtomicBool::new(false),
        })
    }

    fn ends(kind: io::ErrorKind) -> IsolationError {
        let source = io::Error::from(kind);
        IsolationError::failed(format!("{BOOT_STEP}: it does not answer"))(source)
    }

    fn breaks() -> IsolationError {
        ends(io::ErrorKind::BrokenPipe)
    }

    #[tokio::test]
    async fn what_was_tried_is_known_to_the_next_engine_with_the_same_programs() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = kvm(dir.path(), "one");
        assert!(!first.counts());
        first.find_out(async { Err(breaks()) });
        first.settled().await;
        let Known::Fails(reason) = first.known() else {
            panic!("{:?}", first.known());
        };
        assert!(reason.contains("boot the machine") && !first.counts());
        let next = kvm(dir.path(), "one");
        next.find_out(async { panic!("it was tried before") });
        next.settled().await;
        assert_eq!(next.known(), Known::Fails(reason));
        let newer = kvm(dir.path(), "two");
        newer.find_out(async { Ok("booted".into()) });
        newer.settled().await;
        assert_eq!(newer.known(), Known::Boots("booted".into()));
        // Where it booted before, `auto` becomes no weaker tier when it does not any more.
        let broken = kvm(dir.path(), "three");
        assert!(broken.counts(), "while it is tried");
        broken.find_out(async { Err(ends(io::ErrorKind::TimedOut)) });
        broken.settled().await;
        assert!(matches!(broken.known(), Known::Fails(_)) && broken.counts());
    }

    #[tokio::test]
    async fn what_says_nothing_of_kvm_is_tried_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let full = kvm(dir.path(), "one");
        full.find_out(async { Err(IsolationError::Exhausted("uid range")) });
        full.settled().await;
        assert!(full.verdict().is_none());
        // One that takes too long may be on a host that is busy.
        let slow = kvm(dir.path(), "one");
        slow.find_out(async { Err(ends(io::ErrorKind::TimedOut)) });
        slow.settled().await;
        assert!(matches!(slow.known(), Known::Fails(_)) && slow.verdict().is_none());
        let broken = kvm(dir.path(), "one");
        let source = io::Error::from(io::ErrorKind::StorageFull);
        broken.find_out(async { Err(IsolationError::failed("make the disk")(source)) });
        broken.settled().await;
        assert!(broken.verdict().is_none());
        // Also a try that ends with its engine.
        let ended = kvm(dir.path(), "one");
        ended.find_out(std::future::pending());
        ended.close().await;
        assert!(ended.verdict().is_none());
        fs::write(dir.path().join(VERDICT), "nonsense").expect("written");
        assert!(kvm(dir.path(), "one").verdict().is_none());
    }
}
