//! The folder with QEMU, mke2fs, the kernel and its drivers, as `scripts/provide-vm` makes it.

use std::io;
use std::path::{Path, PathBuf};

/// Where `scripts/provide-vm` puts it.
pub const DEFAULT_PROGRAMS: &str = "/usr/local/lib/cove/vm";
/// What must be there.
const NEEDED: [&str; 7] = [
    "bin/qemu-system-x86_64",
    "bin/mke2fs",
    "lib/ld-linux-x86-64.so.2",
    "share/qboot.rom",
    "etc/mke2fs.conf",
    "vmlinuz",
    "modules",
];

#[derive(Debug, Clone)]
pub struct Programs {
    pub dir: PathBuf,
}

impl Programs {
    pub fn find(configured: Option<&Path>) -> Result<Self, String> {
        let dir = configured.unwrap_or(Path::new(DEFAULT_PROGRAMS)).to_owned();
        match NEEDED.iter().find(|name| !dir.join(name).exists()) {
            None => Ok(Self { dir }),
            Some(missing) => Err(format!(
                "{} is missing; run scripts/provide-vm and restart the server",
                dir.join(missing).display()
            )),
        }
    }

    /// The drivers that the kernel loads first, in their order.
    pub fn modules(&self) -> io::Result<Vec<PathBuf>> {
        let listed = std::fs::read_dir(self.dir.join("modules"))?;
        let mut paths = listed
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    }

    /// What is in the folder, by its versions.
    pub fn versions(&self) -> String {
        let text = std::fs::read_to_string(self.dir.join("source")).unwrap_or_default();
        text.lines().collect::<Vec<_>>().join(", ")
    }
}
