//! What a visitor shows to be let in, taken out of the request so that nothing of it reaches the
//! sandbox: an API key, or tokens of signed links in a header, the query or a cookie.
//!
//! A cookie is sent by the browser on behalf of any page that asks it to, pages of other sandboxes
//! included. It counts only when the asking page is the sandbox's own, or a person followed a link.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use cove_control::ApiToken;

use super::url::{PreviewUrl, Target};

/// The field of the query a signed link has its token in.
pub const TOKEN_FIELD: &str = "cove_token";
const KEY_HEADER: HeaderName = HeaderName::from_static("x-cove-key");
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-cove-token");
/// What clients of E2B show instead.
pub const ACCESS_HEADER: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
/// The same in Daytona's words, for programs written with its SDKs.
const DAYTONA_TOKEN_HEADER: HeaderName = HeaderName::from_static("x-daytona-preview-token");
const OWN_HEADERS: &str = "x-cove-";
/// The name of the cookie; browsers let nobody but the host itself set one with the prefix.
const COOKIE: &str = "cove_preview";
const SECURE_COOKIE: &str = "__Host-cove_preview";

/// What was shown, and what of it came with a link that was followed.
#[derive(Default)]
pub struct Shown {
    pub key: Option<String>,
    /// A token for all ports of the sandbox.
    pub access: Option<String>,
    pub tokens: Vec<String>,
    /// The token in the query, when a browser would keep it as a cookie.
    pub link: Option<String>,
}

pub fn cookie_name(secure: bool) -> &'static str {
    if secure { SECURE_COOKIE } else { COOKIE }
}

/// Takes everything that is meant for the proxy out of the request.
pub fn take(parts: &mut Parts, place: &PreviewUrl, target: &Target) -> Shown {
    let mut shown = Shown::default();
    let believed = is_own_doing(parts, place, target);
    let headers = &mut parts.headers;
    shown.key = key(headers);
    shown.access = text(headers, &ACCESS_HEADER);
    headers.remove(&ACCESS_HEADER);
    for name in [&TOKEN_HEADER, &DAYTONA_TOKEN_HEADER] {
        if let Some(token) = text(headers, name) {
            shown.tokens.push(token);
        }
    }
    headers.remove(&DAYTONA_TOKEN_HEADER);
    let cookies = take_cookies(headers);
    // All sandboxes share the origin of paths: a cookie there would be every page's.
    if believed && target.prefix.is_none() {
        let name = cookie_name(place.secure());
        let own = cookies.into_iter().filter(|(found, _)| found == name);
        shown.tokens.extend(own.map(|(_, value)| value));
    }
    if let Some((uri, token)) = without_token(&parts.uri) {
        parts.uri = uri;
        if target.prefix.is_none() && is_page_load(&parts.method, headers) {
            shown.link = Some(token.clone());
        }
        shown.tokens.insert(0, token);
    }
    let leaks = |value: &HeaderValue| {
        let field = TOKEN_FIELD.as_bytes();
        value
            .as_bytes()
            .windows(field.len())
            .any(|part| part == field)
    };
    if headers.get(header::REFERER).is_some_and(leaks) {
        headers.remove(header::REFERER);
    }
    let own: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(OWN_HEADERS))
        .cloned()
        .collect();
    for name in own {
        headers.remove(name);
    }
    shown
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// A key in its own header, or in `Authorization` when it has the form of one: any other
/// authorization is between the visitor and the server inside.
fn key(headers: &mut HeaderMap) -> Option<String> {
    let ours = headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .find_map(|value| {
            let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
            let token = token.trim();
            let is_key = scheme.eq_ignore_ascii_case("bearer") && ApiToken::parse(token).is_some();
            is_key.then(|| token.to_owned())
        });
    if ours.is_some() {
        headers.remove(header::AUTHORIZATION);
    }
    text(headers, &KEY_HEADER).or(ours)
}

/// Takes our cookies out and leaves the server's own.
fn take_cookies(headers: &mut HeaderMap) -> Vec<(String, String)> {
    let mut taken = Vec::new();
    let mut kept = Vec::new();
    for value in headers.get_all(header::COOKIE) {
        for pair in value.as_bytes().split(|byte| *byte == b';') {
            let pair = pair.trim_ascii();
            let (name, value) = match pair.iter().position(|byte| *byte == b'=') {
                Some(at) => (pair[..at].trim_ascii(), &pair[at + 1..]),
                None => (pair, &b""[..]),
            };
            if is_ours(name) {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                taken.push((text(name), text(value)));
            } else if !pair.is_empty() {
                kept.push(pair.to_vec());
            }
        }
    }
    headers.remove(header::COOKIE);
    if !kept.is_empty()
        && let Ok(value) = HeaderValue::from_bytes(&kept.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, value);
    }
    taken
}

/// Whether a cookie of this name would be taken for ours.
pub fn is_ours(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(COOKIE.as_bytes())
        || name.eq_ignore_ascii_case(SECURE_COOKIE.as_bytes())
}

/// Whether the request comes from the sandbox's own pages or from a person, as far as browsers tell.
fn is_own_doing(parts: &Parts, place: &PreviewUrl, target: &Target) -> bool {
    let headers = &parts.headers;
    let word = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let from_own_page = match (origins.next(), origins.next()) {
        (None, _) => None,
        (Some(origin), None) => Some(
            origin
                .to_str()
                .is_ok_and(|origin| place.is_origin_of(origin, &target.sandbox)),
        ),
        (Some(_), Some(_)) => Some(false),
    };
    match (from_own_page, word("sec-fetch-site")) {
        (Some(own), _) => own,
        (None, None | Some("same-origin" | "none")) => true,
        // Following a link, not being loaded into somebody's page.
        (None, Some(_)) => {
            parts.method == Method::GET
                && word("sec-fetch-mode") == Some("navigate")
                && word("sec-fetch-dest") == Some("document")
        }
    }
}

/// A person opens a page, rather than a program asking for something.
fn is_page_load(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::GET
        && !headers.contains_key(header::UPGRADE)
        && headers.get_all(header::ACCEPT).iter().any(|value| {
            value
                .to_str()
                .is_ok_and(|accept| accept.contains("text/html"))
        })
}

/// The address without the token, if there is one in it.
fn without_token(uri: &Uri) -> Option<(Uri, String)> {
    let query = uri.query()?;
    let mut token = None;
    let mut kept = Vec::new();
    for field in query.split('&') {
        match field
            .strip_prefix(TOKEN_FIELD)
            .map(|rest| rest.strip_prefix('='))
        {
            Some(Some(value)) => token = Some(value.to_owned()),
            Some(None) if field == TOKEN_FIELD => token = Some(String::new()),
            _ => kept.push(field),
        }
    }
    let token = token?;
    let path = match kept.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), kept.join("&")),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse().ok()?);
    Some((Uri::from_parts(parts).ok()?, token))
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn target() -> Target {
        Target {
            sandbox: "sbx_aaaaaaaaaaaaaaaaaaaa".parse().unwrap(),
            port: 80,
            prefix: None,
        }
    }

    fn shown(uri: &str, headers: &[(&str, &str)]) -> (Shown, Parts) {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let place = PreviewUrl::parse("http://localhost:7071").unwrap();
        let shown = take(&mut parts, &place, &target());
        (shown, parts)
    }

    #[test]
    fn nothing_that_lets_in_is_passed_on() {
        let key = format!("cove_{}", "a".repeat(64));
        let (found, parts) = shown(
            "/a?x=1&cove_token=t1&y=2",
            &[
                ("authorization", &format!("Bearer {key}")),
                ("x-cove-token", "t2"),
                ("x-cove-anything", "z"),
                ("cookie", "a=b; cove_preview=t3; c=d"),
                ("cookie", "__Host-cove_preview=t4;e=f"),
                ("referer", "http://x/?cove_token=t1"),
            ],
        );
        assert_eq!(found.key.as_deref(), Some(key.as_str()));
        assert_eq!(found.tokens, ["t1", "t2", "t3"]);
        assert_eq!(parts.uri, "/a?x=1&y=2");
        let left: Vec<_> = parts.headers.iter().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(parts.headers["cookie"], "a=b; c=d; e=f");
    }

    #[test]
    fn an_authorization_that_is_no_key_of_ours_is_the_server_s() {
        let (found, parts) = shown("/", &[("authorization", "Bearer abc")]);
        assert!(found.key.is_none());
        assert_eq!(parts.headers["authorization"], "Bearer abc");
    }

    #[test]
    fn cookies_count_for_own_pages_and_followed_links_only() {
        let cookie = ("cookie", "cove_preview=t");
        let own = "http://81-sbx-aaaaaaaaaaaaaaaaaaaa.localhost:7071";
        let other = "http://80-sbx-baaaaaaaaaaaaaaaaaaa.localhost:7071";
        let navigate = ("sec-fetch-mode", "navigate");
        let cases: [(&[(&str, &str)], bool); 9] = [
            (&[], true),
            (&[("origin", own)], true),
            (&[("origin", other)], false),
            (&[("origin", "null")], false),
            (&[("origin", own), ("origin", other)], false),
            (&[("sec-fetch-site", "same-origin")], true),
            (
                &[
                    ("sec-fetch-site", "same-site"),
                    ("sec-fetch-mode", "no-cors"),
                ],
                false,
            ),
            (
                &[
                    ("sec-fetch-site", "cross-site"),
                    navigate,
                    ("sec-fetch-dest", "document"),
                ],
                true,
            ),
            (
                &[
                    ("sec-fetch-site", "same-site"),
                    navigate,
                    ("sec-fetch-dest", "iframe"),
                ],
                false,
            ),
        ];
        for (headers, counts) in cases {
            let mut all = headers.to_vec();
            all.push(cookie);
            let (found, _) = shown("/", &all);
            assert_eq!(found.tokens.len() == 1, counts, "{headers:?}");
        }
    }

    #[test]
    fn only_a_page_load_keeps_its_token() {
        let (page, _) = shown("/?cove_token=t", &[("accept", "text/html,*/*")]);
        assert_eq!(page.link.as_deref(), Some("t"));
        let (program, _) = shown("/?cove_token=t", &[("accept", "*/*")]);
        assert!(program.link.is_none());
    }
}
