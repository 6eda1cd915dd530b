//! Pools in temporary directories that unmount and vanish when a test ends, passed or failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cove_pool::{Backend, BackendChoice, Kind, Pool, PoolConfig, VolumeId};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;
pub const LOOP_BYTES: u64 = 1 << 30;

/// Long enough for a busy machine; only ever reached when something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct TestPool {
    pool: Option<Pool>,
    pub config: PoolConfig,
    // Fields drop in order: the inner directory is cleared before the pool that holds it.
    dir: TempDir,
    outer: Option<Box<TestPool>>,
}

pub fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("cove-pool-")
        .tempdir_in("/var/tmp")
        .expect("a temporary directory")
}

impl TestPool {
    pub fn with(choice: BackendChoice, adjust: impl FnOnce(&mut PoolConfig)) -> TestPool {
        TestPool::inside(scratch(), choice, None, adjust)
    }

    fn inside(
        dir: TempDir,
        choice: BackendChoice,
        outer: Option<Box<TestPool>>,
        adjust: impl FnOnce(&mut PoolConfig),
    ) -> TestPool {
        let mut config = PoolConfig::new(dir.path().join("data"));
        config.backend = choice;
        config.loop_size_bytes = Some(LOOP_BYTES);
        config.reserve_bytes = Some(0);
        adjust(&mut config);
        let mut test = TestPool {
            pool: None,
            config,
            dir,
            outer,
        };
        test.reopen();
        test
    }

    pub fn btrfs() -> TestPool {
        let test = TestPool::with(BackendChoice::Btrfs, |_| {});
        assert_eq!(test.backend(), Backend::BtrfsLoop);
        test
    }

    pub fn directory() -> TestPool {
        TestPool::with(BackendChoice::Directory, |_| {})
    }

    /// A pool whose data directory already is on btrfs: that of another pool.
    pub fn host_btrfs() -> TestPool {
        let outer = Box::new(TestPool::btrfs());
        let host = sandbox("host");
        outer.create(&host).expect("a volume to live in");
        let dir = TempDir::new_in(outer.path(&host)).expect("a temporary directory");
        let test = TestPool::inside(dir, BackendChoice::Auto, Some(outer), |config| {
            config.loop_size_bytes = None;
        });
        assert_eq!(test.backend(), Backend::BtrfsHost);
        test
    }

    pub fn take(&mut self) -> Pool {
        self.pool.take().expect("the pool is open")
    }

    /// What a server's death does: the handle goes, mounts stay.
    pub fn abandon(&mut self) {
        drop(self.pool.take());
    }

    pub fn try_reopen(&mut self) -> Result<(), cove_pool::PoolError> {
        self.abandon();
        self.pool = Some(Pool::open(self.config.clone())?);
        Ok(())
    }

    pub fn reopen(&mut self) {
        self.try_reopen().expect("the pool opens");
    }

    pub fn data_dir(&self) -> &Path {
        &self.config.dir
    }

    pub fn mount_point(&self) -> PathBuf {
        self.config.dir.join("pool")
    }

    pub fn write(&self, id: &VolumeId, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(id).join(name), content).expect("a file is written");
    }

    pub fn read(&self, id: &VolumeId, name: &str) -> String {
        fs::read_to_string(self.path(id).join(name)).expect("a file is read")
    }
}

impl std::ops::Deref for TestPool {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        self.pool.as_ref().expect("the pool is open")
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        self.abandon();
        // More than one where a test mounted something of its own on top.
        while mounts_at(&self.mount_point()) > 0 {
            if unmount(self.mount_point(), UnmountFlags::DETACH).is_err() {
                break;
            }
        }
        // Subvolumes of an outer pool do not go with an ordinary recursive delete when read-only.
        if let Some(outer) = &self.outer {
            for name in ["images", "sandboxes", "snapshots", "staging"] {
                let folder = self.mount_point().join(name);
                for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                    btrfs(&["subvolume", "delete", &entry.path().to_string_lossy()]);
                }
            }
            let _ = outer.delete(&sandbox("host"));
        }
        let _ = &self.dir;
    }
}

/// Runs the btrfs program, for what the pool itself has no operation for.
pub fn btrfs(args: &[&str]) -> bool {
    std::process::Command::new("btrfs")
        .args(args)
        .stdout(std::process::Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

pub fn mounts_at(path: &Path) -> usize {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let wanted = path.to_string_lossy();
    text.lines()
        .filter(|line| line.split(' ').nth(4) == Some(&*wanted))
        .count()
}

/// The loop devices bound to a file.
pub fn loops_of(image: &Path) -> Vec<String> {
    let wanted = image.to_string_lossy();
    let mut found = Vec::new();
    for block in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let bound = fs::read_to_string(block.path().join("loop/backing_file")).unwrap_or_default();
        if bound.trim_end() == wanted {
            found.push(block.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

pub fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn id(kind: Kind, name: &str) -> VolumeId {
    VolumeId::new(kind, name).expect("a name of the allowed alphabet")
}

pub fn image(name: &str) -> VolumeId {
    id(Kind::Image, name)
}

pub fn sandbox(name: &str) -> VolumeId {
    id(Kind::Sandbox, name)
}

pub fn snapshot(name: &str) -> VolumeId {
    id(Kind::Snapshot, name)
}

pub fn staging(name: &str) -> VolumeId {
    id(Kind::Staging, name)
}

/// Makes each function a test on every backend.
#[macro_export]
macro_rules! on_every_backend {
    ($($name:ident),* $(,)?) => {
        mod btrfs_loop { $(#[test] fn $name() { super::$name(&mut super::TestPool::btrfs()); })* }
        mod btrfs_host { $(#[test] fn $name() { super::$name(&mut super::TestPool::host_btrfs()); })* }
        mod directory { $(#[test] fn $name() { super::$name(&mut super::TestPool::directory()); })* }
    };
}
