//! A tier of its own over a directory that goes with it, an image with Python and BusyBox, machines
//! that are ended however a test ends.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cove_isolation::{
    Afterwards, AtRest, Boot, Captured, Isolation, IsolationError, Machine, Restore,
};
use cove_isolation_container::ContainerConfig;
use cove_model::{Resources, SandboxId};
use cove_protocol::client::{ExecResult, Guest};
use cove_protocol::message::Start;

use crate::needs;
pub use crate::tier::shell;
use crate::tier::{TestTier, add_busybox, boot_of, end, guest_of};

const MEMORY_MB: u64 = 512;
/// Anything a test waits for; far above what even a busy machine needs.
pub const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);

/// Made once and kept with what was built: the host's Python with its libraries, and BusyBox.
fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        // Carried from the machine that built the tests (scripts/portable-tests).
        if let Some(carried) = std::env::var_os("COVE_TEST_MEMORY_IMAGE") {
            return carried.into();
        }
        let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // Another set of programs is another image.
        let has = OPTIONAL.map(|name| on_path(name).map_or("", |_| name));
        let image = built.join(format!("memory-image-3-{}", has.join("-")));
        if !image.exists() {
            let dir = tempfile::Builder::new()
                .prefix("memory-image-")
                .tempdir_in(built)
                .expect("a directory can be made");
            fill(dir.path());
            // Whole or not at all; another run that was faster made the same.
            if fs::rename(dir.path(), &image).is_ok() {
                let _ = dir.keep();
            }
        }
        image
    })
}

/// Programs that tests opt out of by their names.
const OPTIONAL: [&str; 2] = ["tmux", "node"];

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(name));
    found.find_map(|program| fs::canonicalize(program).ok())
}

fn fill(image: &Path) {
    for dir in ["bin", "tmp", "usr/bin", "usr/lib", "etc", "root"] {
        fs::create_dir_all(image.join(dir)).expect("a directory can be made");
    }
    add_busybox(
        image,
        &[
            "sh", "cat", "ls", "sleep", "echo", "hostname", "ps", "kill", "id", "touch", "rm",
            "mkdir", "mv", "stty", "seq",
        ],
    );
    let python = fs::canonicalize("/usr/bin/python3").expect("the host has python3");
    let name = python.file_name().expect("a program has a name");
    fs::copy(&python, image.join("usr/bin").join(name)).expect("python can be copied");
    symlink(name, image.join("usr/bin/python3")).expect("a link can be made");
    let library = Path::new("/usr/lib").join(name);
    run(Command::new("cp")
        .arg("-a")
        .arg(&library)
        .arg(image.join("usr/lib/")));
    let locale = Path::new("/usr/lib/locale/C.utf8");
    if locale.exists() {
        let locales = image.join("usr/lib/locale");
        fs::create_dir_all(&locales).expect("a directory can be made");
        run(Command::new("cp").arg("-a").arg(locale).arg(locales));
    }
    let sqlite = fs::read_dir(library.join("lib-dynload"))
        .expect("python has modules")
        .flatten()
        .map(|entry| entry.path())
        .collect::<Vec<_>>();
    fs::copy("/bin/bash", image.join("bin/bash")).expect("the host has bash");
    let mut wanted = vec![python, PathBuf::from("/bin/bash")];
    wanted.extend(sqlite);
    for name in OPTIONAL {
        if let Some(program) = on_path(name) {
            let copied = fs::copy(&program, image.join("usr/bin").join(name));
            copied.expect("a program can be copied");
            wanted.push(program);
        }
    }
    for name in ["x/xterm", "s/screen", "t/tmux"] {
        let target = image.join("lib/terminfo").join(name);
        fs::create_dir_all(target.parent().expect("it has a letter"))
            .expect("a directory can be made");
        // Only tmux looks for them, and for a locale with all letters.
        let _ = fs::copy(Path::new("/lib/terminfo").join(name), target);
    }
    for program in wanted {
        let listed = Command::new("ldd")
            .arg(&program)
            .output()
            .expect("ldd runs");
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) else {
                continue;
            };
            let target = image.join(path.trim_start_matches('/'));
            if !target.exists() {
                fs::create_dir_all(target.parent().expect("a library is in a directory"))
                    .expect("a directory can be made");
                fs::copy(path, target).expect("a library can be copied");
            }
        }
    }
}

fn run(command: &mut Command) {
    let status = command.status().expect("the program runs");
    assert!(status.success(), "{command:?}");
}

fn memory_limit(memory_mb: u64) -> Resources {
    Resources {
        memory_mb,
        pids: 512,
        ..Resources::default()
    }
}

/// Whether the image has the files of a program that is called so. Where it has not, the test fails, unless it
/// was opted out of.
pub fn has(name: &str, files: &[&str]) -> bool {
    needs::has(name, files.iter().all(|file| image().join(file).exists()))
}

pub struct Host(TestTier);

impl std::ops::Deref for Host {
    type Target = TestTier;
    fn deref(&self) -> &TestTier {
        &self.0
    }
}

impl Host {
    pub fn open() -> Self {
        let config = ContainerConfig {
            warm: 0,
            ..ContainerConfig::default()
        };
        Self(TestTier::open("memory", config))
    }

    fn boot_of(&self, volume: &Path, hostname: &str, limits: Resources) -> Boot {
        boot_of(image(), volume, hostname, limits)
    }

    pub async fn boot(&self, hostname: &str) -> Sandbox {
        self.boot_within(hostname, memory_limit(MEMORY_MB)).await
    }

    pub async fn boot_within(&self, hostname: &str, limits: Resources) -> Sandbox {
        let volume = self.path("volume");
        fs::create_dir(&volume).expect("a directory can be made");
        let boot = self.boot_of(&volume, hostname, limits);
        let machine = self.tier.boot(boot).await.expect("a sandbox boots");
        Sandbox::new(machine, volume)
    }

    pub async fn try_capture(
        &self,
        sandbox: &Sandbox,
        afterwards: Afterwards,
    ) -> Result<Snapshot, IsolationError> {
        let (memory, volume) = (self.path("memory"), self.path("volume"));
        fs::create_dir(&memory).expect("a directory can be made");
        let (from, to) = (sandbox.volume.clone(), volume.clone());
        let at_rest: AtRest = Box::new(move || {
            let status = Command::new("cp").arg("-a").arg(&from).arg(&to).status()?;
            assert!(status.success());
            Ok(())
        });
        let captured = sandbox
            .machine
            .capture(&memory, at_rest, afterwards)
            .await?;
        Ok(Snapshot {
            memory,
            volume,
            captured,
        })
    }

    pub async fn capture(&self, sandbox: &Sandbox) -> Snapshot {
        self.try_capture(sandbox, Afterwards::Continue)
            .await
            .expect("the sandbox is captured")
    }

    /// A restore from a copy of the snapshot's volume, so that it can be restored again.
    fn restore_of(
        &self,
        snapshot: &Snapshot,
        hostname: &str,
        limits: Resources,
    ) -> (Restore, PathBuf) {
        let volume = self.path("volume");
        run(Command::new("cp")
            .arg("-a")
            .arg(&snapshot.volume)
            .arg(&volume));
        let restore = Restore {
            boot: self.boot_of(&volume, hostname, limits),
            memory: snapshot.memory.clone(),
        };
        (restore, volume)
    }

    pub async fn restore(&self, snapshot: &Snapshot, hostname: &str) -> Sandbox {
        self.try_restore(snapshot, hostname)
            .await
            .expect("the sandbox is restored")
    }

    pub async fn try_restore(
        &self,
        snapshot: &Snapshot,
        hostname: &str,
    ) -> Result<Sandbox, IsolationError> {
        self.try_restore_within(snapshot, hostname, MEMORY_MB).await
    }

    pub async fn try_restore_within(
        &self,
        snapshot: &Snapshot,
        hostname: &str,
        memory_mb: u64,
    ) -> Result<Sandbox, IsolationError> {
        self.try_restore_as(snapshot, hostname, memory_limit(memory_mb))
            .await
    }

    pub async fn try_restore_as(
        &self,
        snapshot: &Snapshot,
        hostname: &str,
        limits: Resources,
    ) -> Result<Sandbox, IsolationError> {
        let (restore, volume) = self.restore_of(snapshot, hostname, limits);
        Ok(Sandbox::new(self.tier.restore(restore).await?, volume))
    }

    /// Brings the sandbox itself back, not a copy of it.
    pub async fn resume(&self, snapshot: &Snapshot, hostname: &str, id: SandboxId) -> Sandbox {
        let (mut restore, volume) = self.restore_of(snapshot, hostname, memory_limit(MEMORY_MB));
        restore.boot.machine.id = id;
        let machine = self.tier.restore(restore).await;
        Sandbox::new(machine.expect("the sandbox is resumed"), volume)
    }

    pub async fn prove(&self, snapshot: &Snapshot) -> Result<(), IsolationError> {
        let (restore, _) = self.restore_of(snapshot, "proof", memory_limit(MEMORY_MB));
        self.tier.prove(restore).await
    }

    /// Ends everything and checks that nothing stays.
    pub async fn close(self, sandboxes: Vec<Sandbox>) {
        for sandbox in sandboxes {
            sandbox.end().await;
        }
        self.0.close().await;
    }
}

pub struct Snapshot {
    pub memory: PathBuf,
    pub volume: PathBuf,
    pub captured: Captured,
}

pub struct Sandbox {
    pub machine: Arc<dyn Machine>,
    pub guest: Guest,
    pub volume: PathBuf,
}

impl Sandbox {
    fn new(machine: Box<dyn Machine>, volume: PathBuf) -> Self {
        let machine: Arc<dyn Machine> = Arc::from(machine);
        let guest = guest_of(&machine);
        Self {
            machine,
            guest,
            volume,
        }
    }

    /// PID 1 on the host, and whose machine it is.
    pub fn detail(&self) -> (i32, SandboxId) {
        let detail = self.machine.record().detail;
        let pid = detail["pid"].as_i64().expect("a record has a pid");
        let id = detail["sandbox"].as_str().expect("a record has an id");
        (
            i32::try_from(pid).expect("a pid is small"),
            id.parse().expect("an id can be read"),
        )
    }

    pub async fn exec(&self, script: &str) -> ExecResult {
        self.guest
            .exec(shell(script))
            .await
            .expect("a command runs")
    }

    /// What a command says, without the end of line; it must succeed.
    pub async fn say(&self, script: &str) -> String {
        let result = self.exec(script).await;
        let stdout = String::from_utf8_lossy(&result.stdout).into_owned();
        assert_eq!(
            result.exit.code,
            0,
            "{script}: {stdout}{}",
            String::from_utf8_lossy(&result.stderr)
        );
        stdout.trim_end().to_owned()
    }

    /// Starts a program in the background; it is there when this returns.
    pub async fn start(&self, program: &str, source: &str) -> String {
        let start = Start {
            argv: vec![program.into(), "-c".into(), source.into()],
            ..shell("")
        };
        let id = start.id.clone();
        self.guest.start(start).await.expect("a command starts");
        id
    }

    /// Waits until a command says something in particular.
    pub async fn until(&self, script: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let result = self.exec(script).await;
            let said = String::from_utf8_lossy(&result.stdout)
                .trim_end()
                .to_owned();
            if wanted(&said) {
                return said;
            }
            assert!(
                Instant::now() < deadline,
                "{script} kept saying {said:?} {:?}",
                result.stderr
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What a frozen machine has used of the CPU. The kernel says that a process is frozen just before it leaves the
    /// CPU: its last moment is counted later.
    pub async fn used_at_rest(&self) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        let mut used = self.used().await;
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let before = std::mem::replace(&mut used, self.used().await);
            if before == used {
                return used;
            }
            assert!(Instant::now() < deadline, "it does not rest");
        }
    }

    pub async fn used(&self) -> u64 {
        let usage = self.machine.usage().await;
        usage.expect("a machine is measured").cpu_usec
    }

    pub async fn end(self) {
        end(&self.machine).await;
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A test that failed; the group stays for the next sweep of this host.
        let machine = Arc::clone(&self.machine);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let ended = std::thread::spawn(move || runtime.block_on(machine.kill()));
            let _ = ended.join();
        }
    }
}
