//! Certificates of bound hosts, signed by the organisation's authority, and what servers are checked by.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cove_vault::OpenedKeys;
use parking_lot::Mutex;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Certificates live for a week, begin a day ago (clocks inside may be wrong), and are made anew after a day.
const BACKDATED: Duration = Duration::from_secs(86_400);
const LIFETIME: Duration = Duration::from_secs(7 * 86_400);
const RENEWED_AFTER: Duration = Duration::from_secs(86_400);
/// Hosts whose certificates are kept: more than an organisation can bind.
const KEPT_MAX: usize = 8192;
/// Protocols that are understood, the preferred first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

pub struct Certificates {
    issuer: Issuer<'static, KeyPair>,
    /// One key for all: making one takes longer than signing.
    key: KeyPair,
    made: Mutex<HashMap<Wanted, (SystemTime, Arc<ServerConfig>)>>,
    roots: Arc<RootCertStore>,
}

type Wanted = (String, Option<Vec<u8>>);

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Certificates {
    pub fn new(org: &str, keys: &OpenedKeys, roots: &str) -> io::Result<Self> {
        let mut store = RootCertStore::empty();
        let found = CertificateDer::pem_slice_iter(roots.as_bytes());
        // A bundle may hold one that this library does not take; the others count.
        store.add_parsable_certificates(found.filter_map(Result::ok));
        Ok(Self {
            issuer: cove_vault::issuer(org, keys.authority_key().map_err(other)?),
            key: KeyPair::generate().map_err(other)?,
            made: Mutex::default(),
            roots: Arc::new(store),
        })
    }

    /// How a client is answered for `host`; with the protocol that the server has chosen, if it chose one.
    pub fn server(&self, host: &str, protocol: Option<&[u8]>) -> io::Result<Arc<ServerConfig>> {
        let wanted = (host.to_owned(), protocol.map(<[u8]>::to_vec));
        let now = SystemTime::now();
        let mut made = self.made.lock();
        if let Some((at, config)) = made.get(&wanted)
            && now.duration_since(*at).is_ok_and(|age| age < RENEWED_AFTER)
        {
            return Ok(config.clone());
        }
        let mut params = CertificateParams::new([host.to_owned()]).map_err(other)?;
        params.not_before = (now - BACKDATED).into();
        params.not_after = (now + LIFETIME).into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&self.key, &self.issuer).map_err(other)?;
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .map_err(other)?;
        config.alpn_protocols = protocol.map(<[u8]>::to_vec).into_iter().collect();
        let config = Arc::new(config);
        if made.len() >= KEPT_MAX {
            made.clear();
        }
        made.insert(wanted, (now, config.clone()));
        Ok(config)
    }

    /// How a server is spoken to, for a client that offered these protocols.
    pub fn client<'a>(&self, offered: impl Iterator<Item = &'a [u8]>) -> ClientConfig {
        let mut config = ClientConfig::builder()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        let offered: Vec<&[u8]> = offered.collect();
        let both = PROTOCOLS.iter().filter(|it| offered.contains(it));
        config.alpn_protocols = both.map(|it| it.to_vec()).collect();
        config
    }
}
