//! Secrets: where each may be used and how, and how a sandbox holds one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{OrgId, SecretId};
use crate::network::{EntryKind, Name, NetworkMode, NetworkPolicy};
use crate::spec::{SpecError, check_absolute};

mod budget;
mod known;
mod usage;

pub use budget::{BLOCK_PART, BudgetScope, BudgetUnit, SecretLimit, block};
pub use known::known_key;
pub use usage::{AwsKeys, CodeField, SecretUse, TotpAlgorithm, TotpSeed};

pub use cove_limits::{
    SECRET_HOSTS_MAX, SECRET_LIMIT_MAX, SECRET_LIMITS_MAX, SECRET_NAME_MAX, SECRET_PLACE_MAX,
    SECRET_VALUE_MAX, SECRET_VALUE_MIN, SECRETS_PER_SANDBOX_MAX,
};

/// Where HTTPS is, when a host says no port.
const HTTPS: u16 = 443;

/// A host and port that a secret may be sent to, like `api.example.com` or `git.example.com:8443`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretHost {
    pub name: Name,
    pub port: u16,
}

/// Where a secret may be used, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretBinding {
    pub hosts: Vec<SecretHost>,
    #[serde(rename = "use")]
    pub usage: SecretUse,
    /// Each use needs an approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask: bool,
    /// What requests that use it may use in all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<SecretLimit>,
}

/// A secret in a sandbox: the place of its placeholder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretGrant {
    /// The secret's name.
    pub name: String,
    /// The variable that holds the placeholder, or the value of an exposed secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The file that holds the placeholder, or the value of an exposed secret: an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Put the value itself there, not a placeholder. The use of the secret must be `exposed`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exposed: bool,
}

/// The keys of one organisation, safe to store and to send: without a host key they open nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrgKeys {
    pub org: OrgId,
    /// What secrets are sealed to, base64.
    pub public: String,
    /// The certificate that sandboxes with secrets trust, PEM.
    pub authority: String,
    /// The opening key and the authority's key.
    pub wrapped: WrappedKeys,
}

/// Bytes that a host key encrypted, and which one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrappedKeys {
    pub host_key: String,
    /// Nonce and ciphertext, base64.
    pub bytes: String,
}

/// One secret as it is stored: only its organisation's terminator opens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedSecret {
    pub id: SecretId,
    pub name: String,
    pub version: u64,
    pub binding: SecretBinding,
    /// Base64.
    pub sealed: String,
}

/// All that a host needs to know of an organisation's secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrgSecrets {
    pub keys: OrgKeys,
    pub secrets: Vec<SealedSecret>,
}

impl SecretBinding {
    pub fn check(&self) -> Result<(), SpecError> {
        budget::check_limits(&self.limits)?;
        if self.usage == SecretUse::Exposed && !self.limits.is_empty() {
            return Err(refused(
                "limits",
                "an exposed secret cannot have limits: the sandbox has the value".into(),
            ));
        }
        if self.usage == SecretUse::Exposed && self.ask {
            return Err(refused(
                "ask",
                "an exposed secret cannot ask: the sandbox has the value".into(),
            ));
        }
        if self.usage == SecretUse::Exposed {
            return match self.hosts.is_empty() {
                true => Ok(()),
                false => Err(refused(
                    "hosts",
                    "an exposed secret is bound to no hosts: the sandbox has the value".into(),
                )),
            };
        }
        if !(1..=SECRET_HOSTS_MAX).contains(&self.hosts.len()) {
            return Err(refused(
                "hosts",
                format!("must name 1 to {SECRET_HOSTS_MAX} hosts"),
            ));
        }
        let mut seen = std::collections::BTreeSet::new();
        match self.hosts.iter().find(|host| !seen.insert(*host)) {
            Some(host) => Err(refused("hosts", format!("names {host} twice"))),
            None => Ok(()),
        }
    }

    /// A value is inside only where both the secret and the sandbox say so.
    pub fn check_grant(&self, grant: &SecretGrant) -> Result<(), SpecError> {
        let problem = match (self.usage == SecretUse::Exposed, grant.exposed) {
            (true, false) => "would be in the sandbox as it is; give it with exposed: true",
            (false, true) => {
                "is not for exposure; set it with the use exposed, or leave exposed out to give a placeholder"
            }
            _ => return Ok(()),
        };
        Err(refused("secrets", format!("'{}' {problem}", grant.name)))
    }

    /// The first host that the policy does not let a sandbox reach: a binding opens nothing. What presets hold
    /// only the host knows, so the names must be listed themselves.
    pub fn unreachable_in(&self, policy: &NetworkPolicy) -> Option<&SecretHost> {
        let reached = |host: &SecretHost| match policy.mode {
            NetworkMode::None | NetworkMode::Open => false,
            NetworkMode::Allowlist => policy.entries().any(|entry| match entry.kind() {
                EntryKind::Rule(rule) => {
                    rule.allows_name(&host.name) && rule.covers_port(host.port)
                }
                EntryKind::Preset(_) => false,
            }),
        };
        self.hosts.iter().find(|host| !reached(host))
    }
}

impl SecretGrant {
    pub fn check(&self) -> Result<(), SpecError> {
        check_secret_name(&self.name)?;
        if self.env.is_none() && self.file.is_none() {
            return Err(refused(
                "secrets",
                format!("'{}' must have env, file or both", self.name),
            ));
        }
        if let Some(env) = &self.env {
            let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            if env.is_empty() || env.len() > SECRET_PLACE_MAX || !env.bytes().all(word) {
                return Err(refused(
                    "secrets.env",
                    format!("must have 1 to {SECRET_PLACE_MAX} letters, digits or underscores"),
                ));
            }
        }
        match &self.file {
            Some(file) => check_absolute("secrets.file", file),
            None => Ok(()),
        }
    }
}

pub fn check_grants(grants: &[SecretGrant]) -> Result<(), SpecError> {
    if grants.len() > SECRETS_PER_SANDBOX_MAX {
        return Err(refused(
            "secrets",
            format!("at most {SECRETS_PER_SANDBOX_MAX} in one sandbox"),
        ));
    }
    let mut seen = std::collections::BTreeSet::new();
    for grant in grants {
        grant.check()?;
        if !seen.insert(&grant.name) {
            return Err(refused(
                "secrets",
                format!("'{}' is named twice", grant.name),
            ));
        }
    }
    Ok(())
}

/// The start of every placeholder, and how many characters of `a-z2-7` follow.
pub const PLACEHOLDER_PREFIX: &str = "cove-secret-";
pub const PLACEHOLDER_RANDOM: usize = 32;
const PLACEHOLDER_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// A new one that nobody can guess: 160 random bits.
pub fn placeholder() -> String {
    let bits: [u8; PLACEHOLDER_RANDOM] = rand::random();
    let letters = bits.map(|byte| char::from(PLACEHOLDER_ALPHABET[usize::from(byte & 31)]));
    PLACEHOLDER_PREFIX.chars().chain(letters).collect()
}

/// Names become parts of URLs and of audit records.
pub fn check_secret_name(name: &str) -> Result<(), SpecError> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let first = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric());
    if first && name.len() <= SECRET_NAME_MAX && name.bytes().all(inner) {
        return Ok(());
    }
    Err(refused(
        "name",
        format!(
            "must be 1 to {SECRET_NAME_MAX} letters, digits, dashes, underscores or dots, and start with a letter or digit"
        ),
    ))
}

/// What can be put into a header: no line ends, and long enough that scrubbing answers of it spares other text.
pub fn check_secret_value(value: &str) -> Result<(), SpecError> {
    if !(SECRET_VALUE_MIN..=SECRET_VALUE_MAX).contains(&value.len()) {
        return Err(refused(
            "value",
            format!("must have {SECRET_VALUE_MIN} to {SECRET_VALUE_MAX} bytes"),
        ));
    }
    if !value.bytes().all(|b| (b' '..=b'~').contains(&b)) || value != value.trim() {
        return Err(refused(
            "value",
            "must be printable ASCII without spaces around it".into(),
        ));
    }
    if value.contains(PLACEHOLDER_PREFIX) {
        return Err(refused("value", "is a placeholder, not a secret".into()));
    }
    Ok(())
}

fn refused(field: &'static str, problem: String) -> SpecError {
    SpecError::Field { field, problem }
}

impl fmt::Display for SecretHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            HTTPS => write!(f, "{}", self.name),
            port => write!(f, "{}:{port}", self.name),
        }
    }
}

impl FromStr for SecretHost {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let shown: String = text.chars().take(80).collect();
        let problem = |what: &str| refused("hosts", format!("'{}': {what}", shown.escape_debug()));
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => {
                let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
                let port = port.parse().ok().filter(|port| digits && *port != 0);
                let what = "a port is a number from 1 to 65535; write the host alone, without a scheme or a path";
                (name, port.ok_or_else(|| problem(what))?)
            }
            None => (text, HTTPS),
        };
        if text.parse::<std::net::IpAddr>().is_ok() || name.parse::<std::net::IpAddr>().is_ok() {
            return Err(problem("a secret is bound to names, not to addresses"));
        }
        let name = Name::from_text(name).map_err(|error| problem(&error.to_string()))?;
        Ok(Self { name, port })
    }
}

macro_rules! text_form {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = SpecError;
            fn try_from(text: String) -> Result<Self, SpecError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

text_form!(SecretHost);
text_form!(SecretUse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_with_ports() {
        for (text, shown) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.com:443", "api.example.com"),
            ("git.example.com:8443", "git.example.com:8443"),
        ] {
            assert_eq!(text.parse::<SecretHost>().unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "https://api.example.com",
            "api.example.com/v1",
            "api.example.com:0",
            "api.example.com:+1",
            "api.example.com:65536",
            "*.example.com",
            "10.0.0.1",
            "::1",
            "a\0.example",
            "api.example.com:443:1",
        ] {
            assert!(bad.parse::<SecretHost>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn uses_are_written_as_text() {
        for text in [
            "bearer",
            "basic",
            "header:x-api-key",
            "query:key",
            "form:client_secret",
            "totp:header:x-code",
            "totp:query:otp",
            "totp:form:code",
            "sigv4:eu-central-1/s3",
            "exposed",
        ] {
            assert_eq!(text.parse::<SecretUse>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "Bearer",
            "header:",
            "header:host",
            "header:Content-Length",
            "header:a b",
            "header:authorization",
            "header:Accept-Encoding",
            "header:range",
            "header:keep-alive",
            "query:",
            "query:a&b",
            "form:",
            "form:a=b",
            "totp",
            "totp:bearer",
            "totp:header:host",
            "totp:totp:form:x",
            "sigv4",
            "sigv4:s3",
            "sigv4:us-east-1/",
            "sigv4:US-EAST-1/s3",
            "sigv4:us-east-1/s3/x",
            "sigv4:us-east-1/s3express",
            "sigv4:*/s3",
            "sigv4a:us-east-1/s3",
            "header:a\r\nb",
        ] {
            assert!(bad.parse::<SecretUse>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_binding_opens_nothing() {
        let binding = SecretBinding {
            hosts: vec![
                "api.example".parse().unwrap(),
                "git.example:8443".parse().unwrap(),
            ],
            usage: SecretUse::Bearer,
            ask: false,
            limits: Vec::new(),
        };
        let policy = |mode, allow: &[&str]| NetworkPolicy {
            mode,
            allow: Some(allow.iter().map(|text| text.parse().unwrap()).collect()),
            ..NetworkPolicy::default()
        };
        let missing =
            |policy: &NetworkPolicy| binding.unreachable_in(policy).map(ToString::to_string);
        let listed = policy(
            NetworkMode::Allowlist,
            &["*.example:443", "git.example:8443"],
        );
        assert_eq!(missing(&listed), None);
        let short = policy(NetworkMode::Allowlist, &["api.example", "git.example"]);
        assert_eq!(missing(&short).as_deref(), Some("git.example:8443"));
        assert!(missing(&NetworkPolicy::default()).is_some());
        assert!(missing(&policy(NetworkMode::Allowlist, &["0.0.0.0/0"])).is_some());
    }

    #[test]
    fn values_that_a_header_cannot_carry_are_refused() {
        check_secret_value("sk-0123456789").unwrap();
        let long = "x".repeat(SECRET_VALUE_MAX + 1);
        for bad in [
            "",
            "short",
            "line\nend00000",
            " space-around",
            "h\u{e9}llo-world",
            &long,
            &placeholder(),
        ] {
            assert!(check_secret_value(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(
            placeholder().len(),
            PLACEHOLDER_PREFIX.len() + PLACEHOLDER_RANDOM
        );
        assert_ne!(placeholder(), placeholder());
    }
}
