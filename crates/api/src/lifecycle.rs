//! When a sandbox is put away, how it wakes and which states of it are kept, on the wire.

use cove_model::{AutoSnapshot as ModelAutoSnapshot, IdlePolicy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a sandbox that nobody uses is put away; absent: never. The times must grow in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lifecycle {
    /// Its processes hold still, memory kept; it wakes within milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub freeze_after_s: Option<u64>,
    /// Its memory goes to disk: no CPU and no memory, and it goes on where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub pause_after_s: Option<u64>,
    /// Its processes end, its disk is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub stop_after_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub delete_after_s: Option<u64>,
    /// Counted from creation, idle or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub max_lifetime_s: Option<u64>,
    /// Whether a request that needs it wakes it when it is frozen or paused; default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_snapshot: Option<AutoSnapshot>,
}

/// Snapshots of the disk taken without being asked for, when something changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AutoSnapshot {
    /// At this pace while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::AUTO_SNAPSHOT_EVERY_MIN_S, max = cove_limits::SECONDS_MAX))]
    pub every_s: Option<u64>,
    /// Before each command.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub before_exec: bool,
    /// So many of the newest are kept; default: 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::AUTO_SNAPSHOTS_MAX))]
    pub keep: Option<u32>,
}

impl From<Lifecycle> for IdlePolicy {
    fn from(lifecycle: Lifecycle) -> Self {
        Self {
            freeze_after_s: lifecycle.freeze_after_s,
            pause_after_s: lifecycle.pause_after_s,
            stop_after_s: lifecycle.stop_after_s,
            delete_after_s: lifecycle.delete_after_s,
            max_lifetime_s: lifecycle.max_lifetime_s,
            auto_resume: lifecycle.auto_resume.unwrap_or(true),
            auto_snapshot: lifecycle.auto_snapshot.map(Into::into),
        }
    }
}

impl From<&IdlePolicy> for Lifecycle {
    fn from(policy: &IdlePolicy) -> Self {
        Self {
            freeze_after_s: policy.freeze_after_s,
            pause_after_s: policy.pause_after_s,
            stop_after_s: policy.stop_after_s,
            delete_after_s: policy.delete_after_s,
            max_lifetime_s: policy.max_lifetime_s,
            auto_resume: Some(policy.auto_resume),
            auto_snapshot: policy.auto_snapshot.as_ref().map(Into::into),
        }
    }
}

impl From<AutoSnapshot> for ModelAutoSnapshot {
    fn from(auto: AutoSnapshot) -> Self {
        let base = Self::default();
        Self {
            every_s: auto.every_s,
            before_exec: auto.before_exec,
            keep: auto.keep.unwrap_or(base.keep),
        }
    }
}

impl From<&ModelAutoSnapshot> for AutoSnapshot {
    fn from(auto: &ModelAutoSnapshot) -> Self {
        Self {
            every_s: auto.every_s,
            before_exec: auto.before_exec,
            keep: Some(auto.keep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_reaches_the_policy_and_comes_back() {
        let body = serde_json::json!({
            "freeze_after_s": 1, "pause_after_s": 2, "stop_after_s": 3, "delete_after_s": 4,
            "max_lifetime_s": 5, "auto_resume": false,
            "auto_snapshot": {"every_s": 60, "before_exec": true, "keep": 7},
        });
        let lifecycle: Lifecycle = serde_json::from_value(body.clone()).unwrap();
        let policy = IdlePolicy::from(lifecycle);
        assert_eq!(serde_json::to_value(&policy).unwrap(), body);
        assert_eq!(
            serde_json::to_value(Lifecycle::from(&policy)).unwrap(),
            body
        );
    }

    #[test]
    fn nothing_said_is_the_default_policy() {
        assert_eq!(
            IdlePolicy::from(Lifecycle::default()),
            IdlePolicy::default()
        );
    }
}
