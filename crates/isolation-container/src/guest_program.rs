//! The guest program on the host's disk: where running guests were started from, and where those in
//! captured memory must find the very same file again.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The program's name in its directory and beside captured memory.
const PROGRAM: &str = "guest";
/// Largest program that is taken from captured memory.
const PROGRAM_MAX: u64 = 64 << 20;
static DRAFTS: AtomicU32 = AtomicU32::new(0);

/// Writes it under a name made from its content, so that an upgrade never touches a file that
/// running guests were started from.
pub fn install(runtime_dir: &Path, program: &[u8]) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    let dir = runtime_dir.join(format!("guest-{:016x}", hasher.finish()));
    let is_there =
        || fs::metadata(dir.join(PROGRAM)).is_ok_and(|found| found.len() == program.len() as u64);
    if is_there() {
        return Ok(dir);
    }
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = runtime_dir.join(format!("draft-{}-{number}", std::process::id()));
    fs::create_dir_all(&draft)?;
    fs::write(draft.join(PROGRAM), program)?;
    fs::set_permissions(draft.join(PROGRAM), fs::Permissions::from_mode(0o555))?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
    // Its name stands for its content for ever, so that a power loss must not leave it empty.
    fs::File::open(draft.join(PROGRAM))?.sync_all()?;
    fs::File::open(&draft)?.sync_all()?;
    if dir.exists() && !is_there() {
        fs::remove_dir_all(&dir)?;
    }
    match fs::rename(&draft, &dir) {
        // Somebody else was quicker with the same.
        Err(_) if is_there() => fs::remove_dir_all(&draft)?,
        other => other?,
    }
    Ok(dir)
}

/// Puts the program of a running guest beside its captured memory.
pub fn keep(runtime_dir: &Path, name: &str, memory: &Path) -> io::Result<()> {
    let target = memory.join(PROGRAM);
    fs::copy(runtime_dir.join(name).join(PROGRAM), &target)?;
    fs::set_permissions(target, fs::Permissions::from_mode(0o600))
}

/// The directory with the program that captured memory was made of.
pub fn of_memory(runtime_dir: &Path, memory: &Path) -> io::Result<PathBuf> {
    let path = memory.join(PROGRAM);
    let length = fs::metadata(&path)?.len();
    if length > PROGRAM_MAX {
        return Err(io::Error::other(format!(
            "the guest beside the memory has {length} bytes"
        )));
    }
    install(runtime_dir, &fs::read(path)?)
}
