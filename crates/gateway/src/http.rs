//! Reads what a plain HTTP/1 client asks for, strictly.
//!
//! The bytes are passed on as they came, so what we read must be what the server reads: anything
//! that two readers could take differently is refused. Every request on a connection is read, not
//! only the first, and all must be for one host; bodies are followed by their declared length so
//! that no request hides in one.

use cove_model::network::{Name, NameError};

pub const HEAD_BYTES_MAX: usize = 32 * 1024;
pub const FIELDS_MAX: usize = 128;
/// A chunk's header with its extensions, and each trailer.
pub const LINE_BYTES_MAX: usize = 4096;
pub const TRAILERS_MAX: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    pub host: Name,
    /// The port in the host field, when it has one.
    pub port: Option<u16>,
    pub body: Body,
    pub upgrade: bool,
    /// Bytes of the head, its empty line included.
    pub length: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    None,
    Length(u64),
    Chunked,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("not HTTP/1")]
    NotHttp,
    #[error("the request's head is too long")]
    Long,
    #[error("the request's head is malformed")]
    Malformed,
    #[error("CONNECT cannot be used here")]
    Connect,
    #[error("the request line names a host; send the path alone")]
    Absolute,
    #[error("the request names no host")]
    NoHost,
    #[error("the request names more than one host")]
    TwoHosts,
    #[error("the request names no valid host: {0}")]
    BadHost(NameError),
    #[error("the length of the request's body can be read in two ways")]
    AmbiguousBody,
    #[error("connections can be upgraded to websocket only")]
    Upgrade,
}

/// `Ok(None)`: more bytes are needed.
pub fn head(buffer: &[u8]) -> Result<Option<Head>, Refused> {
    early(buffer)?;
    let Some(end) = find(buffer, b"\r\n\r\n") else {
        if buffer.len() >= HEAD_BYTES_MAX {
            return Err(Refused::Long);
        }
        return Ok(None);
    };
    let length = end + 4;
    if length > HEAD_BYTES_MAX {
        return Err(Refused::Long);
    }
    let mut lines = Lines(&buffer[..end + 2]);
    let version = request_line(lines.next().ok_or(Refused::Malformed)??)?;
    let mut fields = Fields::default();
    for (count, line) in lines.enumerate() {
        if count == FIELDS_MAX {
            return Err(Refused::Long);
        }
        fields.add(line?)?;
    }
    fields.finish(version, length).map(Some)
}

/// What is surely not a request is refused before it is complete.
fn early(buffer: &[u8]) -> Result<(), Refused> {
    let start = &buffer[..buffer.len().min(METHOD_BYTES_MAX + 1)];
    let method = start.split(|&b| b == b' ').next().unwrap_or(start);
    if method.len() > METHOD_BYTES_MAX || !method.iter().copied().all(is_token) {
        return Err(Refused::NotHttp);
    }
    if start.starts_with(b" ") {
        return Err(Refused::NotHttp);
    }
    Ok(())
}

const METHOD_BYTES_MAX: usize = 20;

fn find(buffer: &[u8], wanted: &[u8]) -> Option<usize> {
    buffer
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// Lines that end in CR LF and have neither inside.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = Result<&'a [u8], Refused>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some(end) = find(self.0, b"\r\n") else {
            return Some(Err(Refused::Malformed));
        };
        let line = &self.0[..end];
        self.0 = &self.0[end + 2..];
        if line.contains(&b'\r') || line.contains(&b'\n') {
            return Some(Err(Refused::Malformed));
        }
        Some(Ok(line))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

fn request_line(line: &[u8]) -> Result<Version, Refused> {
    let mut parts = line.split(|&b| b == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Refused::NotHttp);
    };
    if method.is_empty() || !method.iter().copied().all(is_token) {
        return Err(Refused::NotHttp);
    }
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        _ => return Err(Refused::NotHttp),
    };
    if method.eq_ignore_ascii_case(b"CONNECT") {
        return Err(Refused::Connect);
    }
    let asterisk = target == b"*" && method == b"OPTIONS";
    if !asterisk && target.first() != Some(&b'/') {
        return Err(Refused::Absolute);
    }
    // Some clients send UTF-8 as it is; other bytes are refused by some servers and taken for text by others.
    if target.iter().any(|&b| b < 0x21 || b == 0x7f) || std::str::from_utf8(target).is_err() {
        return Err(Refused::Malformed);
    }
    Ok(version)
}

#[derive(Default)]
struct Fields {
    host: Option<(Name, Option<u16>)>,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
}

impl Fields {
    fn add(&mut self, line: &[u8]) -> Result<(), Refused> {
        let colon = line.iter().position(|&b| b == b':');
        let (name, value) = line.split_at(colon.ok_or(Refused::Malformed)?);
        let value = &value[1..];
        // A folded line starts with a blank, and so does not have a token for a name.
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(Refused::Malformed);
        }
        if value.iter().any(|&b| (b < 0x20 && b != b'\t') || b == 0x7f) {
            return Err(Refused::Malformed);
        }
        // After the look at every byte: a form feed counts as a blank here, and for no server.
        let value = value.trim_ascii();
        if name.eq_ignore_ascii_case(b"host") {
            if self.host.is_some() {
                return Err(Refused::TwoHosts);
            }
            self.host = Some(host(value)?);
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if self.length.is_some() {
                return Err(Refused::AmbiguousBody);
            }
            self.length = Some(decimal(value).ok_or(Refused::AmbiguousBody)?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Refused::AmbiguousBody);
            }
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            if self.upgrade || !value.eq_ignore_ascii_case(b"websocket") {
                return Err(Refused::Upgrade);
            }
            self.upgrade = true;
        }
        // Servers that fold underscores into dashes must not see another field than we do.
        let dashed: Vec<u8> = name
            .iter()
            .map(|&b| {
                if b == b'_' {
                    b'-'
                } else {
                    b.to_ascii_lowercase()
                }
            })
            .collect();
        let ours = [&b"content-length"[..], b"transfer-encoding"];
        if name.contains(&b'_') && ours.contains(&&dashed[..]) {
            return Err(Refused::AmbiguousBody);
        }
        Ok(())
    }

    fn finish(self, version: Version, length: usize) -> Result<Head, Refused> {
        let (host, port) = self.host.ok_or(Refused::NoHost)?;
        let body = match (self.length, self.chunked) {
            (None, false) => Body::None,
            (Some(bytes), false) => Body::Length(bytes),
            (None, true) if version == Version::Http11 => Body::Chunked,
            _ => return Err(Refused::AmbiguousBody),
        };
        if self.upgrade && !matches!(body, Body::None | Body::Length(0)) {
            return Err(Refused::Upgrade);
        }
        Ok(Head {
            host,
            port,
            body,
            upgrade: self.upgrade,
            length,
        })
    }
}

fn host(value: &[u8]) -> Result<(Name, Option<u16>), Refused> {
    let colon = value.iter().position(|&b| b == b':');
    let (name, port) = match colon {
        None => (value, None),
        Some(at) => {
            let port = decimal(&value[at + 1..]).and_then(|port| u16::try_from(port).ok());
            (&value[..at], Some(port.ok_or(Refused::Malformed)?))
        }
    };
    if name.is_empty() {
        return Err(Refused::NoHost);
    }
    let name = Name::from_ascii(name).map_err(Refused::BadHost)?;
    Ok((name, port))
}

/// Digits only, few enough not to overflow.
fn decimal(text: &[u8]) -> Option<u64> {
    let plain = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    plain.then(|| {
        text.iter()
            .fold(0, |sum, &b| sum * 10 + u64::from(b - b'0'))
    })
}

fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Follows a chunked body, so that its end is where the server sees it.
#[derive(Debug, Default)]
pub struct Chunks {
    state: ChunkState,
    line: Vec<u8>,
    trailers: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum ChunkState {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailer,
    Done,
}

impl Chunks {
    pub fn done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// Takes bytes of the body; returns how many of them belong to it.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        let mut at = 0;
        while at < bytes.len() && !self.done() {
            if let ChunkState::Data(left) = &mut self.state {
                let have = (bytes.len() - at) as u64;
                let passed = have.min(*left);
                *left -= passed;
                if *left == 0 {
                    self.state = ChunkState::DataEnd;
                }
                at += usize::try_from(passed).expect("not more than there are bytes");
                continue;
            }
            self.line.push(bytes[at]);
            at += 1;
            if self.line.len() > LINE_BYTES_MAX {
                return Err(Refused::Malformed);
            }
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let line = line.strip_suffix(b"\r\n").ok_or(Refused::Malformed)?;
                self.line_over(line)?;
            }
        }
        Ok(at)
    }

    fn line_over(&mut self, line: &[u8]) -> Result<(), Refused> {
        if line.iter().any(|&b| (b < 0x20 && b != b'\t') || b == 0x7f) {
            return Err(Refused::Malformed);
        }
        self.state = match self.state {
            ChunkState::Size => match size(line)? {
                0 => ChunkState::Trailer,
                bytes => ChunkState::Data(bytes),
            },
            ChunkState::DataEnd if line.is_empty() => ChunkState::Size,
            ChunkState::Trailer if line.is_empty() => ChunkState::Done,
            ChunkState::Trailer if self.trailers < TRAILERS_MAX => {
                self.trailers += 1;
                ChunkState::Trailer
            }
            _ => return Err(Refused::Malformed),
        };
        Ok(())
    }
}

fn size(line: &[u8]) -> Result<u64, Refused> {
    let digits = line.split(|&b| b == b';').next().unwrap_or(line);
    let plain = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).map_err(|_| Refused::Malformed)?;
    if !plain {
        return Err(Refused::Malformed);
    }
    u64::from_str_radix(text, 16).map_err(|_| Refused::Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<Option<Head>, Refused> {
        head(text.as_bytes())
    }

    #[test]
    fn a_request_is_read_when_it_is_complete() {
        let text = "GET /a?b HTTP/1.1\r\nHost: Example.com.:80\r\nAccept: */*\r\n\r\nrest";
        for cut in 0..text.len() - 4 {
            assert_eq!(parsed(&text[..cut]), Ok(None), "{cut}");
        }
        let head = parsed(text).unwrap().unwrap();
        assert_eq!(head.host.as_str(), "example.com");
        assert_eq!((head.port, head.body), (Some(80), Body::None));
        assert_eq!(head.length, text.len() - 4);
    }

    #[test]
    fn bodies_have_one_length() {
        let with = |fields: &str| {
            parsed(&format!(
                "POST / HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"
            ))
            .map(|head| head.unwrap().body)
        };
        assert_eq!(with(""), Ok(Body::None));
        assert_eq!(with("Content-Length: 12\r\n"), Ok(Body::Length(12)));
        assert_eq!(with("Transfer-Encoding: chunked\r\n"), Ok(Body::Chunked));
        for bad in [
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: 0x1\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Content_Length: 1\r\n",
            "Transfer_Encoding: chunked\r\n",
        ] {
            assert_eq!(with(bad), Err(Refused::AmbiguousBody), "{bad:?}");
        }
        let old = "POST / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(parsed(old), Err(Refused::AmbiguousBody));
    }

    #[test]
    fn tricks_are_refused_by_name() {
        for (text, expected) in [
            (
                "CONNECT b:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
                Refused::Connect,
            ),
            (
                "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
                Refused::Absolute,
            ),
            (
                "GET * HTTP/1.1\r\nHost: a.example\r\n\r\n",
                Refused::Absolute,
            ),
            ("GET / HTTP/1.1\r\n\r\n", Refused::NoHost),
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n", Refused::NoHost),
            (
                "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
                Refused::TwoHosts,
            ),
            (
                "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
                Refused::Malformed,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a.example\r\n b.example\r\n\r\n",
                Refused::Malformed,
            ),
            (
                "GET / HTTP/1.1\r\nX: y\nHost: b.example\r\nHost: a.example\r\n\r\n",
                Refused::Malformed,
            ),
            (
                "GET / HTTP/1.1\r\nX: y\rHost: b.example\r\nHost: a.example\r\n\r\n",
                Refused::Malformed,
            ),
            (
                "GET / HTTP/1.1\r\nX: \0\r\nHost: a.example\r\n\r\n",
                Refused::Malformed,
            ),
            (
                "GET /\t HTTP/1.1\r\nHost: a.example\r\n\r\n",
                Refused::Malformed,
            ),
            (
                "GET / HTTP/2.0\r\nHost: a.example\r\n\r\n",
                Refused::NotHttp,
            ),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refused::NotHttp),
            (
                "GET  / HTTP/1.1\r\nHost: a.example\r\n\r\n",
                Refused::NotHttp,
            ),
            (
                "\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
                Refused::NotHttp,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: h2c\r\n\r\n",
                Refused::Upgrade,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a.example:0x50\r\n\r\n",
                Refused::Malformed,
            ),
        ] {
            assert_eq!(parsed(text), Err(expected), "{text:?}");
        }
        for host in [
            "1.2.3.4",
            "0x7f000001",
            "[::1]",
            "a..b",
            "a\u{fc}.example",
            "a.example,b.example",
            "u@a.example",
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert!(parsed(&text).is_err(), "{host}");
        }
    }

    #[test]
    fn what_is_not_http_is_told_before_it_ends() {
        for bytes in [
            &b"\x16\x03\x01"[..],
            b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n",
            b"\0",
            b" GET",
        ] {
            assert_eq!(head(bytes), Err(Refused::NotHttp), "{bytes:?}");
        }
        let long = format!("GET /{} ", "a".repeat(HEAD_BYTES_MAX));
        assert_eq!(parsed(&long), Err(Refused::Long));
    }

    #[test]
    fn a_chunked_body_ends_where_it_says() {
        let body = b"5;x=y\r\nhello\r\n0\r\nTrailer: z\r\n\r\nGET / HTTP/1.1\r\n";
        for step in 1..body.len() {
            let mut chunks = Chunks::default();
            let mut taken = 0;
            while !chunks.done() {
                let end = (taken + step).min(body.len());
                taken += chunks.take(&body[taken..end]).unwrap();
            }
            assert_eq!(&body[taken..taken + 5], b"GET /");
        }
        for bad in [
            &b"5\nhello"[..],
            b"g\r\n",
            b"\r\n",
            b"5\r\nhelloX\r\n",
            b"-1\r\n",
            b"5 \r\n",
            b"ffffffffffffffff\r\n",
        ] {
            assert!(Chunks::default().take(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = head(&bytes);
            let _ = Chunks::default().take(&bytes);
        }

        #[test]
        fn any_fields_are_survived(fields in proptest::collection::vec("[ -~\\r\\n\\t]{0,30}", 0..20)) {
            let text = format!("GET / HTTP/1.1\r\n{}\r\n\r\n", fields.join("\r\n"));
            if let Ok(Some(head)) = parsed(&text) {
                prop_assert!(head.length <= text.len());
            }
        }
    }
}
