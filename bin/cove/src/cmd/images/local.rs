//! Puts what is to be imported where the server takes images from. The server reads no other files of
//! its machine, so whoever runs the command reads them: root, on that machine.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::report::CliError;

/// A copy in the server's import directory, gone when dropped.
pub struct Placed(PathBuf);

impl Placed {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// `None` where the server is not on this machine, or its directory is not ours to write to: then the
/// path is one of the server's.
pub fn place(data_dir: &Path, path: &Path) -> Result<Option<Placed>, CliError> {
    let here = data_dir.join(crate::connect::ROOT_KEY_FILE).exists();
    if !here || !rustix::process::geteuid().is_root() || !path.exists() {
        return Ok(None);
    }
    let dir = crate::connect::import_dir(data_dir);
    let failed = |source| CliError::io(format!("cannot write to {}", dir.display()), source);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(failed)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos());
    let name = format!("{}-{now}.tar", std::process::id());
    let placed = Placed(dir.join(name));
    let mut copy = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(placed.path())
        .map_err(failed)?;
    if path.is_dir() {
        pack(path, copy)?;
    } else {
        let unreadable = |source| CliError::io(format!("cannot copy {}", path.display()), source);
        let mut file = File::open(path).map_err(unreadable)?;
        std::io::copy(&mut file, &mut copy).map_err(unreadable)?;
    }
    Ok(Some(placed))
}

/// Other file systems mounted below are left out.
fn pack(directory: &Path, archive: File) -> Result<(), CliError> {
    let output = Command::new("tar")
        .args(["--create", "--format=posix", "--numeric-owner", "--sparse"])
        .args(["--one-file-system", "--xattrs", "--xattrs-include=*"])
        .args(["--sort=name", "--directory"])
        .arg(directory)
        .arg(".")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(archive)
        .stderr(Stdio::piped())
        .output()
        .map_err(|source| CliError::io("cannot run tar", source))?;
    // Status 1 means that some file changed while it was read, which a live directory may.
    match output.status.code() {
        Some(0 | 1) => Ok(()),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or_default();
            let said = format!("cannot pack {}: {last}", directory.display());
            Err(CliError::usage(said))
        }
    }
}
