//! The first file system of a machine, in memory: the guest as its first program, and the drivers it loads. An archive
//! in the kernel's form (`newc`).

use std::fs;
use std::io;
use std::path::Path;

use crate::programs::Programs;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const DEVICE: u32 = 0o020_600;
/// Entries and contents begin at multiples of this.
const ALIGNED: usize = 4;

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(ALIGNED);
        self.bytes.resize(length, 0);
    }

    fn add(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_length = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            device.0,
            device.1,
            name_length,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }
}

pub fn make(guest: &[u8], programs: &Programs) -> io::Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["dev", "proc", "root", "modules"] {
        archive.add(dir, DIRECTORY, (0, 0), &[]);
    }
    // Where the kernel puts the first program's output before anything is mounted.
    archive.add("dev/console", DEVICE, (5, 1), &[]);
    archive.add("init", PROGRAM, (0, 0), guest);
    for module in programs.modules()? {
        let name = module.file_name().map(Path::new).and_then(Path::to_str);
        let name = name.ok_or_else(|| io::Error::other("a driver's name is no text"))?;
        archive.add(
            &format!("modules/{name}"),
            FILE,
            (0, 0),
            &fs::read(&module)?,
        );
    }
    archive.add("TRAILER!!!", 0, (0, 0), &[]);
    Ok(archive.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_their_lengths_are_told() {
        let mut archive = Archive::default();
        archive.add("a", FILE, (0, 0), b"hello");
        assert_eq!(archive.bytes.len() % ALIGNED, 0);
        assert!(archive.bytes.starts_with(b"07070100000001000081a4"));
        let text = String::from_utf8_lossy(&archive.bytes).into_owned();
        assert!(
            text.contains("00000005") && text.contains("hello"),
            "{text}"
        );
    }
}
