//! Reads certificates that are to be trusted from a PEM file.

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("the file has no certificates in PEM")]
    Empty,
    #[error("the file has a private key; it must have certificates only")]
    PrivateKey,
    #[error("certificate {number} is not PEM")]
    Pem {
        number: usize,
        #[source]
        source: pem::Error,
    },
    #[error("certificate {number} cannot be trusted")]
    Certificate {
        number: usize,
        #[source]
        source: tokio_rustls::rustls::Error,
    },
}

/// Each certificate of a bundle in PEM, with a line feed at its end and without what stands between them.
pub fn authorities(text: &str) -> Result<Vec<String>, AuthorityError> {
    if text.contains("PRIVATE KEY-----") {
        return Err(AuthorityError::PrivateKey);
    }
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(BEGIN) {
        let number = found.len() + 1;
        let block = &rest[start..];
        let end = block.find(END).map_or(block.len(), |end| end + END.len());
        let (block, after) = block.split_at(end);
        let der = CertificateDer::from_pem_slice(block.as_bytes())
            .map_err(|source| AuthorityError::Pem { number, source })?;
        RootCertStore::empty()
            .add(der)
            .map_err(|source| AuthorityError::Certificate { number, source })?;
        let lines = block.lines().map(str::trim).filter(|line| !line.is_empty());
        let block: String = lines.map(|line| format!("{line}\n")).collect();
        if !found.contains(&block) {
            found.push(block);
        }
        rest = after;
    }
    match found.is_empty() {
        true => Err(AuthorityError::Empty),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).expect("made");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn certificates_are_taken_without_what_stands_between_them() {
        let ((one, _), (two, _)) = (certificate(), certificate());
        let text = format!("# one\r\n{}\nü\n{two}{one}", one.replace('\n', "\r\n"));
        let plain = |pem: &str| pem.replace('\r', "");
        let found = authorities(&text).expect("certificates");
        assert_eq!(found, [plain(&one), plain(&two)]);
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        let (one, key) = certificate();
        for (text, why) in [
            (String::new(), "no certificates"),
            ("hello".to_owned(), "no certificates"),
            (format!("{one}{key}"), "private key"),
            (format!("{one}{BEGIN}\nAAAA"), "certificate 2 is not PEM"),
            (
                format!("{BEGIN}\nAAAA\n{END}\n"),
                "certificate 1 cannot be trusted",
            ),
            (one.replacen("MI", "!!", 1), "certificate 1 is not PEM"),
        ] {
            let error = authorities(&text).expect_err(why).to_string();
            assert!(error.contains(why), "{error} is not {why}");
        }
    }
}
