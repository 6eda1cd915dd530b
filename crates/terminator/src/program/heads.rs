//! Headers by which a guest or a server could get an answer past the search for values.

use hyper::HeaderMap;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, HeaderName, HeaderValue, IF_RANGE, RANGE, TE, TRANSFER_ENCODING,
    UPGRADE,
};

use super::refusal::Refusal;

/// The only protocol that a connection may be upgraded to: anything else could carry answers that nobody scrubs.
const WEBSOCKET: &str = "websocket";
/// Belong to one connection; not passed on.
const HOP_BY_HOP: [HeaderName; 5] = [
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];
/// What a client says it can decode, besides `accept-encoding`: gRPC and Connect compress single messages.
const ACCEPTED: [HeaderName; 2] = [
    HeaderName::from_static("grpc-accept-encoding"),
    HeaderName::from_static("connect-accept-encoding"),
];
/// What answers are decompressed from before they are searched.
const DECODED: [&str; 2] = ["gzip", "deflate"];
/// Where an answer says how its messages are encoded, which are compressed each by itself.
const ENCODINGS: [HeaderName; 2] = [
    HeaderName::from_static("grpc-encoding"),
    HeaderName::from_static("connect-content-encoding"),
];

/// What is not compressed can be scrubbed, and so can what is whole.
/// What is not searched may be asked for in every way.
pub fn restrain(headers: &mut HeaderMap, upgrading: bool, searched: bool) {
    if searched {
        let identity = HeaderValue::from_static("identity");
        let accepted = accepted(headers);
        headers.insert(ACCEPT_ENCODING, accepted);
        for name in ACCEPTED {
            if headers.contains_key(&name) {
                headers.insert(name, identity.clone());
            }
        }
        headers.remove(RANGE);
        headers.remove(IF_RANGE);
    }
    // gRPC needs to hear that trailers are understood; transfer codings are not.
    let trailers = tokens(headers, &TE).any(|it| it.eq_ignore_ascii_case("trailers"));
    headers.remove(TE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    if upgrading {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
    }
}

/// Of what the client accepts, what can be decompressed here.
fn accepted(headers: &HeaderMap) -> HeaderValue {
    let asked = |name: &str| {
        tokens(headers, &ACCEPT_ENCODING).any(|token| {
            let (coding, weight) = token.split_once(';').unwrap_or((token, ""));
            let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
            let none = weight.parse::<f32>().is_ok_and(|weight| weight == 0.0);
            coding.trim().eq_ignore_ascii_case(name) && !none
        })
    };
    let wanted: Vec<&str> = DECODED.into_iter().filter(|name| asked(name)).collect();
    match wanted[..] {
        [] => HeaderValue::from_static("identity"),
        [one] => HeaderValue::from_static(one),
        _ => HeaderValue::from_static("gzip, deflate"),
    }
}

pub fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter();
    values.flat_map(|value| value.to_str().unwrap_or("?").split(',').map(str::trim))
}

pub fn is_websocket(headers: &HeaderMap) -> bool {
    let mut wanted = tokens(headers, &UPGRADE).peekable();
    wanted.peek().is_some() && wanted.all(|it| it.eq_ignore_ascii_case(WEBSOCKET))
}

/// Other transfer codings compress.
pub fn only_chunked(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut codings = tokens(headers, &TRANSFER_ENCODING);
    match codings.all(|it| it.eq_ignore_ascii_case("chunked")) {
        true => Ok(()),
        false => Err(Refusal::Encoded),
    }
}

/// Messages that are compressed each by itself cannot be looked into.
pub fn only_identity(headers: &HeaderMap) -> Result<(), Refusal> {
    for name in ENCODINGS {
        let mut encodings = tokens(headers, &name);
        if encodings.any(|it| !it.eq_ignore_ascii_case("identity")) {
            return Err(Refusal::Encoded);
        }
    }
    Ok(())
}
