//! An engine over a directory of its own, with the default image, and the operations all sections use.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cove_engine::{Engine, EngineConfig, Overcommit};
use cove_isolation_container::ContainerConfig;
use cove_model::{ProcessId, Resources, SandboxId, SandboxSpec};
use cove_protocol::client::{ExecResult, Guest};
use cove_protocol::message::Start;
use cove_runner_api::{CreateRequest, ImageOwner, ImageSource, JobState, RunnerApi};

pub struct Host {
    pub engine: Engine,
    dir: tempfile::TempDir,
}

impl Host {
    pub async fn open(image: Option<&Path>) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("cove-bench-")
            .tempdir_in("/var/tmp")?;
        let mut config = EngineConfig::new(dir.path());
        // A benchmark promises far more than the machine has: most sandboxes here only sit there.
        config.overcommit = Overcommit {
            cpu: 1e6,
            memory: 1e3,
            disk: 1e6,
        };
        config.import_dirs = image
            .and_then(Path::parent)
            .map(Path::to_owned)
            .into_iter()
            .collect();
        let engine = Engine::open(
            config,
            vec![Box::new(ContainerConfig {
                warm: 8,
                ..ContainerConfig::default()
            })],
        )
        .await?;
        let source = match image {
            None => ImageSource::Debian,
            Some(path) => ImageSource::Local {
                name: "debian".into(),
                path: path.to_string_lossy().into_owned(),
            },
        };
        let mut job = engine.add_image(source, ImageOwner::Operator).await?;
        while job.state == JobState::Running {
            tokio::time::sleep(Duration::from_millis(100)).await;
            job = engine.image_job(&job.id).await?;
        }
        if let Some(error) = job.error {
            bail!("the default image cannot be built: {error}");
        }
        Ok(Self { engine, dir })
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub async fn close(self) -> Result<()> {
        self.engine
            .destroy()
            .await
            .context("remove the benchmark's sandboxes")
    }

    pub async fn create(&self) -> Result<SandboxId> {
        self.create_with(Resources {
            memory_mb: 128,
            ..Resources::default()
        })
        .await
    }

    pub async fn create_with(&self, resources: Resources) -> Result<SandboxId> {
        let id = SandboxId::random();
        let spec = SandboxSpec {
            resources,
            ..SandboxSpec::default()
        };
        self.engine
            .create(CreateRequest {
                owner: None,
                id: id.clone(),
                spec,
                from: None,
            })
            .await?;
        Ok(id)
    }

    pub async fn delete(&self, id: &SandboxId) -> Result<()> {
        Ok(self.engine.delete(id).await?)
    }

    pub fn guest(&self, id: &SandboxId) -> Result<Guest> {
        Ok(self.engine.guest(id)?)
    }

    /// Create, run one command, and how long that took to its output.
    pub async fn create_and_echo(&self) -> Result<(SandboxId, Duration)> {
        let begun = Instant::now();
        let id = self.create().await?;
        let result = run(&self.guest(&id)?, &["/bin/echo", "hello"]).await?;
        let took = begun.elapsed();
        anyhow::ensure!(
            &*result.stdout == b"hello\n",
            "the command said something else"
        );
        Ok((id, took))
    }
}

pub async fn run(guest: &Guest, argv: &[&str]) -> Result<ExecResult> {
    let start = Start {
        id: ProcessId::random().to_string(),
        argv: argv.iter().map(|part| (*part).to_owned()).collect(),
        follow: true,
        ..Start::default()
    };
    let result = guest.exec(start).await?;
    anyhow::ensure!(
        result.exit.code == 0,
        "{argv:?} ended with {}: {}{}",
        result.exit.code,
        String::from_utf8_lossy(&result.stdout),
        String::from_utf8_lossy(&result.stderr)
    );
    Ok(result)
}

pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
