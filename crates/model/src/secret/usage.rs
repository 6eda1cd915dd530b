//! The ways in which a secret is used, and what the value of each must look like.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{SECRET_PLACE_MAX, refused};
use crate::spec::SpecError;

/// The one way in which a secret is used. A placeholder anywhere else stays what it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SecretUse {
    /// `Authorization: Bearer`.
    Bearer,
    /// `Authorization: Basic`: the whole user name or the whole password.
    Basic,
    /// In the header of this name, in lower case: all of it, or all after one word like `Token`.
    Header(String),
    /// In the query parameter of this name.
    Query(String),
    /// In the field of this name of a body of the type `application/x-www-form-urlencoded`.
    Form(String),
    /// The value is a seed (RFC 6238). A code is computed from it when it is used.
    Totp(CodeField),
    /// The value is a pair of keys. Requests that the placeholder signed are signed anew (AWS Signature Version 4).
    SigV4 { region: String, service: String },
    /// Not outside but inside: sandboxes that ask for it get the value itself.
    Exposed,
}

/// Where a computed code belongs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CodeField {
    Header(String),
    Query(String),
    Form(String),
}

/// Headers that say where a request goes or how long it is, that belong to one connection, or that the terminator
/// sets itself; a value there would change what the request is, or be lost.
const RESERVED_HEADERS: [&str; 20] = [
    "accept-encoding",
    "authorization",
    "connect-accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "grpc-accept-encoding",
    "host",
    "http2-settings",
    "if-range",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Endpoints of these sign with keys of a session that only they know.
const UNSUPPORTED_SERVICES: [&str; 1] = ["s3express"];

impl SecretUse {
    /// Whether a server gets the value itself. It never gets a seed, nor a key that signs.
    pub fn sends_value(&self) -> bool {
        !matches!(self, Self::Totp(_) | Self::SigV4 { .. })
    }

    /// The field of a form that a placeholder may be in.
    pub fn form_field(&self) -> Option<&str> {
        match self {
            Self::Form(name) | Self::Totp(CodeField::Form(name)) => Some(name),
            _ => None,
        }
    }

    /// The header, other than `Authorization`, that a placeholder may be in.
    pub fn header(&self) -> Option<&str> {
        match self {
            Self::Header(name) | Self::Totp(CodeField::Header(name)) => Some(name),
            _ => None,
        }
    }

    /// The query parameter that a placeholder may be in.
    pub fn parameter(&self) -> Option<&str> {
        match self {
            Self::Query(name) | Self::Totp(CodeField::Query(name)) => Some(name),
            _ => None,
        }
    }

    /// Refuses a value that this use can do nothing with.
    pub fn check_value(&self, value: &str) -> Result<(), SpecError> {
        match self {
            Self::Totp(_) => TotpSeed::parse(value).map(drop),
            Self::SigV4 { .. } => AwsKeys::parse(value).map(drop),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for SecretUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Basic => f.write_str("basic"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Form(name) => write!(f, "form:{name}"),
            Self::Totp(CodeField::Header(name)) => write!(f, "totp:header:{name}"),
            Self::Totp(CodeField::Query(name)) => write!(f, "totp:query:{name}"),
            Self::Totp(CodeField::Form(name)) => write!(f, "totp:form:{name}"),
            Self::SigV4 { region, service } => write!(f, "sigv4:{region}/{service}"),
            Self::Exposed => f.write_str("exposed"),
        }
    }
}

impl FromStr for SecretUse {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split_once(':') {
            None if text == "bearer" => Ok(Self::Bearer),
            None if text == "basic" => Ok(Self::Basic),
            None if text == "exposed" => Ok(Self::Exposed),
            Some(("header", name)) => header(name).map(Self::Header),
            Some(("query", name)) => parameter(name).map(Self::Query),
            Some(("form", name)) => parameter(name).map(Self::Form),
            Some(("totp", place)) => match place.split_once(':') {
                Some(("header", name)) => header(name).map(CodeField::Header),
                Some(("query", name)) => parameter(name).map(CodeField::Query),
                Some(("form", name)) => parameter(name).map(CodeField::Form),
                _ => Err(refused(
                    "use",
                    "totp must be totp:header:NAME, totp:query:NAME or totp:form:NAME".into(),
                )),
            }
            .map(Self::Totp),
            Some(("sigv4", scope)) => sigv4(scope),
            Some(("sigv4a", _)) => Err(refused(
                "use",
                "SigV4a (AWS4-ECDSA-P256-SHA256) is not supported; use sigv4:REGION/SERVICE".into(),
            )),
            _ => Err(refused(
                "use",
                "must be bearer, basic, header:NAME, query:NAME, form:NAME, totp:PLACE:NAME, sigv4:REGION/SERVICE or exposed"
                    .into(),
            )),
        }
    }
}

fn named(name: &str, word: fn(u8) -> bool) -> Result<String, SpecError> {
    match (1..=SECRET_PLACE_MAX).contains(&name.len()) && name.bytes().all(word) {
        true => Ok(name.to_owned()),
        false => Err(refused(
            "use",
            format!("a name has 1 to {SECRET_PLACE_MAX} letters, digits, dashes or underscores"),
        )),
    }
}

fn header(name: &str) -> Result<String, SpecError> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let name = named(name, word)?.to_ascii_lowercase();
    match RESERVED_HEADERS.contains(&name.as_str()) {
        true => Err(refused(
            "use",
            format!(
                "the header {name} cannot hold a secret; for Authorization use bearer or basic"
            ),
        )),
        false => Ok(name),
    }
}

fn parameter(name: &str) -> Result<String, SpecError> {
    named(name, |b| {
        b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~')
    })
}

fn sigv4(scope: &str) -> Result<SecretUse, SpecError> {
    let word = |text: &str| {
        let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !text.is_empty() && text.bytes().all(letter)
    };
    let both = scope
        .split_once('/')
        .filter(|_| scope.len() <= SECRET_PLACE_MAX);
    let Some((region, service)) = both.filter(|(region, service)| word(region) && word(service))
    else {
        return Err(refused(
            "use",
            "sigv4 names one region and one service, like sigv4:us-east-1/s3".into(),
        ));
    };
    if UNSUPPORTED_SERVICES.contains(&service) {
        return Err(refused(
            "use",
            format!(
                "requests to {service} cannot be signed again: it signs with keys of its own sessions"
            ),
        ));
    }
    Ok(SecretUse::SigV4 {
        region: region.to_owned(),
        service: service.to_owned(),
    })
}

/// Keys of AWS, written `ID:KEY` or `ID:KEY:SESSION_TOKEN`. Borrowed, since they are secret.
#[derive(Clone, Copy)]
pub struct AwsKeys<'a> {
    pub id: &'a str,
    pub secret: &'a str,
    pub token: Option<&'a str>,
}

/// Fewer characters are no key.
const AWS_ID_MIN: usize = 16;
const AWS_SECRET_MIN: usize = 16;

impl<'a> AwsKeys<'a> {
    pub fn parse(value: &'a str) -> Result<Self, SpecError> {
        let mut parts = value.split(':');
        let (id, secret, token) = (parts.next(), parts.next(), parts.next());
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        match (id, secret, parts.next()) {
            (Some(id), Some(secret), None)
                if id.len() >= AWS_ID_MIN
                    && id.bytes().all(|b| b.is_ascii_alphanumeric())
                    && secret.len() >= AWS_SECRET_MIN
                    && plain(secret)
                    && token.is_none_or(|token| !token.is_empty() && plain(token)) =>
            {
                Ok(Self { id, secret, token })
            }
            _ => Err(refused(
                "value",
                "for sigv4 it must be ACCESS_KEY_ID:SECRET_ACCESS_KEY or ACCESS_KEY_ID:SECRET_ACCESS_KEY:SESSION_TOKEN"
                    .into(),
            )),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TotpAlgorithm {
    Sha1,
    Sha256,
    Sha512,
}

/// What codes are computed from: base32, or an address like `otpauth://totp/NAME?secret=…&digits=6&period=30`.
#[derive(Clone, PartialEq, Eq)]
pub struct TotpSeed {
    pub seed: Vec<u8>,
    pub digits: u32,
    pub period_s: u64,
    pub algorithm: TotpAlgorithm,
}

/// RFC 4226 wants 128 bits; services with 80 are common.
const SEED_BYTES_MIN: usize = 10;

impl TotpSeed {
    pub fn parse(value: &str) -> Result<Self, SpecError> {
        let problem = |what: &str| refused("value", format!("for totp {what}"));
        let mut seed = Self {
            seed: Vec::new(),
            digits: 6,
            period_s: 30,
            algorithm: TotpAlgorithm::Sha1,
        };
        let mut text = value;
        if value.contains("://") {
            let address = value.strip_prefix("otpauth://totp/");
            let query = address.and_then(|address| address.split_once('?'));
            let (_, query) = query.ok_or_else(|| {
                problem("an address must be like otpauth://totp/NAME?secret=BASE32")
            })?;
            text = "";
            for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
                match key {
                    "secret" => text = value,
                    "digits" => {
                        let digits = value.parse().ok().filter(|it| (6..=8).contains(it));
                        seed.digits = digits.ok_or_else(|| problem("digits must be 6, 7 or 8"))?;
                    }
                    "period" => {
                        let period = value.parse().ok().filter(|it| (10..=300).contains(it));
                        seed.period_s =
                            period.ok_or_else(|| problem("period must be 10 to 300 seconds"))?;
                    }
                    "algorithm" => {
                        seed.algorithm = match value.to_ascii_uppercase().as_str() {
                            "SHA1" => TotpAlgorithm::Sha1,
                            "SHA256" => TotpAlgorithm::Sha256,
                            "SHA512" => TotpAlgorithm::Sha512,
                            _ => return Err(problem("algorithm must be SHA1, SHA256 or SHA512")),
                        };
                    }
                    _ => {}
                }
            }
        }
        let bytes = base32(text).filter(|bytes| bytes.len() >= SEED_BYTES_MIN);
        seed.seed = bytes.ok_or_else(|| {
            problem(
                "the seed must be base32 (A-Z, 2-7) of at least 10 bytes, or an otpauth:// address",
            )
        })?;
        Ok(seed)
    }
}

/// RFC 4648 without regard to case, spaces, dashes and padding, as services show seeds.
fn base32(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let five = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a',
            b'2'..=b'7' => letter - b'2' + 26,
            b' ' | b'-' => continue,
            _ => return None,
        };
        bits = (bits << 5 | u32::from(five)) & 0xfff;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_as_services_show_them() {
        let plain = TotpSeed::parse("GEZD GNBV GY3T QOJQ GEZD GNBV GY3T QOJQ").unwrap();
        assert_eq!(plain.seed, b"12345678901234567890");
        assert_eq!((plain.digits, plain.period_s), (6, 30));
        let address = "otpauth://totp/A:b?secret=gezdgnbvgy3tqojqgezdgnbvgy3tqojq&digits=8&period=60&algorithm=SHA256&issuer=A";
        let address = TotpSeed::parse(address).unwrap();
        assert_eq!(address.seed, plain.seed);
        assert_eq!((address.digits, address.period_s), (8, 60));
        assert_eq!(address.algorithm, TotpAlgorithm::Sha256);
        for bad in [
            "GEZDGNBV",
            "not base32 at all, 0189",
            "otpauth://hotp/x?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ",
            "otpauth://totp/x?digits=6",
            "otpauth://totp/x?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&digits=20",
            "otpauth://totp/x?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&algorithm=MD5",
        ] {
            assert!(TotpSeed::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_of_aws_have_two_or_three_parts() {
        let keys = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
        let parsed = AwsKeys::parse(keys).ok().unwrap();
        assert_eq!((parsed.id, parsed.token), ("AKIAIOSFODNN7EXAMPLE", None));
        let with_token = format!("{keys}:FwoGZXIvYXdzE//==");
        assert_eq!(
            AwsKeys::parse(&with_token).ok().unwrap().token,
            Some("FwoGZXIvYXdzE//==")
        );
        for bad in [
            "AKIAIOSFODNN7EXAMPLE",
            "a:b",
            &format!("{keys}:"),
            &format!("{keys}:t:u"),
        ] {
            assert!(AwsKeys::parse(bad).is_err(), "{bad}");
        }
    }
}
