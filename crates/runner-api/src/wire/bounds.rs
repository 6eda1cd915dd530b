//! What a request may ask for at most, whoever sends it. Specs, policies and sources of images are checked by
//! the host.

use super::Request;
use crate::RunnerError;

/// Names of images and of jobs.
const NAME_BYTES_MAX: usize = cove_model::spec::IMAGE_REF_MAX;
/// Between asking a sandbox to stop and stopping it.
const GRACE_MAX_MS: u64 = cove_limits::STOP_GRACE_MAX_MS;
/// The longest a caller may ask to wait for events and for entries of a log.
const WAIT_MAX_MS: u64 = 60_000;
/// Entries of a log in one answer.
const EGRESS_ENTRIES_MAX: u32 = 1000;

impl Request {
    /// Refuses names that are too long, and shortens waits and answers.
    pub fn bound(&mut self) -> Result<(), RunnerError> {
        match self {
            Self::Stop { grace_ms, .. } => *grace_ms = (*grace_ms).min(GRACE_MAX_MS),
            Self::Events { wait_ms, .. } | Self::BudgetsWanted { wait_ms } => {
                *wait_ms = (*wait_ms).min(WAIT_MAX_MS);
            }
            Self::Egress { query } => {
                query.wait_ms = query.wait_ms.min(WAIT_MAX_MS);
                query.limit = query.limit.min(EGRESS_ENTRIES_MAX);
            }
            Self::LogRefusals { refusals, .. } if !refusals.is_bounded() => {
                let message = "these are no refusals".to_owned();
                return Err(RunnerError::Invalid { message });
            }
            Self::ImageFromSnapshot { name: text, .. }
            | Self::ImageJob { id: text }
            | Self::RemoveImage { id: text }
                if text.len() > NAME_BYTES_MAX =>
            {
                let message = format!("a name has at most {NAME_BYTES_MAX} bytes");
                return Err(RunnerError::Invalid { message });
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the answer tells of everything there is.
    pub fn is_list(&self) -> bool {
        matches!(
            self,
            Self::List | Self::Samples | Self::Snapshots | Self::Volumes | Self::Images
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Refusals, RefusedName};
    use cove_model::SandboxId;

    #[test]
    fn refused_names_are_few_and_plain() {
        let request = |names: Vec<String>| {
            let named = |name| RefusedName { name, queries: 1 };
            let refusals = Refusals {
                names: names.into_iter().map(named).collect(),
                more: u64::MAX,
                addresses: u64::MAX,
            };
            let id = SandboxId::random();
            Request::LogRefusals { id, refusals }
        };
        let most = cove_limits::REFUSED_NAMES_MAX;
        request(vec!["pypi.org".into(); most]).bound().unwrap();
        for bad in [
            vec!["pypi.org".to_owned(); most + 1],
            vec!["x".repeat(cove_limits::DOMAIN_NAME_MAX + 1)],
            vec![String::new()],
            vec!["a\nb".into()],
            vec!["\u{1b}[2J".into()],
            vec!["caf\u{e9}".into()],
        ] {
            assert!(request(bad.clone()).bound().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn long_names_are_refused_and_long_waits_shortened() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for mut request in [
            Request::ImageJob { id: long.clone() },
            Request::RemoveImage { id: long },
        ] {
            assert!(request.bound().is_err(), "{request:?}");
        }
        let mut stop = Request::Stop {
            id: SandboxId::random(),
            grace_ms: u64::MAX,
        };
        stop.bound().unwrap();
        let Request::Stop { grace_ms, .. } = stop else {
            panic!("it became something else");
        };
        assert_eq!(grace_ms, GRACE_MAX_MS);
    }
}
