//! What a caller asks for when creating a sandbox, checked once at the edge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::network::NetworkPolicy;
use crate::resources::{Resources, ResourcesError};

pub const NAME_MAX: usize = 63;
pub const ENV_ENTRIES_MAX: usize = 256;
pub const ENV_BYTES_MAX: usize = 128 * 1024;
pub const LABELS_MAX: usize = 64;
pub const LABEL_BYTES_MAX: usize = 256;
pub const PATH_MAX: usize = 4096;
pub const IMAGE_REF_MAX: usize = 512;
pub const USER_MAX: usize = 64;
/// Idle times above ten years are a mistake.
pub const SECONDS_MAX: u64 = 10 * 366 * 86_400;

/// The isolation tier that runs when none is asked for.
pub const DEFAULT_ISOLATION: &str = "container";
/// The image that runs when none is asked for.
pub const DEFAULT_IMAGE: &str = "debian";
/// The built-in image for the code interpreter: the default one with numpy, pandas, matplotlib and Node.
pub const INTERPRETER_IMAGE: &str = "code-interpreter";

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

/// When a sandbox that nobody uses is put away. Absent means never.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdlePolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_after_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_after_s: Option<u64>,
    /// Counted from creation, idle or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lifetime_s: Option<u64>,
}

/// A sandbox as asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSpec {
    pub image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub isolation: String,
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
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            image: DEFAULT_IMAGE.into(),
            name: None,
            isolation: DEFAULT_ISOLATION.into(),
            resources: Resources::default(),
            env: BTreeMap::new(),
            network: NetworkPolicy::default(),
            lifecycle: IdlePolicy::default(),
            labels: BTreeMap::new(),
            user: None,
            workdir: None,
            no_new_privs: false,
        }
    }
}

impl SandboxSpec {
    pub fn check(&self) -> Result<(), SpecError> {
        self.resources.check()?;
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
        self.lifecycle.check()
    }
}

impl IdlePolicy {
    pub fn check(&self) -> Result<(), SpecError> {
        for (field, value) in [
            ("lifecycle.stop_after_s", self.stop_after_s),
            ("lifecycle.delete_after_s", self.delete_after_s),
            ("lifecycle.max_lifetime_s", self.max_lifetime_s),
        ] {
            if value.is_some_and(|v| v == 0 || v > SECONDS_MAX) {
                return Err(field_error(
                    field,
                    format!("must be between 1 and {SECONDS_MAX} seconds"),
                ));
            }
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

fn text(field: &'static str, value: &str, min: usize, max: usize) -> Result<(), SpecError> {
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

fn field_error(field: &'static str, problem: String) -> SpecError {
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
