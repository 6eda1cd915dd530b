//! A VM tier over a directory that goes with it, and machines on it.
#![allow(dead_code, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cove_isolation::slots::Slots;
use cove_isolation::{Boot, Isolation, Machine, MachineSpec, Root, TierHost};
use cove_isolation_vm::{VmConfig, VmTier};
use cove_model::{Accel, Resources, SandboxId};
use cove_network::Network;
use cove_parser::Parser;
use cove_pool::Disk;
use cove_protocol::client::{Connect, ExecResult, Guest, Stream};
use cove_protocol::message::Start;
use tempfile::TempDir;

/// How long the kernel may take to let go of what has ended.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);
pub const APPLETS: [&str; 25] = [
    "sh", "true", "id", "cat", "nproc", "hostname", "ls", "mount", "echo", "dd", "sleep", "head",
    "ps", "ip", "ping", "wget", "df", "yes", "tail", "seq", "date", "mkdir", "kill", "nc", "grep",
];

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Whether `scripts/provide-vm` has run; if not, the tests fail or were opted out of.
pub fn has_qemu() -> bool {
    let found = Path::new(cove_isolation_vm::DEFAULT_PROGRAMS).join("source");
    crate::needs::has("qemu", found.exists())
}

pub fn number() -> u32 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

struct Direct(Arc<dyn Machine>);

#[async_trait::async_trait]
impl Connect for Direct {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.0.connect().await?))
    }
}

pub fn guest_of(machine: &Arc<dyn Machine>) -> Guest {
    Guest::new(Arc::new(Direct(Arc::clone(machine)))).within(SCRIPT_LIMIT)
}

pub fn shell(script: &str) -> Start {
    Start {
        id: format!("prc_test{}", number()),
        argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
        ..Start::default()
    }
}

/// Far above what any script here takes.
const SCRIPT_LIMIT: Duration = Duration::from_secs(300);

pub async fn exec(machine: &Arc<dyn Machine>, script: &str) -> ExecResult {
    let guest = guest_of(machine);
    let ended = tokio::time::timeout(SCRIPT_LIMIT, guest.exec(shell(script))).await;
    ended
        .unwrap_or_else(|_| panic!("{script} takes too long"))
        .unwrap()
}

/// What a script says; it must succeed.
pub async fn run(machine: &Arc<dyn Machine>, script: &str) -> String {
    let result = exec(machine, script).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&result.stdout);
    assert_eq!(
        result.exit.code,
        0,
        "{script}: {said}{}",
        text(&result.stderr)
    );
    said.trim().to_owned()
}

pub fn limits() -> Resources {
    Resources {
        memory_mb: 320,
        disk_mb: 256,
        pids: 200,
        ..Resources::default()
    }
}

/// Ends what a test that failed left running.
struct Leftovers(String);

impl Drop for Leftovers {
    fn drop(&mut self) {
        let Some(group) = group_of(&self.0) else {
            return;
        };
        for entry in fs::read_dir(group).into_iter().flatten().flatten() {
            let pids = fs::read_to_string(entry.path().join("cgroup.procs"));
            for pid in pids.unwrap_or_default().lines() {
                let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
                let kill = |pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                let _ = pid.map(kill);
            }
        }
    }
}

pub struct TestTier {
    leftovers: Leftovers,
    pub tier: VmTier,
    slots: Arc<Slots>,
    instance: String,
    dir: TempDir,
    host: TierHost,
}

impl TestTier {
    pub fn open(name: &str) -> Self {
        Self::in_network(name, |_| None)
    }

    /// With a network that is made for the engine's name.
    pub fn in_network(name: &str, network: impl FnOnce(&str) -> Option<Arc<Network>>) -> Self {
        let dir = tempfile::Builder::new()
            .prefix(&format!("cove-{name}-"))
            .tempdir_in("/var/tmp")
            .unwrap();
        let instance = format!("{name}{}x{}", std::process::id(), number());
        let host_dir = Path::new("/run/cove");
        let slots = Slots::open(host_dir, &instance, dir.path()).unwrap();
        // Never given back while the slots live: nothing but the parser runs under it.
        let confined = slots.take().unwrap().unwrap();
        let parser = Parser::new(cove_embedded::PARSER, confined.uid_base()).unwrap();
        std::mem::forget(confined);
        let host = TierHost {
            instance: instance.clone(),
            data_dir: dir.path().to_owned(),
            pool_dir: dir.path().to_owned(),
            pool_device: None,
            host_dir: host_dir.to_owned(),
            slots: Arc::clone(&slots),
            cpu_book: Arc::default(),
            parser: Arc::new(parser),
            network: network(&instance),
        };
        let tier = VmTier::open(&VmConfig::default(), &host).unwrap();
        Self {
            leftovers: Leftovers(instance.clone()),
            tier,
            slots,
            instance,
            dir,
            host,
        }
    }

    /// The tier of the next engine, over the same directory.
    pub fn reopen(self) -> Self {
        let Self {
            leftovers,
            tier,
            slots,
            instance,
            dir,
            mut host,
        } = self;
        drop(tier);
        drop(slots);
        let slots = Slots::open(&host.host_dir, &instance, dir.path()).unwrap();
        host.slots = Arc::clone(&slots);
        let tier = VmTier::open(&VmConfig::default(), &host).unwrap();
        Self {
            leftovers,
            tier,
            slots,
            instance,
            dir,
            host,
        }
    }

    /// A path of its own in the tier's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}-{}", number()))
    }

    /// BusyBox and nothing else.
    pub fn image(&self) -> PathBuf {
        let image = self.path("image");
        let bin = image.join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(image.join("tmp")).unwrap();
        fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
        for applet in APPLETS {
            symlink("busybox", bin.join(applet)).unwrap();
        }
        image
    }

    pub fn volume(&self) -> PathBuf {
        let volume = self.path("volume");
        fs::create_dir(&volume).unwrap();
        volume
    }

    pub fn boot_of(&self, image: &Path, volume: &Path, limits: Resources) -> Boot {
        let root = Root {
            image: image.to_owned(),
            disk: Disk::at(volume.to_owned()),
        };
        Boot {
            machine: MachineSpec {
                id: SandboxId::random(),
                owner: None,
                hostname: "box".into(),
                limits,
                no_new_privs: false,
                accel: Some(Accel::Software),
                network: Default::default(),
                volumes: Vec::new(),
            },
            root: Box::new(move || Ok(root)),
            turn: None,
        }
    }

    pub async fn boot(&self, image: &Path, volume: &Path) -> Arc<dyn Machine> {
        self.tier.settled().await;
        let boot = self.boot_of(image, volume, limits());
        Arc::from(self.tier.boot(boot).await.unwrap())
    }

    /// Ends the tier, whose machines have ended, and checks that no group of it stays.
    pub async fn close(self) {
        self.tier.close().await;
        let deadline = Instant::now() + PATIENCE;
        while let Some(group) = group_of(&self.instance) {
            assert!(Instant::now() < deadline, "{} stayed", group.display());
            tokio::time::sleep(LOOK).await;
        }
        self.slots.release().unwrap();
    }
}

/// The group of an engine's machines, in any hierarchy; the tier removes it when nothing is in it.
fn group_of(instance: &str) -> Option<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let name = format!("cove-{instance}");
    let hierarchies = fs::read_dir(root).unwrap().flatten();
    let mut places = hierarchies
        .map(|entry| entry.path().join(&name))
        .chain([root.join(&name)]);
    places.find(|place| place.exists())
}

/// Ends a machine; it leaves nothing.
pub async fn end(machine: &Arc<dyn Machine>) {
    machine.kill().await.unwrap();
    machine.exited().await;
    machine.dispose().await.unwrap();
}
