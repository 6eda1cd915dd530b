//! The sandbox's limit and use in the form of /proc/meminfo.

use std::fmt::Write as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::Memory;

/// Overwrites the file in place: it is bound over /proc/meminfo, so it must stay the same file,
/// and as every line has a fixed width a reader never sees half of one.
pub fn write(path: &Path, memory: &Memory) {
    // A sandbox without the file, or with a full disk, goes without fresh figures.
    let opened = std::fs::File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path);
    if let Ok(file) = opened {
        let text = text(memory);
        if file.write_all_at(text.as_bytes(), 0).is_ok() {
            let shorter = file
                .metadata()
                .is_ok_and(|meta| meta.len() > text.len() as u64);
            if shorter {
                let _ = file.set_len(text.len() as u64);
            }
        }
    }
}

fn text(memory: &Memory) -> String {
    let free = memory.limit.saturating_sub(memory.current);
    let reclaimable = memory
        .file
        .saturating_sub(memory.shared)
        .saturating_sub(memory.dirty)
        + memory.slab_reclaimable;
    let lines = [
        ("MemTotal", memory.limit),
        ("MemFree", free),
        ("MemAvailable", (free + reclaimable).min(memory.limit)),
        ("Buffers", 0),
        ("Cached", memory.file),
        ("SwapCached", 0),
        ("Active", memory.active_anonymous + memory.active_file),
        ("Inactive", memory.inactive_anonymous + memory.inactive_file),
        ("Active(anon)", memory.active_anonymous),
        ("Inactive(anon)", memory.inactive_anonymous),
        ("Active(file)", memory.active_file),
        ("Inactive(file)", memory.inactive_file),
        ("Unevictable", 0),
        ("Mlocked", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", memory.dirty),
        ("Writeback", 0),
        ("AnonPages", memory.anonymous),
        ("Mapped", memory.mapped),
        ("Shmem", memory.shared),
        ("KReclaimable", memory.slab_reclaimable),
        ("Slab", memory.slab_reclaimable + memory.slab_unreclaimable),
        ("SReclaimable", memory.slab_reclaimable),
        ("SUnreclaim", memory.slab_unreclaimable),
        ("KernelStack", memory.kernel_stack),
        ("PageTables", memory.page_tables),
        ("CommitLimit", memory.limit),
        ("Committed_AS", memory.current),
    ];
    let mut text = String::with_capacity(lines.len() * 28);
    for (name, bytes) in lines {
        let label = format!("{name}:");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:<15} {:>8} kB", bytes / 1024);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_total_and_every_version_has_one_length() {
        let small = text(&Memory::default());
        let memory = Memory {
            limit: 512 << 20,
            current: 200 << 20,
            file: 50 << 20,
            ..Memory::default()
        };
        let large = text(&memory);
        assert!(large.starts_with("MemTotal:         524288 kB\nMemFree:          319488 kB\n"));
        assert!(large.contains("MemAvailable:     370688 kB\n"));
        assert_eq!(small.len(), large.len());
    }
}
