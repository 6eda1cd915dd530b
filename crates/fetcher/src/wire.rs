//! What the program and its parent say to one another: frames with a header of fixed size, every count
//! and length bounded.
//!
//! ```text
//! header:  kind u8 │ stream u8 │ zero u16 │ length of the payload u32   (little-endian)
//! payload: numbers of fixed size; texts and lists after their length
//! ```
//! The parent treats replies as hostile, since a program that reads hostile bytes may have been taken
//! over: what does not fit exactly is refused, and nothing is believed that the parent can check itself.

mod code;

use std::net::SocketAddr;

use crate::error::RegistryError;
use crate::reach::Reachable;
pub use code::BadFrame;
use code::{Put, Take};

pub const HEADER_BYTES: usize = 8;
/// Bytes of a layer in one frame.
pub const DATA_BYTES_MAX: usize = 64 << 10;
/// As many as any builder makes.
pub const LAYERS_MAX: usize = 256;
/// Layers on their way at once; a stream's number is below it.
pub const STREAMS_MAX: u8 = 4;
/// Of the configuration as it is handed on; what a real image has is a few kilobytes.
pub const VARIABLES_MAX: usize = 512;
pub const ARGUMENTS_MAX: usize = 256;
pub const CONFIG_TEXT_BYTES_MAX: usize = 32 << 10;
/// All texts together; the record of an image has room for them.
pub const CONFIG_BYTES_MAX: usize = 128 << 10;
const REPLY_BYTES_MAX: usize = 1 << 20;
/// The trusted certificates and `/etc/hosts` travel in the order.
const ORDER_BYTES_MAX: usize = 8 << 20;
pub const TRUST_BYTES_MAX: usize = 4 << 20;
pub const HOSTS_BYTES_MAX: usize = 1 << 20;
const WORD_BYTES_MAX: usize = 1024;
const SECRET_BYTES_MAX: usize = 8 << 10;
const LIST_MAX: usize = 1024;
/// Of a text in an error.
const ERROR_TEXT_BYTES_MAX: usize = 600;

/// A SHA-256 digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Reads `sha256:` and 64 lower-case hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?;
        if digits.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return None;
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

/// A name and a password (or an access token in its place) for one pull.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub username: String,
    pub password: String,
}

/// Passwords stay out of logs.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// What the program is to fetch, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The registry as references name it.
    pub registry: String,
    /// Who answers for it: `host` or `host:port`.
    pub server: String,
    pub repository: String,
    /// The tag or digest asked for.
    pub wanted: String,
    /// What must be found under it.
    pub digest: Option<Digest>,
    /// This machine's, as OCI spells it.
    pub arch: String,
    pub login: Option<Login>,
    /// Registries (`host` or `host:port`) spoken to without TLS, besides those on loopback.
    pub plain: Vec<String>,
    pub reachable: Reachable,
    /// Whom to ask for names; empty: those of `resolv`.
    pub resolvers: Vec<SocketAddr>,
    /// `/etc/resolv.conf`, unread.
    pub resolv: Vec<u8>,
    /// `/etc/hosts`, unread.
    pub hosts: Vec<u8>,
    /// Trusted certificates in PEM, unread.
    pub trust: Vec<u8>,
}

/// What the reference means today.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Of what the reference names: the index where there is one.
    pub digest: Digest,
    pub layers: Vec<Layer>,
    pub configuration: Configuration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    pub digest: Digest,
    pub size: u64,
    /// Digest of the uncompressed archive.
    pub diff_id: Digest,
}

/// How the image wants its processes started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    pub env: Vec<(String, String)>,
    pub user: String,
    pub workdir: String,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
}

impl Configuration {
    pub fn texts(&self) -> impl Iterator<Item = &String> {
        let variables = self.env.iter().flat_map(|(name, value)| [name, value]);
        variables
            .chain([&self.user, &self.workdir])
            .chain(&self.entrypoint)
            .chain(&self.cmd)
    }

    pub fn bytes(&self) -> usize {
        self.texts().map(String::len).sum()
    }
}

/// From the parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Start(Box<Order>),
    Blob {
        stream: u8,
        digest: Digest,
        size: u64,
        /// First byte wanted.
        from: u64,
    },
}

/// From the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Resolved(Box<Manifest>),
    /// There is no image to fetch layers of.
    Failed(RegistryError),
    /// The next bytes of a layer.
    Data {
        stream: u8,
        bytes: Vec<u8>,
    },
    /// The registry cannot continue: what came of the layer so far is dropped.
    Restart {
        stream: u8,
    },
    End {
        stream: u8,
        result: Result<(), RegistryError>,
    },
}

const START: u8 = 1;
const BLOB: u8 = 2;
const RESOLVED: u8 = 16;
const FAILED: u8 = 17;
const DATA: u8 = 18;
const RESTART: u8 = 19;
const END: u8 = 20;
const BROKEN: u8 = 21;

/// The first bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    kind: u8,
    stream: u8,
    pub length: usize,
}

impl Header {
    /// Of a frame from the program.
    pub fn of_reply(bytes: [u8; HEADER_BYTES]) -> Result<Self, BadFrame> {
        Self::read(bytes, |kind| match kind {
            RESOLVED => Some(REPLY_BYTES_MAX),
            FAILED | BROKEN => Some(4 * ERROR_TEXT_BYTES_MAX),
            DATA => Some(DATA_BYTES_MAX),
            RESTART | END => Some(0),
            _ => None,
        })
    }

    /// Of a frame from the parent.
    pub fn of_request(bytes: [u8; HEADER_BYTES]) -> Result<Self, BadFrame> {
        Self::read(bytes, |kind| match kind {
            START => Some(ORDER_BYTES_MAX),
            BLOB => Some(64),
            _ => None,
        })
    }

    fn read(
        [kind, stream, zero, nil, length @ ..]: [u8; HEADER_BYTES],
        room: impl Fn(u8) -> Option<usize>,
    ) -> Result<Self, BadFrame> {
        let length = u32::from_le_bytes(length) as usize;
        let fits = room(kind).is_some_and(|most| length <= most);
        let streamed = matches!(kind, BLOB | DATA | RESTART | END | BROKEN);
        let known = if streamed {
            stream < STREAMS_MAX
        } else {
            stream == 0
        };
        if fits && known && zero == 0 && nil == 0 {
            return Ok(Self {
                kind,
                stream,
                length,
            });
        }
        Err(BadFrame)
    }

    fn write(kind: u8, stream: u8, payload: Vec<u8>) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("payloads are far smaller");
        let mut frame = vec![kind, stream, 0, 0];
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend(payload);
        frame
    }
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Start(order) => Header::write(START, 0, put_order(order)),
            Self::Blob {
                stream,
                digest,
                size,
                from,
            } => {
                let mut put = Put::default();
                put.array(&digest.0).u64(*size).u64(*from);
                Header::write(BLOB, *stream, put.0)
            }
        }
    }

    pub fn decode(header: Header, payload: &[u8]) -> Result<Self, BadFrame> {
        let mut take = Take(payload);
        let request = match header.kind {
            START => Self::Start(Box::new(take_order(&mut take)?)),
            BLOB => Self::Blob {
                stream: header.stream,
                digest: Digest(take.array()?),
                size: take.u64()?,
                from: take.u64()?,
            },
            _ => return Err(BadFrame),
        };
        take.end(request)
    }
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Resolved(manifest) => Header::write(RESOLVED, 0, put_manifest(manifest)),
            Self::Failed(error) => Header::write(FAILED, 0, put_error(error)),
            Self::Data { stream, bytes } => Header::write(DATA, *stream, bytes.clone()),
            Self::Restart { stream } => Header::write(RESTART, *stream, Vec::new()),
            Self::End { stream, result } => match result {
                Ok(()) => Header::write(END, *stream, Vec::new()),
                Err(error) => Header::write(BROKEN, *stream, put_error(error)),
            },
        }
    }

    pub fn decode(header: Header, payload: Vec<u8>) -> Result<Self, BadFrame> {
        let stream = header.stream;
        let mut take = Take(&payload);
        let reply = match header.kind {
            RESOLVED => Self::Resolved(Box::new(take_manifest(&mut take)?)),
            FAILED => Self::Failed(take_error(&mut take)?),
            DATA if payload.is_empty() => return Err(BadFrame),
            DATA => {
                return Ok(Self::Data {
                    stream,
                    bytes: payload,
                });
            }
            RESTART => Self::Restart { stream },
            END => Self::End {
                stream,
                result: Ok(()),
            },
            BROKEN => Self::End {
                stream,
                result: Err(take_error(&mut take)?),
            },
            _ => return Err(BadFrame),
        };
        take.end(reply)
    }
}

fn put_order(order: &Order) -> Vec<u8> {
    let mut put = Put::default();
    for text in [
        &order.registry,
        &order.server,
        &order.repository,
        &order.wanted,
        &order.arch,
    ] {
        put.text(text);
    }
    put.u8(order.digest.is_some().into());
    if let Some(digest) = order.digest {
        put.array(&digest.0);
    }
    put.u8(order.login.is_some().into());
    if let Some(login) = &order.login {
        put.text(&login.username).text(&login.password);
    }
    put.list(&order.plain, |put, one| put.text(one));
    put.u8(order.reachable.anywhere.into());
    put.list(&order.reachable.open, |put, one| put.text(&one.to_string()));
    put.list(&order.reachable.exempt, |put, one| put.text(one));
    put.list(&order.resolvers, |put, one| put.text(&one.to_string()));
    put.bytes(&order.resolv)
        .bytes(&order.hosts)
        .bytes(&order.trust);
    put.0
}

fn take_order(take: &mut Take<'_>) -> Result<Order, BadFrame> {
    let mut word = || take.text(WORD_BYTES_MAX);
    let (registry, server, repository) = (word()?, word()?, word()?);
    let (wanted, arch) = (word()?, word()?);
    Ok(Order {
        registry,
        server,
        repository,
        wanted,
        arch,
        digest: match take.flag()? {
            true => Some(Digest(take.array()?)),
            false => None,
        },
        login: match take.flag()? {
            true => Some(Login {
                username: take.text(SECRET_BYTES_MAX)?,
                password: take.text(SECRET_BYTES_MAX)?,
            }),
            false => None,
        },
        plain: take.list(LIST_MAX, |take| take.text(WORD_BYTES_MAX))?,
        reachable: Reachable {
            anywhere: take.flag()?,
            open: take.list(LIST_MAX, Take::parsed)?,
            exempt: take.list(LIST_MAX, |take| take.text(WORD_BYTES_MAX))?,
        },
        resolvers: take.list(LIST_MAX, Take::parsed)?,
        resolv: take.bytes(HOSTS_BYTES_MAX)?.to_vec(),
        hosts: take.bytes(HOSTS_BYTES_MAX)?.to_vec(),
        trust: take.bytes(TRUST_BYTES_MAX)?.to_vec(),
    })
}

fn put_manifest(manifest: &Manifest) -> Vec<u8> {
    let mut put = Put::default();
    put.array(&manifest.digest.0);
    put.list(&manifest.layers, |put, layer| {
        put.array(&layer.digest.0)
            .u64(layer.size)
            .array(&layer.diff_id.0)
    });
    let configuration = &manifest.configuration;
    put.list(&configuration.env, |put, (name, value)| {
        put.text(name).text(value)
    });
    put.text(&configuration.user).text(&configuration.workdir);
    put.list(&configuration.entrypoint, |put, one| put.text(one));
    put.list(&configuration.cmd, |put, one| put.text(one));
    put.0
}

fn take_manifest(take: &mut Take<'_>) -> Result<Manifest, BadFrame> {
    let text = |take: &mut Take<'_>| take.plain_text(CONFIG_TEXT_BYTES_MAX);
    let manifest = Manifest {
        digest: Digest(take.array()?),
        layers: take.list(LAYERS_MAX, |take| {
            Ok(Layer {
                digest: Digest(take.array()?),
                size: take.u64()?,
                diff_id: Digest(take.array()?),
            })
        })?,
        configuration: Configuration {
            env: take.list(VARIABLES_MAX, |take| Ok((text(take)?, text(take)?)))?,
            user: text(take)?,
            workdir: text(take)?,
            entrypoint: take.list(ARGUMENTS_MAX, text)?,
            cmd: take.list(ARGUMENTS_MAX, text)?,
        },
    };
    if manifest.layers.is_empty() || manifest.configuration.bytes() > CONFIG_BYTES_MAX {
        return Err(BadFrame);
    }
    Ok(manifest)
}

/// An error as one number, two numbers and two texts, whatever it is.
fn put_error(error: &RegistryError) -> Vec<u8> {
    use RegistryError as E;
    let (code, numbers, texts): (u8, [u64; 2], [&str; 2]) = match error {
        E::Unreachable { registry, detail } => (1, [0, 0], [registry, detail]),
        E::Timeout { seconds } => (2, [*seconds, 0], ["", ""]),
        E::Status { status, url } => (3, [u64::from(*status), 0], [url, ""]),
        E::NotFound { what } => (4, [0, 0], [what, ""]),
        E::CredentialsNeeded => (5, [0, 0], ["", ""]),
        E::CredentialsRefused => (6, [0, 0], ["", ""]),
        E::UnknownAuthentication { scheme } => (7, [0, 0], [scheme, ""]),
        E::Malformed { reason } => (8, [0, 0], [reason, ""]),
        E::DigestMismatch { expected, actual } => (9, [0, 0], [expected, actual]),
        E::TooLarge { what, size, limit } => (10, [*size, *limit], [what, ""]),
        E::NoPlatform { arch, available } => (11, [0, 0], [arch, available]),
        E::UnsupportedMedia { media_type } => (12, [0, 0], [media_type, ""]),
        E::Redirect { url } => (13, [0, 0], [url, ""]),
        E::OffLimits { place } => (14, [0, 0], [place, ""]),
        E::BrokenOff { attempts, detail } => (15, [u64::from(*attempts), 0], [detail, ""]),
        E::TrustStore { detail } => (16, [0, 0], [detail, ""]),
        // Only the parent says these.
        E::DiffIdMismatch { .. } | E::TooSlow { .. } | E::Helper { .. } | E::Withheld { .. } => {
            (17, [0, 0], ["", ""])
        }
    };
    let mut put = Put::default();
    put.u8(code).u64(numbers[0]).u64(numbers[1]);
    for text in texts {
        put.text(&shown(text));
    }
    put.0
}

fn take_error(take: &mut Take<'_>) -> Result<RegistryError, BadFrame> {
    use RegistryError as E;
    let code = take.u8()?;
    let (one, two) = (take.u64()?, take.u64()?);
    let first = shown(&take.text(ERROR_TEXT_BYTES_MAX)?);
    let second = shown(&take.text(ERROR_TEXT_BYTES_MAX)?);
    Ok(match code {
        1 => E::Unreachable {
            registry: first,
            detail: second,
        },
        2 => E::Timeout { seconds: one },
        3 => E::Status {
            status: u16::try_from(one).map_err(|_| BadFrame)?,
            url: first,
        },
        4 => E::NotFound { what: first },
        5 => E::CredentialsNeeded,
        6 => E::CredentialsRefused,
        7 => E::UnknownAuthentication { scheme: first },
        8 => E::Malformed { reason: first },
        9 => E::DigestMismatch {
            expected: first,
            actual: second,
        },
        10 => E::TooLarge {
            what: first,
            size: one,
            limit: two,
        },
        11 => E::NoPlatform {
            arch: first,
            available: second,
        },
        12 => E::UnsupportedMedia { media_type: first },
        13 => E::Redirect { url: first },
        14 => E::OffLimits { place: first },
        15 => E::BrokenOff {
            attempts: u32::try_from(one).map_err(|_| BadFrame)?,
            detail: first,
        },
        16 => E::TrustStore { detail: first },
        17 => E::Helper {
            detail: String::new(),
        },
        _ => return Err(BadFrame),
    })
}

/// Printable and short enough, whoever wrote it.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if shown.len() + c.len_utf8() > ERROR_TEXT_BYTES_MAX {
            break;
        }
        shown.push(if c.is_control() { '?' } else { c });
    }
    shown
}

#[cfg(test)]
mod tests;
