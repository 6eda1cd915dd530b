//! What an embedder chooses.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cove_model::IsolationPolicy;
use cove_model::network::Cidr;
use cove_network::Addresses;
use cove_pool::BackendChoice;

/// Default number of sandboxes of one host, stopped ones included.
const DEFAULT_SANDBOXES_MAX: usize = 10_000;

#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub data_dir: PathBuf,
    /// Shared by all engines of the host; emptied by a reboot.
    pub host_dir: PathBuf,
    /// Shared by all engines of the host; kept.
    pub host_cache: PathBuf,
    /// Tells one boot of the host from another.
    pub boot_id_file: PathBuf,
    /// A pool that cannot limit disks is accepted only when it is asked for as `Directory`.
    pub backend: BackendChoice,
    pub pool_bytes: Option<u64>,
    pub reserve_bytes: Option<u64>,
    pub overcommit: Overcommit,
    /// The addresses of this host's sandboxes; the same for all engines of the host.
    pub network_range: Addresses,
    /// Named lists of allowed names besides those that are shipped.
    pub network_presets: Option<PathBuf>,
    /// Private ranges that policies may list at all; the rest is refused whoever asks.
    pub private_ranges: Vec<Cidr>,
    /// Which isolation tiers new sandboxes may have, whatever control says.
    pub isolation: IsolationPolicy,
    /// Sandboxes there may be, stopped ones included.
    pub sandboxes_max: usize,
    /// Whom the resolver of sandboxes asks; empty: those of the host's `/etc/resolv.conf`, followed when
    /// it changes.
    pub network_resolvers: Vec<SocketAddr>,
    /// Put before image references that name no registry; without it they are refused.
    pub default_registry: Option<String>,
    /// Registries (`host` or `host:port`) spoken to without TLS, besides those on loopback.
    pub plain_registries: Vec<String>,
    /// Private ranges in which registries of every organisation may be.
    pub tenant_private_ranges: Vec<Cidr>,
    /// Directories from which images may be imported; what lies elsewhere is refused.
    pub import_dirs: Vec<PathBuf>,
    /// The host's key, which wraps the keys of organisations' secrets; absent: `secret.key` in the data directory,
    /// made when it is missing.
    pub secret_key_file: Option<PathBuf>,
    /// A program with its arguments that prints that key instead; empty: none.
    pub secret_key_command: Vec<String>,
    /// Certificates, PEM, that servers of bound hosts may be signed by besides those that this host trusts.
    pub secret_roots: Option<PathBuf>,
    /// How long a request with a secret that asks is held until it is refused.
    pub approval_hold: Duration,
    /// Ed25519 keys of other hosts whose exported memory is restored here; this host's own always is.
    pub trusted_keys: Vec<[u8; 32]>,
}

/// How much may be promised for each unit the host has. Sandboxes are mostly idle and rarely use
/// what they may; 1.0 promises only what is there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overcommit {
    pub cpu: f64,
    pub memory: f64,
    pub disk: f64,
}

impl Default for Overcommit {
    fn default() -> Self {
        Self {
            cpu: 64.0,
            memory: 4.0,
            disk: 8.0,
        }
    }
}

impl EngineConfig {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            host_dir: "/run/cove".into(),
            host_cache: "/var/cache/cove".into(),
            boot_id_file: "/proc/sys/kernel/random/boot_id".into(),
            backend: BackendChoice::Auto,
            pool_bytes: None,
            reserve_bytes: None,
            overcommit: Overcommit::default(),
            network_range: Addresses::default(),
            network_presets: None,
            private_ranges: vec![Cidr::new(std::net::Ipv4Addr::UNSPECIFIED, 0)],
            isolation: IsolationPolicy::default(),
            sandboxes_max: DEFAULT_SANDBOXES_MAX,
            network_resolvers: Vec::new(),
            default_registry: None,
            plain_registries: Vec::new(),
            tenant_private_ranges: Vec::new(),
            import_dirs: Vec::new(),
            secret_key_file: None,
            secret_key_command: Vec::new(),
            secret_roots: None,
            approval_hold: Duration::from_secs(cove_limits::APPROVAL_HOLD_DEFAULT_S),
            trusted_keys: Vec::new(),
        }
    }
}
