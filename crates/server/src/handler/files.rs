//! File contents and archives, streamed both ways at the pace of the slower side.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cove_api::ErrorCode;
use cove_api::file::{ReadArchive, ReadFile, WriteArchive, WriteFile, Written, parse_mode};
use cove_api::route::{BYTES, TAR};
use cove_control::{GuestAccess, GuestAction};
use cove_dialect::{Kind, Slot};
use cove_protocol::client::{ArchiveReader, FileReader, GuestError, Upload};
use cove_protocol::message::{self, ArchiveIn, ArchiveOut, PathRequest};

use super::place::{Place, Reached};
use super::{Answer, ok};
use crate::extract::{Caller, Names, Pieces, Query};
use crate::failure::{self, About, Failure};
use crate::state::App;
use crate::streaming::Counted;

pub fn path_failure(error: GuestError) -> Failure {
    failure::guest(error, About::Path)
}

/// Absolute, bounded and without NUL; what is at it is the guest's business.
pub fn path(text: String) -> Result<String, Failure> {
    if text.contains('\0') {
        return Err(Failure::invalid("path: must not contain NUL"));
    }
    if !text.starts_with('/') || text.len() > cove_limits::PATH_MAX {
        let max = cove_limits::PATH_MAX;
        return Err(Failure::invalid(format!(
            "path: must be absolute and have at most {max} bytes"
        )));
    }
    Ok(text)
}

/// Whose rights to act with.
pub fn user(access: &GuestAccess, asked: Option<String>) -> Result<String, Failure> {
    user_or(access.default_user(), asked)
}

pub fn user_or(default: &str, asked: Option<String>) -> Result<String, Failure> {
    match asked {
        None => Ok(default.to_owned()),
        Some(user)
            if !user.is_empty() && user.len() <= 64 && !user.chars().any(char::is_control) =>
        {
            Ok(user)
        }
        Some(_) => Err(Failure::invalid(
            "user: must have 1 to 64 bytes and no control characters",
        )),
    }
}

pub fn mode(text: Option<&str>) -> Result<Option<u32>, Failure> {
    match text {
        None => Ok(None),
        Some(text) => match parse_mode(text) {
            Some(mode) => Ok(Some(mode)),
            None => Err(Failure::invalid("mode: must be octal, at most 7777")),
        },
    }
}

pub fn owner(text: Option<String>) -> Result<String, Failure> {
    match text {
        None => Ok(String::new()),
        Some(owner)
            if !owner.is_empty() && owner.len() <= 129 && !owner.chars().any(char::is_control) =>
        {
            Ok(owner)
        }
        Some(_) => Err(Failure::invalid("owner: must be user or user:group")),
    }
}

/// A place among the uploads and downloads of the caller's organisation.
pub fn transfer(app: &App, caller: &Caller) -> Result<Slot, Failure> {
    let org = &caller.principal.org;
    Ok(app.front.streams.enter(org, Kind::Transfer)?)
}

pub async fn read(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ReadFile>,
    Names(id): Names<String>,
    headers: HeaderMap,
) -> Answer {
    read_at(app, caller, query, Place::Sandbox(id), headers).await
}

pub async fn read_at(
    app: App,
    caller: Caller,
    query: ReadFile,
    place: Place,
    headers: HeaderMap,
) -> Answer {
    let path = place.path(query.path)?;
    let asked = range(&headers)?;
    let slot = transfer(&app, &caller)?;
    let access = place.reach(&app, &caller, GuestAction::FileRead).await?;
    let user = access.user(query.user)?;
    let (offset, length) = match asked {
        None => (0, 0),
        Some(Asked::From(first, last)) => (
            first,
            last.map_or(0, |last| (last - first).saturating_add(1)),
        ),
        Some(Asked::Last(count)) => {
            let request = PathRequest {
                path: path.clone(),
                user: user.clone(),
                follow: true,
            };
            let info = access.guest().stat(request).await;
            let info = info.map_err(|error| access.failure(error))?;
            (info.size.saturating_sub(count), 0)
        }
    };
    let request = message::ReadFile {
        root_links_only: false,
        path,
        user,
        offset,
        length,
    };
    let reader = access.guest().read_file(request).await;
    let reader = reader.map_err(|error| access.failure(error))?;
    let size = reader.info().size;
    let mut response = match asked {
        None => StatusCode::OK.into_response(),
        Some(_) if offset >= size => {
            let failure = Failure::new(
                ErrorCode::RangeNotSatisfiable,
                format!("the file has {size} bytes"),
            );
            let mut response = failure.into_response();
            set(
                &mut response,
                header::CONTENT_RANGE,
                &format!("bytes */{size}"),
            );
            return Ok(response);
        }
        Some(_) => {
            let mut response = StatusCode::PARTIAL_CONTENT.into_response();
            let last = last_byte(offset, length, size);
            set(
                &mut response,
                header::CONTENT_RANGE,
                &format!("bytes {offset}-{last}/{size}"),
            );
            response
        }
    };
    // Files under /proc and the like say 0 and have contents: those go without a length.
    let count = match asked {
        None => (size > 0).then_some(size),
        Some(_) => Some(last_byte(offset, length, size) - offset + 1),
    };
    if let Some(count) = count {
        set(&mut response, header::CONTENT_LENGTH, &count.to_string());
    }
    set(&mut response, header::CONTENT_TYPE, BYTES);
    set(&mut response, header::ACCEPT_RANGES, "bytes");
    *response.body_mut() = body(&app, (access, slot), Source::File(reader), count);
    Ok(response)
}

fn last_byte(offset: u64, length: u64, size: u64) -> u64 {
    match length {
        0 => size - 1,
        length => offset.saturating_add(length - 1).min(size - 1),
    }
}

fn set(response: &mut Response, name: header::HeaderName, value: &str) {
    let value = HeaderValue::from_str(value).expect("these are digits and fixed words");
    response.headers_mut().insert(name, value);
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    From(u64, Option<u64>),
    Last(u64),
}

/// One range. Several in one request are answered with the whole file, as HTTP allows.
fn range(headers: &HeaderMap) -> Result<Option<Asked>, Failure> {
    let Some(value) = headers.get(header::RANGE) else {
        return Ok(None);
    };
    let wrong = || Failure::invalid("Range must be like bytes=0-99, bytes=100- or bytes=-50");
    let text = value.to_str().map_err(|_| wrong())?;
    let ranges = text.strip_prefix("bytes=").ok_or_else(wrong)?;
    if ranges.contains(',') {
        return Ok(None);
    }
    let (first, last) = ranges.trim().split_once('-').ok_or_else(wrong)?;
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u64>().map_err(|_| wrong()),
        false => Err(wrong()),
    };
    match (first, last) {
        ("", "") => Err(wrong()),
        ("", last) => match number(last)? {
            0 => Err(wrong()),
            count => Ok(Some(Asked::Last(count))),
        },
        (first, "") => Ok(Some(Asked::From(number(first)?, None))),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                Err(wrong())
            } else {
                Ok(Some(Asked::From(first, Some(last))))
            }
        }
    }
}

enum Source {
    File(FileReader),
    Archive(ArchiveReader),
}

impl Source {
    async fn next(&mut self) -> Result<Option<bytes::Bytes>, GuestError> {
        match self {
            Source::File(reader) => reader.next().await,
            Source::Archive(reader) => reader.next().await,
        }
    }
}

/// Chunks as the client takes them; an error cuts the connection, which a client can tell from an
/// end. Never more than `most` bytes, should the file have grown since.
fn body(app: &App, kept: (Reached, Slot), source: Source, most: Option<u64>) -> Body {
    let left = most.unwrap_or(u64::MAX);
    let state = (source, kept, left, app.closing.clone(), Counted::new(app));
    Body::from_stream(futures_util::stream::try_unfold(
        state,
        |(mut source, kept, left, closing, counted)| async move {
            let chunk = tokio::select! {
                chunk = source.next() => chunk.map_err(std::io::Error::other)?,
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
            Ok(Some((chunk, (source, kept, left, closing, counted))))
        },
    ))
}

pub async fn write(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<WriteFile>,
    Names(id): Names<String>,
    pieces: Pieces,
) -> Answer {
    write_at(app, caller, query, Place::Sandbox(id), pieces).await
}

pub async fn write_at(
    app: App,
    caller: Caller,
    query: WriteFile,
    place: Place,
    pieces: Pieces,
) -> Answer {
    if query.append && query.at.is_some() {
        return Err(Failure::invalid("give either append or at"));
    }
    let path = place.path(query.path)?;
    let mode = mode(query.mode.as_deref())?;
    let owner = owner(query.owner)?;
    let _slot = transfer(&app, &caller)?;
    let access = place.reach(&app, &caller, GuestAction::FileWrite).await?;
    access.check_inside(&path).await?;
    let request = message::WriteFile {
        root_links_only: false,
        path,
        user: access.user(query.user)?,
        mode,
        owner,
        parents: query.parents,
        at: query.at,
        append: query.append,
        sync: query.sync,
    };
    let upload = access.guest().write_file(request).await;
    let upload = upload.map_err(|error| access.failure(error))?;
    let taken = take_in(upload, pieces, About::Path).await;
    taken.map_err(|failure| access.told(failure))
}

/// Passes pieces on until the end. Whatever goes wrong before, the guest forgets what it got.
async fn take_in(mut upload: Upload, mut pieces: Pieces, about: About) -> Answer {
    let failed = |error| failure::guest(error, about);
    loop {
        match pieces.next().await {
            Ok(Some(piece)) => upload.write(piece).await.map_err(failed)?,
            Ok(None) => break,
            Err(failure) => {
                upload.abort();
                return Err(failure);
            }
        }
    }
    let done = upload.finish().await.map_err(failed)?;
    ok(Written {
        bytes: done.bytes,
        entries: done.entries,
    })
}

pub async fn read_archive(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ReadArchive>,
    Names(id): Names<String>,
) -> Answer {
    let path = path(query.path)?;
    let slot = transfer(&app, &caller)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::FileRead)
        .await?;
    let user = user(&access, query.user)?;
    // Told as a status, which a stream that has begun no longer can.
    let request = PathRequest {
        path: path.clone(),
        user: user.clone(),
        follow: true,
    };
    access.guest().stat(request).await.map_err(path_failure)?;
    let reader = access
        .guest()
        .archive_out(ArchiveOut { path, user })
        .await
        .map_err(path_failure)?;
    let mut response = StatusCode::OK.into_response();
    set(&mut response, header::CONTENT_TYPE, TAR);
    let access = Reached::Sandbox(Box::new(access));
    *response.body_mut() = body(&app, (access, slot), Source::Archive(reader), None);
    Ok(response)
}

pub async fn write_archive(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<WriteArchive>,
    Names(id): Names<String>,
    pieces: Pieces,
) -> Answer {
    let path = path(query.path)?;
    let _slot = transfer(&app, &caller)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ArchiveWrite)
        .await?;
    let user = user(&access, query.user)?;
    let request = ArchiveIn {
        path,
        user,
        keep_owner: query.keep_owner,
    };
    let upload = access
        .guest()
        .archive_in(request)
        .await
        .map_err(path_failure)?;
    take_in(upload, pieces, About::Archive).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Asked>, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_str(text).unwrap());
        range(&headers)
    }

    #[test]
    fn ranges_are_read_as_http_means_them() {
        assert_eq!(parsed("bytes=0-0").unwrap(), Some(Asked::From(0, Some(0))));
        assert_eq!(parsed("bytes=5-").unwrap(), Some(Asked::From(5, None)));
        assert_eq!(parsed("bytes=-7").unwrap(), Some(Asked::Last(7)));
        assert_eq!(parsed("bytes=0-1,3-4").unwrap(), None);
        for bad in [
            "bytes=",
            "bytes=-",
            "bytes=2-1",
            "bytes=+1-2",
            "lines=1-2",
            "bytes=-0",
            "bytes=a-b",
        ] {
            assert!(parsed(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn the_last_byte_is_never_behind_the_end() {
        assert_eq!(last_byte(0, 0, 10), 9);
        assert_eq!(last_byte(2, 3, 10), 4);
        assert_eq!(last_byte(8, u64::MAX, 10), 9);
    }
}
