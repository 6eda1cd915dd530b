//! Headers by which a guest or a server could get an answer past the search for values.

use hyper::HeaderMap;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, HeaderName, HeaderValue, IF_RANGE, RANGE, TE,
    TRANSFER_ENCODING, UPGRADE,
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
/// Where an answer says how it is encoded.
const ENCODINGS: [HeaderName; 3] = [
    CONTENT_ENCODING,
    HeaderName::from_static("grpc-encoding"),
    HeaderName::from_static("connect-content-encoding"),
];

/// What is not compressed can be scrubbed, and so can what is whole.
pub fn restrain(headers: &mut HeaderMap, upgrading: bool) {
    let identity = HeaderValue::from_static("identity");
    headers.insert(ACCEPT_ENCODING, identity.clone());
    for name in ACCEPTED {
        if headers.contains_key(&name) {
            headers.insert(name, identity.clone());
        }
    }
    headers.remove(RANGE);
    headers.remove(IF_RANGE);
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

/// Answers that are compressed cannot be looked into.
pub fn only_identity(headers: &HeaderMap) -> Result<(), Refusal> {
    for name in ENCODINGS {
        let mut encodings = tokens(headers, &name);
        if encodings.any(|it| !it.eq_ignore_ascii_case("identity")) {
            return Err(Refusal::Encoded);
        }
    }
    Ok(())
}
