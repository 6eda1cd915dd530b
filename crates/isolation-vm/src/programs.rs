//! The folder with QEMU, mke2fs, the kernel and its drivers, as `scripts/provide-vm` makes it.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

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
    pub fn sources(&self) -> String {
        self.source().lines().collect::<Vec<_>>().join(", ")
    }

    fn source(&self) -> String {
        std::fs::read_to_string(self.dir.join("source")).unwrap_or_default()
    }

    /// Of what captured memory depends on.
    pub fn versions(&self) -> Versions {
        Versions::of(&self.source())
    }
}

/// Of QEMU and of the kernel that machines boot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Versions {
    pub qemu: String,
    pub kernel: String,
}

impl Versions {
    /// A package and its version in each line; the kernel's is the last one.
    fn of(source: &str) -> Self {
        let qemu = source
            .lines()
            .find_map(|line| line.strip_prefix("qemu-system-x86 "));
        Self {
            qemu: qemu.unwrap_or("unknown").trim().to_owned(),
            kernel: source.lines().last().unwrap_or("unknown").trim().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_script_notes() {
        let noted = "e2fsprogs 1.47.0-2\nqemu-system-x86 1:7.2+dfsg-7+deb12u18\n6.12.107+deb13-cloud-amd64\n";
        let versions = Versions::of(noted);
        assert_eq!(versions.qemu, "1:7.2+dfsg-7+deb12u18");
        assert_eq!(versions.kernel, "6.12.107+deb13-cloud-amd64");
    }
}
