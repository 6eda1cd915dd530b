//! Who signs: the issuer's URL, and the SPIFFE ids it gives.

/// A URL longer than this is refused by verifiers.
const URL_MAX: usize = 255;
/// Of a SPIFFE trust domain.
const TRUST_DOMAIN_MAX: usize = 255;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IssuerError(&'static str);

/// The issuer's URL, as it is in every token. Verifiers append the well-known paths to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    url: String,
    trust_domain: String,
}

impl Issuer {
    /// `https://cove.example` or `http://127.0.0.1:7070`, with a path if need be, without a query.
    pub fn parse(url: &str) -> Result<Self, IssuerError> {
        let rest = url
            .strip_prefix("https://")
            .or_else(|| url.strip_prefix("http://"))
            .ok_or(IssuerError("must begin with https:// or http://"))?;
        if url.len() > URL_MAX {
            return Err(IssuerError("must have at most 255 bytes"));
        }
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"?#@\\\"<>".contains(&byte);
        if !url.bytes().all(plain) || url.ends_with('/') {
            return Err(IssuerError(
                "must be a URL without user, query, fragment, spaces and without '/' at its end",
            ));
        }
        let host = rest.split('/').next().unwrap_or_default();
        // An IPv6 address stands in brackets and has colons of its own.
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        if host.is_empty() || host.len() > TRUST_DOMAIN_MAX {
            return Err(IssuerError("must name a host"));
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_".contains(c);
        let trust_domain = host
            .to_ascii_lowercase()
            .chars()
            .map(|c| if allowed(c) { c } else { '-' })
            .collect();
        Ok(Self {
            url: url.to_owned(),
            trust_domain,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The SPIFFE id of a sandbox. Ids of Cove have none but letters, digits and `_`.
    pub fn subject(&self, org: &str, sandbox: &str) -> String {
        format!("spiffe://{}/org/{org}/sandbox/{sandbox}", self.trust_domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trust_domain_is_the_host_of_the_url() {
        for (url, domain) in [
            ("https://Cove.Example", "cove.example"),
            ("https://cove.example:8443/base", "cove.example"),
            ("http://127.0.0.1:7070", "127.0.0.1"),
            ("http://[::1]:7070", "--1"),
        ] {
            let issuer = Issuer::parse(url).unwrap();
            let subject = issuer.subject("org_a", "sbx_b");
            assert_eq!(
                subject,
                format!("spiffe://{domain}/org/org_a/sandbox/sbx_b")
            );
            assert_eq!(issuer.url(), url);
        }
    }

    #[test]
    fn what_is_no_issuer_is_refused() {
        for url in [
            "",
            "cove.example",
            "ftp://cove.example",
            "https://",
            "https://cove.example/",
            "https://cove.example?x",
            "https://cove.example#x",
            "https://user@cove.example",
            "https://cove example",
            "https:///path",
        ] {
            assert!(Issuer::parse(url).is_err(), "{url:?} was accepted");
        }
    }
}
