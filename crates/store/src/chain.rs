//! The chain of an organisation's audit records: each record's hash covers the hash before it and every
//! field of its own, so that one that was changed, removed, added or moved breaks the chain from there
//! on. Whoever keeps a head (the last sequence and its hash) elsewhere also notices when the whole
//! chain was written anew.
//!
//! What is hashed is text that any program can make from an exported record. It is SHA-256, in
//! lowercase hexadecimal, of these lines, each ended by a newline: `cove-audit 1`, `previous HASH`, and
//! for each of `org`, `sequence`, `at` (microseconds since 1970), `key`, `action`, `target`, `source`,
//! `request_id`, `result` and `detail` the line `NAME -` if it is absent, else `NAME LENGTH` (bytes of
//! UTF-8) followed by the value and a newline.

use sha2::{Digest, Sha256};

use crate::AuditRecord;
use crate::sql::micros;

/// The hash before the first record.
pub const AUDIT_GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Where a chain begins and ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditHead {
    pub sequence: u64,
    /// Of the last record; [`AUDIT_GENESIS`] before the first.
    pub hash: String,
    /// The last record that retention has removed, or 0.
    pub anchor_sequence: u64,
    pub anchor_hash: String,
    /// Records up to this one are from before there were chains and have no hash.
    pub unchained: u64,
}

/// The first record that does not follow from the one before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainBreak {
    #[error("record {sequence} is missing")]
    Missing { sequence: u64 },
    #[error("record {sequence} was changed, or one before it was changed or removed")]
    Changed { sequence: u64 },
    #[error("record {sequence} has no hash")]
    Unhashed { sequence: u64 },
    #[error("record {sequence} is the last one, and the head's hash is another one")]
    Head { sequence: u64 },
}

impl ChainBreak {
    pub fn sequence(&self) -> u64 {
        match self {
            Self::Missing { sequence }
            | Self::Changed { sequence }
            | Self::Unhashed { sequence }
            | Self::Head { sequence } => *sequence,
        }
    }
}

/// The hash of a record that follows one with the hash `previous`.
pub fn audit_hash(previous: &str, record: &AuditRecord) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("cove-audit 1\nprevious {previous}\n"));
    let mut field = |name: &str, value: Option<&str>| match value {
        None => hash.update(format!("{name} -\n")),
        Some(value) => hash.update(format!("{name} {}\n{value}\n", value.len())),
    };
    field("org", Some(record.org.as_str()));
    field("sequence", Some(&record.sequence.to_string()));
    field("at", Some(&micros(record.at).to_string()));
    field("key", record.key.as_ref().map(|key| key.as_str()));
    field("action", Some(&record.action));
    field("target", record.target.as_deref());
    field("source", record.source.as_deref());
    field("request_id", record.request_id.as_deref());
    field("result", Some(&record.result));
    field("detail", record.detail.as_deref());
    hex::encode(hash.finalize())
}

/// Checks a chain record by record, oldest first, in constant memory.
#[derive(Debug, Clone)]
pub struct ChainCheck {
    /// The last record seen.
    sequence: u64,
    hash: String,
    unchained: u64,
}

impl ChainCheck {
    /// Begins after what retention has removed.
    pub fn after(head: &AuditHead) -> Self {
        Self {
            sequence: head.anchor_sequence,
            hash: head.anchor_hash.clone(),
            unchained: head.unchained,
        }
    }

    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    pub fn take(&mut self, record: &AuditRecord) -> Result<(), ChainBreak> {
        let sequence = self.sequence + 1;
        if record.sequence != sequence {
            return Err(ChainBreak::Missing { sequence });
        }
        if record.hash.is_empty() {
            if sequence > self.unchained {
                return Err(ChainBreak::Unhashed { sequence });
            }
        } else if record.hash != audit_hash(&self.hash, record) {
            return Err(ChainBreak::Changed { sequence });
        } else {
            self.hash.clone_from(&record.hash);
        }
        self.sequence = sequence;
        Ok(())
    }

    /// To be asked after the last record.
    pub fn ends_at(&self, head: &AuditHead) -> Result<(), ChainBreak> {
        if self.sequence < head.sequence {
            return Err(ChainBreak::Missing {
                sequence: self.sequence + 1,
            });
        }
        if self.sequence == head.sequence && self.hash != head.hash {
            return Err(ChainBreak::Head {
                sequence: self.sequence,
            });
        }
        Ok(())
    }
}
