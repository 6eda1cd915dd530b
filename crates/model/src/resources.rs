//! What a sandbox may use. Every field here is enforced by the tier or the request is refused.

use serde::{Deserialize, Serialize};

pub use cove_limits::{
    CPU_MAX, CPU_MIN, DISK_MAX_MB, DISK_MIN_MB, IO_MAX_MB_S, IO_MIN_MB_S, MEMORY_MAX_MB,
    MEMORY_MIN_MB, OPEN_FILES_MAX, OPEN_FILES_MIN, PIDS_MAX, PIDS_MIN,
};

/// Limits of one sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// CPUs, in fractions: 0.5 is half of one. `nproc` inside shows it rounded up.
    pub cpu: f64,
    /// Memory in MiB; there is no swap.
    pub memory_mb: u64,
    /// Where memory may grow to before the kernel kills; absent means it does not grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max_mb: Option<u64>,
    /// Disk in MiB, counting what the sandbox wrote, not its image.
    pub disk_mb: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Open files per process.
    pub open_files: u64,
    /// Reading from the pool's device, MiB per second; absent means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_read_mb_s: Option<u64>,
    /// Writing to the pool's device, MiB per second; absent means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_write_mb_s: Option<u64>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpu: 1.0,
            memory_mb: 1024,
            memory_max_mb: None,
            disk_mb: 10 * 1024,
            pids: 1024,
            open_files: 16384,
            io_read_mb_s: None,
            io_write_mb_s: None,
        }
    }
}

/// A limit out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ResourcesError {
    #[error("{field} must be between {min} and {max}, not {given}")]
    OutOfRange {
        field: &'static str,
        min: String,
        max: String,
        given: String,
    },
    #[error("memory_max_mb ({max}) must not be below memory_mb ({memory})")]
    MaxBelowMemory { max: u64, memory: u64 },
}

impl Resources {
    pub fn check(&self) -> Result<(), ResourcesError> {
        if !self.cpu.is_finite() || !(CPU_MIN..=CPU_MAX).contains(&self.cpu) {
            return Err(out_of_range("cpu", CPU_MIN, CPU_MAX, self.cpu));
        }
        within("memory_mb", self.memory_mb, MEMORY_MIN_MB, MEMORY_MAX_MB)?;
        within("disk_mb", self.disk_mb, DISK_MIN_MB, DISK_MAX_MB)?;
        within("pids", self.pids, PIDS_MIN, PIDS_MAX)?;
        within(
            "open_files",
            self.open_files,
            OPEN_FILES_MIN,
            OPEN_FILES_MAX,
        )?;
        if let Some(max) = self.memory_max_mb {
            within("memory_max_mb", max, MEMORY_MIN_MB, MEMORY_MAX_MB)?;
            if max < self.memory_mb {
                let memory = self.memory_mb;
                return Err(ResourcesError::MaxBelowMemory { max, memory });
            }
        }
        for (field, value) in [
            ("io_read_mb_s", self.io_read_mb_s),
            ("io_write_mb_s", self.io_write_mb_s),
        ] {
            if let Some(value) = value {
                within(field, value, IO_MIN_MB_S, IO_MAX_MB_S)?;
            }
        }
        Ok(())
    }

    /// The most memory the kernel will let the sandbox have.
    pub fn memory_ceiling_mb(&self) -> u64 {
        self.memory_max_mb.unwrap_or(self.memory_mb)
    }

    /// CPUs the sandbox sees: a fraction needs a whole one to run on.
    pub fn visible_cpus(&self) -> u32 {
        self.cpu.ceil().max(1.0) as u32
    }
}

/// A live change: what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResourcesPatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

impl ResourcesPatch {
    /// The limits after the change, checked.
    pub fn apply(&self, old: &Resources) -> Result<Resources, ResourcesError> {
        let new = Resources {
            cpu: self.cpu.unwrap_or(old.cpu),
            memory_mb: self.memory_mb.unwrap_or(old.memory_mb),
            memory_max_mb: self.memory_max_mb.or(old.memory_max_mb),
            disk_mb: self.disk_mb.unwrap_or(old.disk_mb),
            pids: self.pids.unwrap_or(old.pids),
            ..old.clone()
        };
        new.check()?;
        Ok(new)
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn within(field: &'static str, given: u64, min: u64, max: u64) -> Result<(), ResourcesError> {
    if (min..=max).contains(&given) {
        Ok(())
    } else {
        Err(out_of_range(field, min, max, given))
    }
}

fn out_of_range<T: ToString>(field: &'static str, min: T, max: T, given: T) -> ResourcesError {
    ResourcesError::OutOfRange {
        field,
        min: min.to_string(),
        max: max.to_string(),
        given: given.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_their_own_bounds() {
        Resources::default().check().unwrap();
    }

    #[test]
    fn odd_numbers_are_refused() {
        for cpu in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            let bad = Resources {
                cpu,
                ..Resources::default()
            };
            assert!(bad.check().is_err(), "cpu {cpu} was accepted");
        }
        let bad = Resources {
            memory_max_mb: Some(512),
            ..Resources::default()
        };
        assert_eq!(
            bad.check(),
            Err(ResourcesError::MaxBelowMemory {
                max: 512,
                memory: 1024
            })
        );
    }

    #[test]
    fn a_patch_changes_only_what_it_names() {
        let patch = ResourcesPatch {
            cpu: Some(2.5),
            ..ResourcesPatch::default()
        };
        let new = patch.apply(&Resources::default()).unwrap();
        assert_eq!(new.visible_cpus(), 3);
        assert_eq!(new.memory_mb, Resources::default().memory_mb);
    }
}
