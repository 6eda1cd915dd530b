//! A data directory with a pool and an image store, gone when the test ends.

use std::path::Path;
use std::sync::{Arc, Mutex};

use cove_image::{
    FetchConfig, FetchProgram, ImageConfig, ImageStore, Progress, UnpackLimits, UnpackProgram,
};
use cove_parser::Parser;
use cove_pool::{Kind, Pool, PoolConfig};

/// A range far above the ids of any account.
const TEST_UID_BASE: u32 = 1_900_000_000;

pub struct World {
    // Dropped in this order: users of the pool, the mount, the files.
    pub store: ImageStore,
    pub pool: Pool,
    _cleanup: Cleanup,
    pub dir: tempfile::TempDir,
    pub config: ImageConfig,
}

/// Opens the pool once more, when nobody uses it any longer, in order to unmount it.
struct Cleanup(PoolConfig);

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Ok(pool) = Pool::open(self.0.clone()) {
            let _ = pool.close();
        }
    }
}

fn pool_config(dir: &Path) -> PoolConfig {
    PoolConfig {
        loop_size_bytes: Some(8 << 30),
        reserve_bytes: Some(0),
        ..PoolConfig::new(dir)
    }
}

impl World {
    pub fn new() -> Self {
        let cache = Path::new("/nonexistent");
        Self::with(cache, |_| {})
    }

    pub fn with(host_cache: &Path, change: impl FnOnce(&mut ImageConfig)) -> Self {
        Self::on(host_cache, |_| {}, change)
    }

    /// In a pool of `bytes`, part of which is kept in reserve.
    pub fn small(bytes: u64) -> Self {
        let small = |config: &mut PoolConfig| {
            config.loop_size_bytes = Some(bytes);
            config.reserve_bytes = Some(64 << 20);
        };
        Self::on(Path::new("/nonexistent"), small, |_| {})
    }

    fn on(
        host_cache: &Path,
        pool: impl FnOnce(&mut PoolConfig),
        change: impl FnOnce(&mut ImageConfig),
    ) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut pool_config = pool_config(&dir.path().join("data"));
        pool(&mut pool_config);
        let pool = Pool::open(pool_config.clone()).unwrap();
        let _cleanup = Cleanup(pool_config);
        let mut config = ImageConfig {
            dir: dir.path().join("data/images-meta"),
            host_cache: host_cache.to_owned(),
            unpack_uid_base: TEST_UID_BASE,
            limits: UnpackLimits::default(),
            default_registry: None,
            plain_registries: Vec::new(),
            unpack_program: Arc::new(UnpackProgram::new(cove_embedded::UNPACK).unwrap()),
            parser: Arc::new(Parser::new(cove_embedded::PARSER, TEST_UID_BASE).unwrap()),
            fetch: FetchConfig::new(FetchProgram::new(cove_embedded::FETCHER).unwrap()),
        };
        change(&mut config);
        let store = ImageStore::open(pool.clone(), config.clone()).unwrap();
        Self {
            store,
            pool,
            _cleanup,
            dir,
            config,
        }
    }

    /// Opens the store again, as the next server would.
    pub fn reopen(&mut self) {
        self.store = ImageStore::open(self.pool.clone(), self.config.clone()).unwrap();
    }

    pub fn volumes(&self, kind: Kind) -> usize {
        std::fs::read_dir(self.pool.root().join(kind.folder()))
            .unwrap()
            .count()
    }
}

/// Collects what an operation tells.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Progress>>>);

impl Log {
    pub fn sink(&self) -> impl Fn(Progress) + Send + Sync + 'static {
        let log = Arc::clone(&self.0);
        move |progress| log.lock().unwrap().push(progress)
    }

    pub fn all(&self) -> Vec<Progress> {
        self.0.lock().unwrap().clone()
    }
}

/// The last error's own words and those of everything behind it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words.push_str(&format!(": {error}"));
        source = error.source();
    }
    words
}

/// Runs a shell script and returns what it prints; the test fails when the script does.
pub fn sh(script: &str, dir: &Path) -> String {
    let output = std::process::Command::new("sh")
        .args(["-euc", script])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{script}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub fn silent() -> impl Fn(Progress) + Send + Sync + 'static {
    |_| {}
}
