//! A sandbox in Daytona's words, and the other way round: intervals, networks, sizes.
//!
//! What Daytona knows of a sandbox and Cove's record has no field for (that it is archived, that it is
//! public, when it is to be deleted after a stop) stands in labels of our own, which Daytona's callers
//! neither see nor set.

use std::collections::BTreeMap;

use cove_control::{ControlError, Sandbox};
use cove_model::network::{Entry, NetworkMode};
use cove_model::{IdlePolicy, NetworkPolicy, State};
use serde::Serialize;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::refusal::Refusal;

/// What our own labels begin with.
const OWN: &str = cove_model::spec::RESERVED_LABELS[0];
pub const ARCHIVED: &str = "daytona:archived";
pub const PUBLIC: &str = "daytona:public";
const AUTO_ARCHIVE: &str = "daytona:auto-archive";
const AUTO_DELETE: &str = "daytona:auto-delete";
/// Where every sandbox runs.
pub const TARGET: &str = "local";
const MB_PER_GIB: u64 = 1024;
/// Ten years; more is a mistake.
const MINUTES_MAX: i64 = 10 * 366 * 24 * 60;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDto {
    pub id: String,
    organization_id: String,
    pub name: String,
    snapshot: String,
    user: String,
    env: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    public: bool,
    network_block_all: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_allow_list: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain_allow_list: Option<String>,
    kvm: bool,
    target: &'static str,
    pub cpu: u64,
    gpu: u64,
    pub memory: u64,
    pub disk: u64,
    pub state: &'static str,
    desired_state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_reason: Option<String>,
    recoverable: bool,
    backup_state: &'static str,
    auto_stop_interval: i64,
    auto_pause_interval: i64,
    auto_archive_interval: i64,
    auto_delete_interval: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_destroy_at: Option<String>,
    volumes: Vec<VolumeDto>,
    pub created_at: String,
    updated_at: String,
    last_activity_at: String,
    sandbox_class: &'static str,
    toolbox_proxy_url: String,
}

/// A volume that a sandbox has from the snapshot it was made from.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct VolumeDto {
    volume_id: String,
    mount_path: String,
}

pub fn sandbox(sandbox: Sandbox, toolbox: String) -> SandboxDto {
    let intervals = Intervals::of(&sandbox);
    let state = state(&sandbox);
    let spec = sandbox.spec;
    let mounted = spec.volumes.iter().map(|mount| VolumeDto {
        volume_id: mount.volume.to_string(),
        mount_path: mount.path.clone(),
    });
    let mounted = mounted.collect();
    let (addresses, names) = lists(&spec.network);
    let lifetime = spec.lifecycle.max_lifetime_s;
    let ends = lifetime.map(|s| sandbox.created_at + Duration::seconds(s.cast_signed()));
    SandboxDto {
        name: spec.name.unwrap_or_else(|| sandbox.id.to_string()),
        id: sandbox.id.to_string(),
        organization_id: sandbox.org.to_string(),
        snapshot: sandbox
            .origin
            .map_or(spec.image, |snapshot| snapshot.to_string()),
        user: spec.user.unwrap_or_else(|| "root".into()),
        env: spec.env,
        public: spec.labels.contains_key(PUBLIC),
        labels: theirs(spec.labels),
        network_block_all: spec.network.mode == NetworkMode::None,
        network_allow_list: addresses,
        domain_allow_list: names,
        kvm: false,
        target: TARGET,
        cpu: sandbox.limits.cpu.ceil() as u64,
        gpu: 0,
        memory: sandbox.limits.memory_mb.div_ceil(MB_PER_GIB),
        disk: sandbox.limits.disk_mb.div_ceil(MB_PER_GIB),
        state,
        desired_state: match state {
            "archived" => "archived",
            "destroying" | "destroyed" => "destroyed",
            "stopping" | "stopped" => "stopped",
            _ => "started",
        },
        recoverable: sandbox.state == State::Failed,
        error_reason: sandbox.reason.filter(|_| sandbox.state == State::Failed),
        backup_state: "None",
        auto_stop_interval: intervals.stop.unwrap_or(0),
        auto_pause_interval: intervals.pause.unwrap_or(0),
        auto_archive_interval: intervals.archive.unwrap_or(0),
        auto_delete_interval: intervals.delete.unwrap_or(-1),
        auto_destroy_at: ends.map(time_text),
        volumes: mounted,
        created_at: time_text(sandbox.created_at),
        updated_at: time_text(sandbox.updated_at),
        last_activity_at: time_text(sandbox.last_active_at),
        sandbox_class: "container",
        toolbox_proxy_url: toolbox,
    }
}

pub fn time_text(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}

/// A stopped sandbox takes neither CPU nor memory here, which is what archiving is for; so archived is
/// a stopped one that somebody asked to archive, or that was left alone for as long as was set.
fn state(sandbox: &Sandbox) -> &'static str {
    match sandbox.state {
        State::Stopped if sandbox.spec.labels.contains_key(ARCHIVED) => "archived",
        State::Stopped => {
            let after = Intervals::of(sandbox)
                .archive
                .filter(|minutes| *minutes > 0);
            let rested = OffsetDateTime::now_utc() - sandbox.updated_at;
            match after {
                Some(minutes) if rested >= Duration::minutes(minutes) => "archived",
                _ => "stopped",
            }
        }
        other => state_word(other),
    }
}

/// The word for a state of which nothing else is known.
pub fn state_word(state: State) -> &'static str {
    match state {
        State::Creating => "creating",
        // A frozen one goes on by itself as soon as anybody asks for anything.
        State::Running | State::Frozen => "started",
        State::Pausing => "pausing",
        State::Paused => "paused",
        State::Resuming => "resuming",
        State::Restoring => "restoring",
        State::Stopping => "stopping",
        State::Stopped => "stopped",
        State::Failed => "error",
        State::Deleting => "destroying",
        State::Gone => "destroyed",
    }
}

/// The states of ours that may be shown as one of Daytona's.
pub fn states(theirs: &str) -> Option<&'static [State]> {
    Some(match theirs {
        "creating" | "starting" => &[State::Creating],
        "started" => &[State::Running, State::Frozen],
        "pausing" => &[State::Pausing],
        "paused" => &[State::Paused],
        "resuming" => &[State::Resuming],
        "restoring" => &[State::Restoring],
        "stopping" => &[State::Stopping],
        "stopped" | "archived" => &[State::Stopped],
        "error" => &[State::Failed],
        "destroying" => &[State::Deleting],
        "destroyed" | "archiving" | "resizing" | "snapshotting" | "forking" | "pending_build"
        | "building_snapshot" | "pulling_snapshot" | "build_failed" | "unknown" => &[],
        _ => return None,
    })
}

/// Labels as Daytona's callers see them.
pub fn theirs(mut labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
    labels.retain(|key, _| !key.starts_with(OWN));
    labels
}

/// Our own labels of a sandbox with these of its caller.
pub fn relabelled(
    now: &BTreeMap<String, String>,
    theirs: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Refusal> {
    if let Some(key) = theirs.keys().find(|key| key.starts_with(OWN)) {
        return Err(Refusal::invalid(format!(
            "labels: '{}' is reserved",
            key.escape_debug()
        )));
    }
    let own = now.iter().filter(|(key, _)| key.starts_with(OWN));
    let own = own.map(|(key, value)| (key.clone(), value.clone()));
    Ok(theirs.into_iter().chain(own).collect())
}

/// Minutes, as Daytona counts them. Absent and 0 mean never, but for `delete`, where 0 means with the
/// stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Intervals {
    pub stop: Option<i64>,
    pub pause: Option<i64>,
    pub archive: Option<i64>,
    pub delete: Option<i64>,
    pub ttl: Option<i64>,
}

impl Intervals {
    pub fn of(sandbox: &Sandbox) -> Self {
        let minutes = |seconds: Option<u64>| seconds.map(|s| s.div_ceil(60).cast_signed());
        let label = |key| sandbox.spec.labels.get(key)?.parse().ok();
        let policy = &sandbox.spec.lifecycle;
        Self {
            stop: minutes(policy.stop_after_s),
            pause: minutes(policy.pause_after_s),
            archive: label(AUTO_ARCHIVE),
            delete: label(AUTO_DELETE),
            ttl: minutes(policy.max_lifetime_s),
        }
    }

    pub fn check(self) -> Result<Self, Refusal> {
        let all = [self.stop, self.pause, self.archive, self.ttl];
        let bad = all
            .into_iter()
            .flatten()
            .any(|n| !(0..=MINUTES_MAX).contains(&n));
        if bad
            || self
                .delete
                .is_some_and(|n| !(-MINUTES_MAX..=MINUTES_MAX).contains(&n))
        {
            let message = format!("intervals are minutes between 0 and {MINUTES_MAX}");
            return Err(Refusal::invalid(message));
        }
        let on = |interval: Option<i64>| interval.filter(|n| *n > 0);
        if on(self.stop).is_some() && on(self.pause).is_some() {
            return Err(Refusal::invalid(
                "autoStopInterval and autoPauseInterval cannot both be set",
            ));
        }
        Ok(self)
    }

    /// The labels that say what the policy cannot.
    pub fn label(self, labels: &mut BTreeMap<String, String>) {
        for (key, value) in [(AUTO_ARCHIVE, self.archive), (AUTO_DELETE, self.delete)] {
            match value {
                Some(minutes) => labels.insert(key.into(), minutes.to_string()),
                None => labels.remove(key),
            };
        }
    }

    /// Cove counts from the last activity, Daytona's deletion from the stop. One that stops or pauses
    /// by itself is deleted so much later; one that is only stopped by hand counts from the moment it
    /// is (`stopped_idle`: how long it was idle by then).
    pub fn policy(
        self,
        base: &IdlePolicy,
        stopped_idle: Option<std::time::Duration>,
    ) -> IdlePolicy {
        let seconds = |minutes: Option<i64>| {
            let minutes = minutes.filter(|n| *n > 0)?;
            Some(minutes.unsigned_abs() * 60)
        };
        let (stop, pause) = (seconds(self.stop), seconds(self.pause));
        let idle = stopped_idle.map(|idle| idle.as_secs());
        let delete = self.delete.filter(|n| *n >= 0).and_then(|minutes| {
            let from = stop.or(pause).or(idle)?;
            Some(from + (minutes.unsigned_abs() * 60).max(1))
        });
        IdlePolicy {
            stop_after_s: stop,
            pause_after_s: pause,
            delete_after_s: delete,
            max_lifetime_s: seconds(self.ttl),
            ..base.clone()
        }
    }
}

/// Addresses and names of an allowlist, each as Daytona's text.
pub fn lists(policy: &NetworkPolicy) -> (Option<String>, Option<String>) {
    if policy.mode != NetworkMode::Allowlist {
        return (None, None);
    }
    let is_address = |entry: &&Entry| entry.addresses().is_some();
    let (addresses, names): (Vec<&Entry>, Vec<&Entry>) = policy.entries().partition(is_address);
    let joined = |list: Vec<&Entry>| {
        let list: Vec<&str> = list.into_iter().map(Entry::as_str).collect();
        (!list.is_empty()).then(|| list.join(","))
    };
    (joined(addresses), joined(names))
}

/// Nothing said is the internet, as it is at Daytona; what is listed is all there is.
pub fn network(
    base: &NetworkPolicy,
    block_all: Option<bool>,
    addresses: Option<&str>,
    names: Option<&str>,
) -> Result<NetworkPolicy, Refusal> {
    let given = [addresses, names].into_iter().flatten();
    let parts = given.flat_map(|text| text.split(',')).map(str::trim);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    let allow = cove_dialect::network::entries(&parts).map_err(ControlError::from)?;
    let (mode, allow) = match (block_all.unwrap_or(false), allow.is_empty()) {
        (true, true) => (NetworkMode::None, None),
        (true, false) => {
            return Err(Refusal::invalid(
                "networkBlockAll and a list of what is allowed cannot go together",
            ));
        }
        (false, true) => (NetworkMode::Open, None),
        (false, false) => (NetworkMode::Allowlist, Some(allow)),
    };
    Ok(NetworkPolicy {
        mode,
        allow,
        ..base.clone()
    })
}

pub fn gib_to_mb(gib: u32) -> u64 {
    u64::from(gib) * MB_PER_GIB
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(intervals: Intervals, idle: Option<std::time::Duration>) -> IdlePolicy {
        let policy = intervals.policy(&IdlePolicy::default(), idle);
        policy.check().unwrap();
        policy
    }

    #[test]
    fn deletion_comes_after_the_stop_it_is_counted_from() {
        let both = Intervals {
            stop: Some(15),
            delete: Some(60),
            ..Intervals::default()
        };
        assert_eq!(policy(both, None).delete_after_s, Some(75 * 60));
        let ephemeral = Intervals {
            stop: Some(15),
            delete: Some(0),
            ..Intervals::default()
        };
        assert_eq!(policy(ephemeral, None).delete_after_s, Some(15 * 60 + 1));
    }

    #[test]
    fn what_never_stops_by_itself_is_not_deleted_while_it_runs() {
        let by_hand = Intervals {
            stop: Some(0),
            delete: Some(60),
            ..Intervals::default()
        };
        assert_eq!(policy(by_hand, None).delete_after_s, None);
        let idle = Some(std::time::Duration::from_secs(100));
        assert_eq!(policy(by_hand, idle).delete_after_s, Some(3700));
        let never = Intervals {
            delete: Some(-1),
            ..Intervals::default()
        };
        assert_eq!(policy(never, idle).delete_after_s, None);
    }

    #[test]
    fn stop_and_pause_exclude_each_other() {
        let both = Intervals {
            stop: Some(1),
            pause: Some(1),
            ..Intervals::default()
        };
        assert!(both.check().is_err());
        let one = Intervals {
            pause: Some(0),
            ..both
        };
        assert!(one.check().is_ok());
        assert!(
            Intervals {
                ttl: Some(-1),
                ..one
            }
            .check()
            .is_err()
        );
    }

    #[test]
    fn our_own_labels_stay_ours() {
        let now = BTreeMap::from([(PUBLIC.to_owned(), "1".to_owned())]);
        let given = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let kept = relabelled(&now, given.clone()).unwrap();
        assert!(kept.contains_key(PUBLIC));
        assert_eq!(theirs(kept), given);
        let forged = BTreeMap::from([(ARCHIVED.to_owned(), "1".to_owned())]);
        assert!(relabelled(&now, forged).is_err());
    }

    #[test]
    fn networks_are_read_as_daytona_means_them() {
        let base = NetworkPolicy::default();
        let read = |block, addresses, names| network(&base, block, addresses, names);
        assert_eq!(read(None, None, None).unwrap().mode, NetworkMode::Open);
        assert_eq!(
            read(Some(true), None, None).unwrap().mode,
            NetworkMode::None
        );
        let some = read(None, Some("10.0.0.0/8, 1.2.3.4/32"), Some("example.com")).unwrap();
        assert_eq!(some.allow.as_ref().unwrap().len(), 3);
        let shown = lists(&some);
        assert_eq!(shown.0.as_deref(), Some("10.0.0.0/8,1.2.3.4/32"));
        assert_eq!(shown.1.as_deref(), Some("example.com"));
        assert!(read(Some(true), Some("10.0.0.0/8"), None).is_err());
    }
}
