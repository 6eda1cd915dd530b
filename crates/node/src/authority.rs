//! The fleet's certificate authority, and the certificates it gives.

use cove_model::HostId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
    date_time_ymd,
};
use ring::digest::{SHA256, digest};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use crate::NodeError;

/// How long a node's certificate is valid. Control renews it when half of that is over.
pub const NODE_DAYS: i64 = 30;
/// How long a control process's certificate is valid. It is renewed when a third of that is over.
pub const CONTROL_DAYS: i64 = 3;
/// Certificates are valid from this long before they were made, so that clocks may differ.
const CLOCK_ERROR: Duration = Duration::hours(2);
/// An uncompressed point of P-256.
pub const PUBLIC_KEY_BYTES: usize = 65;
/// The name in the certificates of control processes.
const CONTROL_NAME: &str = "control.cove.internal";

/// The name in a node's certificate, by which control knows whom it reached.
pub(crate) fn node_name(host: &HostId) -> String {
    // A host id has an underscore, which names in certificates may not have.
    format!("{}.node.cove.internal", host.as_str().replace('_', "-"))
}

/// The same whenever they are made, so that the issuer's name matches the certificate that nodes trust.
fn params(fleet: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("Cove fleet {fleet}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2056, 1, 1);
    params
}

fn failed(error: impl std::fmt::Display) -> NodeError {
    NodeError::Certificate(error.to_string())
}

/// Signs certificates of one fleet.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its private key.
#[derive(Debug, Clone)]
pub struct Issued {
    /// PEM.
    pub certificate: String,
    /// PKCS #8.
    pub key: Zeroizing<Vec<u8>>,
}

impl Authority {
    /// A new authority's certificate (PEM) and private key (PKCS #8).
    pub fn make(fleet: &str) -> Result<Issued, NodeError> {
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params(fleet).self_signed(&key).map_err(failed)?;
        Ok(Issued {
            certificate: certificate.pem(),
            key: Zeroizing::new(key.serialize_der()),
        })
    }

    pub fn load(fleet: &str, issued: &Issued) -> Result<Self, NodeError> {
        let key = KeyPair::try_from(issued.key.as_slice()).map_err(failed)?;
        Ok(Self {
            certificate: issued.certificate.clone(),
            issuer: Issuer::new(params(fleet), key),
        })
    }

    /// PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// For a node's public key, as [`NodeKey::public`] tells it.
    pub fn node(
        &self,
        host: &HostId,
        public: &[u8],
        now: OffsetDateTime,
    ) -> Result<String, NodeError> {
        let public = PublicKey::new(public)?;
        let mut params = leaf(node_name(host), now, Duration::days(NODE_DAYS))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let signed = params.signed_by(&public, &self.issuer).map_err(failed)?;
        Ok(signed.pem())
    }

    /// For a control process. A node refuses anything else that calls it.
    pub fn control(&self, now: OffsetDateTime) -> Result<Issued, NodeError> {
        let key = KeyPair::generate().map_err(failed)?;
        let valid = Duration::days(CONTROL_DAYS);
        let mut params = leaf(CONTROL_NAME.into(), now, valid)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let signed = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Issued {
            certificate: signed.pem(),
            key: Zeroizing::new(key.serialize_der()),
        })
    }
}

fn leaf(
    name: String,
    now: OffsetDateTime,
    valid: Duration,
) -> Result<CertificateParams, NodeError> {
    let mut params = CertificateParams::new([name]).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.not_before = now - CLOCK_ERROR;
    params.not_after = now + valid;
    Ok(params)
}

/// SHA-256 of a certificate, from its PEM.
pub(crate) fn fingerprint(certificate: &str) -> Result<[u8; 32], NodeError> {
    let der = crate::tls::certificate(certificate)?;
    let hash = digest(&SHA256, &der);
    hash.as_ref().try_into().map_err(failed)
}

/// A point that somebody sent. Whether it is on the curve is checked by whoever verifies a signature with it.
struct PublicKey<'a>(&'a [u8]);

impl<'a> PublicKey<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, NodeError> {
        match bytes.len() == PUBLIC_KEY_BYTES && bytes[0] == 4 {
            true => Ok(Self(bytes)),
            false => Err(NodeError::Certificate("not a public key of P-256".into())),
        }
    }
}

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// The private key of a node. It never leaves the host.
pub struct NodeKey(KeyPair);

impl NodeKey {
    pub fn generate() -> Result<Self, NodeError> {
        KeyPair::generate().map(Self).map_err(failed)
    }

    /// From what [`NodeKey::serialize`] gave.
    pub fn parse(pkcs8: &[u8]) -> Result<Self, NodeError> {
        KeyPair::try_from(pkcs8).map(Self).map_err(failed)
    }

    /// PKCS #8.
    pub fn serialize(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.0.serialize_der())
    }

    /// An uncompressed point of P-256.
    pub fn public(&self) -> &[u8] {
        self.0.der_bytes()
    }
}
