//! Volumes: directories that outlive sandboxes, and where a sandbox shows them.

use serde::{Deserialize, Serialize};

use crate::VolumeId;
use crate::spec::{SpecError, field_error, text};

pub use cove_limits::{VOLUME_MAX_MB, VOLUME_MIN_MB, VOLUME_MOUNTS_MAX, VOLUME_PATH_MAX};

/// A volume at a place in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    pub volume: VolumeId,
    /// Made where it is missing. Links in the sandbox's own tree are followed within that tree.
    pub path: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// Trees of a sandbox that the host fills.
const RESERVED: [&str; 4] = ["/proc", "/sys", "/dev", "/.cove"];
/// What the lists of mounts of other programs have a meaning for.
const SEPARATORS: [char; 5] = [':', ',', '[', ']', '\\'];

const FIELD: &str = "volumes";

/// Whether `path` is `parent` or lies below it. Both are in the form that [`check_mount_path`] accepts.
pub fn is_at_or_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The one form of a mount point: absolute, no empty, `.` or `..` parts, not the root.
pub fn check_mount_path(path: &str) -> Result<(), SpecError> {
    text(FIELD, path, 2, VOLUME_PATH_MAX)?;
    let refuse = |problem: &str| {
        Err(field_error(
            FIELD,
            format!("path '{}' {problem}", path.escape_debug()),
        ))
    };
    let Some(relative) = path.strip_prefix('/') else {
        return refuse("must be absolute");
    };
    if relative
        .split('/')
        .any(|part| matches!(part, "" | "." | ".."))
    {
        return refuse("must have no empty, '.' or '..' parts and no '/' at its end");
    }
    if path.contains(SEPARATORS) {
        return refuse("must not contain ':', ',', '[', ']' or '\\'");
    }
    match RESERVED.iter().find(|tree| is_at_or_below(path, tree)) {
        Some(tree) => refuse(&format!("must not be in {tree}, which the host provides")),
        None => Ok(()),
    }
}

pub fn check_mounts(mounts: &[VolumeMount]) -> Result<(), SpecError> {
    if mounts.len() > VOLUME_MOUNTS_MAX {
        return Err(field_error(
            FIELD,
            format!("at most {VOLUME_MOUNTS_MAX} volumes, not {}", mounts.len()),
        ));
    }
    for (index, mount) in mounts.iter().enumerate() {
        check_mount_path(&mount.path)?;
        let overlapping = mounts[..index].iter().find(|other| {
            is_at_or_below(&mount.path, &other.path) || is_at_or_below(&other.path, &mount.path)
        });
        if let Some(other) = overlapping {
            return Err(field_error(
                FIELD,
                format!("'{}' and '{}' overlap", other.path, mount.path),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str) -> VolumeMount {
        VolumeMount {
            volume: VolumeId::random(),
            path: path.to_owned(),
            read_only: false,
        }
    }

    #[test]
    fn mount_points_have_one_form() {
        for good in ["/data", "/home/user/.cache", "/procs", "/devel/x", "/a b"] {
            check_mount_path(good).unwrap();
        }
        let long = format!("/{}", "x".repeat(VOLUME_PATH_MAX));
        for bad in [
            "", "/", "data", "./data", "/data/", "//data", "/a//b", "/a/./b", "/a/../b", "/..",
            "/proc", "/proc/1", "/sys/fs", "/dev", "/dev/shm", "/.cove", "/.cove/x", "/a:b",
            "/a[b]", "/a,b", "/a\\b", "/a\nb", "/a\0b", &long,
        ] {
            assert!(check_mount_path(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn mounts_do_not_overlap() {
        check_mounts(&[at("/data"), at("/database"), at("/srv/data")]).unwrap();
        for bad in [
            [at("/data"), at("/data")],
            [at("/data"), at("/data/x")],
            [at("/data/x/y"), at("/data")],
        ] {
            assert!(check_mounts(&bad).is_err(), "{bad:?} was accepted");
        }
        let many: Vec<_> = (0..=VOLUME_MOUNTS_MAX)
            .map(|number| at(&format!("/v{number}")))
            .collect();
        assert!(check_mounts(&many).is_err());
        check_mounts(&many[1..]).unwrap();
    }
}
