//! What a caller asks for when creating a sandbox, checked once at the edge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Steady;
use crate::identity::IdentitySpec;
use crate::isolation::{Accel, DEFAULT_ISOLATION, VM_ISOLATION};
use crate::network::NetworkPolicy;
use crate::placement::Placement;
use crate::resources::{Resources, ResourcesError};
use crate::secret::{SecretGrant, check_grants};
use crate::volume::{VolumeMount, check_mounts};

pub use cove_limits::{
    AUTO_SNAPSHOT_EVERY_MIN_S, AUTO_SNAPSHOTS_DEFAULT, AUTO_SNAPSHOTS_MAX, ENV_BYTES_MAX,
    ENV_ENTRIES_MAX, IMAGE_REF_MAX, LABEL_BYTES_MAX, LABELS_MAX, LEASE_DEFAULT_S,
    LEASE_DELETE_AFTER_DEFAULT_S, LEASE_HOLDER_MAX, NAME_MAX, PATH_MAX, SECONDS_MAX, USER_MAX,
};

/// The image that runs when none is asked for.
pub const DEFAULT_IMAGE: &str = "debian";
/// The built-in image for the code interpreter: the default one with numpy, pandas, matplotlib and Node.
pub const INTERPRETER_IMAGE: &str = "code-interpreter";
/// The built-in image without any file, which Dockerfiles know by this name.
pub const SCRATCH_IMAGE: &str = "scratch";

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SpecError {
    #[error(transparent)]
    Resources(#[from] ResourcesError),
    #[error("{field}: {problem}")]
    Field {
        field: &'static str,
        problem: String,
    },
}

/// When a sandbox that nobody uses is put away, how it wakes, and which states of it are kept on the
/// way. Absent times mean never.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdlePolicy {
    /// Its processes hold still, memory kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freeze_after_s: Option<u64>,
    /// Its memory goes to disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_after_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_after_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_after_s: Option<u64>,
    /// Counted from creation, idle or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lifetime_s: Option<u64>,
    /// Whether a request that needs it wakes it when it is frozen or paused.
    #[serde(skip_serializing_if = "is_true")]
    pub auto_resume: bool,
    /// Snapshots taken without being asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_snapshot: Option<AutoSnapshot>,
    /// Somebody who must say from time to time that the sandbox is still needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}

impl Default for IdlePolicy {
    fn default() -> Self {
        Self {
            freeze_after_s: None,
            pause_after_s: None,
            stop_after_s: None,
            delete_after_s: None,
            max_lifetime_s: None,
            auto_resume: true,
            auto_snapshot: None,
            lease: None,
        }
    }
}

/// A sandbox with a lease is put away when its holder does not renew it, and deleted later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Whoever renews it must give the same.
    pub holder: String,
    /// Without a renewal for so long, the sandbox is paused, or stopped where it cannot be paused.
    pub renew_within_s: u64,
    /// It is deleted so long after that.
    pub delete_after_s: u64,
    /// When it was put away because nobody renewed; written by control only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lapsed: Option<Steady>,
}

/// The times of leases whose requests give none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    pub renew_within_s: u64,
    pub delete_after_s: u64,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            renew_within_s: LEASE_DEFAULT_S,
            delete_after_s: LEASE_DELETE_AFTER_DEFAULT_S,
        }
    }
}

impl Lease {
    /// With the default times.
    pub fn of(holder: impl Into<String>) -> Self {
        let times = LeaseTimes::default();
        Self {
            holder: holder.into(),
            renew_within_s: times.renew_within_s,
            delete_after_s: times.delete_after_s,
            lapsed: None,
        }
    }

    pub fn check(&self) -> Result<(), SpecError> {
        check_holder(&self.holder)?;
        let times = [
            ("lease.renew_within_s", self.renew_within_s),
            ("lease.delete_after_s", self.delete_after_s),
        ];
        for (field, value) in times {
            if value == 0 || value > SECONDS_MAX {
                return Err(field_error(
                    field,
                    format!("must be between 1 and {SECONDS_MAX} seconds"),
                ));
            }
        }
        Ok(())
    }
}

/// The name of a holder of leases.
pub fn check_holder(holder: &str) -> Result<(), SpecError> {
    let is_good = (1..=LEASE_HOLDER_MAX).contains(&holder.len())
        && holder.bytes().all(|byte| byte.is_ascii_graphic());
    match is_good {
        true => Ok(()),
        false => Err(field_error(
            "lease.holder",
            format!("must be 1 to {LEASE_HOLDER_MAX} visible ASCII characters"),
        )),
    }
}

fn is_true(value: &bool) -> bool {
    *value
}

/// Snapshots of the disk that the control plane takes by itself, when something changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AutoSnapshot {
    /// At this pace while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u64>,
    /// Before each command.
    pub before_exec: bool,
    /// So many of the newest are kept.
    pub keep: u32,
}

impl Default for AutoSnapshot {
    fn default() -> Self {
        Self {
            every_s: None,
            before_exec: false,
            keep: AUTO_SNAPSHOTS_DEFAULT,
        }
    }
}

/// A sandbox as asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSpec {
    pub image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub isolation: String,
    /// For the tier `vm` alone; absent there: KVM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accel: Option<Accel>,
    pub resources: Resources,
    pub env: BTreeMap<String, String>,
    pub network: NetworkPolicy,
    pub lifecycle: IdlePolicy,
    pub labels: BTreeMap<String, String>,
    /// Who commands run as unless they say otherwise; absent: the image's user, else root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where commands start unless they say otherwise; absent: the image's, else the user's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Forbid gaining privileges through setuid programs (sudo stops working).
    pub no_new_privs: bool,
    /// Absent: it cannot ask who it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentitySpec>,
    /// Secrets of its organisation that it may use by placeholders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretGrant>,
    /// Directories that outlive it. They are not part of its disk, nor of its snapshots.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// What it asks of its host. Its host does not hear of it.
    #[serde(skip_serializing_if = "Placement::is_empty")]
    pub placement: Placement,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            image: DEFAULT_IMAGE.into(),
            name: None,
            isolation: DEFAULT_ISOLATION.into(),
            accel: None,
            resources: Resources::default(),
            env: BTreeMap::new(),
            network: NetworkPolicy::default(),
            lifecycle: IdlePolicy::default(),
            labels: BTreeMap::new(),
            user: None,
            workdir: None,
            no_new_privs: false,
            identity: None,
            secrets: Vec::new(),
            volumes: Vec::new(),
            placement: Placement::default(),
        }
    }
}

impl SandboxSpec {
    /// Puts a maker's variables over those that are there, of a snapshot for example: what has the same
    /// name is replaced, the rest stays.
    pub fn add_env(&mut self, given: BTreeMap<String, String>) {
        self.env.extend(given);
    }

    /// What executes its instructions, where that is not the host's own kernel and processor as usual.
    pub fn accel_in_force(&self) -> Option<Accel> {
        let is_vm = self.isolation == VM_ISOLATION;
        is_vm.then(|| self.accel.unwrap_or(Accel::Kvm))
    }

    pub fn check(&self) -> Result<(), SpecError> {
        self.resources.check()?;
        if let Some(accel) = self.accel
            && self.isolation != VM_ISOLATION
        {
            return Err(field_error(
                "accel",
                format!(
                    "'{}' is for isolation '{VM_ISOLATION}', and this sandbox has isolation '{}'; give both or leave accel out",
                    accel.as_str(),
                    self.isolation
                ),
            ));
        }
        text("image", &self.image, 1, IMAGE_REF_MAX)?;
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        check_env("env", &self.env)?;
        check_labels(&self.labels)?;
        if let Some(user) = &self.user {
            text("user", user, 1, USER_MAX)?;
        }
        if let Some(workdir) = &self.workdir {
            check_absolute("workdir", workdir)?;
        }
        self.network.check()?;
        if let Some(identity) = &self.identity {
            identity.check()?;
        }
        check_grants(&self.secrets)?;
        check_mounts(&self.volumes)?;
        self.placement.check()?;
        self.lifecycle.check()
    }
}

impl IdlePolicy {
    pub fn check(&self) -> Result<(), SpecError> {
        let ladder = [
            ("lifecycle.freeze_after_s", self.freeze_after_s),
            ("lifecycle.pause_after_s", self.pause_after_s),
            ("lifecycle.stop_after_s", self.stop_after_s),
            ("lifecycle.delete_after_s", self.delete_after_s),
        ];
        let life = ("lifecycle.max_lifetime_s", self.max_lifetime_s);
        for (field, value) in ladder.into_iter().chain([life]) {
            if value.is_some_and(|v| v == 0 || v > SECONDS_MAX) {
                return Err(field_error(
                    field,
                    format!("must be between 1 and {SECONDS_MAX} seconds"),
                ));
            }
        }
        let mut below: Option<(&str, u64)> = None;
        for (field, value) in ladder {
            let Some(value) = value else { continue };
            if let Some((earlier, seconds)) = below.filter(|(_, seconds)| *seconds >= value) {
                return Err(field_error(
                    field,
                    format!("must be more than {earlier} ({seconds}), or it would never happen"),
                ));
            }
            below = Some((field, value));
        }
        self.lease.as_ref().map_or(Ok(()), Lease::check)?;
        self.auto_snapshot
            .as_ref()
            .map_or(Ok(()), AutoSnapshot::check)
    }
}

impl AutoSnapshot {
    fn check(&self) -> Result<(), SpecError> {
        if self
            .every_s
            .is_some_and(|every| !(AUTO_SNAPSHOT_EVERY_MIN_S..=SECONDS_MAX).contains(&every))
        {
            return Err(field_error(
                "lifecycle.auto_snapshot.every_s",
                format!("must be between {AUTO_SNAPSHOT_EVERY_MIN_S} and {SECONDS_MAX} seconds"),
            ));
        }
        if !(1..=AUTO_SNAPSHOTS_MAX).contains(&self.keep) {
            return Err(field_error(
                "lifecycle.auto_snapshot.keep",
                format!("must be between 1 and {AUTO_SNAPSHOTS_MAX}"),
            ));
        }
        if self.every_s.is_none() && !self.before_exec {
            return Err(field_error(
                "lifecycle.auto_snapshot",
                "must say when: every_s, before_exec or both".into(),
            ));
        }
        Ok(())
    }
}

/// Names become host names and parts of URLs, so they follow the rules of DNS labels.
pub fn check_name(name: &str) -> Result<(), SpecError> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ok = (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if ok {
        Ok(())
    } else {
        Err(field_error(
            "name",
            format!(
                "must be 1 to {NAME_MAX} lowercase letters, digits or dashes, not starting or ending with a dash"
            ),
        ))
    }
}

pub fn check_env(field: &'static str, env: &BTreeMap<String, String>) -> Result<(), SpecError> {
    if env.len() > ENV_ENTRIES_MAX {
        return Err(field_error(
            field,
            format!("at most {ENV_ENTRIES_MAX} entries, not {}", env.len()),
        ));
    }
    let mut total = 0;
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            let shown: String = key.chars().take(40).collect();
            return Err(field_error(
                field,
                format!(
                    "entry '{}' has an empty key, '=' in its key or a NUL",
                    shown.escape_debug()
                ),
            ));
        }
        total += key.len() + value.len() + 2;
    }
    if total > ENV_BYTES_MAX {
        return Err(field_error(
            field,
            format!("at most {ENV_BYTES_MAX} bytes in all, not {total}"),
        ));
    }
    Ok(())
}

/// Labels in which the server keeps what other APIs know of a sandbox. Its owner's callers see to them; a sandbox
/// that labels itself can neither set nor remove them.
pub const RESERVED_LABELS: [&str; 1] = ["daytona:"];

pub fn is_reserved_label(key: &str) -> bool {
    RESERVED_LABELS.iter().any(|prefix| key.starts_with(prefix))
}

pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), SpecError> {
    if labels.len() > LABELS_MAX {
        return Err(field_error(
            "labels",
            format!("at most {LABELS_MAX} entries, not {}", labels.len()),
        ));
    }
    for (key, value) in labels {
        text("labels", key, 1, LABEL_BYTES_MAX)?;
        text("labels", value, 0, LABEL_BYTES_MAX)?;
    }
    Ok(())
}

pub fn check_absolute(field: &'static str, path: &str) -> Result<(), SpecError> {
    text(field, path, 1, PATH_MAX)?;
    if !path.starts_with('/') {
        return Err(field_error(field, "must be an absolute path".into()));
    }
    Ok(())
}

pub(crate) fn identity_text(field: &'static str, value: &str) -> Result<(), SpecError> {
    text(field, value, 1, cove_limits::IDENTITY_TEXT_MAX)
}

pub(crate) fn text(
    field: &'static str,
    value: &str,
    min: usize,
    max: usize,
) -> Result<(), SpecError> {
    if value.len() < min || value.len() > max {
        return Err(field_error(
            field,
            format!("must have {min} to {max} bytes, not {}", value.len()),
        ));
    }
    if value.chars().any(char::is_control) {
        return Err(field_error(
            field,
            "must not contain control characters".into(),
        ));
    }
    Ok(())
}

pub(crate) fn field_error(field: &'static str, problem: String) -> SpecError {
    SpecError::Field { field, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_spec_is_valid() {
        SandboxSpec::default().check().unwrap();
    }

    #[test]
    fn the_idle_ladder_goes_one_way() {
        let policy = |freeze, pause, stop, delete| IdlePolicy {
            freeze_after_s: freeze,
            pause_after_s: pause,
            stop_after_s: stop,
            delete_after_s: delete,
            ..IdlePolicy::default()
        };
        policy(Some(1), Some(2), Some(3), Some(4)).check().unwrap();
        policy(Some(1), None, None, Some(4)).check().unwrap();
        for bad in [
            policy(Some(2), Some(1), None, None),
            policy(None, Some(5), None, Some(5)),
            policy(Some(9), None, Some(3), None),
            policy(Some(0), None, None, None),
        ] {
            assert!(bad.check().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn automatic_snapshots_say_when_and_how_many() {
        let every = |every_s, before_exec, keep| AutoSnapshot {
            every_s,
            before_exec,
            keep,
        };
        every(Some(60), true, 1).check().unwrap();
        for bad in [
            every(None, false, 1),
            every(Some(1), false, 1),
            every(Some(60), false, 0),
            every(Some(60), false, AUTO_SNAPSHOTS_MAX + 1),
        ] {
            assert!(bad.check().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_policy_from_before_the_ladder_wakes_on_request() {
        let old: IdlePolicy = serde_json::from_str(r#"{"stop_after_s":5}"#).unwrap();
        assert!(old.auto_resume);
        assert_eq!(
            serde_json::to_string(&old).unwrap(),
            r#"{"stop_after_s":5}"#
        );
    }

    #[test]
    fn names_follow_dns_labels() {
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", &"a".repeat(64), "a\0"] {
            assert!(check_name(bad).is_err(), "{bad:?} was accepted");
        }
        for good in ["a", "agent-7", &"a".repeat(63)] {
            check_name(good).unwrap();
        }
    }

    #[test]
    fn environment_entries_that_execve_would_mangle_are_refused() {
        for (key, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")] {
            let env = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            assert!(
                check_env("env", &env).is_err(),
                "{key:?}={value:?} was accepted"
            );
        }
    }
}
