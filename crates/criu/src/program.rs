//! Which CRIU to use: the configured one, a private folder of Cove's, or the host's.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where `scripts/setup` puts it.
pub const DEFAULT_PROGRAM: &str = "/usr/local/lib/cove/criu/bin/criu";
/// Where the package cove-criu puts it, and where a distribution does.
const PACKAGED: [&str; 4] = [
    "/usr/lib/cove/criu/bin/criu",
    "/usr/sbin/criu",
    "/usr/bin/criu",
    "/usr/local/sbin/criu",
];
/// Before this it cannot capture sockets on current kernels.
pub const OLDEST: Version = Version(4, 2, 0);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(major, minor, 0) => write!(f, "{major}.{minor}"),
            Self(major, minor, patch) => write!(f, "{major}.{minor}.{patch}"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Program {
    pub path: PathBuf,
    pub version: Version,
}

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("no criu was found; install the package cove-criu, or run scripts/setup")]
    Missing,
    #[error("{path} does not run: {reason}")]
    Broken { path: String, reason: String },
    #[error(
        "{path} is version {version} and {OLDEST} is needed; install the package cove-criu, or run scripts/setup"
    )]
    TooOld { path: String, version: Version },
}

impl Program {
    /// Looks at the configured path alone when there is one. Runs the program once.
    pub fn find(configured: Option<&Path>) -> Result<Self, ProgramError> {
        if let Some(path) = configured {
            return Self::look_at(path);
        }
        let mut last = ProgramError::Missing;
        for path in [DEFAULT_PROGRAM]
            .iter()
            .chain(&PACKAGED)
            .map(Path::new)
            .filter(|path| path.is_file())
        {
            match Self::look_at(path) {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn look_at(path: &Path) -> Result<Self, ProgramError> {
        let shown = path.display().to_string();
        let broken = |reason: String| ProgramError::Broken {
            path: shown.clone(),
            reason,
        };
        let output = Command::new(path)
            .arg("--version")
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .map_err(|error| broken(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = parse_version(&text)
            .ok_or_else(|| broken(String::from_utf8_lossy(&output.stderr).trim().to_owned()))?;
        if version < OLDEST {
            return Err(ProgramError::TooOld {
                path: shown,
                version,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            version,
        })
    }
}

fn parse_version(text: &str) -> Option<Version> {
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("Version:"))?
        .trim();
    let mut parts = number
        .split(['.', '-', '+'])
        .map(|part| part.parse::<u32>().ok());
    Some(Version(
        parts.next()??,
        parts.next().flatten().unwrap_or(0),
        parts.next().flatten().unwrap_or(0),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_criu_tells_them() {
        assert_eq!(parse_version("Version: 4.2.1\n"), Some(Version(4, 2, 1)));
        assert_eq!(
            parse_version("Version: 3.17.1\nGitID: v3.17.1\n"),
            Some(Version(3, 17, 1))
        );
        assert_eq!(parse_version("criu: not found"), None);
        assert!(Version(4, 1, 1) < OLDEST && Version(4, 2, 0) >= OLDEST);
    }

    #[test]
    fn a_missing_or_broken_program_is_told_apart() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("criu");
        assert!(matches!(
            Program::find(Some(&path)),
            Err(ProgramError::Broken { .. })
        ));
        std::fs::write(&path, "#!/bin/sh\necho Version: 3.17\n").expect("a file can be written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("a mode can be set");
        assert!(matches!(
            Program::find(Some(&path)),
            Err(ProgramError::TooOld { .. })
        ));
    }
}
