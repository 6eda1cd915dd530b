//! A private PostgreSQL cluster of the installed packages: its own folder, its own socket, and a port
//! on loopback only where TLS is asked for. The tests of the whole server use this file too.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio_postgres::NoTls;

const READY_DEADLINE: Duration = Duration::from_secs(180);
const STOP_DEADLINE: Duration = Duration::from_secs(120);
/// In the name of the socket also where nothing listens on the network.
const DEFAULT_PORT: u16 = 5432;

pub struct Cluster {
    folder: TempDir,
    programs: PathBuf,
    owner: Option<(u32, u32)>,
    port: Option<u16>,
    server: Child,
}

/// PEM, for a server that speaks TLS.
pub struct Identity<'a> {
    pub certificate: &'a str,
    pub key: &'a str,
}

impl Cluster {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// With an identity it listens on loopback too, for TLS and nothing else.
    pub fn start_with(identity: Option<Identity<'_>>) -> Self {
        let programs = programs();
        let folder = tempfile::Builder::new()
            .prefix("cove-pg-")
            .tempdir_in("/var/tmp")
            .unwrap();
        // PostgreSQL refuses to run as root.
        let owner = rustix::process::getuid().is_root().then(postgres_user);
        if let Some((uid, gid)) = owner {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        // Others may get to the socket; the data has a folder of its own.
        let passable = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(folder.path(), passable).unwrap();
        let made = command(&programs.join("initdb"), owner)
            .args([
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .arg("--pgdata")
            .arg(folder.path().join("data"))
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let port = identity.map(|identity| {
            for (name, text) in [
                ("server.crt", identity.certificate),
                ("server.key", identity.key),
                (
                    "data/pg_hba.conf",
                    "local all all trust\nhostssl all all 127.0.0.1/32 trust\n",
                ),
            ] {
                let path = folder.path().join(name);
                std::fs::write(&path, text).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
                if let Some((uid, gid)) = owner {
                    chown(&path, Some(uid), Some(gid)).unwrap();
                }
            }
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().port()
        });
        let server = serve(&programs, folder.path(), owner, port);
        Self {
            folder,
            programs,
            owner,
            port,
            server,
        }
    }

    /// The port for TLS on loopback.
    #[allow(dead_code, reason = "this file serves two test programs")]
    pub fn port(&self) -> u16 {
        self.port.expect("the cluster was started with an identity")
    }

    /// A new, empty database; answers its address.
    pub async fn database(&self, name: &str) -> String {
        let name = short(name);
        self.run_sql("postgres", &format!("CREATE DATABASE \"{name}\""))
            .await;
        self.address(&name)
    }

    pub async fn run_sql(&self, database: &str, sql: &str) {
        let (client, connection) = tokio_postgres::connect(&self.address(database), NoTls)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
    }

    #[allow(dead_code, reason = "this file serves two test programs")]
    pub fn restart(&mut self) {
        stop(&mut self.server);
        self.server = serve(&self.programs, self.folder.path(), self.owner, self.port);
    }

    /// Ends every process of it at once, as a crash of its host does.
    #[allow(dead_code, reason = "this file serves several test programs")]
    pub fn kill(&mut self) {
        self.signal_all(Signal::KILL);
        let _ = self.server.wait();
        // The postmaster refuses to start while one of its children lives on.
        let deadline = Instant::now() + STOP_DEADLINE;
        while !self.processes().is_empty() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    #[allow(dead_code, reason = "this file serves several test programs")]
    pub fn start_again(&mut self) {
        self.server = serve(&self.programs, self.folder.path(), self.owner, self.port);
    }

    /// SIGSTOP hangs it, SIGCONT lets it go on.
    #[allow(dead_code, reason = "this file serves several test programs")]
    pub fn signal_all(&self, signal: Signal) {
        for pid in self.processes() {
            let _ = kill_process(pid, signal);
        }
    }

    /// Those that have this cluster's folder as their own: the postmaster and its children.
    fn processes(&self) -> Vec<Pid> {
        let data = self.folder.path().join("data");
        std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| {
                let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"));
                cwd.is_ok_and(|cwd| cwd == data)
            })
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// Where its socket is.
    #[allow(dead_code, reason = "this file serves several test programs")]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A second cluster that follows this one; the first one's commits wait for it from now on.
    #[allow(dead_code, reason = "this file serves several test programs")]
    pub async fn standby(&self) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("cove-pg-")
            .tempdir_in("/var/tmp")
            .unwrap();
        if let Some((uid, gid)) = self.owner {
            chown(folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let passable = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(folder.path(), passable).unwrap();
        let copied = command(&self.programs.join("pg_basebackup"), self.owner)
            .args([
                "--username=postgres",
                "--checkpoint=fast",
                "--no-sync",
                "--write-recovery-conf",
                "-h",
            ])
            .arg(self.folder.path())
            .arg("-D")
            .arg(folder.path().join("data"))
            .output()
            .unwrap();
        assert!(
            copied.status.success(),
            "pg_basebackup: {}",
            String::from_utf8_lossy(&copied.stderr)
        );
        let server = serve(&self.programs, folder.path(), self.owner, None);
        self.run_sql(
            "postgres",
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
        )
        .await;
        self.run_sql("postgres", "SELECT pg_reload_conf()").await;
        Self {
            folder,
            programs: self.programs.clone(),
            owner: self.owner,
            port: None,
            server,
        }
    }

    /// The address of one database, on this cluster or on the other one.
    #[allow(dead_code, reason = "this file serves several test programs")]
    pub fn address_with(&self, other: &Self, database: &str) -> String {
        let host = |cluster: &Self| cluster.folder.path().to_str().unwrap().replace('/', "%2F");
        format!(
            "postgres://postgres@{}:{DEFAULT_PORT},{}:{DEFAULT_PORT}/{database}",
            host(self),
            host(other)
        )
    }

    pub fn address(&self, database: &str) -> String {
        let host = self.folder.path().to_str().unwrap().replace('/', "%2F");
        let port = self.port.unwrap_or(DEFAULT_PORT);
        format!("postgres://postgres@{host}:{port}/{database}")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // One that a test left hanging hears no request to end.
        self.signal_all(Signal::CONT);
        stop(&mut self.server);
    }
}

/// Names longer than this are cut by PostgreSQL itself.
fn short(name: &str) -> String {
    name.chars().take(60).collect()
}

fn serve(programs: &Path, folder: &Path, owner: Option<(u32, u32)>, port: Option<u16>) -> Child {
    let mut postgres = command(&programs.join("postgres"), owner);
    match port {
        Some(port) => {
            let file = |name: &str| folder.join(name).display().to_string();
            postgres
                .args(["-c", "listen_addresses=127.0.0.1", "-c", "ssl=on"])
                .args(["-c", &format!("port={port}")])
                .args(["-c", &format!("ssl_cert_file={}", file("server.crt"))])
                .args(["-c", &format!("ssl_key_file={}", file("server.key"))]);
        }
        None => {
            postgres.args(["-c", "listen_addresses="]);
        }
    }
    let mut server = postgres
        .arg("-D")
        .arg(folder.join("data"))
        .arg("-k")
        .arg(folder)
        // What was written outlives every kill. Only a power loss would take it, and nobody here cuts the power; so a
        // disk that others keep busy need not decide how long a commit takes.
        .args(["-c", "max_connections=300", "-c", "fsync=off"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + READY_DEADLINE;
    loop {
        let ready = Command::new(programs.join("pg_isready"))
            .arg("-q")
            .arg("-h")
            .arg(folder)
            .args(["-p", &port.unwrap_or(DEFAULT_PORT).to_string()])
            .status()
            .unwrap();
        if ready.success() {
            return server;
        }
        if let Some(status) = server.try_wait().unwrap() {
            panic!("postgres ended: {status}");
        }
        if Instant::now() > deadline {
            stop(&mut server);
            panic!("postgres did not become ready");
        }
        std::thread::yield_now();
    }
}

fn stop(server: &mut Child) {
    let pid = Pid::from_child(server);
    // SIGINT is PostgreSQL's "end all sessions and shut down".
    let _ = kill_process(pid, Signal::INT);
    let deadline = Instant::now() + STOP_DEADLINE;
    while server.try_wait().ok().flatten().is_none() {
        if Instant::now() > deadline {
            let _ = server.kill();
            let _ = server.wait();
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// `program` as the unprivileged owner, ending with this process whatever happens to it.
fn command(program: &Path, owner: Option<(u32, u32)>) -> Command {
    let mut command = Command::new("setpriv");
    if let Some((uid, gid)) = owner {
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={gid}"))
            .arg("--clear-groups");
    }
    command
        .args(["--pdeathsig", "QUIT"])
        .arg(program)
        .current_dir("/");
    command
}

fn programs() -> PathBuf {
    let versions = match std::fs::read_dir("/usr/lib/postgresql") {
        Ok(versions) => versions,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("PostgreSQL is not installed: apt-get install postgresql")
        }
        Err(error) => panic!("{error}"),
    };
    versions
        .map(|version| version.unwrap().path().join("bin"))
        .filter(|programs| programs.join("initdb").exists())
        .max()
        .expect("a PostgreSQL version with its server programs is installed")
}

fn postgres_user() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users
        .lines()
        .find(|line| line.starts_with("postgres:"))
        .expect("the package made the user 'postgres'");
    let fields: Vec<_> = line.split(':').collect();
    (fields[2].parse().unwrap(), fields[3].parse().unwrap())
}
