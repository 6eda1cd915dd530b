//! An approval as the process tells of it: integers and bounded texts, with exactly one form.

use cove_model::ApprovalId;
use cove_model::approval::{APPROVAL_METHOD_MAX, APPROVAL_PATH_MAX, ApprovalState, BodyDigest};
use cove_model::network::Name;
use cove_model::secret::SecretHost;

/// Approvals that one answer tells of.
pub const ASKED_MAX: usize = 64;
const ID_BYTES: usize = 24;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub id: ApprovalId,
    /// The slots of the sandbox and the secret.
    pub sandbox: u32,
    pub secret: u32,
    pub host: SecretHost,
    pub method: String,
    pub path: String,
    pub body: Option<BodyDigest>,
    pub state: ApprovalState,
    pub waiting: u32,
    /// Milliseconds since 1970.
    pub asked_ms: u64,
    pub expires_ms: u64,
}

const STATES: [ApprovalState; 4] = [
    ApprovalState::Pending,
    ApprovalState::Once,
    ApprovalState::Timed,
    ApprovalState::Denied,
];

/// What a person reads: no spaces, no control characters, nothing that only looks like ASCII.
pub fn is_shown_whole(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

impl Asked {
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.id.as_str().as_bytes());
        bytes.extend(self.sandbox.to_le_bytes());
        bytes.extend(self.secret.to_le_bytes());
        bytes.extend(self.host.port.to_le_bytes());
        for text in [self.host.name.as_str(), &self.method, &self.path] {
            bytes.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        match &self.body {
            None => bytes.push(0),
            Some(body) => {
                bytes.push(1);
                bytes.extend(body.sha256);
                bytes.extend(body.bytes.to_le_bytes());
            }
        }
        let state = STATES.iter().position(|it| *it == self.state).unwrap_or(0);
        bytes.push(state as u8);
        bytes.extend(self.waiting.to_le_bytes());
        bytes.extend(self.asked_ms.to_le_bytes());
        bytes.extend(self.expires_ms.to_le_bytes());
    }

    /// Takes one from the front.
    pub fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let before = *bytes;
        let id: ApprovalId = text(bytes, ID_BYTES)?.parse().ok()?;
        let (sandbox, secret) = (number(bytes)?, number(bytes)?);
        let port = u16::from_le_bytes(take(bytes)?);
        let name = Name::from_text(long_text(bytes)?).ok()?;
        let method = long_text(bytes)?.to_owned();
        let path = long_text(bytes)?.to_owned();
        let body = match take(bytes)? {
            [0] => None,
            [_] => Some(BodyDigest {
                sha256: take(bytes)?,
                bytes: number(bytes)?,
            }),
        };
        let [state] = take(bytes)?;
        let asked = Self {
            id,
            sandbox,
            secret,
            host: SecretHost { name, port },
            method,
            path,
            body,
            state: *STATES.get(usize::from(state))?,
            waiting: number(bytes)?,
            asked_ms: u64::from_le_bytes(take(bytes)?),
            expires_ms: u64::from_le_bytes(take(bytes)?),
        };
        let shown = is_shown_whole(&asked.method, APPROVAL_METHOD_MAX)
            && is_shown_whole(&asked.path, APPROVAL_PATH_MAX);
        let mut again = Vec::new();
        asked.encode(&mut again);
        let given = &before[..before.len() - bytes.len()];
        (shown && again == given).then_some(asked)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(bytes)?))
}

fn text<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a str> {
    let (first, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(first).ok()
}

fn long_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let length = u16::from_le_bytes(take(bytes)?);
    text(bytes, usize::from(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked {
            id: ApprovalId::random(),
            sandbox: 1,
            secret: 2,
            host: "api.example:8443".parse().unwrap(),
            method: "POST".into(),
            path: "/v1/charges?a=b".into(),
            body: Some(BodyDigest {
                sha256: [7; 32],
                bytes: 12,
            }),
            state: ApprovalState::Timed,
            waiting: 3,
            asked_ms: 4,
            expires_ms: u64::MAX,
        }
    }

    fn read(bytes: &[u8]) -> Option<Asked> {
        let mut rest = bytes;
        Asked::decode(&mut rest).filter(|_| rest.is_empty())
    }

    #[test]
    fn an_approval_has_one_form() {
        for body in [asked().body, None] {
            let asked = Asked { body, ..asked() };
            let mut bytes = Vec::new();
            asked.encode(&mut bytes);
            assert_eq!(read(&bytes), Some(asked));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), None);
            }
            // No changed byte reads as the same thing.
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 0x40;
                assert_ne!(read(&other), read(&bytes), "byte {at}");
            }
        }
    }

    #[test]
    fn what_a_person_would_misread_is_refused() {
        let long = format!("/{}", "x".repeat(APPROVAL_PATH_MAX));
        for path in ["", "/a b", "/a\nb", "/\u{1b}[2J", "/\u{e9}", &long] {
            let mut bytes = Vec::new();
            let path = path.to_owned();
            Asked { path, ..asked() }.encode(&mut bytes);
            assert_eq!(read(&bytes), None);
        }
        for method in ["", "GET /", "\u{202e}TEG"] {
            let mut bytes = Vec::new();
            let method = method.to_owned();
            Asked { method, ..asked() }.encode(&mut bytes);
            assert_eq!(read(&bytes), None);
        }
    }
}
