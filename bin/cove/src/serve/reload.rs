//! What is read again without ending the server: the first key and the certificate.
//!
//! SIGHUP to the supervisor reads both and, when they are good, replaces the control side by one that
//! has them. The listening socket stays, callers wait a moment; sandboxes and the runner notice nothing.
//! What is broken is reported in the log and changes nothing.

use std::fs::{File, TryLockError};
use std::path::Path;

use cove_control::ApiToken;
use rustix::process::{Pid, Signal};

use super::role::RoleConfig;
use super::supervisor::{LOCK_FILE, root_key, write_file};
use super::{ServeError, authorities, control};
use crate::connect::ROOT_KEY_FILE;

/// The configuration of the next control side.
pub fn read_again(role: &mut RoleConfig) -> Result<String, ServeError> {
    control::check_certificate(&role.settings)?;
    authorities::read(&role.settings)?;
    let token = root_key(&role.settings.data_dir)?;
    role.root_key_hash = token.hash().as_str().to_owned();
    role.encoded()
}

pub fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        text.push_str(&format!(": {cause}"));
        below = cause.source();
    }
    text
}

/// Puts a new first key in place of the old one, and signals the server if one runs. Answers the new
/// key and whether it was set.
pub fn reset_root_key(data_dir: &Path) -> Result<(ApiToken, bool), ServeError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ServeError::start(
            "only root can replace the first key",
            "run this as root on the machine of the server",
        ));
    }
    if !data_dir.is_dir() {
        return Err(ServeError::start(
            format!("{} is not a server's data directory", data_dir.display()),
            "name it with --data-dir",
        ));
    }
    let token = ApiToken::random();
    write_file(&data_dir.join(ROOT_KEY_FILE), token.reveal(), 0o600)?;
    let server = running(data_dir)?;
    if let Some(pid) = server {
        rustix::process::kill_process(pid, Signal::HUP)
            .map_err(|errno| ServeError::io("cannot signal the server", errno.into()))?;
    }
    Ok((token, server.is_some()))
}

/// The supervisor over this directory. A process id counts only while its owner holds the lock.
pub fn running(data_dir: &Path) -> Result<Option<Pid>, ServeError> {
    let path = data_dir.join(LOCK_FILE);
    let failed = |source| ServeError::io(format!("cannot read {}", path.display()), source);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(error)),
        Err(TryLockError::WouldBlock) => {
            let text = std::fs::read_to_string(&path).map_err(failed)?;
            Ok(text.trim().parse().ok().and_then(Pid::from_raw))
        }
    }
}
