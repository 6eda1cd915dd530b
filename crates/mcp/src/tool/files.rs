//! Files: read, write, list.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cove_api::file::{ListFiles, ReadFile, StatFile, WriteFile};
use cove_client::Outgoing;
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{self, Outcome, Refusal};
use crate::call::Call;

/// Bytes of a file in one answer.
const READ_DEFAULT: u64 = 64 * 1024;
const READ_MAX: u64 = 256 * 1024;
/// The largest image that is returned as an image.
const PICTURE_MAX: u64 = 1024 * 1024;
/// What reading a file holds in memory: an image, its base64, and the answer around it.
pub const READ_HOLDS: usize = 4 * PICTURE_MAX as usize;
/// Entries of a directory in one answer.
const LIST_DEFAULT: u32 = 200;
const LIST_MAX: u32 = 1000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Name or id of the sandbox.
    sandbox: String,
    /// Absolute path of the file.
    path: String,
    /// Offset of the first byte to read. Default 0.
    #[serde(default)]
    offset: u64,
    /// Maximum number of bytes. Default 65536, at most 262144; images up to 1 MiB are read whole.
    max_bytes: Option<u64>,
}

pub async fn read(call: Call, read: Read) -> Outcome {
    let max = read.max_bytes.unwrap_or(READ_DEFAULT);
    if max == 0 || max > READ_MAX {
        return Err(Refusal::new(format!(
            "max_bytes is between 1 and {READ_MAX}; read the rest by `offset`"
        )));
    }
    let stat = StatFile {
        path: read.path.clone(),
        user: None,
        follow: true,
    };
    let size = call.client.stat_file(&read.sandbox, &stat).await?.size;
    let picture = picture(&read.path).filter(|_| read.offset == 0 && size <= PICTURE_MAX);
    let max = if picture.is_some() { PICTURE_MAX } else { max };
    let bytes = part(&call, &read.sandbox, &read.path, read.offset, max.min(size)).await?;
    let next = read.offset + bytes.len() as u64;
    let whole = next >= size;
    let facts = json!({ "path": read.path, "size": size, "offset": read.offset, "next_offset": next, "end": whole });
    if let Some(kind) = picture.filter(|_| whole) {
        let encoded = BASE64.encode(&bytes);
        drop(bytes);
        let content = vec![ContentBlock::image(encoded, kind)];
        return answer::blocks(content, facts);
    }
    let mut structured = facts;
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => {
            structured["text"] = text.clone().into();
            text
        }
        Err(error) => match split_character(error.utf8_error(), whole) {
            // A character was cut in two by the limit: the rest comes with the next read.
            Some(good) => {
                let mut bytes = error.into_bytes();
                bytes.truncate(good);
                structured["next_offset"] = (read.offset + good as u64).into();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                structured["text"] = text.clone().into();
                text
            }
            None => {
                let encoded = BASE64.encode(error.into_bytes());
                structured["base64"] = encoded.clone().into();
                format!("[not text; base64]\n{encoded}")
            }
        },
    };
    if !whole {
        let next = &structured["next_offset"];
        text.push_str(&format!(
            "\n[{size} bytes in all; go on with offset {next}]"
        ));
    }
    answer::text(text, structured, &["text", "base64"])
}

fn split_character(error: std::str::Utf8Error, whole: bool) -> Option<usize> {
    (!whole && error.error_len().is_none() && error.valid_up_to() > 0).then(|| error.valid_up_to())
}

fn picture(path: &str) -> Option<&'static str> {
    let (_, extension) = path.rsplit_once('.')?;
    match extension.to_ascii_lowercase().as_str() {
        "png" => Some("image/png"),
        "jpg" | "jpeg" => Some("image/jpeg"),
        "gif" => Some("image/gif"),
        "webp" => Some("image/webp"),
        _ => None,
    }
}

/// So many bytes of a file, from an offset.
pub async fn part(
    call: &Call,
    sandbox: &str,
    path: &str,
    offset: u64,
    max: u64,
) -> Result<Vec<u8>, Refusal> {
    if max == 0 {
        return Ok(Vec::new());
    }
    let range = format!("bytes={offset}-{}", offset.saturating_add(max - 1));
    let read = ReadFile {
        path: path.to_owned(),
        user: None,
    };
    let mut stream = call.client.read_file(sandbox, &read, Some(&range)).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await? {
        // A server that ignored the range cannot make this grow.
        let room = (max as usize).saturating_sub(bytes.len()).min(piece.len());
        bytes.extend_from_slice(&piece[..room]);
    }
    Ok(bytes)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// Name or id of the sandbox.
    sandbox: String,
    /// Absolute path of the file.
    path: String,
    /// The contents, as text.
    text: Option<String>,
    /// The contents in base64, for bytes that are not text. Give either `text` or `base64`.
    base64: Option<String>,
    /// Add to the end of the file instead of replacing it.
    #[serde(default)]
    append: bool,
    /// Permissions in octal, e.g. 0755.
    mode: Option<String>,
}

pub async fn write(call: Call, write: Write) -> Outcome {
    let contents = match (write.text, write.base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(encoded)) => BASE64
            .decode(encoded.trim())
            .map_err(|_| Refusal::new("`base64` is not valid base64"))?,
        _ => return Err(Refusal::new("give either `text` or `base64`")),
    };
    let asked = WriteFile {
        path: write.path.clone(),
        mode: write.mode,
        parents: true,
        append: write.append,
        ..WriteFile::default()
    };
    let contents = Outgoing::bytes(contents);
    let written = call
        .client
        .write_file(&write.sandbox, &asked, contents)
        .await?;
    answer::json(json!({ "path": write.path, "bytes": written.bytes }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Name or id of the sandbox.
    sandbox: String,
    /// Absolute path of the directory.
    path: String,
    /// Levels of directories; default 1.
    depth: Option<u32>,
    /// Maximum number of entries; default 200, at most 1000.
    limit: Option<u32>,
}

pub async fn list(call: Call, list: List) -> Outcome {
    let limit = list.limit.unwrap_or(LIST_DEFAULT);
    if limit == 0 || limit > LIST_MAX {
        return Err(Refusal::new(format!("limit is between 1 and {LIST_MAX}")));
    }
    let asked = ListFiles {
        path: list.path,
        user: None,
        depth: list.depth,
        limit: Some(limit),
    };
    let listing = call.client.list_files(&list.sandbox, &asked).await?;
    let entries = listing.items.into_iter().map(|file| {
        json!({ "path": file.path, "type": file.kind, "size": file.size, "mode": file.mode, "modified_at": file.modified_at })
    });
    let entries: Vec<_> = entries.collect();
    answer::json(json!({ "entries": entries, "truncated": listing.truncated }))
}
