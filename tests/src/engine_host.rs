//! An engine in a process of its own, for tests that kill it: [`World`] starts the `engine-host`
//! program over a data directory under `/var/tmp`, speaks to it through the runner's socket, and
//! removes everything it made on the host when it goes, also when a test fails.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cove_engine::{BackendChoice, EngineConfig, OpenTier, Overcommit};
use cove_model::{Event, Resources, SandboxId, SandboxSpec, State};
use cove_protocol::client::{Connect, Guest, Stream};
use cove_runner_api::wire::Client;
use cove_runner_api::{
    CreateRequest, ImageJob, ImageOwner, ImageSource, JobState, RunnerApi, RunnerError, SandboxView,
};

mod inside;
mod traces;

pub use inside::{exec, output, process_id, shell, succeed};
pub use traces::Traces;

/// How long an engine may take to open, adopt and sweep.
const READY_DEADLINE: Duration = Duration::from_secs(300);
/// How long an engine may take to delete everything and end.
const END_DEADLINE: Duration = Duration::from_secs(300);
/// How long anything that is waited for may take to come true.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// How long an image job may take; the default image may have to be bootstrapped from a mirror first.
const IMAGE_DEADLINE: Duration = Duration::from_secs(900);
const POLL_PAUSE: Duration = Duration::from_millis(10);
/// Lines of the engine's log shown when a test fails.
const LOG_LINES: usize = 60;
/// The image every test has.
pub const IMAGE: &str = "busybox";

/// What an engine is started with; crosses to the program as arguments.
#[derive(Debug, Clone)]
pub struct Setup {
    pub dir: PathBuf,
    pub directory_backend: bool,
    pub pool_bytes: u64,
    pub reserve_bytes: Option<u64>,
    pub warm: usize,
    pub memory_overcommit: Option<f64>,
    /// Whom sandboxes' names are asked of; absent: whom the host asks.
    pub resolver: Option<SocketAddr>,
    /// Tells boots of the host apart instead of the kernel's own file.
    pub boot_id_file: Option<PathBuf>,
    /// The network namespace the engine runs in; absent: the test's own. Not an argument.
    pub namespace: Option<PathBuf>,
}

impl Setup {
    fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            directory_backend: false,
            pool_bytes: 4 << 30,
            reserve_bytes: Some(64 << 20),
            warm: 0,
            memory_overcommit: None,
            resolver: None,
            boot_id_file: None,
            namespace: None,
        }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("runner.sock")
    }

    pub fn engine_config(&self) -> EngineConfig {
        let mut config = crate::engine_config(self.data_dir());
        config.import_dirs = vec![self.dir.clone()];
        // Registries of tests are on loopback.
        config.tenant_private_ranges = vec!["127.0.0.0/8".parse().expect("a range")];
        if self.directory_backend {
            config.backend = BackendChoice::Directory;
        } else {
            config.backend = BackendChoice::Btrfs;
            config.pool_bytes = Some(self.pool_bytes);
        }
        config.reserve_bytes = self.reserve_bytes;
        if let Some(file) = &self.boot_id_file {
            config.boot_id_file.clone_from(file);
        }
        let roots = self.dir.join("roots.pem");
        config.secret_roots = roots.exists().then_some(roots);
        config.network_resolvers = self.resolver.into_iter().collect();
        if let Some(memory) = self.memory_overcommit {
            config.overcommit = Overcommit {
                memory,
                ..Overcommit::default()
            };
        }
        config
    }

    pub fn tiers(&self) -> Vec<Box<dyn OpenTier>> {
        crate::tiers(self.warm)
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            self.dir.display().to_string(),
            self.directory_backend.to_string(),
            self.pool_bytes.to_string(),
            self.warm.to_string(),
        ];
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        arguments.push(text(self.reserve_bytes.map(|bytes| bytes.to_string())));
        arguments.push(text(
            self.memory_overcommit.map(|factor| factor.to_string()),
        ));
        arguments.push(text(self.resolver.map(|resolver| resolver.to_string())));
        let boot_id = self.boot_id_file.as_ref();
        arguments.push(text(boot_id.map(|file| file.display().to_string())));
        arguments
    }

    /// The other side of [`World::start`].
    pub fn from_arguments(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let given: Vec<String> = arguments.collect();
        let [
            dir,
            directory_backend,
            pool_bytes,
            warm,
            reserve,
            memory,
            resolver,
            boot_id_file,
        ] = given.as_slice()
        else {
            return Err("eight arguments are needed".into());
        };
        fn parse<T: std::str::FromStr>(text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("'{text}' makes no sense"))
        }
        fn optional<T: std::str::FromStr>(text: &str) -> Result<Option<T>, String> {
            (text != "-").then(|| parse(text)).transpose()
        }
        Ok(Self {
            dir: dir.into(),
            directory_backend: parse(directory_backend)?,
            pool_bytes: parse(pool_bytes)?,
            warm: parse(warm)?,
            reserve_bytes: optional(reserve)?,
            memory_overcommit: optional(memory)?,
            resolver: optional(resolver)?,
            boot_id_file: optional(boot_id_file)?,
            namespace: None,
        })
    }
}

/// One engine over one data directory, with the small image imported.
pub struct World {
    program: PathBuf,
    pub setup: Setup,
    child: Option<Child>,
    /// The engine's own name, known after its first start; kept because the file may be deleted.
    instance: String,
    finished: bool,
    _dir: tempfile::TempDir,
}

impl World {
    /// An engine with the usual settings. `program` is `env!("CARGO_BIN_EXE_engine-host")`.
    pub async fn start(program: &str) -> Self {
        Self::with(program, |_| {}).await
    }

    pub async fn with(program: &str, change: impl FnOnce(&mut Setup)) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("cove-test-")
            .tempdir_in("/var/tmp")
            .expect("a directory under /var/tmp");
        let mut setup = Setup::new(dir.path());
        change(&mut setup);
        let mut world = Self {
            program: program.into(),
            setup,
            child: None,
            instance: String::new(),
            finished: false,
            _dir: dir,
        };
        world.launch();
        world.instance = fs::read_to_string(world.setup.data_dir().join("instance"))
            .expect("an open engine has a name")
            .trim()
            .to_owned();
        world.import_busybox().await;
        world
    }

    /// Starts the program and waits until it serves.
    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "the engine runs already");
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .expect("a log file");
        let mut program = match &self.setup.namespace {
            Some(namespace) => {
                let mut enter = Command::new("nsenter");
                enter.arg(format!("--net={}", namespace.display()));
                enter.arg(&self.program);
                enter
            }
            None => Command::new(&self.program),
        };
        let mut child = program
            .args(self.setup.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("start engine-host");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        self.child = Some(child);
        let said = receiver.recv_timeout(READY_DEADLINE).unwrap_or_default();
        assert_eq!(said.trim(), "ready", "the engine did not open");
    }

    /// SIGKILL, at whatever it was doing.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the engine runs");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// SIGKILL and a new engine over the same data.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    /// Ends the engine as a service manager does; its sandboxes run on.
    pub fn let_go(&mut self) {
        let mut child = self.child.take().expect("the engine runs");
        signal(child.id(), rustix::process::Signal::INT);
        let status = wait_end(&mut child).expect("it ends when asked");
        assert!(status.success(), "the engine ended with {status}");
    }

    pub fn engine_pid(&self) -> u32 {
        self.child.as_ref().expect("the engine runs").id()
    }

    pub fn instance(&self) -> &str {
        &self.instance
    }

    pub fn client(&self) -> Client {
        Client::new(self.setup.socket())
    }

    pub fn guest(&self, id: &SandboxId) -> Guest {
        guest(&self.client(), id)
    }

    pub fn traces(&self) -> Traces {
        Traces::find(&self.instance, &self.setup.dir)
    }

    async fn import_busybox(&self) {
        let image = self.setup.dir.join("image");
        inside::busybox_tree(&image);
        let job = self.import(IMAGE, &image).await;
        assert_eq!(job.state, JobState::Done, "{job:?}");
    }

    /// Imports a directory and waits for the end of the job.
    pub async fn import(&self, name: &str, path: &Path) -> ImageJob {
        let source = ImageSource::Local {
            name: name.into(),
            path: path.display().to_string(),
        };
        let job = self
            .client()
            .add_image(source, ImageOwner::Operator)
            .await
            .expect("a job");
        self.job_end(&job.id).await
    }

    pub async fn job_end(&self, id: &str) -> ImageJob {
        let client = self.client();
        within(IMAGE_DEADLINE, "the image job ends", || async {
            let job = client.image_job(id).await.expect("the job is known");
            (job.state != JobState::Running).then_some(job)
        })
        .await
    }

    /// A sandbox of the small image with small limits.
    pub async fn create(&self) -> SandboxView {
        self.create_with(|_| {}).await
    }

    pub async fn create_with(&self, change: impl FnOnce(&mut SandboxSpec)) -> SandboxView {
        self.try_create(change).await.expect("a sandbox")
    }

    pub async fn try_create(
        &self,
        change: impl FnOnce(&mut SandboxSpec),
    ) -> Result<SandboxView, RunnerError> {
        let mut spec = small_spec();
        change(&mut spec);
        let request = CreateRequest {
            owner: None,
            id: SandboxId::random(),
            spec,
            from: None,
        };
        self.client().create(request).await
    }

    /// Waits until a sandbox is in a state.
    pub async fn until(&self, id: &SandboxId, state: State) -> SandboxView {
        let client = self.client();
        eventually(&format!("{id} is {state}"), || async {
            let view = client.get(id).await.expect("the sandbox exists");
            (view.state == state).then_some(view)
        })
        .await
    }

    /// Where events stand now.
    pub async fn cursor(&self) -> u64 {
        self.client().events(0, 0).await.expect("events").next
    }

    /// The first event after `cursor` that `wanted` says yes to.
    pub async fn event(&self, cursor: u64, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        let client = self.client();
        let deadline = Instant::now() + PATIENCE;
        let mut after = cursor;
        while Instant::now() < deadline {
            let batch = client.events(after, 1000).await.expect("events");
            if let Some(event) = batch.events.into_iter().find(|event| wanted(event)) {
                return event;
            }
            after = batch.next;
        }
        panic!("no event came that tells: {what}");
    }

    /// Deletes everything, ends the engine and checks that the host is as it was.
    pub fn finish(mut self) {
        let mut child = self.child.take().expect("the engine runs");
        signal(child.id(), rustix::process::Signal::TERM);
        let status = wait_end(&mut child).expect("the engine ends when asked");
        let log = self.log_tail();
        assert!(status.success(), "destroying failed with {status}\n{log}");
        // A filesystem or a group can be busy for a moment after its last user.
        let deadline = Instant::now() + PATIENCE;
        let mut left = self.traces();
        while !left.on_host_is_empty() && Instant::now() < deadline {
            std::thread::sleep(POLL_PAUSE);
            left = self.traces();
        }
        assert!(left.on_host_is_empty(), "left behind: {left:#?}");
        self.finished = true;
    }

    /// A second engine over the same data; tells how it ended.
    pub fn launch_another(&self) -> std::process::ExitStatus {
        Command::new(&self.program)
            .args(self.setup.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("start engine-host")
    }

    /// For a data directory the test itself has deleted: what is left is removed without the engine.
    pub fn abandon(mut self) {
        self.traces().remove_from_host();
        self.finished = true;
    }

    /// Not among the data, whose disk a test may fill.
    fn log(&self) -> PathBuf {
        self._dir.path().join("engine.log")
    }

    fn log_tail(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = fs::File::open(self.log()) {
            let _ = file.read_to_string(&mut text);
        }
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        eprintln!("the engine's log ends with:\n{}", self.log_tail());
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Not through the engine: it may be what is broken.
        self.traces().remove_from_host();
    }
}

struct Connector {
    client: Client,
    id: SandboxId,
}

#[async_trait::async_trait]
impl Connect for Connector {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let stream = self
            .client
            .connect(&self.id)
            .await
            .map_err(std::io::Error::other)?;
        Ok(Box::new(stream))
    }
}

pub fn guest(client: &Client, id: &SandboxId) -> Guest {
    Guest::new(Arc::new(Connector {
        client: client.clone(),
        id: id.clone(),
    }))
    .within(PATIENCE)
}

/// Of the tier that the suite runs over (`COVE_TIER`).
pub fn small_spec() -> SandboxSpec {
    SandboxSpec {
        image: IMAGE.into(),
        isolation: crate::tiers::under_test(),
        resources: Resources {
            memory_mb: 128,
            disk_mb: 256,
            pids: 64,
            ..Resources::default()
        },
        ..SandboxSpec::default()
    }
}

/// Asks again until there is an answer, for at most [`PATIENCE`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, ask: impl FnMut() -> F) -> T {
    within(PATIENCE, what, ask).await
}

async fn within<T, F: Future<Output = Option<T>>>(
    patience: Duration,
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "did not happen within {patience:?}: {what}"
        );
        tokio::time::sleep(POLL_PAUSE).await;
    }
}

pub fn signal(pid: u32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn wait_end(child: &mut Child) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + END_DEADLINE;
    while Instant::now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(POLL_PAUSE);
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Whether no engine holds a data directory.
pub fn unlocked(data_dir: &Path) -> bool {
    let Ok(file) = fs::File::open(data_dir.join("pool.lock")) else {
        return true;
    };
    let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&file, how).is_ok()
}
