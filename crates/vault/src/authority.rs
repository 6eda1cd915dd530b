//! The certificate authority of an organisation, which its sandboxes trust and its terminator signs with.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use crate::VaultError;

/// The same whenever they are made: certificates that name their issuer by it match the one that sandboxes have.
pub fn authority_params(org: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("Cove secrets of {org}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2056, 1, 1);
    params
}

/// What signs certificates of an organisation's bound hosts.
pub fn issuer(org: &str, key: KeyPair) -> Issuer<'static, KeyPair> {
    Issuer::new(authority_params(org), key)
}

/// A new authority: its certificate and its key, PEM and PKCS #8.
pub(crate) fn make(org: &str) -> Result<(String, KeyPair), VaultError> {
    let failed = |error: rcgen::Error| VaultError::Make(error.to_string());
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = authority_params(org).self_signed(&key).map_err(failed)?;
    Ok((certificate.pem(), key))
}
