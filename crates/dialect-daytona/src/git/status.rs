//! What `git status` says, as Daytona tells it.

use axum::extract::State;
use axum::response::IntoResponse;
use cove_dialect::Front;
use serde::Serialize;

use super::Git;
use crate::asking::{Caller, Names, Query};
use crate::files::At;
use crate::refusal::Answer;

#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    current_branch: String,
    detached: bool,
    upstream: String,
    branch_published: bool,
    ahead: u64,
    behind: u64,
    file_status: Vec<FileStatus>,
}

#[derive(Debug, PartialEq, Serialize)]
struct FileStatus {
    name: String,
    staging: &'static str,
    worktree: &'static str,
    /// The old name of what was renamed or copied.
    extra: String,
}

fn kind(letter: u8) -> &'static str {
    match letter {
        b'M' | b'T' => "Modified",
        b'A' => "Added",
        b'D' => "Deleted",
        b'R' => "Renamed",
        b'C' => "Copied",
        b'U' => "Updated but unmerged",
        b'?' => "Untracked",
        _ => "Unmodified",
    }
}

/// Reads `--porcelain=v2 --branch -z`. Lines that are not understood are passed over: a newer git may
/// say more.
fn parse(text: &str) -> Status {
    let mut status = Status::default();
    let mut lines = text.split('\0');
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# branch.head ") {
            status.detached = rest == "(detached)";
            rest.clone_into(&mut status.current_branch);
        } else if let Some(rest) = line.strip_prefix("# branch.upstream ") {
            status.branch_published = true;
            rest.clone_into(&mut status.upstream);
        } else if let Some(rest) = line.strip_prefix("# branch.ab ") {
            let number = |text: &str| text.trim_start_matches(['+', '-']).parse().unwrap_or(0);
            let mut counts = rest.split(' ').map(number);
            status.ahead = counts.next().unwrap_or(0);
            status.behind = counts.next().unwrap_or(0);
        } else if let Some(name) = line.strip_prefix("? ") {
            status.file_status.push(FileStatus {
                name: name.to_owned(),
                staging: "Untracked",
                worktree: "Untracked",
                extra: String::new(),
            });
        } else {
            // How many fields stand before the name.
            let fields = match line.as_bytes().first() {
                Some(b'1') => 8,
                Some(b'2') => 9,
                Some(b'u') => 10,
                _ => continue,
            };
            let extra = match line.starts_with('2') {
                true => lines.next().unwrap_or("").to_owned(),
                false => String::new(),
            };
            let letters = line.get(2..4).unwrap_or("..").as_bytes();
            let Some(name) = line.splitn(fields + 1, ' ').nth(fields) else {
                continue;
            };
            status.file_status.push(FileStatus {
                name: name.to_owned(),
                staging: kind(letters[0]),
                worktree: kind(letters[1]),
                extra,
            });
        }
    }
    status
}

pub async fn get(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(at): Query<At>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, at.path).await?;
    let text = git
        .say(&["status", "--porcelain=v2", "--branch", "-z"])
        .await?;
    Ok(axum::Json(parse(&text)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn porcelain_is_understood() {
        let text = "# branch.oid 1\0# branch.head main\0# branch.upstream origin/main\0# branch.ab +2 -1\0\
            1 .M N... 100644 100644 100644 a b with space.txt\0\
            2 R. N... 100644 100644 100644 a b R100 new\0old\0\
            u UU N... 1 2 3 4 a b c both\0? un tracked\0odd\0";
        let status = parse(text);
        assert_eq!((status.ahead, status.behind), (2, 1));
        assert!(status.branch_published && !status.detached);
        let files: Vec<_> = status
            .file_status
            .iter()
            .map(|f| (f.name.as_str(), f.staging, f.worktree, f.extra.as_str()))
            .collect();
        assert_eq!(
            files,
            [
                ("with space.txt", "Unmodified", "Modified", ""),
                ("new", "Renamed", "Unmodified", "old"),
                ("both", "Updated but unmerged", "Updated but unmerged", ""),
                ("un tracked", "Untracked", "Untracked", ""),
            ]
        );
    }

    #[test]
    fn nonsense_is_no_panic() {
        for text in ["1", "2 R", "# branch.ab ", "# branch.ab x", "u \0\0", "1 ü"] {
            parse(text);
        }
    }
}
