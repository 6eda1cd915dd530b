//! Which headers cross the proxy, in both directions.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use super::pass::is_ours;
use super::url::{PreviewUrl, Target};

/// Between two neighbours only, whatever `Connection` says.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];
/// What a visitor could claim about itself, and what our side answers for the server.
const CLAIMS: [&str; 11] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-server",
    "x-real-ip",
    "proxy-connection",
    "http2-settings",
    "expect",
];
/// What a server could do to hosts beside its own: move visitors elsewhere, force https on a place that
/// has none, throw away the cookies of all previews.
const BEYOND: [&str; 5] = [
    "alt-svc",
    "strict-transport-security",
    "clear-site-data",
    "set-cookie2",
    "proxy-connection",
];

/// The protocol a request asks to change to. `h2c` is for connections, not for what they carry.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut asked = headers.get_all(header::UPGRADE).iter();
    let (Some(protocol), None) = (asked.next(), asked.next()) else {
        return None;
    };
    let connection = headers.get_all(header::CONNECTION);
    let named = connection.iter().any(|value| lists(value, "upgrade"));
    (named && !lists(protocol, "h2c")).then(|| protocol.clone())
}

fn lists(value: &HeaderValue, word: &str) -> bool {
    value.to_str().is_ok_and(|text| {
        text.split(',')
            .any(|part| part.trim().eq_ignore_ascii_case(word))
    })
}

/// Removes what is between two neighbours, and what `Connection` adds to that.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // Neither what frames the body nor where it goes is between neighbours.
    let fixed = [header::CONTENT_LENGTH, header::HOST];
    for name in named.iter().filter(|name| !fixed.contains(name)) {
        headers.remove(name);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// The headers the server inside sees.
pub fn inward(headers: &mut HeaderMap, peer: Option<IpAddr>, place: &PreviewUrl, target: &Target) {
    // A body of unknown length has none that could be given.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    strip_hop_by_hop(headers);
    for name in CLAIMS {
        headers.remove(name);
    }
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    if let Some(peer) = peer {
        set("x-forwarded-for", &peer.to_string());
    }
    set("x-forwarded-proto", place.scheme());
    set("x-forwarded-port", place.port());
    if let Some(prefix) = &target.prefix {
        set("x-forwarded-prefix", prefix);
    }
}

/// The headers the visitor sees.
pub fn outward(headers: &mut HeaderMap, target: &Target) {
    strip_hop_by_hop(headers);
    for name in BEYOND {
        headers.remove(name);
    }
    let cookies: Vec<_> = headers
        .get_all(header::SET_COOKIE)
        .iter()
        .filter_map(|value| host_only(value, target.prefix.as_deref()))
        .collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    if target.prefix.is_some() {
        // Paths share one origin: a page there gets one of its own, and no say over its neighbours.
        headers.remove("service-worker-allowed");
        headers.append(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("sandbox allow-scripts allow-forms allow-downloads"),
        );
    }
}

/// A cookie for this host alone; nothing if it would pass for ours.
fn host_only(cookie: &HeaderValue, prefix: Option<&str>) -> Option<HeaderValue> {
    let mut parts = cookie.as_bytes().split(|byte| *byte == b';');
    let first = parts.next()?;
    let name = first.split(|byte| *byte == b'=').next()?.trim_ascii();
    if is_ours(name) {
        return None;
    }
    let mut out = first.to_vec();
    for part in parts {
        let name = part.split(|byte| *byte == b'=').next()?.trim_ascii();
        let is = |word: &[u8]| name.eq_ignore_ascii_case(word);
        if is(b"domain") || (prefix.is_some() && is(b"path")) {
            continue;
        }
        out.push(b';');
        out.extend_from_slice(part);
    }
    if let Some(prefix) = prefix {
        out.extend_from_slice(format!("; Path={prefix}/").as_bytes());
    }
    HeaderValue::from_bytes(&out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    fn target(prefix: Option<&str>) -> Target {
        Target {
            sandbox: "sbx_aaaaaaaaaaaaaaaaaaaa".parse().unwrap(),
            port: 80,
            prefix: prefix.map(str::to_owned),
        }
    }

    #[test]
    fn a_visitor_cannot_speak_for_the_proxy_or_frame_twice() {
        let place = PreviewUrl::parse("http://localhost:7071").unwrap();
        let mut all = headers(&[
            ("connection", "close, x-secret, content-length, host"),
            ("x-secret", "1"),
            ("host", "h"),
            ("content-length", "4"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("x-forwarded-for", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
            ("accept", "*/*"),
        ]);
        inward(&mut all, Some([192, 0, 2, 7].into()), &place, &target(None));
        let expected = headers(&[
            ("host", "h"),
            ("accept", "*/*"),
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-port", "7071"),
        ]);
        assert_eq!(all, expected);
    }

    #[test]
    fn cookies_become_host_only_and_never_ours() {
        let mut all = headers(&[
            ("set-cookie", "a=1; Domain=localhost; Path=/x; Secure"),
            ("set-cookie", "b=2;DOMAIN = .example ;HttpOnly"),
            ("set-cookie", "cove_preview=evil"),
            ("set-cookie", " __host-COVE_preview =evil; Path=/"),
        ]);
        let mut by_path = all.clone();
        outward(&mut all, &target(None));
        let left: Vec<_> = all.get_all("set-cookie").iter().collect();
        assert_eq!(left, ["a=1; Path=/x; Secure", "b=2;HttpOnly"]);
        outward(&mut by_path, &target(Some("/p/i/80")));
        let left: Vec<_> = by_path.get_all("set-cookie").iter().collect();
        assert_eq!(
            left,
            ["a=1; Secure; Path=/p/i/80/", "b=2;HttpOnly; Path=/p/i/80/"]
        );
        assert!(by_path.contains_key("content-security-policy"));
    }

    #[test]
    fn any_upgrade_is_passed_on_but_that_of_the_connection() {
        let asks =
            |protocol| headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", protocol)]);
        assert!(upgrade(&asks("websocket")).is_some());
        assert!(upgrade(&asks("something")).is_some());
        assert!(upgrade(&asks("h2c")).is_none());
        assert!(upgrade(&asks("websocket, h2c")).is_none());
        assert!(upgrade(&headers(&[("upgrade", "websocket")])).is_none());
    }
}
