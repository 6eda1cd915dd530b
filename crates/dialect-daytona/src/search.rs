//! Looking for files and in files, and changing what is found.

use axum::extract::State;
use axum::response::IntoResponse;
use cove_control::{CommandLine, CommandRequest, GuestAccess, GuestAction, budget};
use cove_dialect::{Front, Output};
use cove_protocol::identity::owner;
use cove_protocol::message::{ReadFile, WriteFile};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::asking::{Caller, Json, Names, Query};
use crate::exec::{ANSWER_MAX, Ended, absolute, run};
use crate::refusal::{Answer, Refusal, about_path};
use crate::tree::stat;

/// Lines and files returned of one search.
const FOUND_MAX: usize = 10_000;
const FILES_MAX: usize = 1000;
const PATTERN_MAX: usize = 4096;

/// Each line as `file NUL number:text`, also where grep itself cannot say it so.
const FIND: &str = r#"if echo x | grep -qZ x 2>/dev/null; then exec grep -rnIFZ -- "$2" "$1" 2>/dev/null; fi
find "$1" -type f -exec sh -c 'p=$1; shift; for f; do grep -nF -- "$p" "$f" 2>/dev/null | while IFS= read -r l; do printf "%s\0%s\n" "$f" "$l"; done; done' sh "$2" {} +"#;

const SEARCH: &str = r#"find "$1" -name "$2" -print0 2>/dev/null"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    path: String,
    pattern: String,
}

async fn ask(
    front: &Front,
    access: GuestAccess,
    script: &str,
    path: String,
    pattern: String,
) -> Result<Ended, Refusal> {
    let argv = ["/bin/sh", "-c", script, "sh", &path, &pattern];
    let argv = argv.map(str::to_owned).to_vec();
    run(
        front,
        access,
        CommandRequest::new(owner::DAYTONA, CommandLine::Argv(argv)),
    )
    .await
}

fn check(pattern: &str) -> Result<(), Refusal> {
    if pattern.is_empty() || pattern.len() > PATTERN_MAX || pattern.contains('\0') {
        let message = format!("pattern: between 1 and {PATTERN_MAX} bytes, without NUL");
        return Err(Refusal::invalid(message));
    }
    Ok(())
}

pub async fn find(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Search>,
) -> Answer {
    check(&query.pattern)?;
    let path = absolute(&front, &caller, &id, query.path).await?;
    let access = front.control.guest(&caller, &id, GuestAction::Exec).await?;
    stat(&access, path.clone()).await?;
    let mut ended = ask(&front, access, FIND, path, query.pattern).await?;
    Ok(axum::Json(matches(&ended.bytes()?)).into_response())
}

fn matches(output: &[u8]) -> Vec<Value> {
    let lines = output.split(|byte| *byte == b'\n');
    let found = lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == 0)?;
        let (file, rest) = (&line[..at], &line[at + 1..]);
        let at = rest.iter().position(|byte| *byte == b':')?;
        let number: u64 = std::str::from_utf8(&rest[..at]).ok()?.parse().ok()?;
        Some(json!({
            "file": String::from_utf8_lossy(file),
            "line": number,
            "content": String::from_utf8_lossy(&rest[at + 1..]),
        }))
    });
    found.take(FOUND_MAX).collect()
}

pub async fn search(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Search>,
) -> Answer {
    check(&query.pattern)?;
    let path = absolute(&front, &caller, &id, query.path).await?;
    let access = front.control.guest(&caller, &id, GuestAction::Exec).await?;
    stat(&access, path.clone()).await?;
    let mut ended = ask(&front, access, SEARCH, path, query.pattern).await?;
    let output = ended.bytes()?;
    let files: Vec<_> = output
        .split(|byte| *byte == 0)
        .filter(|file| file.starts_with(b"/"))
        .take(FOUND_MAX)
        .map(String::from_utf8_lossy)
        .collect();
    Ok(axum::Json(json!({ "files": files })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Replace {
    files: Vec<String>,
    pattern: String,
    new_value: String,
}

/// Each file succeeds or fails by itself.
pub async fn replace(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Replace>,
) -> Answer {
    check(&body.pattern)?;
    if body.files.len() > FILES_MAX {
        return Err(Refusal::invalid(format!(
            "at most {FILES_MAX} files at once"
        )));
    }
    let access = front
        .control
        .guest(&caller, &id, GuestAction::FileWrite)
        .await?;
    let mut results = Vec::new();
    for file in body.files {
        let outcome = async {
            let path = absolute(&front, &caller, &id, file.clone()).await?;
            replace_in(&access, path, &body.pattern, &body.new_value).await
        };
        results.push(match outcome.await {
            Ok(()) => json!({ "file": file, "success": true }),
            Err(refusal) => json!({ "file": file, "success": false, "error": refusal.message() }),
        });
    }
    Ok(axum::Json(results).into_response())
}

async fn replace_in(
    access: &GuestAccess,
    path: String,
    pattern: &str,
    new: &str,
) -> Result<(), Refusal> {
    let user = access.default_user().to_owned();
    let read = ReadFile {
        path: path.clone(),
        user: user.clone(),
        ..ReadFile::default()
    };
    let mut reader = access.guest().read_file(read).await.map_err(about_path)?;
    let mut kept = Output::new(access.account(), ANSWER_MAX);
    while let Some(chunk) = reader.next().await.map_err(about_path)? {
        kept.take(&chunk);
        if kept.is_cut() {
            let message = format!("text is replaced in files of at most {ANSWER_MAX} bytes");
            return Err(Refusal::invalid(message));
        }
    }
    let bytes = kept.whole().ok_or_else(budget::over)?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| Refusal::invalid("the file is not text"))?;
    let replaced = text.replace(pattern, new);
    if replaced == text {
        return Ok(());
    }
    let write = WriteFile {
        path,
        user,
        ..WriteFile::default()
    };
    let mut upload = access.guest().write_file(write).await.map_err(about_path)?;
    upload.write(replaced.into()).await.map_err(about_path)?;
    upload.finish().await.map_err(about_path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_colons_and_lines_with_them_are_told_apart() {
        let found = matches(b"/a:b\x003:c: d\nnoise\n/x\x001:\n");
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            json!({ "file": "/a:b", "line": 3, "content": "c: d" })
        );
        assert_eq!(found[1]["content"], "");
    }
}
