//! The guest program on the host's disk: where running guests were started from, and where those in
//! captured memory must find the very same file again.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// What the program that runs the guest is called beside it.
pub const RUNNER: &str = "runner";
/// The program's name in its directory and beside captured memory.
const PROGRAM: &str = "guest";
/// Largest program that is taken from captured memory.
const PROGRAM_MAX: u64 = 64 << 20;
static DRAFTS: AtomicU32 = AtomicU32::new(0);

/// The programs that seats of one tier run, put on the disk with the first need.
#[derive(Debug)]
pub struct Programs {
    pub runtime_dir: PathBuf,
    pub guest: &'static [u8],
    /// What lies beside the guest, each under its name.
    pub beside: Vec<(&'static str, Piece)>,
    pub installed: OnceLock<PathBuf>,
}

/// A file beside the guest.
#[derive(Debug, Clone)]
pub enum Piece {
    /// A copy of a file of the host's.
    File(PathBuf),
    Bytes(Arc<[u8]>),
}

impl Piece {
    fn read(&self) -> io::Result<Arc<[u8]>> {
        match self {
            Self::File(path) => Ok(fs::read(path)?.into()),
            Self::Bytes(bytes) => Ok(Arc::clone(bytes)),
        }
    }
}

impl Programs {
    /// The directory that holds them.
    pub fn dir(&self) -> io::Result<&Path> {
        if let Some(dir) = self.installed.get() {
            return Ok(dir);
        }
        let dir = install(&self.runtime_dir, self.guest, &self.beside)?;
        Ok(self.installed.get_or_init(|| dir))
    }

    /// The directory's name.
    pub fn name(&self) -> io::Result<String> {
        let name = self.dir()?.file_name().unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }
}

/// Writes it under a name made from its content, so that an upgrade never touches a file that
/// running guests were started from. What runs the guest, if anything does, lies beside it: a
/// machine keeps the very file it was started with, whatever becomes of the host's.
pub fn install(
    runtime_dir: &Path,
    program: &[u8],
    beside: &[(&'static str, Piece)],
) -> io::Result<PathBuf> {
    let mut others = Vec::new();
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    for (name, piece) in beside {
        let bytes = piece.read()?;
        bytes.hash(&mut hasher);
        others.push((*name, bytes));
    }
    let dir = runtime_dir.join(format!("guest-{:016x}", hasher.finish()));
    let parts: Vec<(&str, &[u8])> = std::iter::once((PROGRAM, program))
        .chain(others.iter().map(|(name, bytes)| (*name, &**bytes)))
        .collect();
    let is_there = || {
        parts.iter().all(|(name, bytes)| {
            fs::metadata(dir.join(name)).is_ok_and(|found| found.len() == bytes.len() as u64)
        })
    };
    if is_there() {
        return Ok(dir);
    }
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = runtime_dir.join(format!("draft-{}-{number}", std::process::id()));
    fs::create_dir_all(&draft)?;
    for (name, bytes) in &parts {
        fs::write(draft.join(name), bytes)?;
        fs::set_permissions(draft.join(name), fs::Permissions::from_mode(0o555))?;
        // Its name stands for its content for ever, so that a power loss must not leave it empty.
        fs::File::open(draft.join(name))?.sync_all()?;
    }
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
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
    install(runtime_dir, &fs::read(path)?, &[])
}
