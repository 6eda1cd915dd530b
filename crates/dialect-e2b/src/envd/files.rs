//! File contents, both ways, for the holder of a token or of a link signed with one.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use bytes::Bytes;
use cove_control::GuestAction;
use cove_dialect::{Front, Pieces};
use cove_model::SandboxId;
use cove_protocol::client::{FileReader, Upload};
use cove_protocol::message::{self, FileType, PathRequest};
use flate2::write::GzDecoder;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::Write as _;
use time::OffsetDateTime;

use super::paths::{name, resolve};
use super::{ACCESS, ACCESS_TOKEN, Door, SANDBOX_ID, Service, acting, named};
use crate::plane::one;
use crate::refusal::{Api, Kind, Refusal};
use crate::{Dialect, naming};

/// Bytes of an upload.
const UPLOAD_MAX: u64 = cove_limits::UPLOAD_BODY_MAX as u64;
/// Files of one upload.
const FILES_MAX: usize = 1000;
const METADATA: &str = "x-metadata-";
const SIGNATURE_VERSION: &str = "v1_";
const SIGNATURE_MAX: usize = 64;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Which {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<i64>,
    /// Ours: spares the server the search for the sandbox whose token signed the link.
    sandbox: Option<String>,
}

fn query(parts: &Parts) -> Result<Which, Refusal> {
    serde_urlencoded::from_str(parts.uri.query().unwrap_or("")).map_err(|error| {
        Refusal::invalid(format!(
            "the query is invalid: {}",
            cove_dialect::wording::plain("", &error)
        ))
    })
}

pub async fn read(State(dialect): State<Dialect>, request: Request) -> Result<Response, Api> {
    let (parts, _) = request.into_parts();
    let which = query(&parts)?;
    let door = door(&dialect, parts, &which, "read").await?;
    Ok(send(door, which).await?)
}

pub async fn write(State(dialect): State<Dialect>, request: Request) -> Result<Response, Api> {
    let (parts, body) = request.into_parts();
    let which = query(&parts)?;
    let door = door(&dialect, parts, &which, "write").await?;
    Ok(receive(door, which, body).await?)
}

/// As [`read`], for links that name no sandbox.
pub async fn read_signed(
    State(dialect): State<Dialect>,
    request: Request,
) -> Result<Response, Api> {
    let (parts, _) = request.into_parts();
    let which = query(&parts)?;
    let door = signed(&dialect, parts, &which, "read").await?;
    Ok(send(door, which).await?)
}

pub async fn write_signed(
    State(dialect): State<Dialect>,
    request: Request,
) -> Result<Response, Api> {
    let (parts, body) = request.into_parts();
    let which = query(&parts)?;
    let door = signed(&dialect, parts, &which, "write").await?;
    Ok(receive(door, which, body).await?)
}

async fn door(dialect: &Dialect, parts: Parts, which: &Which, deed: &str) -> Result<Door, Refusal> {
    let token = parts.headers.contains_key(ACCESS_TOKEN);
    match (token, which.signature.is_some()) {
        (false, true) => signed(dialect, parts, which, deed).await,
        _ => Door::knock(dialect, parts, Service::Envd).await,
    }
}

/// The sandbox that a link names: by a header, by the host it is for as E2B writes it, or in the query.
fn said_in(parts: &Parts, which: &Which) -> Result<Option<SandboxId>, Refusal> {
    if parts.headers.contains_key(SANDBOX_ID) {
        return named(&parts.headers).map(Some);
    }
    let host = one(&parts.headers, header::HOST.as_str())
        .or_else(|| Some(parts.uri.authority()?.as_str()));
    let label = host.and_then(|host| host.split('.').next());
    let of_host = label
        .and_then(|label| label.strip_prefix(Service::Envd.port())?.strip_prefix('-'))
        .and_then(naming::meant);
    match &which.sandbox {
        Some(text) => {
            Ok(Some(naming::meant(text).ok_or_else(|| {
                Refusal::invalid("sandbox must be the id of one")
            })?))
        }
        None => Ok(of_host),
    }
}

/// Finds the token the link was signed with, and the sandbox where the link does not name it.
async fn signed(
    dialect: &Dialect,
    parts: Parts,
    which: &Which,
    deed: &str,
) -> Result<Door, Refusal> {
    let refuse = || Refusal::new(Kind::Unauthenticated, "the link's signature is not valid");
    let signature = which
        .signature
        .as_deref()
        .filter(|signature| signature.len() <= SIGNATURE_MAX)
        .and_then(|signature| signature.strip_prefix(SIGNATURE_VERSION))
        .and_then(|signature| BASE64.decode(signature).ok())
        .filter(|bytes| bytes.len() == <Sha256 as Digest>::output_size())
        .ok_or_else(refuse)?;
    let now = OffsetDateTime::now_utc().unix_timestamp();
    if which.signature_expiration.is_some_and(|until| until < now) {
        return Err(Refusal::new(
            Kind::Unauthenticated,
            "the link's signature has expired",
        ));
    }
    let before = format!(
        "{}:{deed}:{}:",
        which.path.as_deref().unwrap_or(""),
        which.username.as_deref().unwrap_or("")
    );
    let after = which.signature_expiration.map(|until| format!(":{until}"));
    let fits = |token: &str| {
        let mut hash = Sha256::new();
        hash.update(&before);
        hash.update(token);
        hash.update(after.as_deref().unwrap_or(""));
        hash.finalize()[..] == signature[..]
    };
    let control = &dialect.front.control;
    let origin = Front::origin(&parts.extensions);
    let found = match said_in(&parts, which)? {
        Some(id) => {
            let token = control.token_at(&id, ACCESS, fits).await?;
            token.map(|token| (id, token))
        }
        None => {
            control
                .token_that(ACCESS, &signature, &origin, fits)
                .await?
        }
    };
    let (id, token) = found.ok_or_else(refuse)?;
    let principal = control.token_holder(&id, &token, ACCESS, origin).await;
    let principal = principal.map_err(crate::refusal::entry)?;
    dialect.front.note(&parts.extensions, &principal)?;
    Ok(Door::shown_in(dialect, principal, id, parts))
}

fn path_of(which: &Which) -> Result<&str, Refusal> {
    let path = which.path.as_deref().filter(|path| !path.is_empty());
    path.ok_or_else(|| Refusal::invalid("the path is missing"))
}

async fn send(door: Door, which: Which) -> Result<Response, Refusal> {
    let slot = door.transfer()?;
    let access = door.inside(GuestAction::FileRead).await?;
    let user = acting(&access, which.username.as_deref())?;
    let path = resolve(&access, &user, path_of(&which)?).await?;
    let request = message::ReadFile {
        root_links_only: false,
        path: path.clone(),
        user,
        offset: 0,
        length: 0,
    };
    let reader = access.guest().read_file(request).await?;
    let size = reader.info().size;
    let closing = door.dialect().front.closing.clone();
    // Never more than was promised, should the file have grown since; one without a size is sent whole.
    let left = match size {
        0 => u64::MAX,
        size => size,
    };
    let state: (FileReader, _, _, u64) = (reader, access, closing, left);
    let chunks =
        futures_util::stream::try_unfold(state, |(mut reader, access, closing, left)| async move {
            let chunk = tokio::select! {
                chunk = reader.next() => chunk.map_err(std::io::Error::other)?,
                () = closing.cancelled() => {
                    return Err(std::io::Error::other("the server is restarting"));
                }
            };
            let Some(mut chunk) = chunk else {
                return Ok(None);
            };
            chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            if chunk.is_empty() {
                return Ok(None);
            }
            let left = left - chunk.len() as u64;
            Ok(Some((chunk, (reader, access, closing, left))))
        });
    let mut response = Body::from_stream(slot.hold(chunks)).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    if size > 0 {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    let saved = name(&path).replace(['"', '\\', '\r', '\n'], "_");
    if let Ok(value) = HeaderValue::from_str(&format!("inline; filename=\"{saved}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    // What a sandbox holds is nobody's page.
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox"),
    );
    Ok(response)
}

async fn receive(door: Door, which: Which, body: Body) -> Result<Response, Refusal> {
    if door
        .headers
        .keys()
        .any(|name| name.as_str().starts_with(METADATA))
    {
        return Err(Refusal::invalid(
            "metadata of files: Cove keeps none; write the file without it",
        ));
    }
    let kind = one(&door.headers, header::CONTENT_TYPE.as_str()).unwrap_or("");
    let _slot = door.transfer()?;
    let front = &door.dialect().front;
    let pieces = front.pieces(body, UPLOAD_MAX);
    let written = match multer::parse_boundary(kind) {
        Ok(boundary) => several(&door, &which, pieces, boundary).await?,
        Err(_) if kind.starts_with("application/octet-stream") => {
            let gzip = is_gzip(&door.headers)?;
            let path = path_of(&which)?.to_owned();
            vec![single(&door, &which, &path, pieces, gzip).await?]
        }
        Err(_) => {
            return Err(Refusal::invalid(
                "the body must be multipart/form-data or application/octet-stream",
            ));
        }
    };
    Ok((StatusCode::OK, axum::Json(written)).into_response())
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, Refusal> {
    match one(headers, header::CONTENT_ENCODING.as_str()) {
        None | Some("identity") => Ok(false),
        Some("gzip") => Ok(true),
        Some(_) => Err(Refusal::invalid("the only supported encoding is gzip")),
    }
}

/// A file on its way in.
struct Incoming {
    upload: Upload,
    path: String,
}

impl Incoming {
    async fn open(door: &Door, which: &Which, path: &str) -> Result<Self, Refusal> {
        let access = door.inside(GuestAction::FileWrite).await?;
        let user = acting(&access, which.username.as_deref())?;
        let path = resolve(&access, &user, path).await?;
        let at = PathRequest {
            path: path.clone(),
            user: user.clone(),
            follow: true,
        };
        if let Ok(info) = access.guest().stat(at).await
            && info.r#type == FileType::Directory as i32
        {
            return Err(Refusal::invalid("the path is a directory"));
        }
        let request = message::WriteFile {
            root_links_only: false,
            path: path.clone(),
            user,
            mode: None,
            owner: String::new(),
            parents: true,
            at: None,
            append: false,
            sync: false,
        };
        let upload = access.guest().write_file(request).await?;
        Ok(Self { upload, path })
    }

    async fn take(&mut self, bytes: Bytes) -> Result<(), Refusal> {
        Ok(self.upload.write(bytes).await?)
    }

    /// Not before this is there anything of it.
    async fn finish(self) -> Result<Value, Refusal> {
        self.upload.finish().await?;
        Ok(json!({"name": name(&self.path), "type": "file", "path": self.path}))
    }
}

async fn single(
    door: &Door,
    which: &Which,
    path: &str,
    mut pieces: Pieces,
    gzip: bool,
) -> Result<Value, Refusal> {
    let mut incoming = Incoming::open(door, which, path).await?;
    let mut unpacking = gzip.then(|| GzDecoder::new(Vec::new()));
    let broken = |_| Refusal::invalid("the body is not gzip");
    while let Some(piece) = pieces.next().await? {
        match &mut unpacking {
            None => incoming.take(piece).await?,
            Some(decoder) => {
                decoder.write_all(&piece).map_err(broken)?;
                let plain = std::mem::take(decoder.get_mut());
                incoming.take(plain.into()).await?;
            }
        }
    }
    if let Some(decoder) = unpacking {
        let rest = decoder.finish().map_err(broken)?;
        incoming.take(rest.into()).await?;
    }
    incoming.finish().await
}

/// The parts of a form: each one's file name is its path, unless the query names the only one's.
async fn several(
    door: &Door,
    which: &Which,
    pieces: Pieces,
    boundary: String,
) -> Result<Vec<Value>, Refusal> {
    let stream = futures_util::stream::try_unfold(pieces, |mut pieces| async move {
        let piece = pieces.next().await.map_err(std::io::Error::other)?;
        Ok::<_, std::io::Error>(piece.map(|piece| (piece, pieces)))
    });
    let mut form = multer::Multipart::new(stream.boxed(), boundary);
    let broken = |error: multer::Error| Refusal::invalid(format!("the form is invalid: {error}"));
    let mut written = Vec::new();
    while let Some(mut field) = form.next_field().await.map_err(broken)? {
        if field.name() != Some("file") {
            return Err(Refusal::invalid("the form has a field that is not 'file'"));
        }
        if written.len() >= FILES_MAX {
            return Err(Refusal::invalid(format!(
                "at most {FILES_MAX} files are written at once"
            )));
        }
        let path = match which.path.as_deref().filter(|path| !path.is_empty()) {
            Some(_) if !written.is_empty() => {
                return Err(Refusal::invalid("the path is given for one file only"));
            }
            Some(path) => path.to_owned(),
            None => {
                let path = field.file_name().filter(|path| !path.is_empty());
                path.map(unquoted)
                    .ok_or_else(|| Refusal::invalid("a file has no name"))?
            }
        };
        let mut incoming = Incoming::open(door, which, &path).await?;
        while let Some(chunk) = field.chunk().await.map_err(broken)? {
            incoming.take(chunk).await?;
        }
        written.push(incoming.finish().await?);
    }
    if written.is_empty() {
        return Err(Refusal::invalid("the form has no file"));
    }
    Ok(written)
}

/// Forms write quotes and line breaks of file names as browsers do.
fn unquoted(name: &str) -> String {
    name.replace("%22", "\"")
        .replace("%0D", "\r")
        .replace("%0A", "\n")
}
