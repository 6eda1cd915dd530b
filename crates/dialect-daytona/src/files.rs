//! File contents both ways, at the pace of the slower side.

use std::collections::{BTreeMap, VecDeque};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cove_control::{GuestAccess, GuestAction, Principal};
use cove_dialect::{Front, Kind, Slot};
use cove_protocol::client::FileReader;
use cove_protocol::message::{ReadFile, WriteFile};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::json;

use crate::asking::{Caller, Json, Names, Query};
use crate::exec::absolute;
use crate::file_links::{FileAt, FileCaller};
use crate::refusal::{Answer, Refusal, about_path};

/// Files in one request.
const FILES_MAX: usize = 1000;
/// Bytes of one upload, all files together.
const UPLOAD_MAX: u64 = cove_limits::UPLOAD_BODY_MAX as u64;
/// Bytes of a path that comes as a part of a form.
const FIELD_MAX: usize = 8192;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct At {
    pub path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paths {
    paths: Vec<String>,
}

/// A place among the uploads and downloads of the caller's organisation.
fn transfer(front: &Front, caller: &Principal) -> Result<Slot, Refusal> {
    Ok(front.streams.enter(&caller.org, Kind::Transfer)?)
}

/// Files in a form: `files[i].path` says where `files[i].file` goes, and comes before it.
pub async fn bulk_upload(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    request: Request,
) -> Answer {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|value| value.to_str().ok()).unwrap_or("");
    let boundary = multer::parse_boundary(kind)
        .map_err(|_| Refusal::invalid("the body must be multipart/form-data"))?;
    let _slot = transfer(&front, &caller)?;
    let mut form = form(&front, request.into_body(), boundary);
    let access = front
        .control
        .guest(&caller, &id, GuestAction::FileWrite)
        .await?;
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    let mut written = Vec::new();
    while let Some(mut field) = form.next_field().await.map_err(broken)? {
        let name = field.name().unwrap_or("").to_owned();
        match name.strip_suffix(".path") {
            Some(index) => {
                if paths.len() >= FILES_MAX {
                    return Err(Refusal::invalid(format!(
                        "at most {FILES_MAX} files at once"
                    )));
                }
                let mut text = Vec::new();
                while let Some(piece) = field.chunk().await.map_err(broken)? {
                    text.extend_from_slice(&piece);
                    if text.len() > FIELD_MAX {
                        return Err(Refusal::invalid("a path is too long"));
                    }
                }
                let text =
                    String::from_utf8(text).map_err(|_| Refusal::invalid("a path is not text"))?;
                paths.insert(index.to_owned(), text);
            }
            None => {
                let given = name
                    .strip_suffix(".file")
                    .and_then(|i| paths.get(i))
                    .cloned();
                let Some(given) = given else {
                    return Err(Refusal::invalid(
                        "each files[i].file needs a files[i].path before it",
                    ));
                };
                let path = absolute(&front, &caller, &id, given).await?;
                write(&access, &path, &mut field).await?;
                written.push(json!({ "path": path, "success": true }));
            }
        }
    }
    Ok(axum::Json(json!({ "files": written, "errors": [] })).into_response())
}

/// One file, as the whole body.
pub async fn upload(
    State(front): State<Front>,
    FileCaller(caller): FileCaller,
    Names(id): Names<String>,
    Query(at): Query<FileAt>,
    request: Request,
) -> Answer {
    let _slot = transfer(&front, &caller)?;
    let path = absolute(&front, &caller, &id, at.path).await?;
    let access = front
        .control
        .guest(&caller, &id, GuestAction::FileWrite)
        .await?;
    let kind = request.headers().get(header::CONTENT_TYPE);
    let boundary = kind
        .and_then(|value| value.to_str().ok())
        .and_then(|kind| multer::parse_boundary(kind).ok());
    if let Some(boundary) = boundary {
        let mut form = form(&front, request.into_body(), boundary);
        let field = form.next_field().await.map_err(broken)?;
        let mut field = field.ok_or_else(|| Refusal::invalid("the form has no file"))?;
        write(&access, &path, &mut field).await?;
        return Ok(uploaded(&path));
    }
    let mut pieces = front.pieces(request.into_body(), UPLOAD_MAX);
    let mut upload = access
        .guest()
        .write_file(file(&access, &path))
        .await
        .map_err(about_path)?;
    while let Some(piece) = pieces.next().await? {
        upload.write(piece).await.map_err(about_path)?;
    }
    upload.finish().await.map_err(about_path)?;
    Ok(uploaded(&path))
}

fn uploaded(path: &str) -> Response {
    let name = path.rsplit('/').next().unwrap_or(path);
    axum::Json(json!({ "name": name, "path": path, "type": "file" })).into_response()
}

fn form(front: &Front, body: Body, boundary: String) -> multer::Multipart<'static> {
    let pieces = front.pieces(body, UPLOAD_MAX);
    let stream = futures_util::stream::try_unfold(pieces, |mut pieces| async move {
        let piece = pieces.next().await?;
        Ok::<_, cove_dialect::BodyError>(piece.map(|piece| (piece, pieces)))
    });
    multer::Multipart::new(stream, boundary)
}

fn broken(error: multer::Error) -> Refusal {
    Refusal::invalid(format!("the form is invalid: {error}"))
}

fn file(access: &GuestAccess, path: &str) -> WriteFile {
    WriteFile {
        path: path.to_owned(),
        user: access.default_user().to_owned(),
        parents: true,
        ..WriteFile::default()
    }
}

/// Whatever goes wrong before the end, the guest forgets what it got.
async fn write(
    access: &GuestAccess,
    path: &str,
    field: &mut multer::Field<'_>,
) -> Result<(), Refusal> {
    let mut upload = access
        .guest()
        .write_file(file(access, path))
        .await
        .map_err(about_path)?;
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        upload.write(piece).await.map_err(about_path)?;
    }
    upload.finish().await.map_err(about_path)?;
    Ok(())
}

async fn open(access: &GuestAccess, path: String) -> Result<FileReader, Refusal> {
    let user = access.default_user().to_owned();
    let read = ReadFile {
        path,
        user,
        ..ReadFile::default()
    };
    access.guest().read_file(read).await.map_err(about_path)
}

pub async fn download(
    State(front): State<Front>,
    FileCaller(caller): FileCaller,
    Names(id): Names<String>,
    Query(at): Query<FileAt>,
) -> Answer {
    let slot = transfer(&front, &caller)?;
    let path = absolute(&front, &caller, &id, at.path).await?;
    let access = front
        .control
        .guest(&caller, &id, GuestAction::FileRead)
        .await?;
    let reader = open(&access, path).await?;
    let body =
        futures_util::stream::try_unfold((reader, access), |(mut reader, access)| async move {
            let chunk = reader.next().await.map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(chunk.map(|chunk| (chunk, (reader, access))))
        });
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from_stream(slot.hold(body))).into_response())
}

/// Many files as one form; a file that cannot be read is an `error` part of its own.
pub async fn bulk_download(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Paths>,
) -> Answer {
    if body.paths.is_empty() || body.paths.len() > FILES_MAX {
        let message = format!("paths: between 1 and {FILES_MAX} are asked for at once");
        return Err(Refusal::invalid(message));
    }
    let slot = transfer(&front, &caller)?;
    let access = front
        .control
        .guest(&caller, &id, GuestAction::FileRead)
        .await?;
    let boundary = format!("cove{:032x}", rand::random::<u128>());
    let kind = format!("multipart/form-data; boundary={boundary}");
    let parts = Parts {
        front,
        caller,
        id,
        access,
        boundary,
        left: body.paths.into(),
        reader: None,
        ended: false,
    };
    let stream = futures_util::stream::try_unfold(parts, |mut parts| async move {
        Ok::<_, std::io::Error>(parts.next().await?.map(|chunk| (chunk, parts)))
    });
    let body = Body::from_stream(slot.hold(stream.boxed()));
    Ok(([(header::CONTENT_TYPE, kind)], body).into_response())
}

struct Parts {
    front: Front,
    caller: Principal,
    id: String,
    access: GuestAccess,
    boundary: String,
    left: VecDeque<String>,
    reader: Option<FileReader>,
    ended: bool,
}

impl Parts {
    async fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        if let Some(reader) = &mut self.reader {
            // What breaks off in the middle breaks the answer: its reader can tell.
            return match reader.next().await.map_err(std::io::Error::other)? {
                Some(chunk) => Ok(Some(chunk)),
                None => {
                    self.reader = None;
                    Ok(Some(Bytes::from_static(b"\r\n")))
                }
            };
        }
        let Some(given) = self.left.pop_front() else {
            if self.ended {
                return Ok(None);
            }
            self.ended = true;
            return Ok(Some(format!("--{}--\r\n", self.boundary).into()));
        };
        let opened = async {
            let path = absolute(&self.front, &self.caller, &self.id, given.clone()).await?;
            open(&self.access, path).await
        };
        match opened.await {
            Ok(reader) => {
                let size = reader.info().size;
                // Files under /proc and the like say 0 and have contents.
                let length = match size {
                    0 => String::new(),
                    size => format!("Content-Length: {size}\r\n"),
                };
                let head = self.head("file", &given, "application/octet-stream", &length);
                self.reader = Some(reader);
                Ok(Some(head.into()))
            }
            Err(refusal) => {
                let mut part = self.head("error", &given, "application/json", "");
                part.push_str(&refusal.json("DAYTONA_DAEMON"));
                part.push_str("\r\n");
                Ok(Some(part.into()))
            }
        }
    }

    fn head(&self, name: &str, path: &str, kind: &str, more: &str) -> String {
        let boundary = &self.boundary;
        let path = named(path);
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; {path}\r\nContent-Type: {kind}\r\n{more}\r\n"
        )
    }
}

/// The path as it was asked for, which is what the SDKs look it up by. What a header cannot hold as it
/// is goes in the other form.
fn named(path: &str) -> String {
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    if path.bytes().all(plain) {
        return format!("filename=\"{path}\"");
    }
    let mut encoded = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' => {
                encoded.push(byte.into());
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    format!("filename=\"file\"; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_headers_cannot_end_them() {
        assert_eq!(named("/a b"), "filename=\"/a b\"");
        let odd = named("/x\"\r\nSet-Cookie: a\\ü");
        assert!(
            odd.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
            "{odd}"
        );
        assert!(
            odd.ends_with("UTF-8''/x%22%0D%0ASet-Cookie%3A%20a%5C%C3%BC"),
            "{odd}"
        );
    }
}
