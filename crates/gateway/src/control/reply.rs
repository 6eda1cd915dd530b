//! What the process answers. The reader is root and the writer talks to untrusted clients: a byte says which answer
//! it is, then come integers and bounded texts, and of each answer there is exactly one form.

use std::net::{Ipv4Addr, SocketAddrV4};

use cove_model::egress::EgressBatch;
use cove_wire::limits::{FEATURE_BYTES_MAX, FEATURES_MAX, GATEWAY_REPLY_MAX};

use crate::log::BATCH_MAX;
use crate::record::{self, LINE_BYTES_MAX};

/// Of one text: names of instances and builds, and reasons of failures.
const TEXT_BYTES_MAX: usize = 1024;
/// The longest answer is a full batch of the longest lines.
pub const REPLY_BYTES_MAX: usize = 64 + BATCH_MAX * (2 + LINE_BYTES_MAX);
const _: () = assert!(REPLY_BYTES_MAX <= GATEWAY_REPLY_MAX);

const DONE: u8 = 1;
const HELLO: u8 = 2;
const EGRESS: u8 = 3;
const UNKNOWN: u8 = 4;
const REFUSED: u8 = 5;
/// A hello with features, for engines of version 3 and later.
const FEATURED_HELLO: u8 = 6;
const MISSING: u8 = 7;

/// The bytes are no answer of the process's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the gateway's answer is invalid")]
pub struct BadReply;

#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Done,
    Hello(Hello),
    Egress(EgressBatch),
    /// The log of that sandbox is not here.
    Unknown,
    Refused {
        message: String,
    },
    /// The process lacks what the call needs, and did nothing.
    Missing {
        features: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub version: u32,
    pub instance: String,
    pub build: String,
    pub pid: u32,
    pub sandboxes: u64,
    pub connections: u64,
    pub dns: SocketAddrV4,
    pub proxy: SocketAddrV4,
    /// What it can do; nothing is said in version 2.
    pub features: Vec<String>,
}

/// The version whose hello has no features.
const PLAIN_HELLO: u32 = 2;

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Done => out.push(DONE),
            Self::Unknown => out.push(UNKNOWN),
            Self::Refused { message } => {
                out.push(REFUSED);
                put_text(&mut out, &clean(message));
            }
            Self::Missing { features } => {
                out.push(MISSING);
                put_names(&mut out, features);
            }
            Self::Hello(hello) => {
                let plain = hello.version == PLAIN_HELLO;
                out.push(if plain { HELLO } else { FEATURED_HELLO });
                out.extend(hello.version.to_be_bytes());
                out.extend(hello.pid.to_be_bytes());
                out.extend(hello.sandboxes.to_be_bytes());
                out.extend(hello.connections.to_be_bytes());
                for address in [hello.dns, hello.proxy] {
                    out.extend(address.ip().octets());
                    out.extend(address.port().to_be_bytes());
                }
                put_text(&mut out, &clean(&hello.instance));
                put_text(&mut out, &clean(&hello.build));
                if !plain {
                    put_names(&mut out, &hello.features);
                }
            }
            Self::Egress(batch) => {
                out.push(EGRESS);
                out.extend(batch.next.to_be_bytes());
                out.push(batch.lost.into());
                let lines = batch.entries.iter().take(BATCH_MAX).map(record::encode);
                let lines: Vec<_> = lines.filter(|line| line.len() <= LINE_BYTES_MAX).collect();
                let count = u16::try_from(lines.len()).expect("a batch is bounded");
                out.extend(count.to_be_bytes());
                for line in lines {
                    put_text(&mut out, &line);
                }
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, BadReply> {
        let mut rest = Fields(bytes);
        let reply = match rest.u8()? {
            DONE => Self::Done,
            UNKNOWN => Self::Unknown,
            REFUSED => Self::Refused {
                message: shown(rest.text(TEXT_BYTES_MAX)?)?,
            },
            MISSING => Self::Missing {
                features: rest.names()?,
            },
            kind @ (HELLO | FEATURED_HELLO) => {
                let mut hello = Hello {
                    version: rest.u32()?,
                    pid: rest.u32()?,
                    sandboxes: rest.u64()?,
                    connections: rest.u64()?,
                    dns: rest.address()?,
                    proxy: rest.address()?,
                    instance: shown(rest.text(TEXT_BYTES_MAX)?)?,
                    build: shown(rest.text(TEXT_BYTES_MAX)?)?,
                    features: Vec::new(),
                };
                if (kind == HELLO) != (hello.version == PLAIN_HELLO) {
                    return Err(BadReply);
                }
                if kind == FEATURED_HELLO {
                    hello.features = rest.names()?;
                }
                Self::Hello(hello)
            }
            EGRESS => {
                let next = rest.u64()?;
                let lost = match rest.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(BadReply),
                };
                let count = usize::from(u16::from_be_bytes(rest.take()?));
                if count > BATCH_MAX {
                    return Err(BadReply);
                }
                let mut entries = Vec::new();
                for _ in 0..count {
                    let line = rest.text(LINE_BYTES_MAX)?;
                    entries.push(record::decode(line).ok_or(BadReply)?);
                }
                Self::Egress(EgressBatch {
                    entries,
                    next,
                    lost,
                })
            }
            _ => return Err(BadReply),
        };
        match rest.0.is_empty() {
            true => Ok(reply),
            false => Err(BadReply),
        }
    }
}

/// As much of a text as there is room for, without control characters.
fn clean(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    text.replace(char::is_control, "?")
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).expect("texts are cut");
    out.extend(length.to_be_bytes());
    out.extend(text.as_bytes());
}

fn put_names(out: &mut Vec<u8>, names: &[String]) {
    let names = &names[..names.len().min(FEATURES_MAX)];
    out.push(u8::try_from(names.len()).expect("they are bounded"));
    for name in names {
        let name = &name[..name.floor_char_boundary(FEATURE_BYTES_MAX)];
        put_text(out, &clean(name));
    }
}

/// A text that is quoted in the log and in errors.
fn shown(text: &str) -> Result<String, BadReply> {
    match text.chars().any(char::is_control) {
        true => Err(BadReply),
        false => Ok(text.to_owned()),
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadReply> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BadReply)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, BadReply> {
        Ok(u8::from_be_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, BadReply> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, BadReply> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    fn address(&mut self) -> Result<SocketAddrV4, BadReply> {
        let ip: [u8; 4] = self.take()?;
        let port = u16::from_be_bytes(self.take()?);
        Ok(SocketAddrV4::new(Ipv4Addr::from(ip), port))
    }

    fn names(&mut self) -> Result<Vec<String>, BadReply> {
        let count = usize::from(self.u8()?);
        if count > FEATURES_MAX {
            return Err(BadReply);
        }
        let name = |_| shown(self.text(FEATURE_BYTES_MAX)?);
        (0..count).map(name).collect()
    }

    fn text(&mut self, most: usize) -> Result<&'a str, BadReply> {
        let length = usize::from(u16::from_be_bytes(self.take()?));
        if length > most {
            return Err(BadReply);
        }
        let (text, rest) = self.0.split_at_checked(length).ok_or(BadReply)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| BadReply)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::tests::entry;

    fn text() -> impl Strategy<Value = String> {
        "[ -~äö]{0,40}"
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[a-z-]{1,40}", 0..5)
    }

    fn address() -> impl Strategy<Value = SocketAddrV4> {
        any::<(Ipv4Addr, u16)>().prop_map(|(ip, port)| SocketAddrV4::new(ip, port))
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let hello = (
            any::<(u32, u32, u64, u64)>(),
            (text(), text(), names()),
            (address(), address()),
        );
        prop_oneof![
            Just(Reply::Done),
            Just(Reply::Unknown),
            text().prop_map(|message| Reply::Refused { message }),
            names().prop_map(|features| Reply::Missing { features }),
            hello.prop_map(
                |(
                    (version, pid, sandboxes, connections),
                    (instance, build, features),
                    (dns, proxy),
                )| {
                    Reply::Hello(Hello {
                        features: if version == PLAIN_HELLO {
                            Vec::new()
                        } else {
                            features
                        },
                        version,
                        instance,
                        build,
                        pid,
                        sandboxes,
                        connections,
                        dns,
                        proxy,
                    })
                }
            ),
            (
                prop::collection::vec(entry(), 0..5),
                any::<u64>(),
                any::<bool>()
            )
                .prop_map(|(entries, next, lost)| Reply::Egress(EgressBatch {
                    entries,
                    next,
                    lost
                })),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_reply_arrives_as_it_was_sent(reply in reply()) {
            let bytes = reply.encode();
            prop_assert!(bytes.len() <= REPLY_BYTES_MAX);
            prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
            for end in 0..bytes.len() {
                prop_assert_eq!(Reply::decode(&bytes[..end]), Err(BadReply));
            }
            prop_assert_eq!(Reply::decode(&[&bytes[..], &[0]].concat()), Err(BadReply));
        }

        #[test]
        fn damaged_replies_are_refused_or_mean_exactly_one(
            reply in reply(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = reply.encode();
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert_eq!(reply.encode(), bytes);
            }
        }

        #[test]
        fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert_eq!(reply.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_batch_is_never_longer_than_there_can_be() {
        let mut bytes = vec![EGRESS];
        bytes.extend(0u64.to_be_bytes());
        bytes.push(0);
        bytes.extend(u16::MAX.to_be_bytes());
        assert_eq!(Reply::decode(&bytes), Err(BadReply));
    }
}
