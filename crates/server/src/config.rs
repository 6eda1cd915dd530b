//! What an operator may set about the HTTP side.

use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Connections served at once, shared between the addresses they come from.
    pub connections_max: usize,
    /// For a TLS handshake, for the first bytes of a connection, and for the head of a request from its
    /// first byte on.
    pub header_timeout: Duration,
    /// For the headers of a request, the wait for them included: how long a connection is kept that
    /// nobody uses. Clients that pool connections count on a minute.
    pub keep_alive: Duration,
    /// For the whole of a JSON body.
    pub body_timeout: Duration,
    /// Between two pieces of an upload.
    pub upload_idle: Duration,
    /// How long the rest of a body that nobody needs is read before the answer, so that its connection can be used
    /// again; a tenth of it for each piece.
    pub unread_wait: Duration,
    /// How long a client may leave an answer unread before its connection is closed. What it does not read
    /// is held in memory.
    pub write_stall: Duration,
    /// What requests and streams get to end by themselves when the server stops.
    pub shutdown_grace: Duration,
    pub tls: Option<TlsPem>,
    /// Where previews are reached from outside; without it there are none.
    pub previews: Option<crate::preview::PreviewUrl>,
    /// Where the SSH gateway is reached from outside; without it there is none.
    pub ssh: Option<SshPlace>,
    /// How much of the log was lost, where somebody counts that.
    pub log_losses: Option<LogLosses>,
}

/// Tells how many lines of the log could not be written.
#[derive(Clone)]
pub struct LogLosses(Arc<dyn Fn() -> u64 + Send + Sync>);

impl LogLosses {
    pub fn new(total: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(total))
    }

    pub fn total(&self) -> u64 {
        (self.0)()
    }
}

impl std::fmt::Debug for LogLosses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogLosses({})", self.total())
    }
}

/// Where the SSH gateway is and how clients know it.
#[derive(Debug, Clone)]
pub struct SshPlace {
    pub host: String,
    pub port: u16,
    /// `ssh-ed25519 AAAA…`
    pub host_key: String,
    /// `SHA256:…`
    pub fingerprint: String,
}

/// Contents rather than paths: whoever makes this may read the key before giving up the right to.
#[derive(Clone)]
pub struct TlsPem {
    /// The server's certificate first.
    pub certificates: Vec<u8>,
    pub key: Vec<u8>,
}

impl std::fmt::Debug for TlsPem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsPem(…)")
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connections_max: 8192,
            header_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            upload_idle: Duration::from_secs(60),
            unread_wait: Duration::from_secs(2),
            write_stall: Duration::from_secs(60),
            shutdown_grace: Duration::from_secs(10),
            tls: None,
            previews: None,
            ssh: None,
            log_losses: None,
        }
    }
}
