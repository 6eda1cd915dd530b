//! A server on a free port, its key, and a client of it. Ends with the test.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_api::sandbox::{CreateSandbox, Sandbox};
use cove_client::{Client, ClientConfig, ClientError};
use cove_control::testing::{GuestKind, MemoryRunner};
use cove_control::{ApiToken, Control, ControlConfig, SystemClock};
use cove_server::{App, ServerConfig};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Far above what anything here needs, also on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(120);

pub struct Server {
    pub address: SocketAddr,
    pub token: String,
    pub client: Client,
    pub runner: Arc<MemoryRunner>,
    /// The server's own table of what organisations hold open.
    pub streams: cove_dialect::Streams,
    /// What organisations hold in memory.
    pub budget: cove_control::Budget,
    /// Where previews listen.
    pub previews: SocketAddr,
    visited: JoinHandle<()>,
    shutdown: CancellationToken,
    served: Option<JoinHandle<()>>,
    background: JoinHandle<()>,
    _guest: Option<GuestProcess>,
    _dir: TempDir,
}

impl Server {
    /// Without anything inside sandboxes.
    pub async fn bare() -> Self {
        Self::start(ServerConfig::default(), ControlConfig::default(), false).await
    }

    /// Every sandbox is the same real guest, running as a process of this machine.
    pub async fn with_guest() -> Self {
        Self::start(ServerConfig::default(), ControlConfig::default(), true).await
    }

    pub async fn start(mut server: ServerConfig, control: ControlConfig, guest: bool) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("cove-http-")
            .tempdir_in("/var/tmp")
            .expect("a directory");
        let store = cove_store::open_sqlite_within(&dir.path().join("test.db"), DEADLINE)
            .await
            .expect("the database opens");
        let clock = Arc::new(SystemClock);
        let runner = MemoryRunner::new(clock.clone());
        let guest = guest.then(|| GuestProcess::start(dir.path()));
        if let Some(guest) = &guest {
            runner.set_guest(GuestKind::Socket(guest.socket.clone()));
        }
        let control = Control::new(control, store, runner.clone(), clock);
        control.prepare().await.expect("the control plane starts");
        let token = ApiToken::random();
        control
            .bootstrap_root_key(&token.hash())
            .await
            .expect("there is a first key");
        let shutdown = CancellationToken::new();
        let background = tokio::spawn({
            let (control, end) = (control.clone(), shutdown.clone());
            async move { control.run(end).await }
        });
        let secure = server.tls.is_some();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let visits = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let previews = visits.local_addr().expect("an address");
        let place = format!("http://localhost:{}", previews.port());
        server.previews = Some(cove_server::PreviewUrl::parse(&place).expect("a place"));
        server.ssh = Some(cove_server::SshPlace {
            host: "ssh.example".into(),
            port: 2222,
            host_key: "ssh-ed25519 AAAA".into(),
            fingerprint: "SHA256:abc".into(),
        });
        let budget = control.budget().clone();
        let app = App::new(control, server);
        let streams = app.streams();
        let visited = tokio::spawn({
            let (app, shutdown) = (app.clone(), shutdown.clone());
            async move {
                cove_server::serve_previews(visits, app, shutdown)
                    .await
                    .expect("previews are served")
            }
        });
        let served = tokio::spawn({
            let shutdown = shutdown.clone();
            async move {
                cove_server::serve(listener, app, shutdown)
                    .await
                    .expect("the server serves")
            }
        });
        let token = token.reveal().to_owned();
        let scheme = if secure { "https" } else { "http" };
        let config = ClientConfig::new(format!("{scheme}://{address}"), Some(token.clone()));
        let client = Client::new(config).expect("a client");
        let served = Some(served);
        Self {
            address,
            token,
            client,
            runner,
            streams,
            budget,
            previews,
            visited,
            shutdown,
            served,
            background,
            _guest: guest,
            _dir: dir,
        }
    }

    pub fn client_with(&self, token: Option<&str>) -> Client {
        let config =
            ClientConfig::new(format!("http://{}", self.address), token.map(str::to_owned));
        Client::new(config).expect("a client")
    }

    pub async fn sandbox(&self, name: &str) -> Sandbox {
        self.sandbox_of(&self.client, name).await
    }

    /// The key of an organisation of its own, and a client with it.
    pub async fn tenant(&self, name: &str) -> (String, Client) {
        use cove_api::tenancy::{CreateKey, CreateOrg, Scope};
        let create = CreateOrg {
            name: name.into(),
            quota: None,
        };
        let org = self
            .client
            .create_org(&create)
            .await
            .expect("an organisation");
        let create = CreateKey {
            name: name.into(),
            scopes: vec![Scope::Manage],
            expires_in_s: None,
            org: Some(org.id),
            sandbox: None,
        };
        let token = self.client.create_key(&create).await.expect("a key").token;
        let client = self.client_with(Some(&token));
        (token, client)
    }

    /// A sandbox of whoever asks.
    pub async fn sandbox_of(&self, client: &Client, name: &str) -> Sandbox {
        client
            .create_sandbox(&on_this_machine(name), None)
            .await
            .expect("a sandbox is created")
    }

    pub fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Waits until somebody new is answered: where connections have little time, one may be cut before it has asked.
    pub async fn answers(&self) {
        let started = Instant::now();
        while let Err(error) = self.client.health().await {
            assert!(started.elapsed() < DEADLINE, "{error:?}");
        }
    }

    /// Until the server has ended by itself.
    pub async fn ended(&mut self) {
        let served = self.served.take().expect("waited for once");
        tokio::time::timeout(DEADLINE, served)
            .await
            .expect("it ends in time")
            .expect("it ends well");
    }
}

fn on_this_machine(name: &str) -> CreateSandbox {
    CreateSandbox {
        name: Some(name.into()),
        // The host in memory claims an image whose defaults this machine does not have.
        user: Some("root".into()),
        workdir: Some("/".into()),
        env: [(
            "PATH".into(),
            "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".into(),
        )]
        .into(),
        ..CreateSandbox::default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.background.abort();
        self.visited.abort();
        if let Some(served) = &self.served {
            served.abort();
        }
    }
}

/// Written by another process: a child that another test forks has what this one has open until it runs its own
/// program, and the kernel runs no program that somebody may still write to.
fn write_program(path: &Path, bytes: &[u8]) {
    let mut child = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh is installed");
    let mut input = child.stdin.take().expect("it is piped");
    input.write_all(bytes).expect("it reads");
    drop(input);
    assert!(child.wait().expect("it ends").success());
}

/// The guest program, on a socket in the test's own directory.
struct GuestProcess {
    child: Child,
    socket: PathBuf,
}

impl GuestProcess {
    fn start(dir: &Path) -> Self {
        let program = dir.join("guest");
        write_program(&program, cove_embedded::GUEST);
        let files = dir.join("guest-files");
        std::fs::create_dir(&files).expect("a directory");
        // With an empty home of its own: login shells must not run what this machine's root has in its profile.
        let child = Command::new("unshare")
            .args(["--mount", "sh", "-c"])
            .arg("mount -t tmpfs none ~root && exec \"$0\" \"$@\"")
            .arg(&program)
            .args(["--listen", "--root-files"])
            .arg(&files)
            .arg("--kept")
            .arg(dir.join("guest-kept"))
            .stdin(Stdio::null())
            .spawn()
            .expect("the guest starts");
        let socket = files.join("sock");
        let started = Instant::now();
        // The file is there a moment before anybody listens.
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(started.elapsed() < DEADLINE, "the guest does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, socket }
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The error a call must end with.
pub fn refused<T>(result: Result<T, ClientError>) -> (u16, cove_api::ErrorDetail) {
    match result {
        Ok(_) => panic!("the call was not refused"),
        Err(ClientError::Refused { status, detail, .. }) => (status.as_u16(), *detail),
        Err(other) => panic!("not a refusal: {other:?}"),
    }
}

pub fn shell(command: &str) -> cove_api::process::Exec {
    cove_api::process::Exec {
        command: Some(command.into()),
        ..Default::default()
    }
}
