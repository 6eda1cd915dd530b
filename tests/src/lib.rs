//! What every end-to-end test needs: an engine over a data directory of its own, images in it, and
//! sandboxes that are deleted however a test ends.
//!
//! A test opens a [`Host`], makes [`Sandbox`]es with it and ends it with [`Host::destroy`]. Nothing
//! here is shared between processes except what engines of one machine share anyway.
#![forbid(unsafe_code)]

pub mod engine_host;
pub mod needs;
pub mod strace;
pub mod tiers;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cove_engine::{Engine, EngineConfig, OpenTier};
use cove_isolation_container::ContainerConfig;
use cove_isolation_gvisor::GvisorConfig;
use cove_model::{ProcessId, SandboxId, SandboxSpec};
use cove_protocol::client::{Guest, GuestError};
use cove_protocol::message::{Exit, Start};
use cove_runner_api::{CreateRequest, ImageOwner, ImageSource, JobState, RunnerApi};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Size of the sparse file behind a test's pool.
const POOL_BYTES: u64 = 8 << 30;
/// The default image may have to be bootstrapped from a mirror first.
const IMAGE_DEADLINE: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_millis(20);
/// Any one command of a test; far above what even a busy machine needs.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(300);
/// Any one answer of a guest, which has its own share of a busy machine.
const GUEST_DEADLINE: Duration = Duration::from_secs(60);

/// Runs a shell script and returns what it prints; the test fails when the script does.
pub fn sh(script: &str, dir: &Path) -> String {
    let output = std::process::Command::new("sh")
        .args(["-euc", script])
        .current_dir(dir)
        .output()
        .expect("there is a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The engine's defaults over a data directory, with the cache of images that `COVE_CACHE_DIR` names.
pub fn engine_config(data_dir: impl Into<PathBuf>) -> EngineConfig {
    let mut config = EngineConfig::new(data_dir);
    if let Some(cache) = std::env::var_os("COVE_CACHE_DIR") {
        config.host_cache = cache.into();
    }
    config
}

/// The tiers of a test's engine; `warm` sandboxes are prepared ahead.
pub fn tiers(warm: usize) -> Vec<Box<dyn OpenTier>> {
    vec![
        Box::new(ContainerConfig {
            warm,
            ..ContainerConfig::default()
        }),
        Box::new(GvisorConfig::default()),
    ]
}

/// An engine with a data directory that goes when this does.
pub struct Host {
    pub engine: Engine,
    dir: TempDir,
    runtime: tokio::runtime::Handle,
    farewells: Mutex<Vec<JoinHandle<()>>>,
}

impl Host {
    /// Must run in a multi-threaded runtime that outlives the host: dropped sandboxes are deleted on it.
    pub async fn open(change: impl FnOnce(&mut EngineConfig)) -> Arc<Self> {
        let dir = tempfile::Builder::new()
            .prefix("cove-test-")
            .tempdir_in("/var/tmp")
            .expect("a temporary directory can be made");
        let mut config = engine_config(dir.path().join("data"));
        config.pool_bytes = Some(POOL_BYTES);
        config.import_dirs = vec![dir.path().to_owned()];
        change(&mut config);
        let tiers = tiers(ContainerConfig::default().warm);
        let engine = Engine::open(config, tiers).await.expect("the engine opens");
        Arc::new(Self {
            engine,
            dir,
            runtime: tokio::runtime::Handle::current(),
            farewells: Mutex::default(),
        })
    }

    /// A scratch directory beside the engine's own.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Adds an image and waits until it can be used.
    pub async fn add_image(&self, source: ImageSource) {
        let mut job = self
            .engine
            .add_image(source, ImageOwner::Operator)
            .await
            .expect("a job starts");
        let deadline = Instant::now() + IMAGE_DEADLINE;
        while job.state == JobState::Running {
            assert!(
                Instant::now() < deadline,
                "the image took too long: {job:?}"
            );
            tokio::time::sleep(POLL).await;
            job = self
                .engine
                .image_job(&job.id)
                .await
                .expect("the job is known");
        }
        assert_eq!(job.state, JobState::Done, "{job:?}");
    }

    /// The default image. `COVE_TEST_IMAGE` names a tar file of it for hosts that reach no mirror
    /// (scripts/portable-tests).
    pub async fn add_debian(&self) {
        self.add_image(match std::env::var("COVE_TEST_IMAGE") {
            Ok(path) => ImageSource::Local {
                name: "debian".into(),
                path,
            },
            Err(_) => ImageSource::Debian,
        })
        .await;
    }

    /// An image of one static program, under the name `busybox`.
    pub async fn add_busybox(&self) {
        let root = self.dir.path().join("busybox");
        std::fs::create_dir_all(root.join("bin")).expect("a directory can be made");
        std::fs::copy("/bin/busybox", root.join("bin/busybox")).expect("the host has busybox");
        for applet in ["sh", "true", "cat", "ls", "id", "sleep", "echo"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))
                .expect("a link can be made");
        }
        self.add_image(ImageSource::Local {
            name: "busybox".into(),
            path: root.to_string_lossy().into_owned(),
        })
        .await;
    }

    pub async fn sandbox(self: &Arc<Self>, spec: SandboxSpec) -> Sandbox {
        self.sandbox_from(CreateRequest {
            owner: None,
            id: SandboxId::random(),
            spec,
            from: None,
        })
        .await
    }

    pub async fn sandbox_from(self: &Arc<Self>, request: CreateRequest) -> Sandbox {
        let id = request.id.clone();
        self.engine
            .create(request)
            .await
            .expect("a sandbox is created");
        let guest = self.engine.guest(&id).expect("the sandbox is known");
        let guest = guest.within(GUEST_DEADLINE);
        Sandbox {
            host: Arc::clone(self),
            guest,
            id,
        }
    }

    /// Waits for the deletion of sandboxes that tests let go of.
    pub async fn settle(&self) {
        let farewells = std::mem::take(
            &mut *self
                .farewells
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for farewell in farewells {
            farewell.await.expect("a dropped sandbox is deleted");
        }
    }

    /// Deletes everything, the data directory included.
    pub async fn destroy(self: Arc<Self>) {
        self.settle().await;
        let Self { engine, dir, .. } =
            Arc::into_inner(self).expect("every sandbox and every holder of the host is gone");
        engine.destroy().await.expect("the engine can be destroyed");
        dir.close().expect("the directory can be removed");
    }
}

/// A running sandbox; dropping it deletes it.
pub struct Sandbox {
    host: Arc<Host>,
    pub id: SandboxId,
    pub guest: Guest,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let (engine, id) = (self.host.engine.clone(), self.id.clone());
        let farewell = self.host.runtime.spawn(async move {
            match engine.delete(&id).await {
                Ok(()) | Err(cove_runner_api::RunnerError::NotFound { .. }) => {}
                Err(error) => panic!("{id} cannot be deleted: {error}"),
            }
        });
        self.host
            .farewells
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(farewell);
    }
}

/// A finished command.
#[derive(Debug)]
pub struct Ran {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// What it printed, provided it succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.exit.code, 0, "failed:\n{}{}", self.stdout, self.stderr);
        self.stdout
    }
}

impl Sandbox {
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Runs a shell string as a user's login shell would.
    pub async fn sh(&self, user: &str, script: &str) -> Ran {
        self.exec(Start {
            shell: script.into(),
            ..start_as(user)
        })
        .await
    }

    /// Runs a Python program given on its standard input.
    pub async fn python(&self, user: &str, program: &str) -> Ran {
        self.exec(Start {
            argv: vec!["python3".into(), "-".into()],
            input: Some(program.to_owned().into()),
            ..start_as(user)
        })
        .await
    }

    pub async fn exec(&self, start: Start) -> Ran {
        self.try_exec(start)
            .await
            .expect("the guest runs a command")
    }

    pub async fn try_exec(&self, start: Start) -> Result<Ran, GuestError> {
        let result = tokio::time::timeout(COMMAND_DEADLINE, self.guest.exec(start))
            .await
            .map_err(|_| GuestError::TimedOut(COMMAND_DEADLINE))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ran {
            exit: result.exit,
            stdout: text(&result.stdout),
            stderr: text(&result.stderr),
        })
    }

    /// Starts a command and leaves it running.
    pub async fn spawn(&self, start: Start) -> String {
        let id = start.id.clone();
        self.guest
            .start(start)
            .await
            .expect("the guest starts a command");
        id
    }
}

/// A request with a fresh process id.
pub fn start_as(user: &str) -> Start {
    Start {
        id: ProcessId::random().to_string(),
        user: user.into(),
        ..Start::default()
    }
}

/// Asks again and again until there is an answer; panics with `what` when there is none in time.
pub async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + COMMAND_DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(POLL).await;
    }
}
