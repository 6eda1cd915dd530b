//! Where previews are, seen from outside, and which sandbox and port an address means.
//!
//! `{port}-sbx-….{domain}` gives each port of each sandbox an origin of its own; `_` is no letter of
//! host names, so an id is written with `-` there. `/p/{id}/{port}/…` on any other host is for programs.

use axum::http::Uri;
use cove_dialect::PreviewPlace;
use cove_model::SandboxId;

/// The longest host name there is.
const HOST_MAX: usize = 253;
const PATH_PREFIX: &str = "/p/";

/// Scheme, domain and port of all previews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewUrl {
    secure: bool,
    domain: String,
    /// `:7071`, or nothing where the scheme's own port is meant.
    port: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not like http://localhost:7071 or https://preview.example")]
pub struct PreviewUrlError(String);

/// What an address means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub sandbox: SandboxId,
    pub port: u16,
    /// What comes before the server's own path when the address is a path: `/p/{id}/{port}`.
    pub prefix: Option<String>,
}

impl PreviewUrl {
    /// From `http://` or `https://`, a host name, and a port where it is not the scheme's own.
    pub fn parse(text: &str) -> Result<Self, PreviewUrlError> {
        let wrong = || PreviewUrlError(text.chars().take(128).collect());
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        let domain = authority.host().to_ascii_lowercase();
        let labels = domain.split('.').all(|label| {
            let letter =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            (1..=63).contains(&label.len()) && label.bytes().all(letter)
        });
        let plain = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if !labels || domain.len() > HOST_MAX || authority.as_str().contains('@') || !plain {
            return Err(wrong());
        }
        let usual = if secure { 443 } else { 80 };
        let port = match authority.port_u16() {
            Some(port) if port != usual => format!(":{port}"),
            _ => String::new(),
        };
        Ok(Self {
            secure,
            domain,
            port,
        })
    }

    pub fn secure(&self) -> bool {
        self.secure
    }

    pub fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }

    /// The port visitors dial.
    pub fn port(&self) -> &str {
        match (self.port.strip_prefix(':'), self.secure) {
            (Some(port), _) => port,
            (None, true) => "443",
            (None, false) => "80",
        }
    }

    /// What dialects get of it.
    pub fn shown(&self) -> PreviewPlace {
        PreviewPlace {
            secure: self.secure,
            authority: format!("{}{}", self.domain, self.port),
        }
    }

    pub fn host_url(&self, id: &SandboxId, port: u16) -> String {
        let label = id.as_str().replace('_', "-");
        let (scheme, domain) = (self.scheme(), &self.domain);
        format!("{scheme}://{port}-{label}.{domain}{}/", self.port)
    }

    pub fn path_url(&self, id: &SandboxId, port: u16) -> String {
        let (scheme, domain) = (self.scheme(), &self.domain);
        format!("{scheme}://{domain}{}{PATH_PREFIX}{id}/{port}/", self.port)
    }

    /// Which port a host name stands for. Exactly one spelling does (letter case aside).
    pub fn of_host(&self, host: &str) -> Option<(SandboxId, u16)> {
        if host.len() > HOST_MAX {
            return None;
        }
        let host = host.to_ascii_lowercase();
        let label = host.strip_suffix(&self.domain)?.strip_suffix('.')?;
        let (port, id) = label.split_once('-')?;
        let id = id.strip_prefix("sbx-")?;
        Some((format!("sbx_{id}").parse().ok()?, number(port)?))
    }

    /// Whether a page of this origin belongs to the sandbox.
    pub fn is_origin_of(&self, origin: &str, id: &SandboxId) -> bool {
        let host = origin
            .strip_prefix(self.scheme())
            .and_then(|rest| rest.strip_prefix("://"))
            .and_then(|rest| rest.strip_suffix(self.port.as_str()));
        host.and_then(|host| self.of_host(host))
            .is_some_and(|(owner, _)| owner == *id)
    }
}

/// `/p/{id}/{port}` or `/p/{id}/{port}/…`, and where the server's own path begins.
pub fn of_path(path: &str) -> Option<Target> {
    let mut parts = path.strip_prefix(PATH_PREFIX)?.splitn(3, '/');
    let (id, port) = (parts.next()?, parts.next()?);
    let sandbox = id.replacen("sbx-", "sbx_", 1).parse().ok()?;
    Some(Target {
        sandbox,
        port: number(port)?,
        prefix: Some(format!("{PATH_PREFIX}{id}/{port}")),
    })
}

/// A port as it is written: no sign, no zero before it.
fn number(text: &str) -> Option<u16> {
    let digits = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sbx_aaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn addresses_lead_back_to_their_port() {
        let id: SandboxId = ID.parse().unwrap();
        let place = PreviewUrl::parse("http://localhost:7071").unwrap();
        let url = place.host_url(&id, 3000);
        assert_eq!(url, "http://3000-sbx-aaaaaaaaaaaaaaaaaaaa.localhost:7071/");
        let host = "3000-SBX-aaaaaaaaaaaaaaaaaaaa.LocalHost";
        assert_eq!(place.of_host(host), Some((id.clone(), 3000)));
        let path = of_path(&format!("/p/{ID}/80/a?b")).unwrap();
        assert_eq!((path.sandbox, path.port), (id, 80));
        assert_eq!(path.prefix.unwrap(), format!("/p/{ID}/80"));
    }

    #[test]
    fn every_other_spelling_means_nothing() {
        let place = PreviewUrl::parse("https://preview.example").unwrap();
        let label = "80-sbx-aaaaaaaaaaaaaaaaaaaa";
        assert!(place.of_host(&format!("{label}.preview.example")).is_some());
        for bad in [
            format!("{label}.preview.example."),
            format!("{label}.example"),
            format!("{label}preview.example"),
            format!("x.{label}.preview.example"),
            format!("{label}.preview.example.evil"),
            format!("0{label}.preview.example"),
            format!("+{label}.preview.example"),
            format!("{label}.preview.example\0"),
            "0-sbx-aaaaaaaaaaaaaaaaaaaa.preview.example".into(),
            "65536-sbx-aaaaaaaaaaaaaaaaaaaa.preview.example".into(),
            "80-sbx_aaaaaaaaaaaaaaaaaaaa.preview.example".into(),
            "80-sbx-aaaa.preview.example".into(),
            "preview.example".into(),
            String::new(),
        ] {
            assert_eq!(place.of_host(&bad), None, "{bad:?}");
        }
        for bad in [
            "/p/",
            "/p/x/80",
            "/p//80",
            "/q/x",
            "/p/sbx_aaaaaaaaaaaaaaaaaaaa/080/",
        ] {
            assert_eq!(of_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn origins_belong_to_one_sandbox() {
        let id: SandboxId = ID.parse().unwrap();
        let place = PreviewUrl::parse("http://localhost:7071").unwrap();
        let own = "http://8000-sbx-aaaaaaaaaaaaaaaaaaaa.localhost:7071";
        assert!(place.is_origin_of(own, &id));
        for other in [
            "http://8000-sbx-baaaaaaaaaaaaaaaaaaa.localhost:7071",
            "https://8000-sbx-aaaaaaaaaaaaaaaaaaaa.localhost:7071",
            "http://8000-sbx-aaaaaaaaaaaaaaaaaaaa.localhost",
            "http://localhost:7071",
            "null",
        ] {
            assert!(!place.is_origin_of(other, &id), "{other}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for bad in [
            "",
            "localhost",
            "ftp://x",
            "http://",
            "http://a@b",
            "http://x/y",
            "http://[::1]:1",
        ] {
            assert!(PreviewUrl::parse(bad).is_err(), "{bad}");
        }
        let usual = PreviewUrl::parse("https://Preview.example:443/").unwrap();
        assert_eq!(usual.port(), "443");
    }
}
