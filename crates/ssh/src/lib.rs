//! The SSH gateway: `ssh`, `scp`, `sftp`, `rsync` and editors reach sandboxes as if each ran a server.
//!
//! It runs in the unprivileged control side, on a listener of its own, and is one more client of
//! [`cove_control::Control`]: a login becomes a principal with the scope `use` and one sandbox, a session
//! becomes a process of that sandbox's guest, a forwarded port a connection to a port inside. Nothing here
//! touches the host. File transfer is a program of the guest, so its packets are read inside too.
//!
//! ```text
//!  serve: accept ─► Guarded stream ─► russh session ─► Connection (one per client)
//!                                                        ├─ process: a command and its streams
//!                                                        └─ forward: a port inside
//! ```
#![forbid(unsafe_code)]

use async_recursion::async_recursion as boxed;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use cove_control::shares::source;
use cove_control::{Control, Shares, Sharing};
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::ssh_key::{self, LineEnding};
use russh::keys::{HashAlg, PrivateKey};
use russh::{MethodKind, MethodSet, SshId, server};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod connection;
mod connection_limits;
mod forward;
mod guarded;
mod inbox;
mod process;
mod signals;

use connection::Connection;
use connection_limits::{ConnectionLimits, Failures};
use guarded::Guarded;

/// Clients served at once; further ones are hung up on.
pub const CONNECTIONS_MAX: usize = 1024;
/// Clients that have not logged in yet, by the address they come from; further ones are hung up on.
pub const STRANGERS: Sharing = Sharing {
    total: 112,
    promised: 4,
    hard: 128,
};
/// Clients that are logged in, by organisation.
pub const CLIENTS: Sharing = Sharing::new(512, 8);
/// What runs on all of their connections, by organisation.
pub const CHANNELS: Sharing = Sharing::new(4096, 64);
/// Clients of one sandbox at once.
pub const SANDBOX_CLIENTS_MAX: usize = 64;
/// For a client's first line, and for logging in.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
const LOGIN_DEADLINE: Duration = Duration::from_secs(30);
/// Wrong logins on one connection before it is closed.
const ATTEMPTS_MAX: usize = 6;
/// What a wrong login takes at least.
const REJECTION_TIME: Duration = Duration::from_millis(250);
/// A client that is silent is asked whether it is there, and gone after so many questions.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVES_MAX: usize = 4;
const PACKET: u32 = 32 * 1024;
/// Messages on their way to one client before whoever makes them waits.
const OUTGOING_MAX: usize = 16;
/// What clients get to take their leave when the server ends.
const LEAVE_GRACE: Duration = Duration::from_secs(1);
/// Pause after a failed accept, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const RANDOM_BYTES: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    #[error("the host key is invalid")]
    Broken(#[from] ssh_key::Error),
    #[error("the host key is not an ed25519 key")]
    Kind,
}

/// What tells clients that this is the server they mean.
#[derive(Clone)]
pub struct HostKey(PrivateKey);

impl HostKey {
    pub fn random() -> Self {
        let mut seed = [0; RANDOM_BYTES];
        rand::TryRngCore::try_fill_bytes(&mut rand::rngs::OsRng, &mut seed)
            .expect("the kernel's random numbers are always there once it has booted");
        Self(PrivateKey::from(Ed25519Keypair::from_seed(&seed)))
    }

    /// From what [`HostKey::reveal`] said.
    pub fn parse(text: &str) -> Result<Self, HostKeyError> {
        // Whoever kept it may have added or lost a line's end.
        let key = PrivateKey::from_openssh(format!("{}\n", text.trim()))?;
        match key.algorithm() {
            ssh_key::Algorithm::Ed25519 => Ok(Self(key)),
            _ => Err(HostKeyError::Kind),
        }
    }

    /// The secret, as OpenSSH keeps it. Mind where it goes.
    pub fn reveal(&self) -> Result<String, HostKeyError> {
        Ok(self.0.to_openssh(LineEnding::LF)?.to_string())
    }

    /// `ssh-ed25519 AAAA…`, for `known_hosts`.
    pub fn public(&self) -> Result<String, HostKeyError> {
        let line = self.0.public_key().to_openssh()?;
        Ok(line.trim().to_owned())
    }

    /// `SHA256:…`, as clients show it.
    pub fn fingerprint(&self) -> String {
        self.0.public_key().fingerprint(HashAlg::Sha256).to_string()
    }
}

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostKey({})", self.fingerprint())
    }
}

/// What all connections share.
pub(crate) struct Shared {
    control: Control,
    failures: Failures,
    places: Arc<ConnectionLimits>,
    strangers: Arc<Shares<IpAddr>>,
}

fn config(host_key: &HostKey) -> server::Config {
    server::Config {
        server_id: SshId::Standard("SSH-2.0-cove".into()),
        methods: MethodSet::from(
            &[
                MethodKind::PublicKey,
                MethodKind::KeyboardInteractive,
                MethodKind::Password,
            ][..],
        ),
        auth_rejection_time: REJECTION_TIME,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![host_key.0.clone()],
        window_size: inbox::WINDOW,
        maximum_packet_size: PACKET,
        event_buffer_size: OUTGOING_MAX,
        max_auth_attempts: ATTEMPTS_MAX,
        inactivity_timeout: None,
        keepalive_interval: Some(KEEPALIVE_EVERY),
        keepalive_max: KEEPALIVES_MAX,
        ..server::Config::default()
    }
}

/// Serves clients until asked to end.
#[boxed]
pub async fn serve(
    listener: TcpListener,
    control: Control,
    host_key: &HostKey,
    shutdown: CancellationToken,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let config = Arc::new(config(host_key));
    let shared = Arc::new(Shared {
        control,
        failures: Failures::default(),
        places: Arc::default(),
        strangers: Shares::new(STRANGERS),
    });
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let clients = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an SSH connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Nobody waits for a place behind others: a client tries again.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            continue;
        };
        let client = client(
            Arc::clone(&config),
            Arc::clone(&shared),
            stream,
            peer,
            shutdown.child_token(),
        );
        clients.spawn(async move {
            client.await;
            drop(place);
        });
    }
    clients.close();
    timeout(LEAVE_GRACE, clients.wait()).await.ok();
    Ok(())
}

/// One client, from its first byte to its last.
async fn client(
    config: Arc<server::Config>,
    shared: Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    cut: CancellationToken,
) {
    if shared.failures.is_barred(peer.ip()) {
        return;
    }
    // As many unauthenticated clients as there may be are here already, or came from there; a client tries again.
    let Some(stranger) = shared.strangers.take(source(peer.ip()), 1) else {
        return;
    };
    stream.set_nodelay(true).ok();
    let store = inbox::Store::default();
    let stream = Guarded::new(stream, cut.clone(), store.clone());
    let entered = CancellationToken::new();
    let connection = Connection::new(shared, peer, stranger, cut.clone(), entered.clone(), store);
    let begun = timeout(
        HELLO_DEADLINE,
        server::run_stream(config, stream, connection),
    )
    .await;
    let Ok(Ok(session)) = begun else {
        return;
    };
    tokio::pin!(session);
    let ended = tokio::select! {
        ended = &mut session => Some(ended),
        () = entered.cancelled() => None,
        () = tokio::time::sleep(LOGIN_DEADLINE) => {
            cut.cancel();
            None
        }
    };
    let ended = match ended {
        Some(ended) => ended,
        None => session.await,
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "an SSH connection ended");
    }
    cut.cancel();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_key_is_kept_as_text_and_not_shown_by_accident() {
        let key = HostKey::random();
        let text = key.reveal().expect("it can be written");
        for text in [text.clone(), format!("{text}\n"), text.trim().to_owned()] {
            let again = HostKey::parse(&text).expect("it can be read back");
            assert_eq!(again.fingerprint(), key.fingerprint());
        }
        let public = key.public().expect("it has a public part");
        assert!(public.starts_with("ssh-ed25519 AAAA"), "{public}");
        assert!(!text.contains(&public) && !format!("{key:?}").contains("PRIVATE"));
        assert!(HostKey::parse("nonsense").is_err());
    }
}
