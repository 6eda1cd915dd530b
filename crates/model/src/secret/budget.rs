//! Budgets of secrets: how much requests that use one may use in all.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::refused;
use crate::spec::SpecError;

pub use cove_limits::{SECRET_LIMIT_MAX, SECRET_LIMITS_MAX};

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BudgetUnit {
    /// Requests that the secret was put into.
    Requests,
    /// Bytes of these requests and of their answers.
    Bytes,
}

/// Who shares a limit, and whether it renews.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    /// Each sandbox by itself, over its whole life.
    Sandbox,
    /// All sandboxes of the organisation together, each day in UTC.
    Day,
    /// All sandboxes of the organisation together, over the whole life of the secret.
    Organisation,
}

/// A limit on what requests with a secret may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretLimit {
    /// What is counted.
    pub of: BudgetUnit,
    /// Who shares it.
    pub per: BudgetScope,
    /// The most that may be used.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = SECRET_LIMIT_MAX)))]
    pub max: u64,
}

impl BudgetUnit {
    pub const ALL: [Self; 2] = [Self::Requests, Self::Bytes];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bytes => "bytes",
        }
    }
}

impl BudgetScope {
    pub const ALL: [Self; 3] = [Self::Sandbox, Self::Day, Self::Organisation];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Day => "day",
            Self::Organisation => "organisation",
        }
    }
}

pub(super) fn check_limits(limits: &[SecretLimit]) -> Result<(), SpecError> {
    if limits.len() > SECRET_LIMITS_MAX {
        return Err(refused(
            "limits",
            format!("at most {SECRET_LIMITS_MAX} limits"),
        ));
    }
    for (index, limit) in limits.iter().enumerate() {
        if !(1..=SECRET_LIMIT_MAX).contains(&limit.max) {
            return Err(refused(
                "limits",
                format!("{}: must be 1 to {SECRET_LIMIT_MAX}", limit.name()),
            ));
        }
        let mut before = limits[..index].iter();
        if before.any(|it| (it.of, it.per) == (limit.of, limit.per)) {
            return Err(refused(
                "limits",
                format!("{} is there twice", limit.name()),
            ));
        }
    }
    Ok(())
}

impl SecretLimit {
    /// What it limits, like `requests per day`.
    pub fn name(&self) -> String {
        format!("{} per {}", self.of.as_str(), self.per.as_str())
    }
}

/// Like `requests=1000/day`.
impl fmt::Display for SecretLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}/{}", self.of.as_str(), self.max, self.per.as_str())
    }
}

impl FromStr for SecretLimit {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let shown: String = text.chars().take(80).collect();
        let wrong = || {
            let units = BudgetUnit::ALL.map(BudgetUnit::as_str).join(", ");
            let scopes = BudgetScope::ALL.map(BudgetScope::as_str).join(", ");
            refused(
                "limits",
                format!(
                    "'{}': write UNIT=NUMBER/SCOPE, like requests=1000/day; units: {units}; scopes: {scopes}",
                    shown.escape_debug()
                ),
            )
        };
        let (of, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (max, per) = rest.split_once('/').ok_or_else(wrong)?;
        let of = BudgetUnit::ALL.into_iter().find(|it| it.as_str() == of);
        let per = BudgetScope::ALL.into_iter().find(|it| it.as_str() == per);
        let digits = !max.is_empty() && max.bytes().all(|b| b.is_ascii_digit());
        let limit = Self {
            of: of.ok_or_else(wrong)?,
            per: per.ok_or_else(wrong)?,
            max: max.parse().ok().filter(|_| digits).ok_or_else(wrong)?,
        };
        check_limits(&[limit])?;
        Ok(limit)
    }
}

/// The largest part of a budget's rest that a host is given ahead of use: what is lost with a terminator that dies.
pub const BLOCK_PART: u64 = 16;

/// How much of what is left a host gets that needs so much now, and could use more.
pub fn block(left: u64, need: u64, more: u64) -> u64 {
    let ahead = need.saturating_add(more).min(left / BLOCK_PART);
    left.min(need.max(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_text() {
        for text in [
            "requests=1000/day",
            "bytes=1/sandbox",
            "bytes=5/organisation",
        ] {
            assert_eq!(text.parse::<SecretLimit>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "requests",
            "requests=10",
            "requests=/day",
            "requests=0/day",
            "requests=-1/day",
            "requests=+1/day",
            "requests=1e3/day",
            "requests=18446744073709551616/day",
            "requests=1000000000000001/day",
            "requests=1/Day",
            "Requests=1/day",
            "calls=1/day",
            "requests=1/day/sandbox",
        ] {
            assert!(bad.parse::<SecretLimit>().is_err(), "{bad:?} was accepted");
        }
        let day: SecretLimit = "requests=1/day".parse().unwrap();
        assert!(check_limits(&[day, day]).is_err());
        assert!(check_limits(&[day, "requests=1/sandbox".parse().unwrap()]).is_ok());
    }

    #[test]
    fn a_block_is_no_more_than_what_is_left_and_ahead_only_a_small_part() {
        for (left, need, more, got) in [
            (0, 1, 0, 0),
            (10, 1, 0, 1),
            (10, 1, 100, 1),
            (1600, 1, 1000, 100),
            (1600, 1, 9, 10),
            (1600, 500, 1000, 500),
            (3, 100, 0, 3),
            (u64::MAX, u64::MAX, u64::MAX, u64::MAX),
        ] {
            assert_eq!(block(left, need, more), got, "{left} {need} {more}");
        }
    }
}
