//! What opening an engine can fail with. What a sandbox's operations fail with is
//! [`cove_runner_api::RunnerError`], because it crosses a socket; the conversions are here.

use std::io;
use std::path::PathBuf;

use cove_image::ImageError;
use cove_isolation::IsolationError;
pub use cove_model::error::chain;
use cove_pool::PoolError;
use cove_runner_api::RunnerError;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the storage pool cannot be used{}", .0.hint().map(|hint| format!(" ({hint})")).unwrap_or_default())]
    Pool(#[from] PoolError),
    #[error("images cannot be used")]
    Images(#[from] ImageError),
    #[error("sandboxes cannot be made on this host")]
    Isolation(#[from] IsolationError),
    #[error("no isolation tier was given to the engine")]
    NoTier,
    #[error("the isolation tier '{0}' was given to the engine twice")]
    SameTier(&'static str),
    #[error("{action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the host has no uid range left for this engine")]
    NoUidRange,
    #[error(
        "disks of sandboxes cannot be limited here: {0}; to accept that, choose the pool 'directory'"
    )]
    NoDiskLimits(String),
}

impl EngineError {
    /// What keeps this host from a pool with limits, each with its remedy.
    pub fn no_disk_limits(data_dir: &std::path::Path) -> Self {
        let lacking: Vec<String> = cove_pool::Pool::probe(data_dir)
            .into_iter()
            .filter(|finding| finding.status != cove_pool::Status::Good)
            .map(|finding| match finding.fix {
                Some(fix) => format!("{} ({fix})", finding.detail),
                None => finding.detail,
            })
            .collect();
        Self::NoDiskLimits(lacking.join(", "))
    }
}

pub fn from_isolation(error: IsolationError) -> RunnerError {
    match error {
        IsolationError::Unsupported(message) => RunnerError::Unsupported { message },
        IsolationError::Uncapturable { process, reason } => {
            RunnerError::Uncapturable { process, reason }
        }
        IsolationError::Unfit(message) => RunnerError::Unfit { message },
        error @ IsolationError::LimitBelowUse { .. } => RunnerError::Invalid {
            message: error.to_string(),
        },
        error @ IsolationError::Exhausted(what) => RunnerError::NoCapacity {
            resource: format!("{what}s"),
            message: error.to_string(),
        },
        // The root is made by the engine, inside the tier's boot: its refusals come back whole.
        IsolationError::Failed { source, .. }
            if source
                .get_ref()
                .is_some_and(|inner| inner.is::<PoolError>()) =>
        {
            let inner = source.into_inner().expect("looked at above");
            from_pool(*inner.downcast().expect("looked at above"))
        }
        error => RunnerError::Internal {
            message: chain(&error),
        },
    }
}

pub fn from_pool(error: PoolError) -> RunnerError {
    match error {
        error @ PoolError::Full { .. } => {
            let hint = error.hint().unwrap_or_default();
            RunnerError::NoCapacity {
                resource: "disk".into(),
                message: format!("{error}; {hint}"),
            }
        }
        error @ PoolError::WentReadOnly { .. } => read_only(&error),
        error if is_read_only(&error) => read_only(&error),
        error @ PoolError::LimitBelowUse { .. } => RunnerError::Invalid {
            message: error.to_string(),
        },
        error @ PoolError::Unsupported { .. } => RunnerError::Unsupported {
            message: error.to_string(),
        },
        error => RunnerError::Internal {
            message: chain(&error),
        },
    }
}

fn is_read_only(error: &PoolError) -> bool {
    matches!(error, PoolError::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem)
}

fn read_only(error: &PoolError) -> RunnerError {
    // Paths of the host are for its operator, who sees them in the log and in `cove doctor`.
    tracing::debug!(error = chain(error), "refused by a read-only pool");
    RunnerError::NoCapacity {
        resource: "disk".into(),
        message: "the storage pool has turned read-only; the operator must run `cove doctor --repair-pool`"
            .into(),
    }
}

/// For a write to the data directory that failed. A disk without room is the host's state, not a fault of ours:
/// the caller can try again once there is room.
pub fn from_write(what: &str, error: &io::Error) -> RunnerError {
    if !lacks_room(error) {
        return internal(format!("cannot write {what}: {error}"));
    }
    let hint = "the operator must make room on the host's disk";
    RunnerError::NoCapacity {
        resource: "disk".into(),
        message: format!("cannot write {what}: {error}; {hint}"),
    }
}

/// A filesystem that turned read-only counts: that is what a full disk below does to one.
pub fn lacks_room(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(
        error.kind(),
        StorageFull | QuotaExceeded | ReadOnlyFilesystem
    )
}

pub fn internal(error: impl std::fmt::Display) -> RunnerError {
    RunnerError::Internal {
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_no_capacity_and_other_failed_writes_are_internal() {
        use rustix::io::Errno;
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS] {
            let error = from_write("the record", &errno.into());
            assert!(matches!(error, RunnerError::NoCapacity { .. }), "{error:?}");
        }
        let error = from_write("the record", &Errno::IO.into());
        assert!(matches!(error, RunnerError::Internal { .. }), "{error:?}");
    }
}
