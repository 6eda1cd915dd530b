//! What the engine says to the process, and the fixed forms of what it answers.

use std::io;

use cove_model::approval::Decision;
use cove_model::secret::{SECRET_VALUE_MAX, SECRET_VALUE_MIN, SealedSecret};
use cove_model::{ApprovalId, OrgId, SandboxId};
use cove_wire::frame::{GATEWAY_CALL, GATEWAY_REPLY};
use cove_wire::{Layout, stream};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use zeroize::{Zeroize, Zeroizing};

mod asked;
mod wanted;

pub use wanted::{Purse, WANTED_BYTES, WANTED_MAX, Wanted};

pub use asked::{ASKED_MAX, Asked, is_shown_whole};

/// Calls are JSON that root writes.
const CALL: Layout = GATEWAY_CALL;
/// Answers are read by root: a code, and for uses so many records of a fixed length.
const REPLY: Layout = GATEWAY_REPLY;

/// Uses that one answer tells of; further ones are told next time.
pub const USES_MAX: usize = 4096;
const USE_BYTES: usize = 4 + 4 + 8 + 8;

/// The first message. The keys are this organisation's alone.
#[derive(Serialize, Deserialize)]
pub struct Start {
    pub org: OrgId,
    /// Who to become.
    pub uid: u32,
    pub gid: u32,
    /// Who may hand over connections: the gateway.
    pub gateway_uid: u32,
    /// How long a request that needs an approval is held.
    pub approval_hold_s: u64,
    /// Opens the organisation's secrets, base64.
    pub opening: String,
    /// Signs the certificates that its sandboxes trust, PKCS #8, base64.
    pub authority: String,
    /// Certificates that servers must be signed by, PEM.
    pub roots: String,
}

impl Drop for Start {
    fn drop(&mut self) {
        self.opening.zeroize();
        self.authority.zeroize();
    }
}

#[derive(Serialize, Deserialize)]
pub enum Call {
    /// All secrets of the organisation; connections that used one that is not among them are cut.
    Secrets(Vec<SealedSecret>),
    Place(Placed),
    Remove(SandboxId),
    /// What was used since the last time.
    Uses,
    /// The value of a secret that the sandbox holds, if its use is `exposed`. Others are never told.
    Reveal {
        sandbox: SandboxId,
        secret: String,
    },
    /// Approvals in the order of their ids, those after this one.
    Asked {
        after: Option<ApprovalId>,
    },
    Decide {
        approval: ApprovalId,
        decision: Decision,
    },
    /// What budgets of secrets are short of, and what is given back; asked when the process has rung.
    Wanted,
    Grant(Vec<Granted>),
}

/// A part of a budget that the process may use: it is counted as used already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    pub purse: Purse,
    pub amount: u64,
    /// What is left besides.
    pub left: u64,
    /// Days since 1970; nothing of it is used after it has lasted.
    pub day: u32,
    pub lasts_ms: u64,
    /// When what is left is more again, milliseconds since 1970; absent where it never is.
    pub renews_ms: Option<u64>,
}

/// What came of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    Done,
    /// There is none, or none any more.
    Unknown,
    /// It was approved before.
    Already,
    /// The request cannot be approved once.
    NotOnce,
}

const DECIDED: [Decided; 4] = [
    Decided::Done,
    Decided::Unknown,
    Decided::Already,
    Decided::NotOnce,
];

/// A sandbox and its placeholders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub sandbox: SandboxId,
    /// By which its uses are told.
    pub slot: u32,
    pub grants: Vec<PlacedGrant>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedGrant {
    pub secret: String,
    /// By which its uses are told.
    pub slot: u32,
    pub placeholder: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub sandbox: u32,
    pub secret: u32,
    pub count: u64,
    /// Milliseconds since 1970.
    pub last_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Done,
    Refused,
    Uses(Vec<Used>),
    Value(Revealed),
    Asked(Vec<Asked>),
    Decided(Decided),
    Wanted(Vec<Wanted>),
}

/// The value of an exposed secret. It is not shown when this is printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Revealed(pub Zeroizing<Vec<u8>>);

impl std::fmt::Debug for Revealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Revealed")
    }
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done => vec![0],
            Self::Refused => vec![1],
            Self::Uses(uses) => {
                let mut bytes = vec![2];
                for used in uses.iter().take(USES_MAX) {
                    bytes.extend(used.sandbox.to_le_bytes());
                    bytes.extend(used.secret.to_le_bytes());
                    bytes.extend(used.count.to_le_bytes());
                    bytes.extend(used.last_ms.to_le_bytes());
                }
                bytes
            }
            Self::Value(Revealed(value)) => [&[3], &value[..]].concat(),
            Self::Asked(asked) => {
                let mut bytes = vec![4];
                for one in asked.iter().take(ASKED_MAX) {
                    one.encode(&mut bytes);
                }
                bytes
            }
            Self::Decided(decided) => {
                let code = DECIDED.iter().position(|it| it == decided).unwrap_or(1);
                vec![5, code as u8]
            }
            Self::Wanted(wanted) => {
                let mut bytes = vec![6];
                for one in wanted.iter().take(WANTED_MAX) {
                    one.encode(&mut bytes);
                }
                bytes
            }
        }
    }

    /// Exactly one form of each answer is accepted.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(Self::Done),
            [1] => Some(Self::Refused),
            [3, value @ ..] if (SECRET_VALUE_MIN..=SECRET_VALUE_MAX).contains(&value.len()) => {
                Some(Self::Value(Revealed(Zeroizing::new(value.to_vec()))))
            }
            [4, rest @ ..] => {
                let (mut rest, mut asked) = (rest, Vec::new());
                while !rest.is_empty() {
                    if asked.len() == ASKED_MAX {
                        return None;
                    }
                    asked.push(Asked::decode(&mut rest)?);
                }
                Some(Self::Asked(asked))
            }
            [5, code] => DECIDED.get(usize::from(*code)).copied().map(Self::Decided),
            [6, records @ ..] => {
                let (records, rest) = records.as_chunks::<WANTED_BYTES>();
                if !rest.is_empty() || records.len() > WANTED_MAX {
                    return None;
                }
                let wanted = records.iter().map(Wanted::decode);
                wanted.collect::<Option<_>>().map(Self::Wanted)
            }
            [2, records @ ..] => {
                let (records, rest) = records.as_chunks::<USE_BYTES>();
                if !rest.is_empty() || records.len() > USES_MAX {
                    return None;
                }
                let word = |record: &[u8; USE_BYTES], at: usize| {
                    record[at..at + 4].try_into().map(u32::from_le_bytes).ok()
                };
                let long = |record: &[u8; USE_BYTES], at: usize| {
                    record[at..at + 8].try_into().map(u64::from_le_bytes).ok()
                };
                let used = |record| {
                    Some(Used {
                        sandbox: word(record, 0)?,
                        secret: word(record, 4)?,
                        count: long(record, 8)?,
                        last_ms: long(record, 16)?,
                    })
                };
                records
                    .iter()
                    .map(used)
                    .collect::<Option<_>>()
                    .map(Self::Uses)
            }
            _ => None,
        }
    }
}

pub async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    // A start has keys in it.
    let body = Zeroizing::new(serde_json::to_vec(message)?);
    let frame = Zeroizing::new(cove_wire::blocking::whole(CALL, 0, &body)?);
    stream.write_all(&frame).await
}

pub async fn read<T: serde::de::DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let (_, body) = stream::read(stream, CALL).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// [`read`] for where there is no runtime yet.
pub fn read_blocking<T: serde::de::DeserializeOwned>(stream: &mut impl io::Read) -> io::Result<T> {
    let (_, body) = cove_wire::blocking::read(stream, CALL)?;
    Ok(serde_json::from_slice(&body)?)
}

pub async fn write_reply(stream: &mut (impl AsyncWrite + Unpin), reply: &Reply) -> io::Result<()> {
    Ok(stream::write(stream, REPLY, 0, &reply.encode()).await?)
}

pub async fn read_reply(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Reply> {
    let (_, body) = stream::read(stream, REPLY).await?;
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "an answer of no known form");
    Reply::decode(&body).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cove_model::secret::BudgetUnit;

    #[test]
    fn answers_have_one_form_each() {
        let uses = vec![Used {
            sandbox: 1,
            secret: 2,
            count: 3,
            last_ms: u64::MAX,
        }];
        for reply in [
            Reply::Done,
            Reply::Refused,
            Reply::Uses(Vec::new()),
            Reply::Uses(uses),
            Reply::Asked(Vec::new()),
            Reply::Decided(Decided::Done),
            Reply::Decided(Decided::NotOnce),
            Reply::Wanted(Vec::new()),
            Reply::Wanted(vec![Wanted::Back {
                purse: Purse {
                    secret: 1,
                    sandbox: None,
                    of: BudgetUnit::Requests,
                },
                day: 20_000,
                amount: 1,
            }]),
        ] {
            let bytes = reply.encode();
            assert_eq!(Reply::decode(&bytes), Some(reply));
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Reply::decode(&longer), None);
        }
        assert_eq!(Reply::decode(&[]), None);
        let value = Reply::Value(Revealed(Zeroizing::new(b"canary-0123".to_vec())));
        assert_eq!(Reply::decode(&value.encode()), Some(value.clone()));
        assert!(!format!("{value:?}").contains("canary"));
        assert_eq!(Reply::decode(&[3; 4]), None);
        assert_eq!(Reply::decode(&[3; SECRET_VALUE_MAX + 2]), None);
        assert_eq!(
            Reply::decode(&vec![6; 1 + WANTED_BYTES * (WANTED_MAX + 1)]),
            None
        );
        assert_eq!(
            Reply::decode(&vec![2; 1 + USE_BYTES * (USES_MAX + 1)]),
            None
        );
    }
}
