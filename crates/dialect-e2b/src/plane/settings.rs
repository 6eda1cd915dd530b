//! E2B's timeouts as a Cove policy, and back.
//!
//! A timeout there is the moment a sandbox is killed or paused. Killed is Cove's longest lifetime, moved
//! along. Paused is Cove's idle time: one that is being used is not put away under its user's hands.

use cove_control::Sandbox;
use cove_model::IdlePolicy;
use cove_model::spec::SECONDS_MAX;
use time::{Duration, OffsetDateTime};

use super::shapes::NewSandbox;
use crate::refusal::Refusal;

/// What a sandbox is given when its maker does not say.
pub const DEFAULT_TIMEOUT_S: u64 = 300;
/// An end that never comes, in a form every client can read.
const FOR_EVER: Duration = Duration::days(3650);

pub fn seconds(timeout: Option<i64>) -> Result<u64, Refusal> {
    let Some(timeout) = timeout else {
        return Ok(DEFAULT_TIMEOUT_S);
    };
    u64::try_from(timeout)
        .ok()
        .filter(|seconds| *seconds <= SECONDS_MAX / 2)
        // One that is over at once still has to be made.
        .map(|seconds| seconds.max(1))
        .ok_or_else(|| {
            Refusal::invalid(format!("timeout must be between 0 and {}", SECONDS_MAX / 2))
        })
}

pub fn lifecycle(request: &NewSandbox) -> Result<IdlePolicy, Refusal> {
    let timeout = seconds(request.timeout)?;
    let memory = request.auto_pause_memory.unwrap_or(true);
    let mut policy = IdlePolicy {
        auto_resume: request.auto_resume.as_ref().is_none_or(|a| a.enabled),
        ..IdlePolicy::default()
    };
    match (request.auto_pause.unwrap_or(false), memory) {
        (false, _) => policy.max_lifetime_s = Some(timeout),
        (true, true) => policy.pause_after_s = Some(timeout),
        (true, false) => policy.stop_after_s = Some(timeout),
    }
    Ok(policy)
}

/// Whether its end is a pause.
pub fn rests(policy: &IdlePolicy) -> bool {
    policy.pause_after_s.is_some() || policy.stop_after_s.is_some()
}

/// The policy with so many seconds from now on.
pub fn prolonged(sandbox: &Sandbox, timeout: u64, age: std::time::Duration) -> IdlePolicy {
    let mut policy = sandbox.spec.lifecycle.clone();
    if policy.stop_after_s.is_some() {
        policy.stop_after_s = Some(timeout);
    } else if policy.pause_after_s.is_some() {
        policy.pause_after_s = Some(timeout);
    } else {
        policy.max_lifetime_s = Some(age.as_secs().saturating_add(timeout));
    }
    policy
}

/// When it will be killed or paused, by what is known now.
pub fn end(sandbox: &Sandbox) -> OffsetDateTime {
    let policy = &sandbox.spec.lifecycle;
    let after = |since: OffsetDateTime, seconds: u64| {
        since.saturating_add(Duration::seconds(
            i64::try_from(seconds).unwrap_or(i64::MAX),
        ))
    };
    let idle = policy.pause_after_s.or(policy.stop_after_s);
    match (policy.max_lifetime_s, idle) {
        (Some(seconds), _) => after(sandbox.created_at, seconds),
        (None, Some(seconds)) => after(sandbox.last_active_at, seconds),
        (None, None) => sandbox.created_at.saturating_add(FOR_EVER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(json: &str) -> Result<IdlePolicy, Refusal> {
        lifecycle(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn timeouts_kill_unless_they_are_to_pause() {
        let kills = asked(r#"{"templateID":"base","timeout":60}"#).unwrap();
        assert_eq!((kills.max_lifetime_s, rests(&kills)), (Some(60), false));
        let default = asked(r#"{"templateID":"base"}"#).unwrap();
        assert_eq!(default.max_lifetime_s, Some(DEFAULT_TIMEOUT_S));
        let pauses = asked(r#"{"templateID":"base","timeout":60,"autoPause":true}"#).unwrap();
        assert_eq!(
            (pauses.max_lifetime_s, pauses.pause_after_s),
            (None, Some(60))
        );
        let stops =
            asked(r#"{"templateID":"base","autoPause":true,"autoPauseMemory":false}"#).unwrap();
        assert_eq!(stops.stop_after_s, Some(DEFAULT_TIMEOUT_S));
    }

    #[test]
    fn timeouts_that_make_no_sense_are_refused() {
        for timeout in ["-1", "99999999999"] {
            let json = format!(r#"{{"templateID":"base","timeout":{timeout}}}"#);
            assert!(asked(&json).is_err(), "{timeout}");
        }
    }
}
