//! The CPUs that commands may run on, in the form of /proc/cpuinfo and the kernel's online list.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes read of the file that the first block is taken from.
const CPUINFO_MAX: u64 = 64 * 1024;

/// How many CPUs this process may run on, and so every command.
pub fn usable() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count().max(1))
}

/// Rewrites both files in place: they are bound over the kernel's.
pub fn write(files: &Path, cpus: u32) -> io::Result<()> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let mut cpuinfo = File::options()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(files.join("cpuinfo"))?;
    let mut before = Vec::new();
    (&cpuinfo).take(CPUINFO_MAX).read_to_end(&mut before)?;
    let text = replicate(&String::from_utf8_lossy(&before), cpus);
    cpuinfo.rewind()?;
    cpuinfo.write_all(text.as_bytes())?;
    cpuinfo.set_len(text.len() as u64)?;

    let mut online = File::options()
        .write(true)
        .custom_flags(flags)
        .open(files.join("online"))?;
    let range = match cpus {
        1 => "0\n".to_owned(),
        _ => format!("0-{}\n", cpus - 1),
    };
    online.write_all(range.as_bytes())?;
    online.set_len(range.len() as u64)
}

/// The first block once for every CPU, numbered anew.
fn replicate(cpuinfo: &str, cpus: u32) -> String {
    let block = cpuinfo.split("\n\n").next().unwrap_or_default();
    let mut text = String::with_capacity((block.len() + 8) * cpus as usize);
    for cpu in 0..cpus {
        for line in block.lines() {
            let (label, _) = line.split_once(':').unwrap_or((line, ""));
            let number = match label.trim_end() {
                "processor" | "core id" | "apicid" | "initial apicid" => Some(cpu),
                "siblings" | "cpu cores" => Some(cpus),
                _ => None,
            };
            // Writing to a string cannot fail.
            let _ = match number {
                Some(number) => writeln!(text, "{label}: {number}"),
                None => writeln!(text, "{line}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "processor\t: 7\nmodel name\t: X\nsiblings\t: 8\n\nprocessor\t: 8\n\n";

    #[test]
    fn the_first_block_is_repeated_and_numbered() {
        assert_eq!(
            replicate(HOST, 2),
            "processor\t: 0\nmodel name\t: X\nsiblings\t: 2\n\n\
             processor\t: 1\nmodel name\t: X\nsiblings\t: 2\n\n"
        );
    }

    #[test]
    fn files_shrink_and_grow_in_place() {
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("cpuinfo"), HOST).unwrap();
        std::fs::write(files.path().join("online"), "0-127\n").unwrap();
        for (cpus, online) in [(3, "0-2\n"), (1, "0\n"), (12, "0-11\n")] {
            write(files.path(), cpus).unwrap();
            let text = std::fs::read_to_string(files.path().join("cpuinfo")).unwrap();
            assert_eq!(text, replicate(HOST, cpus));
            let text = std::fs::read_to_string(files.path().join("online")).unwrap();
            assert_eq!(text, online);
        }
    }
}
