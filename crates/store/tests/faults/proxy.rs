//! A wire to PostgreSQL's socket that can be made slow, silent or cut.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

const SOCKET: &str = ".s.PGSQL.5432";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Each piece is passed on later by this much.
    Delay(Duration),
    /// Connections stand, and nothing goes through.
    Swallow,
}

pub struct Proxy {
    folder: TempDir,
    mode: watch::Sender<Mode>,
    /// Changes whenever all connections are cut.
    cuts: Arc<watch::Sender<u64>>,
}

impl Proxy {
    pub fn start(cluster: &Path) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let (mode, cuts) = (
            watch::Sender::new(Mode::Pass),
            Arc::new(watch::Sender::new(0)),
        );
        let (target, modes, all_cuts) = (cluster.join(SOCKET), mode.subscribe(), Arc::clone(&cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (modes, mut cut) = (modes.clone(), all_cuts.subscribe());
                let target: PathBuf = target.clone();
                tokio::spawn(async move {
                    let Ok(server) = UnixStream::connect(target).await else {
                        return;
                    };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = pass(from_client, to_server, modes.clone()) => {}
                        () = pass(from_server, to_client, modes) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { folder, mode, cuts }
    }

    pub fn address(&self, database: &str) -> String {
        let host = self.folder.path().to_str().unwrap().replace('/', "%2F");
        format!("postgres://postgres@{host}:5432/{database}")
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    pub fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>) {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut piece).await else {
            return;
        };
        let mode = *modes.borrow_and_update();
        match mode {
            Mode::Pass => {}
            Mode::Delay(by) => tokio::time::sleep(by).await,
            Mode::Swallow => {
                if modes.wait_for(|mode| *mode != Mode::Swallow).await.is_err() {
                    return;
                }
            }
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
