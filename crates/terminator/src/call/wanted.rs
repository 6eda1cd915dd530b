//! What the process needs of budgets and what it gives back, as it tells of them: integers, with exactly one form.

use cove_model::secret::BudgetUnit;
use serde::{Deserialize, Serialize};

/// Records that one answer tells of; further ones are told next time.
pub const WANTED_MAX: usize = 2048;
pub const WANTED_BYTES: usize = 2 + 4 + 4 + 4 + 8 + 8;

/// A budget of a secret: all of a sandbox's by itself, or what sandboxes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Purse {
    /// The secret's slot.
    pub secret: u32,
    /// The sandbox's slot; absent where sandboxes share it.
    pub sandbox: Option<u32>,
    pub of: BudgetUnit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Requests wait for so much; `more` could be used soon.
    Need {
        purse: Purse,
        /// The slot of a sandbox that asks.
        asker: u32,
        need: u64,
        more: u64,
    },
    /// It was given that day (since 1970) and is not used.
    Back { purse: Purse, day: u32, amount: u64 },
}

const OWN: u8 = 1;
const SHARED: u8 = 0;
const BACK: u8 = 2;

impl Wanted {
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, purse, third, first, second) = match *self {
            Self::Need {
                purse,
                asker,
                need,
                more,
            } => (0, purse, asker, need, more),
            Self::Back { purse, day, amount } => (BACK, purse, day, amount, 0),
        };
        let own = if purse.sandbox.is_some() { OWN } else { SHARED };
        let of = BudgetUnit::ALL.iter().position(|it| *it == purse.of);
        bytes.push(kind | own);
        bytes.push(of.unwrap_or(0) as u8);
        bytes.extend(purse.secret.to_le_bytes());
        bytes.extend(purse.sandbox.unwrap_or(0).to_le_bytes());
        bytes.extend(third.to_le_bytes());
        bytes.extend(first.to_le_bytes());
        bytes.extend(second.to_le_bytes());
    }

    pub fn decode(bytes: &[u8; WANTED_BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (kind, sandbox) = (bytes[0], word(6)?);
        let purse = Purse {
            secret: word(2)?,
            sandbox: (kind & OWN == OWN).then_some(sandbox),
            of: *BudgetUnit::ALL.get(usize::from(bytes[1]))?,
        };
        let (third, first, second) = (word(10)?, long(14)?, long(22)?);
        let wanted = match kind & !OWN {
            0 => Self::Need {
                purse,
                asker: third,
                need: first,
                more: second,
            },
            BACK => Self::Back {
                purse,
                day: third,
                amount: first,
            },
            _ => return None,
        };
        let mut again = Vec::with_capacity(WANTED_BYTES);
        wanted.encode(&mut again);
        (again == bytes).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_form() {
        for sandbox in [None, Some(7), Some(0)] {
            let purse = Purse {
                secret: 3,
                sandbox,
                of: BudgetUnit::Bytes,
            };
            let (asker, need, more) = (9, u64::MAX, 1);
            let need = Wanted::Need {
                purse,
                asker,
                need,
                more,
            };
            let (day, amount) = (20_000, 5);
            for wanted in [need, Wanted::Back { purse, day, amount }] {
                let mut bytes = Vec::new();
                wanted.encode(&mut bytes);
                let bytes: [u8; WANTED_BYTES] = bytes.try_into().unwrap();
                assert_eq!(Wanted::decode(&bytes), Some(wanted));
                for at in 0..WANTED_BYTES {
                    for bit in 0..8 {
                        let mut other = bytes;
                        other[at] ^= 1 << bit;
                        assert_ne!(Wanted::decode(&other), Some(wanted), "byte {at}");
                    }
                }
            }
        }
    }
}
