//! An archive path, taken apart and checked.

use crate::limits::UnpackLimits;
use crate::report::{Failure, Limit, show};

/// The kernel's limit for one file name on every file system in use.
const MAX_NAME_BYTES: usize = 255;

/// A path below the root: no `..`, no empty parts, no leading slash. Empty for the root itself.
#[derive(Debug, PartialEq, Eq)]
pub struct EntryPath {
    joined: Vec<u8>,
    /// Where the last component begins in `joined`.
    name_start: usize,
}

impl EntryPath {
    pub fn parse(raw: &[u8], limits: &UnpackLimits) -> Result<Self, Failure> {
        let refuse = || Failure::UnsafePath { path: show(raw) };
        if raw.is_empty() || raw.contains(&0) {
            return Err(refuse());
        }
        if raw.len() > limits.path_bytes {
            return Err(Failure::limit(Limit::PathBytes, limits.path_bytes as u64));
        }
        let mut joined = Vec::with_capacity(raw.len());
        let mut name_start = 0;
        let mut depth = 0;
        for part in raw.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return Err(refuse()),
                _ => {}
            }
            if part.len() > MAX_NAME_BYTES {
                return Err(Failure::limit(Limit::PathBytes, MAX_NAME_BYTES as u64));
            }
            depth += 1;
            if depth > limits.depth {
                return Err(Failure::limit(Limit::Depth, limits.depth as u64));
            }
            if !joined.is_empty() {
                joined.push(b'/');
            }
            name_start = joined.len();
            joined.extend_from_slice(part);
        }
        Ok(Self { joined, name_start })
    }

    pub fn joined(&self) -> &[u8] {
        &self.joined
    }

    pub fn name(&self) -> Option<&[u8]> {
        (!self.joined.is_empty()).then(|| &self.joined[self.name_start..])
    }

    /// Empty when the parent is the root.
    pub fn parent(&self) -> &[u8] {
        &self.joined[..self.name_start.saturating_sub(1)]
    }

    /// `a`, `a/b`, … up to and with the parent.
    pub fn parent_prefixes(&self) -> impl Iterator<Item = &[u8]> {
        let parent = self.parent();
        (0..=parent.len())
            .filter(|end| *end > 0 && (*end == parent.len() || parent[*end] == b'/'))
            .map(|end| &parent[..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(raw: &str) -> Result<EntryPath, Failure> {
        EntryPath::parse(raw.as_bytes(), &UnpackLimits::default())
    }

    #[test]
    fn paths_are_taken_from_the_root_and_cleaned() {
        let path = parse("//./a//b/c/").unwrap();
        assert_eq!(path.joined(), b"a/b/c");
        assert_eq!(path.name(), Some(&b"c"[..]));
        assert_eq!(path.parent(), b"a/b");
        let prefixes: Vec<_> = path.parent_prefixes().collect();
        assert_eq!(prefixes, [&b"a"[..], b"a/b"]);
        assert_eq!(parse("./").unwrap().name(), None);
        assert_eq!(parse("x").unwrap().parent_prefixes().count(), 0);
    }

    #[test]
    fn paths_that_climb_or_cannot_be_names_are_refused() {
        for bad in ["", "..", "a/../b", "a/..", "/..", "a\0b"] {
            assert!(
                matches!(parse(bad), Err(Failure::UnsafePath { .. })),
                "{bad:?}"
            );
        }
        assert!(parse(&"a".repeat(256)).is_err());
        assert!(parse(&"a/".repeat(300)).is_err());
        assert!(parse(&"a/".repeat(3000)).is_err());
    }
}
