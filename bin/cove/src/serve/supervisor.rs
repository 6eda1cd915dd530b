//! The parent of both children: prepares what they need, starts them, restarts what dies.

use std::fs::{self, DirBuilder, Permissions};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_control::ApiToken;
use cove_model::Backoff;
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::logging::{self, LostLines, Process};
use super::privileges::{self, Account};
use super::role::{RoleConfig, claim, is_claimed};
use super::settings::Settings;
use super::{FATAL, ServeError, handover, objects, ownership, ready, reload};
use crate::connect::{ROOT_KEY_FILE, URL_FILE};

/// Between a child's end and its next start: doubled each time, from and to these.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A child that lived this long is started again without waiting.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);
/// What the control side gets beyond its own grace time, and the runner in all.
const CONTROL_MARGIN: Duration = Duration::from_secs(5);
pub const RUNNER_GRACE: Duration = Duration::from_secs(30);
/// How long a start waits for the ports of a control side that a killed supervisor left.
const ORPHAN_WAIT: Duration = Duration::from_secs(10);
const ORPHAN_PAUSE: Duration = Duration::from_millis(10);
/// Variables of the supervisor's environment that its children get; everything else they are handed.
const KEPT_VARIABLES: [&str; 8] = [
    "PATH",
    "TMPDIR",
    "TZ",
    "LANG",
    "LC_ALL",
    "RUST_BACKTRACE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
/// Held by the supervisor while it lives; holds its process id.
pub const LOCK_FILE: &str = "server.lock";

/// How the C library returns memory in the control process. Its many threads hold lists of all sandboxes for a
/// moment. With an arena for each thread and thresholds that grow with the largest list, such memory is kept
/// for ever.
const CONTROL_MEMORY: &[(&str, &str)] = &[
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_TRIM_THRESHOLD_", "1048576"),
];

/// Control and a runner of its own.
pub fn run(settings: Settings) -> Result<(), ServeError> {
    run_with(settings, |settings, lines| {
        Box::pin(supervise(settings, lines, true))
    })
}

/// Control alone; its hosts are nodes that join.
pub fn run_control(settings: Settings) -> Result<(), ServeError> {
    run_with(settings, |settings, lines| {
        Box::pin(supervise(settings, lines, false))
    })
}

type Supervising = Pin<Box<dyn Future<Output = Result<(), ServeError>>>>;

pub fn run_with(
    settings: Settings,
    supervise: fn(Settings, Arc<LostLines>) -> Supervising,
) -> Result<(), ServeError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ServeError::start(
            "the server must be started by root",
            "sandboxes need namespaces, mounts and cgroups; the process that serves the network drops root",
        ));
    }
    let failed = |source| ServeError::io("cannot count log lines", source);
    let lost = LostLines::new().map_err(failed)?;
    let handed = Arc::new(lost.of(Process::Supervisor).map_err(failed)?);
    let log = logging::start(&settings, lost)?;
    log.begin()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| ServeError::io("cannot start", source))?;
    let ended = runtime.block_on(supervise(settings, handed));
    log.flush();
    ended
}

async fn supervise(
    settings: Settings,
    lines: Arc<LostLines>,
    has_runner: bool,
) -> Result<(), ServeError> {
    // Before anything is made that would have to be removed again.
    super::control::check_certificate(&settings)?;
    super::authorities::read(&settings)?;
    make_directory(&settings.data_dir, 0o711)?;
    let lock = lock(&settings.data_dir)?;
    // On a full disk nothing below could be written.
    if has_runner {
        cove_engine::make_room(&settings.engine().data_dir);
    }
    if settings
        .relay_dir()
        .join(cove_node::Identity::FILE)
        .exists()
    {
        return Err(ServeError::start(
            format!(
                "{} belongs to a node of a fleet",
                settings.data_dir.display()
            ),
            "start it with `cove node run`, or choose another directory with --data-dir",
        ));
    }
    let account = privileges::account(&settings.cache_dir, &settings.data_dir, "control")?;
    passable(&settings.data_dir, account)?;
    let control_dir = settings.control_dir();
    make_directory(&control_dir, 0o700)?;
    {
        // Not while a control side that a killed supervisor left may still write there.
        let _nobody = claim(&settings.data_dir, "control")?;
        ownership::give(&control_dir, account)?;
    }
    let host = match has_runner {
        true => {
            let host = cove_engine::host_id(&settings.engine_dir());
            let failed = |source| ServeError::io("cannot read the id of this host", source);
            Some(host.map_err(failed)?)
        }
        false => None,
    };
    let token = root_key(&settings.data_dir)?;
    let listener = listen(settings.listen, "--listen", &settings.data_dir, "control").await?;
    let address = listener
        .local_addr()
        .map_err(|source| ServeError::io("cannot read the address", source))?;
    let url = settings.url(address);
    let url_file = settings.data_dir.join(URL_FILE);
    write_file(&url_file, &url, 0o644)?;
    if !address.ip().is_loopback() && settings.tls_certificate.is_none() {
        tracing::warn!(%address, "the API listens on a network address without TLS: API keys are sent unencrypted");
    }

    let mut sockets = vec![OwnedFd::from(listener)];
    let mut preview_url = None;
    if let Some(wanted) = settings.preview_address()? {
        let listener = listen(wanted, "--preview-listen", &settings.data_dir, "control").await?;
        let address = listener
            .local_addr()
            .map_err(|source| ServeError::io("cannot read the address", source))?;
        preview_url = Some(settings.preview_place(address));
        sockets.push(listener.into());
    }

    let mut ssh = None;
    if let Some(wanted) = settings.ssh_address()? {
        let listener = listen(wanted, "--ssh-listen", &settings.data_dir, "control").await?;
        let address = listener
            .local_addr()
            .map_err(|source| ServeError::io("cannot read the address", source))?;
        ssh = Some(settings.ssh_place(address));
        sockets.push(listener.into());
    }

    let mut role = RoleConfig {
        preview_url,
        ssh,
        issuer: settings.issuer(&url),
        account,
        host,
        root_key_hash: token.hash().as_str().to_owned(),
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        settings,
    };
    let stop = CancellationToken::new();
    let runner = Supervised::new("runner", &role.for_runner(), Arc::clone(&lines))?;
    let (control, reloads) = Supervised::renewable("control", &role, sockets, lines)?;
    let until_ready = stop.clone();
    let key_file = role.settings.data_dir.join(crate::connect::ROOT_KEY_FILE);
    let ca_pem = role
        .settings
        .tls_certificate
        .as_ref()
        .and_then(|path| fs::read(path).ok());
    let announce = tokio::spawn(async move {
        tokio::select! {
            () = ready::wait(&url, ca_pem) => {
                ready::notify("READY=1");
                tracing::info!(url, "cove is ready");
                ready::greet(&url, &key_file);
            }
            () = until_ready.cancelled() => {}
        }
    });

    let control_grace =
        Duration::from_secs(role.settings.shutdown_grace_s).saturating_add(CONTROL_MARGIN);
    // The control side goes first: what it has under way still needs the runner.
    let runner_stop = CancellationToken::new();
    let runner_end = runner_stop.clone();
    let mut runner = tokio::spawn(async move {
        match has_runner {
            true => runner.keep(runner_end, RUNNER_GRACE).await,
            false => {
                runner_end.cancelled().await;
                Ok(())
            }
        }
    });
    let mut control = tokio::spawn(control.keep(stop.clone(), control_grace));
    let failed = |source| ServeError::io("cannot wait for signals", source);
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    say_who(&lock)?;
    let outcome = loop {
        tokio::select! {
            _ = term.recv() => break Ok(()),
            _ = int.recv() => break Ok(()),
            _ = hangup.recv() => match reload::read_again(&mut role) {
                Ok(config) => {
                    tracing::info!("reloaded the first key and the certificate");
                    reloads.send_replace(config);
                }
                Err(error) => {
                    let text = reload::told(&error);
                    tracing::error!("reload failed, the server keeps its settings: {text}");
                }
            },
            ended = &mut runner => break ended.unwrap_or_else(|_| Err(lost("runner"))),
            ended = &mut control => break ended.unwrap_or_else(|_| Err(lost("control"))),
        }
    };
    ready::notify("STOPPING=1");
    stop.cancel();
    if !control.is_finished() {
        control.await.ok();
    }
    runner_stop.cancel();
    if !runner.is_finished() {
        runner.await.ok();
    }
    announce.await.ok();
    fs::remove_file(&url_file).ok();
    outcome
}

pub fn lost(role: &str) -> ServeError {
    ServeError::Start {
        message: format!("the connection to {role} was lost"),
        hint: None,
    }
}

pub struct Supervised {
    role: &'static str,
    /// A new value ends the child in good order and starts another with it.
    config: watch::Receiver<String>,
    /// Handed over to the child through its standard input, as are the next.
    sockets: Vec<OwnedFd>,
    /// What of the environment it gets besides what every side gets.
    variables: &'static [&'static str],
    lost: Arc<LostLines>,
}

impl Supervised {
    pub fn new(
        role: &'static str,
        config: &RoleConfig,
        lost: Arc<LostLines>,
    ) -> Result<Self, ServeError> {
        Ok(Self {
            role,
            config: watch::channel(config.encoded()?).1,
            sockets: Vec::new(),
            variables: &[],
            lost,
        })
    }

    /// With a way to give it another configuration.
    pub fn renewable(
        role: &'static str,
        config: &RoleConfig,
        sockets: Vec<OwnedFd>,
        lost: Arc<LostLines>,
    ) -> Result<(Self, watch::Sender<String>), ServeError> {
        let variables = match role {
            "control" => objects::variables(&config.settings),
            _ => &[],
        };
        let (renew, config) = watch::channel(config.encoded()?);
        let supervised = Self {
            role,
            config,
            sockets,
            variables,
            lost,
        };
        Ok((supervised, renew))
    }

    fn spawn(&self) -> Result<Child, ServeError> {
        let failed = |source| ServeError::io(format!("cannot start {}", self.role), source);
        let program = std::env::current_exe().map_err(failed)?;
        let mut descriptors = vec![self.lost.as_fd()];
        descriptors.extend(self.sockets.iter().map(AsFd::as_fd));
        let stdin = handover::give(&descriptors, &self.config.borrow()).map_err(failed)?;
        let kept = KEPT_VARIABLES
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        let memory: &[(&str, &str)] = match self.role {
            "control" => CONTROL_MEMORY,
            _ => &[],
        };
        let more = self
            .variables
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        Command::new(program)
            .args(["serve", "--role", self.role])
            .env_clear()
            .envs(kept)
            .envs(more)
            .envs(memory.iter().copied())
            // Signals of a terminal are for the supervisor, which passes them on in order.
            .process_group(0)
            .stdin(Stdio::from(stdin))
            .spawn()
            .map_err(failed)
    }

    /// Runs the child until asked to stop, again whenever it ends by itself.
    pub async fn keep(
        mut self,
        stop: CancellationToken,
        grace: Duration,
    ) -> Result<(), ServeError> {
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            let started = Instant::now();
            self.config.mark_unchanged();
            let mut child = self.spawn()?;
            let mut config = self.config.clone();
            // A channel without a sender never changes anything.
            let renewed = async {
                if config.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let status = tokio::select! {
                status = child.wait() => status,
                () = renewed => {
                    self.end(child, grace).await;
                    continue;
                }
                () = stop.cancelled() => {
                    self.end(child, grace).await;
                    return Ok(());
                }
            };
            let status =
                status.map_err(|source| ServeError::io("cannot wait for a child", source))?;
            if is_fatal(status) {
                return Err(ServeError::Start {
                    message: format!("{} cannot run; see its log", self.role),
                    hint: None,
                });
            }
            if started.elapsed() >= HEALTHY_AFTER {
                backoff.reset();
            }
            let pause = backoff.pause();
            tracing::error!(role = self.role, %status, again_in = ?pause, "a child process ended");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    async fn end(&self, mut child: Child, grace: Duration) {
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            rustix::process::kill_process(pid, Signal::TERM).ok();
        }
        if timeout(grace, child.wait()).await.is_err() {
            tracing::warn!(
                role = self.role,
                "a child process did not end in time; killing it"
            );
            child.kill().await.ok();
        }
    }
}

fn is_fatal(status: ExitStatus) -> bool {
    status.code() == Some(i32::from(FATAL))
}

/// A killed supervisor's control side may hold the port for a moment still.
pub async fn listen(
    address: SocketAddr,
    flag: &str,
    data_dir: &Path,
    role: &str,
) -> Result<TcpListener, ServeError> {
    let started = Instant::now();
    loop {
        let orphaned = is_claimed(data_dir, role);
        let error = match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        if error.kind() != std::io::ErrorKind::AddrInUse {
            return Err(ServeError::io(format!("cannot listen at {address}"), error));
        }
        if !orphaned || started.elapsed() > ORPHAN_WAIT {
            return Err(ServeError::start(
                format!("{address} is taken by another program"),
                format!("is a server running already? choose another with {flag}"),
            ));
        }
        tokio::time::sleep(ORPHAN_PAUSE).await;
    }
}

pub fn make_directory(path: &Path, mode: u32) -> Result<(), ServeError> {
    let failed = |source| ServeError::io(format!("cannot make {}", path.display()), source);
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)
}

/// The control side must get to its own directory; a private one above would shut it out.
pub fn passable(data_dir: &Path, account: Account) -> Result<(), ServeError> {
    for directory in data_dir.ancestors().skip(1) {
        let found = fs::metadata(directory).map_err(|source| {
            ServeError::io(format!("cannot look at {}", directory.display()), source)
        })?;
        let needed = match (found.uid() == account.uid, found.gid() == account.gid) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
        if found.permissions().mode() & needed == 0 {
            return Err(ServeError::start(
                format!(
                    "the unprivileged process of the server (user {}) cannot enter {}",
                    account.uid,
                    directory.display()
                ),
                format!(
                    "choose another place with --data-dir, or: chmod o+x {}",
                    directory.display()
                ),
            ));
        }
    }
    Ok(())
}

/// One server per data directory; the kernel lets go of the lock however this process ends.
pub fn lock(data_dir: &Path) -> Result<fs::File, ServeError> {
    let path = data_dir.join(LOCK_FILE);
    let failed = |source| ServeError::io(format!("cannot lock {}", path.display()), source);
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(ServeError::start(
            format!("a server already uses {}", data_dir.display()),
            "stop it first, or choose another with --data-dir",
        )),
        Err(fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// The process to signal when there is something to read again; valid only while the lock is held.
pub fn say_who(mut lock: &fs::File) -> Result<(), ServeError> {
    let failed = |source| ServeError::io("cannot write to the lock", source);
    lock.set_len(0).map_err(failed)?;
    let pid = rustix::process::getpid().as_raw_nonzero();
    lock.write_all(format!("{pid}\n").as_bytes())
        .map_err(failed)
}

/// The first key: made once, readable by root alone.
pub fn root_key(data_dir: &Path) -> Result<ApiToken, ServeError> {
    let path = data_dir.join(ROOT_KEY_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => ApiToken::parse(text.trim()).ok_or_else(|| {
            ServeError::start(
                format!("{} does not hold a key", path.display()),
                "remove it to have a new one made",
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let token = ApiToken::random();
            write_file(&path, token.reveal(), 0o600)?;
            Ok(token)
        }
        Err(source) => Err(ServeError::io(
            format!("cannot read {}", path.display()),
            source,
        )),
    }
}

/// In one step, so that nobody ever reads half of it.
pub fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), ServeError> {
    let failed = |source| ServeError::io(format!("cannot write {}", path.display()), source);
    let fresh = path.with_extension("new");
    fs::remove_file(&fresh).ok();
    let mut file = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(&fresh)
        .map_err(failed)?;
    file.write_all(format!("{text}\n").as_bytes())
        .map_err(failed)?;
    file.set_permissions(Permissions::from_mode(mode))
        .map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&fresh, path).map_err(failed)
}
