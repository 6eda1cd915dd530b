//! Which runsc to use: the configured one, the one in a directory of Cove's, or the host's.
//!
//! It is looked for and not run: runsc runs in seats alone, without the host's root.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where `scripts/setup` puts it.
pub const DEFAULT_PROGRAM: &str = "/usr/local/lib/cove/runsc/bin/runsc";
/// Where a package of Cove puts it, and where a distribution does.
const PACKAGED: [&str; 3] = [
    "/usr/lib/cove/runsc/bin/runsc",
    "/usr/bin/runsc",
    "/usr/local/bin/runsc",
];
const EXECUTABLE: u32 = 0o111;

/// Why there is no runsc to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// None was ever seen. Only then the host counts as one without this tier.
    #[error("runsc is not installed; run scripts/provide-runsc and restart the server")]
    Missing,
    /// One is named by the settings, is there, or was used before; all the same it cannot be executed.
    #[error(
        "{} cannot be used: {reason}; run scripts/provide-runsc and restart the server",
        path.display()
    )]
    Unusable { path: PathBuf, reason: String },
}

/// The configured one alone, if there is one. What was found is noted in the file `seen`, so that a runsc that is
/// gone later is not taken for one that never was there.
pub fn find(configured: Option<&Path>, seen: &Path) -> io::Result<Result<PathBuf, Unfit>> {
    if let Some(path) = configured {
        return Ok(look(path).unwrap_or_else(|| Err(gone(path, "there is no such file"))));
    }
    let places: Vec<&Path> = [DEFAULT_PROGRAM]
        .into_iter()
        .chain(PACKAGED)
        .map(Path::new)
        .collect();
    among(&places, seen)
}

/// The first that is there, whatever its state: a broken one is not passed over for another.
fn among(places: &[&Path], seen: &Path) -> io::Result<Result<PathBuf, Unfit>> {
    let before = match fs::read(seen) {
        Ok(noted) => Some(PathBuf::from(std::ffi::OsString::from_vec(noted))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match (places.iter().find_map(|path| look(path)), before) {
        (Some(Ok(found)), before) => {
            if before.as_ref() != Some(&found) {
                fs::write(seen, found.as_os_str().as_bytes())?;
            }
            Ok(Ok(found))
        }
        (Some(unusable), _) => Ok(unusable),
        (None, Some(path)) => Ok(Err(gone(
            &path,
            &format!(
                "it was used before and is gone (to give gVisor up, remove it from the setting isolation, or delete {})",
                seen.display()
            ),
        ))),
        (None, None) => Ok(Err(Unfit::Missing)),
    }
}

fn gone(path: &Path, reason: &str) -> Unfit {
    Unfit::Unusable {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}

/// What is at a path; `None` only if nothing is. A link that leads nowhere is something.
fn look(path: &Path) -> Option<Result<PathBuf, Unfit>> {
    let absent = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
    };
    if fs::symlink_metadata(path).is_err_and(|error| absent(&error)) {
        return None;
    }
    Some(match fs::metadata(path) {
        Err(error) => Err(gone(path, &error.to_string())),
        Ok(found) if !found.is_file() => Err(gone(path, "it is not a file")),
        Ok(found) if found.permissions().mode() & EXECUTABLE == 0 => {
            Err(gone(path, "it is not executable"))
        }
        Ok(_) => Ok(path.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(found: Result<PathBuf, Unfit>) -> String {
        match found {
            Err(Unfit::Unusable { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_runsc_that_was_never_seen_is_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let seen = dir.path().join("seen");
        let (none, program) = (Path::new("/there/is/none"), Path::new("/bin/sh"));
        let first = |places: &[&Path]| among(places, &seen).expect("the note can be read");
        assert_eq!(first(&[none]), Err(Unfit::Missing));

        // What is there and cannot be executed is neither missing nor passed over for the next.
        let plain = dir.path().join("plain");
        fs::write(&plain, "").expect("a file");
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink(none, &dangling).expect("a link");
        let endless = PathBuf::from("/".to_owned() + &"x".repeat(5000));
        for (place, said) in [
            (plain.as_path(), "not executable"),
            (dir.path(), "not a file"),
            (&dangling, "No such file"),
            (&endless, "too long"),
        ] {
            let found = reason(first(&[none, place, program]));
            assert!(found.contains(said), "{found}");
        }
        assert!(!seen.exists(), "nothing could be used so far");

        // Once used, its absence is an error until the operator says otherwise.
        assert_eq!(first(&[none, program]), Ok(program.to_owned()));
        let found = reason(first(&[none]));
        assert!(found.contains("it was used before"), "{found}");
        fs::remove_file(&seen).expect("it was noted");
        assert_eq!(first(&[none]), Err(Unfit::Missing));
    }

    #[test]
    fn a_configured_runsc_is_never_missing() {
        let seen = Path::new("/there/is/no/note");
        let find = |path: &str| find(Some(Path::new(path)), seen).expect("nothing is noted");
        assert_eq!(find("/bin/sh"), Ok("/bin/sh".into()));
        let found = reason(find("/there/is/none"));
        assert!(found.contains("no such file"), "{found}");
    }
}
