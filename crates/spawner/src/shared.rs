//! What of a sandbox's memory may be taken by things that outlive their makers. A restore puts the same
//! figures in force as a boot does.

/// Each inode of our own tmpfs, which also backs /dev/shm, stands for this much of its size: inodes
/// take memory too, and nobody gives it back when those who made them are killed.
const BYTES_PER_INODE: u64 = 16 * 1024;
const INODES_MIN: u64 = 1024;
/// System V segments may take this part of what the tmpfs may have.
const SEGMENTS_SHARE: u64 = 2;
const PAGE_BYTES: u64 = 4096;

/// What the tmpfs may have: as on any machine, half of the memory.
pub fn shm_bytes(memory_mb: u64) -> u64 {
    (memory_mb << 20) / 2
}

/// Inodes of a tmpfs of this size.
pub fn inodes(shm_bytes: u64) -> u64 {
    (shm_bytes / BYTES_PER_INODE).max(INODES_MIN)
}

/// Pages that all System V segments may have together beside a tmpfs of this size.
pub fn segment_pages(shm_bytes: u64) -> u64 {
    shm_bytes / SEGMENTS_SHARE / PAGE_BYTES
}
