//! Files on the wire. Contents travel as raw bytes; everything else about them is here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Query of `GET …/files`. Ranges come by the `Range` header.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Absolute path.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
}

/// Query of `PUT …/files`; the body is the contents. Replaces the file in one step unless `append`
/// or `at` is given.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Absolute path.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Octal; 0644 for a new file, an existing one keeps its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::MODE_MAX))]
    pub mode: Option<String>,
    /// `user[:group]`, names or numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::OWNER_MAX))]
    pub owner: Option<String>,
    /// Create missing parent directories.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parents: bool,
    /// Write into the existing file at this offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// Append to the existing file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub append: bool,
    /// Flush to the disk before answering.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sync: bool,
}

/// Query of `DELETE …/files`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveFile {
    /// Absolute path.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Also remove directories that are not empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

/// Query of `GET …/files/list`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// Absolute path of the directory.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Default: 1 (this directory only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::LIST_DEPTH_MAX))]
    pub depth: Option<u32>,
    /// Maximum number of entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::LIST_ENTRIES_MAX))]
    pub limit: Option<u32>,
}

/// Query of `GET …/files/stat`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatFile {
    /// Absolute path.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Describe the target of a symlink instead of the link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
}

/// Query of `GET …/files/watch`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchFiles {
    /// Absolute path of a file or directory.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Watch everything below the directory too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

/// Query of `GET …/files/archive`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadArchive {
    /// Absolute path of the file or directory to pack.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
}

/// Query of `PUT …/files/archive`; the body is a tar, unpacked below `path` and nowhere else.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteArchive {
    /// Absolute path of the directory to unpack into.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Keep the owners that the archive names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_owner: bool,
}

/// Body of `POST …/files/mkdir`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirectory {
    /// Absolute path.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Octal mode; default: 0755.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::MODE_MAX))]
    pub mode: Option<String>,
    /// Create missing parent directories, and succeed if the directory exists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parents: bool,
}

/// Body of `POST …/files/move`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// Absolute path of the file or directory to move.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub from: String,
    /// Absolute path to move it to.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub to: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Replace what is at `to`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

/// Body of `POST …/files/chmod`: mode, owner or both.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeMode {
    /// Absolute path.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// User whose permissions apply; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// New octal mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::MODE_MAX))]
    pub mode: Option<String>,
    /// New owner: `user[:group]`, names or numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::OWNER_MAX))]
    pub owner: Option<String>,
}

/// Type of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Socket,
    Fifo,
    Device,
    Other,
}

/// The metadata of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileInfo {
    /// Last component of the path.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// Type of the entry.
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Octal.
    pub mode: String,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Name of the owner, or its number.
    pub owner: String,
    /// Name of the group, or its number.
    pub group: String,
    /// Time of the last modification.
    pub modified_at: Timestamp,
    /// Where a symbolic link points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}

/// A directory's entries.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Listing {
    /// The entries.
    pub items: Vec<FileInfo>,
    /// There are more entries than the limit.
    pub truncated: bool,
}

/// The result of a write or of an unpacked archive.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Written {
    /// Bytes written.
    pub bytes: u64,
    /// Files, directories and links written.
    pub entries: u64,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The watch is ready; every later change is reported.
    Ready,
    Created,
    Written,
    Removed,
    Renamed,
    Attributes,
    /// Changes were lost because there were too many; list the directory again.
    Overflow,
}

/// One line of a watch.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FileChange {
    /// The kind of the change.
    #[serde(rename = "type")]
    pub kind: ChangeKind,
    /// Absolute path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Previous path of a renamed entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The entry is a directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
}

/// The mode behind octal text; `None` when it is not one or has bits beyond 07777.
pub fn parse_mode(text: &str) -> Option<u32> {
    let octal = text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    if !octal || text.is_empty() || text.len() > 5 {
        return None;
    }
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
}

pub fn format_mode(mode: u32) -> String {
    format!("{:04o}", mode & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_bounded() {
        assert_eq!(parse_mode("0644"), Some(0o644));
        assert_eq!(parse_mode("4755"), Some(0o4755));
        for bad in ["", "8", "+644", "10000", "0x1ff", "000644"] {
            assert_eq!(parse_mode(bad), None, "{bad} was accepted");
        }
        assert_eq!(format_mode(0o100_644), "0644");
    }
}
