//! Images at OCI registries, fetched by a confined program of their own ([`cove_fetcher`]): this side
//! gives it its order, and takes layers from it into files ([`blob`]) whose digests it computes itself.

mod blob;

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cove_fetcher::wire::{HOSTS_BYTES_MAX, TRUST_BYTES_MAX};
use cove_fetcher::{Digest, Fetch, FetchProgram, Manifest, Order, Reachable};
use cove_model::network::Cidr;

use crate::error::ImageError;
use crate::image::host_arch;
use crate::layer::blocking;
use crate::owner::Owner;
use crate::reference::Reference;
use crate::store::ImageConfig;

pub use cove_fetcher::{Login as RegistryAuth, RegistryError};

pub(crate) use blob::{BlobLease, Blobs};

/// Uids a program may get: the range of the unpacker, whose own processes are its first uid.
const UIDS: u32 = 65_535;

/// Where distributions keep the certificates they trust, as one file.
const TRUST_FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How images are fetched from registries.
#[derive(Debug, Clone)]
pub struct FetchConfig {
    pub program: Arc<FetchProgram>,
    /// Private ranges in which registries of every organisation may be.
    pub open_ranges: Vec<Cidr>,
    /// Whom to ask for names; empty: those of `resolv_file`.
    pub resolvers: Vec<SocketAddr>,
    pub resolv_file: PathBuf,
    pub hosts_file: PathBuf,
    /// Trusted certificates in PEM; without one, those of the distribution.
    pub trust_file: Option<PathBuf>,
    /// A pull that brings less than `slowest_bytes` in `slowest_window` is given up.
    pub slowest_bytes: u64,
    pub slowest_window: Duration,
}

impl FetchConfig {
    pub fn new(program: FetchProgram) -> Self {
        Self {
            program: Arc::new(program),
            open_ranges: Vec::new(),
            resolvers: Vec::new(),
            resolv_file: "/etc/resolv.conf".into(),
            hosts_file: "/etc/hosts".into(),
            trust_file: None,
            slowest_bytes: 256 << 10,
            slowest_window: Duration::from_secs(60),
        }
    }
}

/// One pull's program, and what it has brought.
pub(crate) struct Session {
    fetch: Fetch,
    received: AtomicU64,
    slowest_bytes: u64,
    slowest_window: Duration,
}

/// Starts the program for one pull; answers when it knows what the image consists of. No two pulls at a
/// time have the same number, from which the program's uid comes.
pub(crate) async fn start(
    config: &ImageConfig,
    number: u32,
    owner: &Owner,
    reference: &Reference,
    login: Option<RegistryAuth>,
) -> Result<(Session, Manifest), ImageError> {
    let uid = config.unpack_uid_base + 1 + number % UIDS;
    let fetching = &config.fetch;
    let (hosts_file, trust_file) = (fetching.hosts_file.clone(), fetching.trust_file.clone());
    let resolv_file = fetching.resolv_file.clone();
    // Handed on as they are, for the program to read.
    let (resolv, hosts, trust) = blocking(move || {
        let resolv = read_file(&resolv_file, HOSTS_BYTES_MAX).unwrap_or_default();
        let hosts = read_file(&hosts_file, HOSTS_BYTES_MAX).unwrap_or_default();
        let trust = match trust_file {
            Some(path) => read_file(&path, TRUST_BYTES_MAX),
            None => TRUST_FILES
                .iter()
                .find_map(|path| read_file(&PathBuf::from(path), TRUST_BYTES_MAX)),
        };
        Ok((resolv, hosts, trust.unwrap_or_default()))
    })
    .await?;
    let reachable = match owner {
        Owner::Operator => Reachable::anywhere(),
        Owner::Tenant { .. } => Reachable {
            anywhere: false,
            open: fetching.open_ranges.clone(),
            exempt: config.default_registry.iter().cloned().collect(),
        },
    };
    let order = Order {
        registry: reference.registry.clone(),
        server: reference.server().to_owned(),
        repository: reference.repository.clone(),
        wanted: reference.wanted().to_owned(),
        digest: reference.digest.as_deref().and_then(Digest::parse),
        arch: host_arch().to_owned(),
        login,
        plain: config.plain_registries.clone(),
        reachable,
        resolvers: fetching.resolvers.clone(),
        resolv,
        hosts,
        trust,
    };
    let (fetch, manifest) = Fetch::start(&fetching.program, uid, order).await?;
    let session = Session {
        fetch,
        received: AtomicU64::new(0),
        slowest_bytes: fetching.slowest_bytes,
        slowest_window: fetching.slowest_window,
    };
    Ok((session, manifest))
}

/// `None` for what is missing or too large.
fn read_file(path: &PathBuf, most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(most as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= most).then_some(bytes)
}
