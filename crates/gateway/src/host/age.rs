//! How long an older program may serve on because it carries connections.
//!
//! The time is kept in a file beside the process, so that engines that start and end do not begin it
//! anew.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::Inner;
use crate::control::Hello;

/// After this a newer program takes over, whatever is cut: one idle connection must not keep a program
/// with known holes for ever.
const OUTDATED_MAX: Duration = Duration::from_secs(24 * 3600);
const FILE: &str = "outdated";

impl Inner {
    /// Whether the process is to be replaced by our program. An older one serves on while it carries
    /// something, since a restart should cut no stream, but not longer than [`OUTDATED_MAX`].
    pub(super) fn is_outdated(&self, hello: &Hello) -> bool {
        if hello.build == self.build {
            return false;
        }
        if hello.connections == 0 {
            return true;
        }
        let file = self.config.directory.join(FILE);
        let known = known_since(&file, &hello.build).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot record how long an older gateway serves");
            SystemTime::now()
        });
        // A clock that went back gives it the time again.
        SystemTime::now()
            .duration_since(known)
            .is_ok_and(|age| age > OUTDATED_MAX)
    }

    /// A new process has its whole time.
    pub(super) fn forget_age(&self) {
        let _ = fs::remove_file(self.config.directory.join(FILE));
    }
}

/// Since when this build is known to be outdated; from now on, if it was not.
fn known_since(file: &Path, build: &str) -> io::Result<SystemTime> {
    if fs::read_to_string(file).is_ok_and(|noted| noted == build) {
        return fs::metadata(file)?.modified();
    }
    fs::write(file, build)?;
    Ok(SystemTime::now())
}
