//! Files on the wire. Contents travel as raw bytes; everything else about them is here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Query of `GET …/files`. Ranges come by the `Range` header.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Absolute.
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    /// Whose rights to use; default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
}

/// Query of `PUT …/files`; the body is the contents. Replaces the file in one step unless `append`
/// or `at` is given.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
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
    /// Make missing parent directories.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parents: bool,
    /// Write into the existing file at this offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
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
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Directories with what is in them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

/// Query of `GET …/files/list`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Default: 1 (this directory only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::LIST_DEPTH_MAX))]
    pub depth: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::LIST_ENTRIES_MAX))]
    pub limit: Option<u32>,
}

/// Query of `GET …/files/stat`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatFile {
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Describe what a symlink points to instead of the link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
}

/// Query of `GET …/files/watch`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchFiles {
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

/// Query of `GET …/files/archive`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadArchive {
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
}

/// Query of `PUT …/files/archive`; the body is a tar, unpacked below `path` and nowhere else.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteArchive {
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Keep the owners the archive names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_owner: bool,
}

/// Body of `POST …/files/mkdir`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirectory {
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::MODE_MAX))]
    pub mode: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parents: bool,
}

/// Body of `POST …/files/move`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub from: String,
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub to: String,
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
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::MODE_MAX))]
    pub mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::OWNER_MAX))]
    pub owner: Option<String>,
}

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

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileInfo {
    pub name: String,
    pub path: String,
    #[serde(rename = "type")]
    pub kind: FileKind,
    pub size: u64,
    /// Octal.
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
    pub owner: String,
    pub group: String,
    pub modified_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}

/// A directory's entries.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Listing {
    pub items: Vec<FileInfo>,
    /// There are more than the limit allows.
    pub truncated: bool,
}

/// What a write or an unpacked archive brought in.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Written {
    pub bytes: u64,
    pub entries: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The watch stands; every later change is reported.
    Ready,
    Created,
    Written,
    Removed,
    Renamed,
    Attributes,
    /// Changes came faster than they could be reported; look again.
    Overflow,
}

/// One line of a watch.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FileChange {
    #[serde(rename = "type")]
    pub kind: ChangeKind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
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
