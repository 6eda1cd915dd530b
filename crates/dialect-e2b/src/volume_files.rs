//! Files of a volume, for the holder of a token that making or finding the volume gave.

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cove_control::{ControlError, GuestAction, GuestError, Principal, VolumeAccess};
use cove_dialect::{Front, Kind as Held, Tab};
use cove_limits::PATH_MAX;
use cove_model::VolumeId;
use cove_protocol::message::{
    ErrorCode as GuestCode, FileInfo, FileType, ListDir, MakeDir, PathRequest, ReadFile, Remove,
    SetAttributes, WriteFile,
};
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::Dialect;
use crate::plane::one;
use crate::plane::sandboxes::time_text;
use crate::refusal::{Kind, Refusal};

/// Whose files are that are made for nobody, and what everybody may do with them: as E2B has it.
const NOBODY: u32 = 9090;
const FILE_MODE: u32 = 0o666;
const DIRECTORY_MODE: u32 = 0o777;
/// Ids of users and groups inside.
const ID_MAX: u32 = 65_535;
const DEPTH_MAX: u32 = 10;
const BODY_MAX: usize = 64 * 1024;
const UPLOAD_MAX: u64 = cove_limits::UPLOAD_BODY_MAX as u64;

/// A refusal in the form that these calls have: the code is a word.
pub struct Content(Refusal);

impl<E: Into<Refusal>> From<E> for Content {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Content {
    fn into_response(self) -> Response {
        self.0.content()
    }
}

type Answer = Result<Response, Content>;

/// The holder of a volume's token.
pub struct Holder {
    principal: Principal,
    volume: VolumeId,
    tab: Tab,
}

impl FromRequestParts<Dialect> for Holder {
    type Rejection = Content;

    async fn from_request_parts(parts: &mut Parts, dialect: &Dialect) -> Result<Self, Content> {
        let refuse = || {
            let message = "the volume's token is missing or not valid";
            Refusal::new(Kind::Unauthenticated, message)
        };
        let named = Path::<String>::from_request_parts(parts, dialect).await;
        let volume = named.ok().and_then(|Path(text)| text.parse().ok());
        let volume: VolumeId = volume.ok_or_else(refuse)?;
        let shown = one(&parts.headers, header::AUTHORIZATION.as_str());
        let token = shown.and_then(|text| text.strip_prefix("Bearer "));
        let token = token.ok_or_else(refuse)?.trim();
        let origin = Front::origin(&parts.extensions);
        let control = &dialect.front.control;
        let principal = control.volume_token_holder(&volume, token, origin).await?;
        dialect.front.note(&parts.extensions, &principal)?;
        Ok(Self {
            principal,
            volume,
            tab: parts.extensions.get::<Tab>().cloned().unwrap_or_default(),
        })
    }
}

/// The query of these calls; each reads what it knows and refuses the rest.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Asked {
    path: Option<String>,
    depth: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
    force: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Attributes {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

impl Attributes {
    fn check(self) -> Result<Self, Refusal> {
        if self.mode.is_some_and(|mode| mode > 0o7777) {
            return Err(Refusal::invalid("mode must be at most 0o7777"));
        }
        if [self.uid, self.gid]
            .into_iter()
            .flatten()
            .any(|id| id > ID_MAX)
        {
            return Err(Refusal::invalid(format!(
                "uid and gid must be at most {ID_MAX}"
            )));
        }
        Ok(self)
    }

    fn is_empty(self) -> bool {
        self.uid.is_none() && self.gid.is_none() && self.mode.is_none()
    }

    /// The owner as the guest takes one, where something is said of it.
    fn owner(self, uid: u32, gid: u32) -> String {
        format!("{}:{}", self.uid.unwrap_or(uid), self.gid.unwrap_or(gid))
    }
}

impl Asked {
    /// What of it a call knows.
    fn read(request: &Request, known: &[&str]) -> Result<(Self, String), Refusal> {
        let query = request.uri().query().unwrap_or("");
        let invalid = |error: serde_urlencoded::de::Error| {
            let said = cove_dialect::wording::plain("", &error);
            Refusal::invalid(format!("the query is invalid: {said}"))
        };
        let pairs: Vec<(String, String)> = serde_urlencoded::from_str(query).map_err(invalid)?;
        let stray = pairs
            .iter()
            .find(|(name, _)| !known.contains(&name.as_str()));
        if let Some((name, _)) = stray {
            let name: String = name.chars().take(40).collect();
            return Err(Refusal::invalid(format!(
                "the query has no '{}' here",
                name.escape_debug()
            )));
        }
        let mut asked: Self = serde_urlencoded::from_str(query).map_err(invalid)?;
        let path = asked.path.take().filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| Refusal::invalid("the path is missing"))?;
        Ok((asked, normal(&path)?))
    }

    fn attributes(&self) -> Result<Attributes, Refusal> {
        Attributes {
            uid: self.uid,
            gid: self.gid,
            mode: self.mode,
        }
        .check()
    }
}

/// An absolute path without empty parts; what is relative counts from the root.
fn normal(path: &str) -> Result<String, Refusal> {
    if path.len() > PATH_MAX || path.contains('\0') {
        return Err(Refusal::invalid(format!(
            "a path has at most {PATH_MAX} bytes and no NUL"
        )));
    }
    let parts = path.split('/');
    let parts: Vec<&str> = parts
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if parts.contains(&"..") {
        return Err(Refusal::invalid("a path has no '..' in it"));
    }
    Ok(format!("/{}", parts.join("/")))
}

fn parent(path: &str) -> Option<&str> {
    match path.rsplit_once('/') {
        Some((_, "")) | None => None,
        Some(("", _)) => Some("/"),
        Some((above, _)) => Some(above),
    }
}

/// One volume, opened for one call.
struct Opened {
    access: VolumeAccess,
}

impl Opened {
    async fn by(dialect: &Dialect, holder: &Holder, action: GuestAction) -> Result<Self, Refusal> {
        let control = &dialect.front.control;
        let opened = control.volume_files(&holder.principal, holder.volume.as_str(), action);
        Ok(Self {
            access: opened.await?,
        })
    }

    fn at(path: &str) -> Result<String, ControlError> {
        VolumeAccess::inside(path)
    }

    /// What is at a path, links not followed; `None` where nothing is.
    async fn look(&self, path: &str) -> Result<Option<FileInfo>, Refusal> {
        let request = PathRequest {
            path: Self::at(path)?,
            user: String::new(),
            follow: false,
        };
        match self.access.guest().stat(request).await {
            Ok(info) => Ok(Some(info)),
            Err(GuestError::Refused {
                code: GuestCode::NotFound,
                ..
            }) => Ok(None),
            Err(error) => Err(told(error)),
        }
    }

    async fn must_look(&self, path: &str) -> Result<FileInfo, Refusal> {
        self.look(path).await?.ok_or_else(|| missing(path))
    }

    /// What changes must be in the volume: links may lead out of it.
    async fn check(&self, path: &str) -> Result<(), Refusal> {
        Ok(self.access.check_inside(&Self::at(path)?).await?)
    }

    async fn set(&self, path: &str, attributes: Attributes, now: &FileInfo) -> Result<(), Refusal> {
        let names_owner = attributes.uid.is_some() || attributes.gid.is_some();
        let request = SetAttributes {
            path: Self::at(path)?,
            user: String::new(),
            mode: attributes.mode,
            owner: match names_owner {
                true => attributes.owner(now.uid, now.gid),
                false => String::new(),
            },
        };
        let set = self.access.guest().set_attributes(request).await;
        set.map_err(told)
    }

    /// A directory whose parent is there, with exactly these attributes.
    async fn make(&self, path: &str, attributes: Attributes) -> Result<(), Refusal> {
        let request = MakeDir {
            path: Self::at(path)?,
            user: String::new(),
            mode: attributes.mode,
            parents: false,
        };
        let made = self.access.guest().mkdir(request).await;
        made.map_err(told)?;
        let now = self.must_look(path).await?;
        self.set(path, attributes, &now).await
    }

    /// The directories above a path that are missing, for everybody.
    async fn make_parents(&self, path: &str) -> Result<(), Refusal> {
        let mut missing = Vec::new();
        let mut above = parent(path);
        while let Some(directory) = above {
            if self.look(directory).await?.is_some() {
                break;
            }
            missing.push(directory);
            above = parent(directory);
        }
        for directory in missing.into_iter().rev() {
            let attributes = for_everybody(Attributes::default(), DIRECTORY_MODE);
            match self.make(directory, attributes).await {
                // Somebody else was faster.
                Err(refusal) if refusal.kind == Kind::Exists => {}
                made => made?,
            }
        }
        Ok(())
    }
}

fn for_everybody(asked: Attributes, mode: u32) -> Attributes {
    Attributes {
        uid: asked.uid.or(Some(NOBODY)),
        gid: asked.gid.or(Some(NOBODY)),
        mode: asked.mode.or(Some(mode)),
    }
}

fn missing(path: &str) -> Refusal {
    Refusal::new(Kind::NotFound, format!("path '{path}' not found"))
}

fn exists(path: &str) -> Refusal {
    Refusal::new(Kind::Exists, format!("path '{path}' already exists"))
}

/// A refusal of the guest, with paths as the caller knows them.
fn told(error: GuestError) -> Refusal {
    let mut refusal = Refusal::from(error);
    refusal.message = VolumeAccess::outside(&refusal.message).to_owned();
    refusal
}

fn entry(info: &FileInfo) -> Value {
    let kind = FileType::try_from(info.r#type).unwrap_or(FileType::Other);
    let path = VolumeAccess::outside(&info.path);
    let at = i128::from(info.modified_unix_ms) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(at).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let at = time_text(at);
    let mut told = json!({
        "name": match path {
            "/" => "/",
            _ => info.name.as_str(),
        },
        "type": match kind {
            FileType::File => "file",
            FileType::Directory => "directory",
            FileType::Symlink => "symlink",
            _ => "unknown",
        },
        "path": path,
        "size": info.size,
        "mode": info.mode & 0o7777,
        "uid": info.uid,
        "gid": info.gid,
        // The guest reports one time.
        "atime": at,
        "mtime": at,
        "ctime": at,
    });
    if kind == FileType::Symlink {
        told["target"] = json!(info.symlink_target);
    }
    told
}

fn is_directory(info: &FileInfo) -> bool {
    info.r#type == FileType::Directory as i32
}

pub async fn stat(State(dialect): State<Dialect>, holder: Holder, request: Request) -> Answer {
    let (_, path) = Asked::read(&request, &["path"])?;
    let volume = Opened::by(&dialect, &holder, GuestAction::FileRead).await?;
    let info = volume.must_look(&path).await?;
    Ok(axum::Json(entry(&info)).into_response())
}

pub async fn list(State(dialect): State<Dialect>, holder: Holder, request: Request) -> Answer {
    let (asked, path) = Asked::read(&request, &["path", "depth"])?;
    let depth = asked.depth.unwrap_or(1);
    if !(1..=DEPTH_MAX).contains(&depth) {
        return Err(Refusal::invalid(format!("depth must be between 1 and {DEPTH_MAX}")).into());
    }
    let volume = Opened::by(&dialect, &holder, GuestAction::FileRead).await?;
    let request = ListDir {
        path: Opened::at(&path)?,
        user: String::new(),
        depth,
        limit: 0,
    };
    let listing = volume.access.guest().list(request).await.map_err(told)?;
    if listing.truncated {
        let message = "there is more in this directory than one answer holds";
        return Err(Refusal::new(Kind::Exhausted, message).into());
    }
    let mut entries = listing.entries;
    // A directory comes before what it has.
    entries.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
    let told: Vec<Value> = entries.iter().map(entry).collect();
    Ok(axum::Json(told).into_response())
}

pub async fn make_dir(State(dialect): State<Dialect>, holder: Holder, request: Request) -> Answer {
    let (asked, path) = Asked::read(&request, &["path", "uid", "gid", "mode", "force"])?;
    let attributes = for_everybody(asked.attributes()?, DIRECTORY_MODE);
    let force = asked.force.unwrap_or(false);
    let volume = Opened::by(&dialect, &holder, GuestAction::FileMkdir).await?;
    volume.check(&path).await?;
    match volume.look(&path).await? {
        Some(info) if force && is_directory(&info) => {}
        Some(_) => return Err(exists(&path).into()),
        None => {
            if force {
                volume.make_parents(&path).await?;
            }
            volume.make(&path, attributes).await?;
        }
    }
    let info = volume.must_look(&path).await?;
    Ok((StatusCode::CREATED, axum::Json(entry(&info))).into_response())
}

pub async fn write(State(dialect): State<Dialect>, holder: Holder, request: Request) -> Answer {
    let (asked, path) = Asked::read(&request, &["path", "uid", "gid", "mode", "force"])?;
    let attributes = asked.attributes()?;
    let force = asked.force.unwrap_or(false);
    let front = &dialect.front;
    let _slot = front.streams.enter(&holder.principal.org, Held::Transfer)?;
    let volume = Opened::by(&dialect, &holder, GuestAction::FileWrite).await?;
    volume.check(&path).await?;
    let before = volume.look(&path).await?;
    match &before {
        Some(info) if is_directory(info) => {
            return Err(Refusal::invalid(format!("path '{path}' is a directory")).into());
        }
        Some(_) if !force => return Err(exists(&path).into()),
        None if force => volume.make_parents(&path).await?,
        _ => {}
    }
    // One that is replaced keeps what nothing is said of.
    let attributes = match &before {
        Some(_) => attributes,
        None => for_everybody(attributes, FILE_MODE),
    };
    let write = WriteFile {
        path: Opened::at(&path)?,
        user: String::new(),
        mode: attributes.mode,
        ..WriteFile::default()
    };
    let mut upload = volume
        .access
        .guest()
        .write_file(write)
        .await
        .map_err(told)?;
    let mut pieces = front.pieces(request.into_body(), UPLOAD_MAX);
    while let Some(piece) = pieces.next().await? {
        upload.write(piece).await.map_err(told)?;
    }
    upload.finish().await.map_err(told)?;
    let mut info = volume.must_look(&path).await?;
    if !attributes.is_empty() {
        volume.set(&path, attributes, &info).await?;
        info = volume.must_look(&path).await?;
    }
    Ok((StatusCode::CREATED, axum::Json(entry(&info))).into_response())
}

pub async fn read(State(dialect): State<Dialect>, holder: Holder, request: Request) -> Answer {
    let (_, path) = Asked::read(&request, &["path"])?;
    let front = &dialect.front;
    let slot = front.streams.enter(&holder.principal.org, Held::Transfer)?;
    let volume = Opened::by(&dialect, &holder, GuestAction::FileRead).await?;
    let request = ReadFile {
        path: Opened::at(&path)?,
        ..ReadFile::default()
    };
    let reader = volume.access.guest().read_file(request).await;
    let reader = reader.map_err(told)?;
    let closing = front.closing.clone();
    let chunks = futures_util::stream::try_unfold(
        (reader, volume, closing),
        |(mut reader, volume, closing)| async move {
            let chunk = tokio::select! {
                chunk = reader.next() => chunk.map_err(std::io::Error::other)?,
                () = closing.cancelled() => {
                    return Err(std::io::Error::other("the server is restarting"));
                }
            };
            Ok(chunk.map(|chunk| (chunk, (reader, volume, closing))))
        },
    );
    let mut response = Body::from_stream(slot.hold(chunks)).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "application/octet-stream"),
        // What a volume holds is nobody's page.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

pub async fn update(State(dialect): State<Dialect>, holder: Holder, request: Request) -> Answer {
    let (_, path) = Asked::read(&request, &["path"])?;
    let front = &dialect.front;
    let known = async { Ok::<_, Refusal>(()) };
    let body = request.into_body();
    let bytes = front.whole(&holder.tab, body, BODY_MAX, known).await?;
    let asked: Attributes = serde_json::from_slice(&bytes).map_err(|error| {
        let said = cove_dialect::wording::plain("", &error);
        Refusal::invalid(format!("the body is invalid: {said}"))
    })?;
    let asked = asked.check()?;
    let volume = Opened::by(&dialect, &holder, GuestAction::FileAttributes).await?;
    volume.check(&path).await?;
    let mut info = volume.must_look(&path).await?;
    if !asked.is_empty() {
        volume.set(&path, asked, &info).await?;
        info = volume.must_look(&path).await?;
    }
    Ok(axum::Json(entry(&info)).into_response())
}

pub async fn remove(State(dialect): State<Dialect>, holder: Holder, request: Request) -> Answer {
    let (_, path) = Asked::read(&request, &["path"])?;
    let Some(above) = parent(&path) else {
        return Err(Refusal::invalid("the root of a volume cannot be removed").into());
    };
    let volume = Opened::by(&dialect, &holder, GuestAction::FileRemove).await?;
    volume.check(above).await?;
    let request = Remove {
        path: Opened::at(&path)?,
        user: String::new(),
        recursive: true,
    };
    let removed = volume.access.guest().remove(request).await;
    removed.map_err(told)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_count_from_the_root_and_never_lead_out() {
        for (given, meant) in [
            ("/", "/"),
            ("a", "/a"),
            ("./a//b/", "/a/b"),
            ("/a/.../b", "/a/.../b"),
        ] {
            assert_eq!(normal(given).unwrap(), meant);
        }
        for bad in ["..", "/a/../b", "a\0", &"x".repeat(PATH_MAX + 1)] {
            assert!(normal(bad).is_err(), "{bad:?}");
        }
        assert_eq!(parent("/"), None);
        assert_eq!(parent("/a"), Some("/"));
        assert_eq!(parent("/a/b"), Some("/a"));
    }

    #[test]
    fn attributes_out_of_range_are_refused() {
        let read = |query: &str| {
            let request = Request::builder().uri(format!("/x?{query}"));
            let request = request.body(Body::empty()).unwrap();
            let known = ["path", "uid", "gid", "mode", "force"];
            Asked::read(&request, &known).and_then(|(asked, _)| asked.attributes())
        };
        assert_eq!(read("path=a&mode=420").unwrap().mode, Some(0o644));
        for bad in [
            "mode=420",
            "path=",
            "path=a&mode=4096",
            "path=a&uid=65536",
            "path=a&gid=-1",
            "path=a&force=perhaps",
            "path=a&depth=1",
            "path=a&path=b",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
