//! When a sandbox is put away, how it wakes and which states of it are kept, on the wire.

use cove_model::{AutoSnapshot as ModelAutoSnapshot, IdlePolicy, Lease as ModelLease, LeaseTimes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sandbox::null_or_absent;

/// When an idle sandbox is frozen, paused, stopped or deleted; absent: never. The times must
/// increase in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lifecycle {
    /// Freeze an idle sandbox after this time, in seconds: its processes are suspended in memory.
    /// It wakes within milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub freeze_after_s: Option<u64>,
    /// Pause an idle sandbox after this time, in seconds: its memory is saved to disk. It resumes
    /// where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub pause_after_s: Option<u64>,
    /// Stop an idle sandbox after this time, in seconds: its processes end, its disk is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub stop_after_s: Option<u64>,
    /// Delete an idle sandbox after this time, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub delete_after_s: Option<u64>,
    /// Delete the sandbox this many seconds after its creation, idle or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub max_lifetime_s: Option<u64>,
    /// Whether requests wake it when it is frozen or paused; default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// When to take snapshots automatically.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_snapshot: Option<AutoSnapshot>,
}

/// When a new sandbox that nobody uses is put away. Fields that are absent are the template's, else unset; `null` unsets
/// one that the template has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LifecycleRequest {
    /// Freeze an idle sandbox after this time, in seconds: its processes are suspended in memory.
    /// It wakes within milliseconds.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<u64>", range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub freeze_after_s: Option<Option<u64>>,
    /// Pause an idle sandbox after this time, in seconds: its memory is saved to disk. It resumes
    /// where it was.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<u64>", range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub pause_after_s: Option<Option<u64>>,
    /// Stop an idle sandbox after this time, in seconds: its processes end, its disk is kept.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<u64>", range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub stop_after_s: Option<Option<u64>>,
    /// Delete an idle sandbox after this time, in seconds.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<u64>", range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub delete_after_s: Option<Option<u64>>,
    /// Delete the sandbox this many seconds after its creation, idle or not.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<u64>", range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub max_lifetime_s: Option<Option<u64>>,
    /// Whether requests wake it when it is frozen or paused; default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// When to take snapshots automatically; replaces the template's setting as a whole.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "null_or_absent"
    )]
    #[schemars(with = "Option<AutoSnapshot>")]
    pub auto_snapshot: Option<Option<AutoSnapshot>>,
    /// Lease: the sandbox is paused when its holder does not renew it, and deleted later. Absent:
    /// no lease. Templates have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRequest>,
}

/// A lease to start or to take over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// Name that the holder chose; renewals must give the same name.
    #[schemars(length(min = 1, max = cove_limits::LEASE_HOLDER_MAX))]
    pub holder: String,
    /// Seconds without a renewal after which the sandbox is paused, or stopped where it cannot be
    /// paused. Default: as before when a lease is taken over, else the server's setting
    /// `lease_renew_s`, 300 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub renew_within_s: Option<u64>,
    /// Seconds after that at which it is deleted. Default: as before when a lease is taken over, else
    /// the server's setting `lease_delete_after_s`, 86400 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub delete_after_s: Option<u64>,
}

impl LeaseRequest {
    /// What is not given is as the server is set.
    pub fn with_times(self, times: LeaseTimes) -> Self {
        Self {
            holder: self.holder,
            renew_within_s: self.renew_within_s.or(Some(times.renew_within_s)),
            delete_after_s: self.delete_after_s.or(Some(times.delete_after_s)),
        }
    }

    /// What is not given is as in the present lease.
    pub fn over(self, present: Option<&ModelLease>) -> ModelLease {
        let base = present.cloned().unwrap_or_else(|| ModelLease::of(""));
        ModelLease {
            holder: self.holder,
            renew_within_s: self.renew_within_s.unwrap_or(base.renew_within_s),
            delete_after_s: self.delete_after_s.unwrap_or(base.delete_after_s),
            lapsed: None,
        }
    }
}

/// A lease: its holder must renew it regularly, else the sandbox is paused and later deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// Name that the holder chose.
    pub holder: String,
    /// Seconds without a renewal after which the sandbox is paused, or stopped where it cannot be paused.
    pub renew_within_s: u64,
    /// Seconds after that at which it is deleted.
    pub delete_after_s: u64,
    /// Whether the sandbox was paused or stopped because the lease was not renewed.
    pub lapsed: bool,
}

impl From<ModelLease> for Lease {
    fn from(lease: ModelLease) -> Self {
        Self {
            holder: lease.holder,
            renew_within_s: lease.renew_within_s,
            delete_after_s: lease.delete_after_s,
            lapsed: lease.lapsed.is_some(),
        }
    }
}

/// Query of `DELETE /v1/sandboxes/{id}` and `DELETE …/lease`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HolderQuery {
    /// Apply it only if this holder has the lease of the sandbox; otherwise the answer is 409.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::LEASE_HOLDER_MAX))]
    pub holder: Option<String>,
}

/// Body of `POST /v1/leases/renew`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewLeases {
    /// Holder of the leases.
    #[schemars(length(min = 1, max = cove_limits::LEASE_HOLDER_MAX))]
    pub holder: String,
    /// Ids of the sandboxes.
    #[schemars(length(min = 1, max = cove_limits::LEASES_RENEWED_MAX))]
    pub sandboxes: Vec<String>,
}

/// Answer of a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RenewedLeases {
    /// Ids of sandboxes that no longer exist or whose lease this holder does not have.
    pub lost: Vec<String>,
}

impl LifecycleRequest {
    pub fn over(self, base: IdlePolicy) -> IdlePolicy {
        let auto_snapshot = match self.auto_snapshot {
            None => base.auto_snapshot,
            Some(asked) => asked.map(Into::into),
        };
        IdlePolicy {
            freeze_after_s: self.freeze_after_s.unwrap_or(base.freeze_after_s),
            pause_after_s: self.pause_after_s.unwrap_or(base.pause_after_s),
            stop_after_s: self.stop_after_s.unwrap_or(base.stop_after_s),
            delete_after_s: self.delete_after_s.unwrap_or(base.delete_after_s),
            max_lifetime_s: self.max_lifetime_s.unwrap_or(base.max_lifetime_s),
            auto_resume: self.auto_resume.unwrap_or(base.auto_resume),
            auto_snapshot,
            lease: self.lease.map(|lease| lease.over(None)),
        }
    }
}

/// What the rules leave unset is left to the template.
impl From<Lifecycle> for LifecycleRequest {
    fn from(lifecycle: Lifecycle) -> Self {
        Self {
            freeze_after_s: lifecycle.freeze_after_s.map(Some),
            pause_after_s: lifecycle.pause_after_s.map(Some),
            stop_after_s: lifecycle.stop_after_s.map(Some),
            delete_after_s: lifecycle.delete_after_s.map(Some),
            max_lifetime_s: lifecycle.max_lifetime_s.map(Some),
            auto_resume: lifecycle.auto_resume,
            auto_snapshot: lifecycle.auto_snapshot.map(Some),
            lease: None,
        }
    }
}

/// Automatic snapshots of the disk. One is taken only if something changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AutoSnapshot {
    /// Interval in seconds while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::AUTO_SNAPSHOT_EVERY_MIN_S, max = cove_limits::SECONDS_MAX))]
    pub every_s: Option<u64>,
    /// Take one before each command.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub before_exec: bool,
    /// Number of newest ones to keep; default: 10.
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
            lease: None,
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
