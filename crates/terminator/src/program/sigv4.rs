//! AWS Signature Version 4: a request that a placeholder signed is signed anew with the keys that it stands for.
//!
//! The guest's own signature counts for nothing; what it says is which headers it signs and how the body is hashed.
//! The time is this host's, so that no signature for another time can be had, and region and service are the
//! secret's. A server gets signatures, the id of the key and the session's token, and never the key.

use cove_model::secret::{AwsKeys, SecretUse};
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;
use ring::{digest, hmac};
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

use super::refusal::Refusal;
use super::scrub::percent_encoded;
use super::table::{Usable, Usables};

pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// SigV4a, which signs for many regions with a derived pair of keys.
const ASYMMETRIC: &str = "AWS4-ECDSA-P256-SHA256";
const TERMINATOR: &str = "aws4_request";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const UNSIGNED_CHUNKS: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const SIGNED_CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const SIGNED_CHUNKS_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
pub const CONTENT_HASH: HeaderName = HeaderName::from_static("x-amz-content-sha256");
/// Headers that a client may sign. Few requests have ten.
const SIGNED_HEADERS_MAX: usize = 64;
/// How long a presigned request may be valid for at most, and for how long it is signed anew: it is sent at once.
const EXPIRES_MAX_S: i64 = 7 * 86_400;
const EXPIRES_S: i64 = 300;
/// How far a guest's clock may be ahead.
const AHEAD_S: i64 = 15 * 60;

/// A request that is to be signed, and what its client said of how.
pub struct Signing<'a> {
    pub secret: &'a Usable,
    keys: AwsKeys<'a>,
    region: &'a str,
    service: &'a str,
    /// Names in lower case.
    headers: Vec<String>,
    presigned: Option<i64>,
}

/// How a body is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// As the request says: a hash that the server compares, or none.
    Said(String),
    /// By whoever signs, since the request does not say it.
    Hash,
    /// In chunks that are signed each, with trailers that are signed or without.
    Chunks { trailer: bool },
}

/// What the signatures of chunks go on from.
pub struct Chain {
    key: hmac::Key,
    /// Time and scope, as every string to sign has them.
    context: String,
    last: String,
}

/// Which secret signs the request, if a placeholder signed it. Takes the client's signature out of the request.
pub fn wanted<'a>(
    request: &mut Parts,
    usable: &'a Usables,
    now: OffsetDateTime,
) -> Result<Option<Signing<'a>>, Refusal> {
    let mut secrets = usable
        .secrets
        .iter()
        .filter_map(|secret| match &secret.binding.usage {
            SecretUse::SigV4 { region, service } => Some((secret, region, service)),
            _ => None,
        });
    if secrets.clone().next().is_none() {
        return Ok(None);
    }
    let header = in_header(&request.headers)?;
    let query = in_query(&request.uri)?;
    let said = match (header, query) {
        (None, None) => return Ok(None),
        (Some(said), None) | (None, Some(said)) => said,
        (Some(_), Some(_)) => return Err(Refusal::Signature),
    };
    let mut scope = said.credential.split('/');
    let id = scope.next().unwrap_or_default();
    let Some((secret, region, service)) = secrets.find(|it| it.0.placeholder == id) else {
        // Somebody else's keys, or a placeholder that is refused by who looks for those.
        return Ok(None);
    };
    if said.asymmetric {
        return Err(Refusal::Asymmetric);
    }
    let scope: Vec<&str> = scope.collect();
    let [_, for_region, for_service, TERMINATOR] = scope[..] else {
        return Err(Refusal::Signature);
    };
    if (for_region, for_service) != (region.as_str(), service.as_str()) {
        return Err(Refusal::Scope);
    }
    let presigned = match said.presigned {
        None => None,
        Some((date, expires)) => Some(left_of(&date, &expires, now)?),
    };
    let headers: Vec<String> = said.headers.split(';').map(str::to_owned).collect();
    let has_capitals = |name: &String| name.bytes().any(|byte| byte.is_ascii_uppercase());
    if headers.len() > SIGNED_HEADERS_MAX
        || !headers.iter().any(|name| name == HOST.as_str())
        || headers.iter().any(has_capitals)
    {
        return Err(Refusal::Signature);
    }
    let keys = AwsKeys::parse(&secret.value).map_err(|_| Refusal::Unwritable)?;
    match presigned {
        None => drop(request.headers.remove(AUTHORIZATION)),
        Some(_) => {
            let query = without_signature(&request.uri);
            set_query(&mut request.uri, query)?;
        }
    }
    Ok(Some(Signing {
        secret,
        keys,
        region,
        service,
        headers,
        presigned,
    }))
}

struct Said {
    credential: String,
    headers: String,
    asymmetric: bool,
    /// Date and seconds.
    presigned: Option<(String, String)>,
}

fn in_header(headers: &HeaderMap) -> Result<Option<Said>, Refusal> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(text) = all.next().and_then(|value| value.to_str().ok()) else {
        return Ok(None);
    };
    let (algorithm, rest) = text.split_once(' ').unwrap_or((text, ""));
    let asymmetric = match algorithm {
        ALGORITHM => false,
        _ if algorithm.starts_with(ASYMMETRIC) => true,
        _ => return Ok(None),
    };
    if all.next().is_some() {
        return Err(Refusal::Signature);
    }
    let mut fields = rest
        .split(',')
        .filter_map(|part| part.trim().split_once('='));
    let (mut credential, mut signed) = (None, None);
    for (name, value) in &mut fields {
        let slot = match name {
            "Credential" => &mut credential,
            "SignedHeaders" => &mut signed,
            _ => continue,
        };
        if slot.replace(value.to_owned()).is_some() {
            return Err(Refusal::Signature);
        }
    }
    Ok(Some(Said {
        credential: credential.ok_or(Refusal::Signature)?,
        headers: signed.ok_or(Refusal::Signature)?,
        asymmetric,
        presigned: None,
    }))
}

fn in_query(uri: &Uri) -> Result<Option<Said>, Refusal> {
    let pairs = pairs(uri.query().unwrap_or_default());
    let one = |name: &str| -> Result<Option<String>, Refusal> {
        let mut found = pairs.iter().filter(|(key, _)| key == name);
        match (found.next(), found.next()) {
            (found, None) => Ok(found.map(|(_, value)| value.clone())),
            _ => Err(Refusal::Signature),
        }
    };
    let Some(algorithm) = one("X-Amz-Algorithm")? else {
        return Ok(None);
    };
    let asymmetric = match algorithm.as_str() {
        ALGORITHM => false,
        _ if algorithm.starts_with(ASYMMETRIC) => true,
        _ => return Ok(None),
    };
    let must = |name: &str| one(name)?.ok_or(Refusal::Signature);
    Ok(Some(Said {
        credential: must("X-Amz-Credential")?,
        headers: must("X-Amz-SignedHeaders")?,
        asymmetric,
        presigned: Some((must("X-Amz-Date")?, must("X-Amz-Expires")?)),
    }))
}

/// Seconds that a presigned request is still valid for.
fn left_of(date: &str, expires: &str, now: OffsetDateTime) -> Result<i64, Refusal> {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    let date = PrimitiveDateTime::parse(date, format).map_err(|_| Refusal::Signature)?;
    let age = now.unix_timestamp() - date.assume_utc().unix_timestamp();
    let expires: i64 = expires.parse().map_err(|_| Refusal::Signature)?;
    match (1..=EXPIRES_MAX_S).contains(&expires) && age >= -AHEAD_S && age < expires {
        true => Ok((expires - age).clamp(1, EXPIRES_S)),
        false => Err(Refusal::Expired),
    }
}

fn pairs(query: &str) -> Vec<(String, String)> {
    let text = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let parts = query.split('&').filter(|part| !part.is_empty());
    let both = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
    both.map(|(key, value)| (text(key), text(value))).collect()
}

/// The parts of a query that its client did not write to sign it.
fn without_signature(uri: &Uri) -> Vec<String> {
    const OURS: [&str; 7] = [
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Security-Token",
        "X-Amz-Signature",
    ];
    let parts = uri.query().unwrap_or_default().split('&');
    let kept = parts.filter(|part| {
        let key = part.split('=').next().unwrap_or_default();
        let key = percent_decode_str(key).decode_utf8_lossy();
        !part.is_empty() && !OURS.contains(&key.as_ref())
    });
    kept.map(str::to_owned).collect()
}

fn set_query(uri: &mut Uri, parts: Vec<String>) -> Result<(), Refusal> {
    let path = match parts.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), parts.join("&")),
    };
    let mut new = std::mem::take(uri).into_parts();
    new.path_and_query = Some(path.parse().map_err(|_| Refusal::Unwritable)?);
    *uri = Uri::from_parts(new).map_err(|_| Refusal::Unwritable)?;
    Ok(())
}

impl Signing<'_> {
    /// What the request says of its body.
    pub fn payload(&self, headers: &HeaderMap) -> Result<Payload, Refusal> {
        let mut all = headers.get_all(CONTENT_HASH).iter();
        let said = match (all.next(), all.next()) {
            (said, None) => said,
            _ => return Err(Refusal::Signature),
        };
        let Some(said) = said else {
            return Ok(match self.presigned.is_some() && self.is_s3() {
                true => Payload::Said(UNSIGNED.to_owned()),
                false => Payload::Hash,
            });
        };
        let hex = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match said.to_str().map_err(|_| Refusal::Signature)? {
            UNSIGNED => Ok(Payload::Said(UNSIGNED.to_owned())),
            hash if hex(hash) => Ok(Payload::Said(hash.to_owned())),
            _ if self.presigned.is_some() => Err(Refusal::Signature),
            UNSIGNED_CHUNKS => Ok(Payload::Said(UNSIGNED_CHUNKS.to_owned())),
            SIGNED_CHUNKS => Ok(Payload::Chunks { trailer: false }),
            SIGNED_CHUNKS_TRAILER => Ok(Payload::Chunks { trailer: true }),
            other if other.contains("ECDSA") => Err(Refusal::Asymmetric),
            _ => Err(Refusal::Signature),
        }
    }

    fn is_s3(&self) -> bool {
        self.service == "s3" || self.service.starts_with("s3-")
    }

    /// Signs the request as it is about to be sent. `body` where this hashes it. Answers what chunks go on from.
    pub fn sign(
        self,
        request: &mut Parts,
        payload: &Payload,
        body: Option<&[u8]>,
        now: OffsetDateTime,
    ) -> Result<Chain, Refusal> {
        let format = format_description!("[year][month][day]T[hour][minute][second]Z");
        let time = now.format(format).map_err(|_| Refusal::Unwritable)?;
        let date = &time[..8];
        let scope = format!("{date}/{}/{}/{TERMINATOR}", self.region, self.service);
        let hash = match (payload, body) {
            (Payload::Hash, body) => hash(body.unwrap_or_default()),
            (Payload::Said(said), _) => said.clone(),
            (Payload::Chunks { trailer: false }, _) => SIGNED_CHUNKS.to_owned(),
            (Payload::Chunks { trailer: true }, _) => SIGNED_CHUNKS_TRAILER.to_owned(),
        };
        let secret = |text: &str| -> Result<HeaderValue, Refusal> {
            let mut value = HeaderValue::from_str(text).map_err(|_| Refusal::Unwritable)?;
            value.set_sensitive(true);
            Ok(value)
        };
        // What the client had of a session is not this one's.
        request.headers.remove(TOKEN);
        request.headers.remove(DATE);
        if self.presigned.is_none() {
            let value = HeaderValue::from_str(&time).map_err(|_| Refusal::Unwritable)?;
            request.headers.insert(DATE, value);
            if let Some(token) = self.keys.token {
                request.headers.insert(TOKEN, secret(token)?);
            }
        }
        let headers = self.canonical_headers(request)?;
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let credential = format!("{}/{scope}", self.keys.id);
        if let Some(expires) = self.presigned {
            let mut query = without_signature(&request.uri);
            let mut add = |name: &str, value: &str| {
                query.push(format!("{name}={}", percent_encoded(value)));
            };
            add("X-Amz-Algorithm", ALGORITHM);
            add("X-Amz-Credential", &credential);
            add("X-Amz-Date", &time);
            add("X-Amz-Expires", &expires.to_string());
            add("X-Amz-SignedHeaders", &names);
            if let Some(token) = self.keys.token {
                add("X-Amz-Security-Token", token);
            }
            set_query(&mut request.uri, query)?;
        }
        let lines = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}\n"));
        let canonical = format!(
            "{}\n{}\n{}\n{}\n{names}\n{hash}",
            request.method,
            self.canonical_path(request.uri.path()),
            canonical_query(request.uri.query().unwrap_or_default()),
            lines.collect::<String>(),
        );
        let key = signing_key(self.keys.secret, date, self.region, self.service);
        let context = format!("{time}\n{scope}");
        let text = format!(
            "{ALGORITHM}\n{context}\n{}",
            self::hash(canonical.as_bytes())
        );
        let signature = signed(&key, &text);
        match self.presigned {
            Some(_) => {
                let query = request.uri.query().unwrap_or_default();
                let query = format!("{query}&X-Amz-Signature={signature}");
                set_query(&mut request.uri, vec![query])?;
            }
            None => {
                let text = format!(
                    "{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
                );
                request.headers.insert(AUTHORIZATION, secret(&text)?);
            }
        }
        Ok(Chain {
            key,
            context,
            last: signature,
        })
    }

    /// Those that the client signed and that are still there, and all of AWS's own, sorted by name.
    fn canonical_headers(&self, request: &Parts) -> Result<Vec<(String, String)>, Refusal> {
        let mut names = self.headers.clone();
        let own = request.headers.keys().map(HeaderName::as_str);
        names.extend(
            own.filter(|name| name.starts_with("x-amz-"))
                .map(str::to_owned),
        );
        names.sort();
        names.dedup();
        let mut headers = Vec::new();
        for name in names {
            // Ours, or of one connection.
            if [
                AUTHORIZATION.as_str(),
                "connection",
                "expect",
                "transfer-encoding",
            ]
            .contains(&name.as_str())
            {
                continue;
            }
            let mut values = Vec::new();
            for value in request.headers.get_all(&name) {
                let text = value.to_str().map_err(|_| Refusal::Signature)?;
                values.push(text.split_ascii_whitespace().collect::<Vec<_>>().join(" "));
            }
            if name == HOST.as_str() && values.is_empty() {
                let authority = request.uri.authority().ok_or(Refusal::Signature)?;
                values.push(authority.to_string());
            }
            if !values.is_empty() {
                headers.push((name, values.join(",")));
            }
        }
        Ok(headers)
    }

    /// S3 signs paths as they are sent. The others remove dots and empty parts, and encode once more.
    fn canonical_path(&self, path: &str) -> String {
        let encoded = |part: &str| {
            let plain: Vec<u8> = percent_decode_str(part).collect();
            percent_encoding::percent_encode(&plain, super::scrub::UNRESERVED).to_string()
        };
        if self.is_s3() {
            return path.split('/').map(encoded).collect::<Vec<_>>().join("/");
        }
        let mut parts: Vec<&str> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        let mut text = String::new();
        for part in &parts {
            text.push('/');
            text.push_str(&percent_encoded(part));
        }
        if text.is_empty() || ["/", "/.", "/.."].iter().any(|end| path.ends_with(end)) {
            text.push('/');
        }
        text
    }
}

fn canonical_query(query: &str) -> String {
    let encoded = |part: &str| {
        let plain: Vec<u8> = percent_decode_str(part).collect();
        percent_encoding::percent_encode(&plain, super::scrub::UNRESERVED).to_string()
    };
    let parts = query.split('&').filter(|part| !part.is_empty());
    let both = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
    let mut pairs: Vec<_> = both
        .map(|(key, value)| (encoded(key), encoded(value)))
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join("&")
}

impl Chain {
    /// The signature of the next chunk of a body.
    pub fn chunk(&mut self, data: &[u8]) -> &str {
        let text = format!(
            "{ALGORITHM}-PAYLOAD\n{}\n{}\n{}\n{}",
            self.context,
            self.last,
            hash(b""),
            hash(data)
        );
        self.last = signed(&self.key, &text);
        &self.last
    }

    /// The signature of what follows the last chunk, as lines of `name:value`.
    pub fn trailer(&mut self, lines: &str) -> &str {
        let text = format!(
            "{ALGORITHM}-TRAILER\n{}\n{}\n{}",
            self.context,
            self.last,
            hash(lines.as_bytes())
        );
        self.last = signed(&self.key, &text);
        &self.last
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn signed(key: &hmac::Key, text: &str) -> String {
    hex(hmac::sign(key, text.as_bytes()).as_ref())
}

fn signing_key(secret: &str, date: &str, region: &str, service: &str) -> hmac::Key {
    let first = cove_vault::Zeroizing::new(format!("AWS4{secret}"));
    let mut key = hmac::Key::new(hmac::HMAC_SHA256, first.as_bytes());
    for part in [date, region, service, TERMINATOR] {
        key = hmac::Key::new(
            hmac::HMAC_SHA256,
            hmac::sign(&key, part.as_bytes()).as_ref(),
        );
    }
    key
}

#[cfg(test)]
mod tests;
