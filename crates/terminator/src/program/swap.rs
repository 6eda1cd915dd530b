//! Puts values where placeholders stand, in the place that each secret is bound to and nowhere else.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use cove_model::secret::{CodeField, PLACEHOLDER_PREFIX, SecretUse};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;
use time::OffsetDateTime;

use super::refusal::Refusal;
use super::scrub::percent_encoded;
use super::table::{Usable, Usables};

/// The word before a value, like `Token`.
const SCHEME_MAX: usize = 32;

/// The secrets whose values are in the request now. A placeholder becomes the value once and only where it fills its
/// place: a request is not much longer than the guest made it, and a server that repeats part of a place repeats no
/// part of a value beside text that the guest chose.
pub fn swap<'a>(
    request: &mut Parts,
    usable: &'a Usables,
    now: OffsetDateTime,
) -> Result<Vec<&'a Usable>, Refusal> {
    let mut used = Vec::new();
    for secret in &usable.secrets {
        let (placeholder, value) = (secret.placeholder.as_str(), secret.current(now)?);
        let value = value.as_str();
        let swapped = match &secret.binding.usage {
            SecretUse::Bearer => replace(&mut request.headers, AUTHORIZATION.as_str(), |text| {
                bearer(text).filter(|token| *token == placeholder)?;
                Some(format!("Bearer {value}"))
            })?,
            SecretUse::Basic => replace(&mut request.headers, AUTHORIZATION.as_str(), |text| {
                let plain = basic(text)?;
                let (user, password) = plain.split_once(':')?;
                let real = match (user == placeholder, password == placeholder) {
                    (_, true) => format!("{user}:{value}"),
                    (true, false) => format!("{value}:{password}"),
                    (false, false) => return None,
                };
                Some(format!("Basic {}", STANDARD.encode(real)))
            })?,
            SecretUse::Header(name) | SecretUse::Totp(CodeField::Header(name)) => {
                replace(&mut request.headers, name, |text| {
                    match text.trim().split_once(' ') {
                        None => (text.trim() == placeholder).then(|| value.to_owned()),
                        // Like `Token VALUE`.
                        Some((scheme, rest)) => (is_scheme(scheme)
                            && rest.trim_start() == placeholder)
                            .then(|| format!("{scheme} {value}")),
                    }
                })?
            }
            SecretUse::Query(name) | SecretUse::Totp(CodeField::Query(name)) => {
                swap_query(&mut request.uri, name, placeholder, value)?
            }
            // Those of bodies are seen to with the body, those of signatures before.
            SecretUse::Form(_)
            | SecretUse::Totp(CodeField::Form(_))
            | SecretUse::SigV4 { .. }
            | SecretUse::Exposed => false,
        };
        if swapped {
            used.push(secret);
        }
    }
    refuse_unknown(request, usable)?;
    Ok(used)
}

fn is_scheme(word: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    word.len() <= SCHEME_MAX && word.bytes().all(letter) && !word.contains(PLACEHOLDER_PREFIX)
}

fn bearer(text: &str) -> Option<&str> {
    let (scheme, rest) = text.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| rest.trim_start())
}

/// User name and password, decoded.
fn basic(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let rest = rest.trim();
    let plain = STANDARD
        .decode(rest)
        .or_else(|_| STANDARD_NO_PAD.decode(rest));
    String::from_utf8(plain.ok()?).ok()
}

fn replace(
    headers: &mut HeaderMap,
    name: &str,
    new: impl Fn(&str) -> Option<String>,
) -> Result<bool, Refusal> {
    let hyper::header::Entry::Occupied(mut values) =
        headers.try_entry(name).map_err(|_| Refusal::Unwritable)?
    else {
        return Ok(false);
    };
    for value in values.iter_mut() {
        let Some(text) = value.to_str().ok().and_then(&new) else {
            continue;
        };
        *value = HeaderValue::try_from(text).map_err(|_| Refusal::Unwritable)?;
        // Not indexed by HTTP/2's compression, not shown by anything that prints headers.
        value.set_sensitive(true);
        return Ok(true);
    }
    Ok(false)
}

fn swap_query(uri: &mut Uri, name: &str, placeholder: &str, value: &str) -> Result<bool, Refusal> {
    let query = uri.query().unwrap_or_default();
    let Some(query) = swap_pair(query, name, placeholder, value) else {
        return Ok(false);
    };
    let path = format!("{}?{query}", uri.path());
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(path.parse().map_err(|_| Refusal::Unwritable)?);
    *uri = Uri::from_parts(parts).map_err(|_| Refusal::Unwritable)?;
    Ok(true)
}

/// The pairs of a query or a form with the value in the first place that the placeholder fills. `None` where there
/// is none.
fn swap_pair(text: &str, name: &str, placeholder: &str, value: &str) -> Option<String> {
    let mut swapped = false;
    let mut pairs = Vec::new();
    for pair in text.split('&') {
        match decoded(pair) {
            Some((key, given)) if !swapped && key == name && given == placeholder => {
                swapped = true;
                let key = pair.split('=').next().unwrap_or_default();
                pairs.push(format!("{key}={}", percent_encoded(value)));
            }
            _ => pairs.push(pair.to_owned()),
        }
    }
    swapped.then(|| pairs.join("&"))
}

/// A form with values in place of placeholders, and the secrets that they are of.
pub type SwappedForm<'a> = (Vec<u8>, Vec<&'a Usable>);

/// `None` where nothing has changed.
pub fn swap_form<'a>(
    form: &[u8],
    usable: &'a Usables,
    now: OffsetDateTime,
) -> Result<Option<SwappedForm<'a>>, Refusal> {
    let contains = |bytes: &[u8]| {
        let prefix = PLACEHOLDER_PREFIX.as_bytes();
        bytes.windows(prefix.len()).any(|window| window == prefix)
    };
    let Ok(text) = std::str::from_utf8(form) else {
        // Not a form as the standard writes it. A placeholder in it may be one that a server would find.
        return match contains(form) {
            true => Err(Refusal::Unknown),
            false => Ok(None),
        };
    };
    let mut used = Vec::new();
    let mut new: Option<String> = None;
    for secret in &usable.secrets {
        let Some(field) = secret.binding.usage.form_field() else {
            continue;
        };
        let value = secret.current(now)?;
        let text = new.as_deref().unwrap_or(text);
        if let Some(swapped) = swap_pair(text, field, &secret.placeholder, &value) {
            new = Some(swapped);
            used.push(secret);
        }
    }
    let declared = |name: &str| {
        let mut fields = usable.secrets.iter();
        fields.any(|it| it.binding.usage.form_field() == Some(name))
    };
    let left = new
        .as_deref()
        .unwrap_or(text)
        .split('&')
        .filter_map(decoded);
    for (key, value) in left {
        let revoked = || usable.revoked.iter().any(|it| value.contains(it.as_str()));
        if value.contains(PLACEHOLDER_PREFIX) && (declared(&key) || revoked()) {
            return Err(Refusal::Unknown);
        }
    }
    Ok(new.map(|text| (text.into_bytes(), used)))
}

fn decoded(pair: &str) -> Option<(String, String)> {
    let (key, value) = pair.split_once('=')?;
    let text = |part: &str| {
        let spaced = part.replace('+', " ");
        let plain = percent_decode_str(&spaced).decode_utf8().ok()?;
        Some(plain.into_owned())
    };
    Some((text(key)?, text(value)?))
}

/// A placeholder that is left where one belongs is another sandbox's, another host's or a revoked secret's. Passing
/// it on would only be an odd failure far away. One of this sandbox's whose secret was removed, or is not bound to this
/// host, is refused in every header and parameter, since where it belonged may be forgotten.
fn refuse_unknown(request: &Parts, usable: &Usables) -> Result<(), Refusal> {
    let holds = |text: &str| text.contains(PLACEHOLDER_PREFIX);
    let revoked = |text: &str| {
        let mut revoked = usable.revoked.iter();
        holds(text) && revoked.any(|placeholder| text.contains(placeholder.as_str()))
    };
    let declared_header = |name: &str| {
        let mut secrets = usable.secrets.iter();
        secrets.any(|it| it.binding.usage.header() == Some(name))
    };
    let declared_parameter = |name: &str| {
        let mut secrets = usable.secrets.iter();
        secrets.any(|it| match &it.binding.usage {
            SecretUse::SigV4 { .. } => name == "X-Amz-Credential",
            usage => usage.parameter() == Some(name),
        })
    };
    for (name, value) in &request.headers {
        // Sensitive: swapped just now.
        let Some(text) = value.to_str().ok().filter(|_| !value.is_sensitive()) else {
            continue;
        };
        let declared = match *name == AUTHORIZATION {
            true => holds(text) || basic(text).is_some_and(|text| holds(&text)),
            false => holds(text) && declared_header(name.as_str()),
        };
        if declared || revoked(text) {
            return Err(Refusal::Unknown);
        }
    }
    let pairs = request.uri.query().unwrap_or_default().split('&');
    for (key, value) in pairs.filter_map(decoded) {
        if revoked(&value) || (holds(&value) && declared_parameter(&key)) {
            return Err(Refusal::Unknown);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::usable;
    use super::*;
    use hyper::Request;

    const PLACEHOLDER: &str = "cove-secret-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const OTHER: &str = "cove-secret-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const VALUE: &str = "sk-canary-0123456789";

    fn parts(path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn swapped(usage: &str, path: &str, headers: &[(&str, &str)]) -> Result<Parts, Refusal> {
        let mut parts = parts(path, headers);
        let usable = Usables {
            secrets: vec![usable(usage, PLACEHOLDER, VALUE)],
            revoked: Vec::new(),
        };
        swap(&mut parts, &usable, OffsetDateTime::now_utc()).map(|_| parts)
    }

    #[test]
    fn a_placeholder_must_fill_its_place() {
        let header = |text: &str| swapped("header:x-key", "/", &[("x-key", text)]);
        assert_eq!(header(PLACEHOLDER).unwrap().headers["x-key"], VALUE);
        let token = header(&format!("Token {PLACEHOLDER}")).unwrap();
        assert_eq!(token.headers["x-key"], format!("Token {VALUE}"));
        for beside in [
            format!("a{PLACEHOLDER}"),
            format!("{PLACEHOLDER}b"),
            format!("a b {PLACEHOLDER}"),
            format!("{PLACEHOLDER} {PLACEHOLDER}"),
            format!("{PLACEHOLDER},{PLACEHOLDER}"),
        ] {
            assert_eq!(header(&beside).err(), Some(Refusal::Unknown), "{beside}");
        }
        let basic = |text: &str| {
            let text = format!("Basic {}", STANDARD.encode(text));
            swapped("basic", "/", &[("authorization", &text)])
        };
        for (given, real) in [
            (format!("user:{PLACEHOLDER}"), format!("user:{VALUE}")),
            (format!("{PLACEHOLDER}:"), format!("{VALUE}:")),
        ] {
            let real = format!("Basic {}", STANDARD.encode(real));
            assert_eq!(basic(&given).unwrap().headers["authorization"], real);
        }
        for beside in [
            format!("user:x{PLACEHOLDER}"),
            format!("user:{PLACEHOLDER}x"),
            PLACEHOLDER.to_owned(),
        ] {
            assert_eq!(basic(&beside).err(), Some(Refusal::Unknown), "{beside}");
        }
    }

    #[test]
    fn a_placeholder_is_swapped_once() {
        let twice = [("x-key", PLACEHOLDER), ("x-key", PLACEHOLDER)];
        assert_eq!(
            swapped("header:x-key", "/", &twice).err(),
            Some(Refusal::Unknown)
        );
        let path = format!("/?key={PLACEHOLDER}&key={PLACEHOLDER}");
        assert_eq!(
            swapped("query:key", &path, &[]).err(),
            Some(Refusal::Unknown)
        );
        let once = format!("/?a=1&key={PLACEHOLDER}");
        let once = swapped("query:key", &once, &[]).unwrap();
        assert_eq!(once.uri.query(), Some("a=1&key=sk-canary-0123456789"));
    }

    #[test]
    fn revoked_placeholders_are_refused_in_headers_and_parameters() {
        let usable = Usables {
            secrets: Vec::new(),
            revoked: vec![OTHER.to_owned()],
        };
        let path = format!("/?key={OTHER}");
        for mut refused in [
            parts("/", &[("x-key", OTHER)]),
            parts("/", &[("authorization", &format!("Bearer {OTHER}"))]),
            parts(&path, &[]),
        ] {
            let outcome =
                swap(&mut refused, &usable, OffsetDateTime::now_utc()).map(|used| used.len());
            assert_eq!(outcome, Err(Refusal::Unknown), "{refused:?}");
        }
        // Nobody knows this one: it is text.
        let mut text = parts("/", &[("x-key", PLACEHOLDER)]);
        assert!(
            swap(&mut text, &usable, OffsetDateTime::now_utc())
                .unwrap()
                .is_empty()
        );
    }
}
