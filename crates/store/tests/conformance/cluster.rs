//! A private PostgreSQL cluster of the installed packages: its own folder, its own socket, no port.

use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio_postgres::NoTls;

const READY_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(30);

pub struct Cluster {
    folder: TempDir,
    programs: PathBuf,
    owner: Option<(u32, u32)>,
    server: Child,
}

impl Cluster {
    pub fn start() -> Self {
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
        let made = command(&programs.join("initdb"), owner)
            .args([
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
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
        let server = serve(&programs, folder.path(), owner);
        Self {
            folder,
            programs,
            owner,
            server,
        }
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

    pub fn restart(&mut self) {
        stop(&mut self.server);
        self.server = serve(&self.programs, self.folder.path(), self.owner);
    }

    fn address(&self, database: &str) -> String {
        let host = self.folder.path().to_str().unwrap().replace('/', "%2F");
        format!("postgres://postgres@{host}/{database}")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        stop(&mut self.server);
    }
}

/// Names longer than this are cut by PostgreSQL itself.
fn short(name: &str) -> String {
    name.chars().take(60).collect()
}

fn serve(programs: &Path, folder: &Path, owner: Option<(u32, u32)>) -> Child {
    let mut server = command(&programs.join("postgres"), owner)
        .arg("-D")
        .arg(folder.join("data"))
        .arg("-k")
        .arg(folder)
        .args([
            "-c",
            "listen_addresses=",
            "-c",
            "max_connections=300",
            "-c",
            "fsync=on",
        ])
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
