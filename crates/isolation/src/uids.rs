//! The user ids that processes of this host have.

use std::collections::BTreeSet;
use std::fs;
use std::io;

/// Every user id of every process, real, effective, saved and of the filesystem.
pub fn in_use() -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name();
        if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // One that cannot be read has just ended.
        if let Ok(status) = fs::read_to_string(entry.path().join("status")) {
            found.extend(uids(&status));
        }
    }
    Ok(found)
}

fn uids(status: &str) -> impl Iterator<Item = u32> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|id| id.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_all_four_kinds_are_read() {
        let status = "Name:\tUid: 7\nUid:\t0\t1879113728\t3\t4294967294\nGid:\t9\t9\t9\t9\n";
        let found: Vec<u32> = uids(status).collect();
        assert_eq!(found, [0, 1_879_113_728, 3, 4_294_967_294]);
    }

    #[test]
    fn this_process_is_among_them() {
        let own = rustix::process::getuid().as_raw();
        assert!(in_use().unwrap().contains(&own));
    }
}
