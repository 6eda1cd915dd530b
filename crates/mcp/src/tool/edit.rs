//! Changing text in files, and looking for it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cove_api::file::{StatFile, WriteFile};
use cove_api::process::{Encoding, Exec};
use cove_client::Outgoing;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::files::part;
use crate::answer::{self, Outcome, Refusal};
use crate::call::Call;

/// The largest file that is edited, before and after.
const EDIT_MAX: u64 = 4 * 1024 * 1024;
/// What an edit holds in memory: the file as it was, as it becomes, and on its way.
pub const EDIT_HOLDS: usize = 3 * EDIT_MAX as usize;
/// Lines of a search in one answer.
const FOUND_DEFAULT: usize = 200;
const FOUND_MAX: usize = 2000;
/// A search that takes longer is ended.
const SEARCH_TIMEOUT_MS: u64 = 45_000;
/// Bytes of one line that was found.
const LINE_MAX: usize = 500;
/// Bytes of all lines that are read of a search.
const FOUND_BYTES_MAX: usize = 64 * 1024;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// Name or id of the sandbox.
    sandbox: String,
    /// Absolute path of the file.
    path: String,
    /// The text to replace, exactly as it is in the file.
    old_text: String,
    /// The new text.
    new_text: String,
    /// Replace every occurrence. Default: there must be exactly one.
    #[serde(default)]
    all: bool,
}

pub async fn edit(call: Call, edit: Edit) -> Outcome {
    if edit.old_text.is_empty() {
        return Err(Refusal::new(
            "`old_text` is empty; use file_write to write a new file",
        ));
    }
    let stat = StatFile {
        path: edit.path.clone(),
        user: None,
        follow: true,
    };
    let size = call.client.stat_file(&edit.sandbox, &stat).await?.size;
    if size > EDIT_MAX {
        let text = format!("the file has {size} bytes; file_edit takes at most {EDIT_MAX}");
        return Err(Refusal::new(text));
    }
    let bytes = part(&call, &edit.sandbox, &edit.path, 0, size).await?;
    let text = String::from_utf8(bytes).map_err(|_| Refusal::new("the file is not UTF-8 text"))?;
    let count = text.matches(&edit.old_text).count();
    match count {
        0 => {
            return Err(Refusal::new(
                "`old_text` is not in the file; nothing was changed",
            ));
        }
        1 => {}
        _ if edit.all => {}
        _ => {
            return Err(Refusal::new(format!(
                "`old_text` is in the file {count} times; give more of the text around it, or `all`: true"
            )));
        }
    }
    // A short text that is often there and a long one in its place would take any amount of memory.
    let added = count.saturating_mul(edit.new_text.len());
    let size = (text.len() - count * edit.old_text.len()).saturating_add(added);
    if size as u64 > EDIT_MAX {
        let text = format!(
            "the file would have {size} bytes; file_edit makes at most {EDIT_MAX}; nothing was changed"
        );
        return Err(Refusal::new(text));
    }
    let changed = text.replace(&edit.old_text, &edit.new_text);
    let write = WriteFile {
        path: edit.path.clone(),
        ..WriteFile::default()
    };
    let contents = Outgoing::bytes(changed.into_bytes());
    let written = call
        .client
        .write_file(&edit.sandbox, &write, contents)
        .await?;
    answer::json(json!({ "path": edit.path, "replaced": count, "bytes": written.bytes }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// Name or id of the sandbox.
    sandbox: String,
    /// Absolute path of the directory to search.
    path: String,
    /// Find lines that match this extended regular expression (as grep -E).
    text: Option<String>,
    /// Only files whose name matches this glob, e.g. `*.py`.
    name: Option<String>,
    /// Maximum number of lines; default 200, at most 2000.
    limit: Option<usize>,
}

pub async fn search(call: Call, search: Search) -> Outcome {
    let limit = search.limit.unwrap_or(FOUND_DEFAULT);
    if limit == 0 || limit > FOUND_MAX {
        return Err(Refusal::new(format!("limit is between 1 and {FOUND_MAX}")));
    }
    let name = search.name.unwrap_or_else(|| "*".into());
    // One line more than wanted tells whether there are more.
    let script = match &search.text {
        Some(_) => {
            r#"find "$1" -type f -name "$2" -exec grep -nIHE -e "$4" -- {} + 2>/dev/null | head -n "$3" | head -c "$5""#
        }
        None => r#"find "$1" -name "$2" 2>/dev/null | head -n "$3" | head -c "$5""#,
    };
    let count = (limit + 1).to_string();
    let text = search.text.as_deref().unwrap_or_default();
    let bytes = FOUND_BYTES_MAX.to_string();
    let argv = [
        "/bin/sh",
        "-c",
        script,
        "sh",
        &search.path,
        &name,
        &count,
        text,
        &bytes,
    ];
    let stat = StatFile {
        path: search.path.clone(),
        user: None,
        follow: true,
    };
    call.client.stat_file(&search.sandbox, &stat).await?;
    let exec = Exec {
        argv: Some(argv.map(str::to_owned).to_vec()),
        timeout_ms: Some(SEARCH_TIMEOUT_MS),
        kill_on_disconnect: true,
        ..Exec::default()
    };
    let result = call.client.exec(&search.sandbox, &exec).await?;
    if result.exit.timed_out {
        return Err(Refusal::new(
            "the search took too long; search a smaller directory",
        ));
    }
    // Bytes that are not text come encoded; the last line may be cut within a character.
    let found = match result.encoding {
        Encoding::Text => result.stdout.into_bytes(),
        Encoding::Base64 => BASE64.decode(&result.stdout).unwrap_or_default(),
    };
    let cut = found.len() >= FOUND_BYTES_MAX;
    let found = String::from_utf8_lossy(&found);
    let mut lines: Vec<String> = found
        .lines()
        .map(|line| line[..line.floor_char_boundary(LINE_MAX)].to_owned())
        .collect();
    let more = cut || lines.len() > limit;
    lines.truncate(limit);
    let mut text = lines.join("\n");
    if lines.is_empty() {
        text.push_str("[nothing found]");
    } else if more {
        text.push_str("\n[there is more; narrow the search, or raise `limit`]");
    }
    answer::text(text, json!({ "lines": lines, "more": more }), &["lines"])
}
