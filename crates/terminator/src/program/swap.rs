//! Puts values where placeholders stand, in the place that each secret is bound to and nowhere else.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use cove_model::secret::{PLACEHOLDER_PREFIX, SecretUse};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;

use super::refusal::Refusal;
use super::scrub::percent_encoded;
use super::table::Usable;

/// The secrets whose values are in the request now.
pub fn swap<'a>(request: &mut Parts, usable: &'a [Usable]) -> Result<Vec<&'a Usable>, Refusal> {
    let mut used = Vec::new();
    for secret in usable {
        let swapped = match &secret.binding.usage {
            SecretUse::Bearer => replace(&mut request.headers, AUTHORIZATION.as_str(), |text| {
                let token = bearer(text)?;
                let kept = text.len() - token.len();
                (token == secret.placeholder)
                    .then(|| format!("{}{}", &text[..kept], secret.value.as_str()))
            })?,
            SecretUse::Basic => replace(&mut request.headers, AUTHORIZATION.as_str(), |text| {
                let plain = basic(text)?;
                plain.contains(&secret.placeholder).then(|| {
                    let real = plain.replace(&secret.placeholder, &secret.value);
                    format!("Basic {}", STANDARD.encode(real))
                })
            })?,
            SecretUse::Header(name) => replace(&mut request.headers, name, |text| {
                text.contains(&secret.placeholder)
                    .then(|| text.replace(&secret.placeholder, &secret.value))
            })?,
            SecretUse::Query(name) => swap_query(&mut request.uri, name, secret)?,
        };
        if swapped {
            used.push(secret);
        }
    }
    refuse_unknown(request, usable)?;
    Ok(used)
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
    let mut swapped = false;
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
        swapped = true;
    }
    Ok(swapped)
}

fn swap_query(uri: &mut Uri, name: &str, secret: &Usable) -> Result<bool, Refusal> {
    let Some(query) = uri.query() else {
        return Ok(false);
    };
    let mut swapped = false;
    let pairs: Vec<String> = query
        .split('&')
        .map(|pair| match decoded(pair) {
            Some((key, value)) if key == name && value == secret.placeholder => {
                swapped = true;
                let key = pair.split('=').next().unwrap_or_default();
                format!("{key}={}", percent_encoded(&secret.value))
            }
            _ => pair.to_owned(),
        })
        .collect();
    if swapped {
        let path = format!("{}?{}", uri.path(), pairs.join("&"));
        let mut parts = std::mem::take(uri).into_parts();
        parts.path_and_query = Some(path.parse().map_err(|_| Refusal::Unwritable)?);
        *uri = Uri::from_parts(parts).map_err(|_| Refusal::Unwritable)?;
    }
    Ok(swapped)
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
/// it on would only be an odd failure far away.
fn refuse_unknown(request: &Parts, usable: &[Usable]) -> Result<(), Refusal> {
    let holds = |text: &str| text.contains(PLACEHOLDER_PREFIX);
    for value in request.headers.get_all(AUTHORIZATION) {
        let text = value.to_str().unwrap_or_default();
        if !value.is_sensitive() && (holds(text) || basic(text).is_some_and(|text| holds(&text))) {
            return Err(Refusal::Unknown);
        }
    }
    for secret in usable {
        match &secret.binding.usage {
            SecretUse::Header(name) => {
                let mut values = request.headers.get_all(name).iter();
                if values.any(|value| value.to_str().is_ok_and(holds)) {
                    return Err(Refusal::Unknown);
                }
            }
            SecretUse::Query(name) => {
                let pairs = request.uri.query().unwrap_or_default().split('&');
                let mut pairs = pairs.filter_map(decoded);
                if pairs.any(|(key, value)| key == *name && holds(&value)) {
                    return Err(Refusal::Unknown);
                }
            }
            SecretUse::Bearer | SecretUse::Basic => {}
        }
    }
    Ok(())
}
