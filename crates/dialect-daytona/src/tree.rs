//! The file tree: listing, describing, making, moving, changing, removing.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cove_control::{GuestAccess, GuestAction, Principal};
use cove_dialect::Front;
use cove_protocol::message::{
    FileInfo, FileType, ListDir, MakeDir, Move, PathRequest, Remove, SetAttributes,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::asking::{Caller, Names, Query};
use crate::convert::time_text;
use crate::exec::absolute;
use crate::files::At;
use crate::refusal::{Answer, Refusal, about_path};

/// How deep a listing goes at most, and how many entries it has.
const DEPTH_MAX: u32 = 64;
const ENTRIES_MAX: u32 = 100_000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileDto {
    name: String,
    path: String,
    is_dir: bool,
    size: u64,
    mod_time: String,
    modified_at: String,
    mode: String,
    permissions: String,
    owner: String,
    group: String,
}

fn shown(file: FileInfo) -> FileDto {
    let kind = FileType::try_from(file.r#type).unwrap_or(FileType::Other);
    let millis = i128::from(file.modified_unix_ms) * 1_000_000;
    let at =
        OffsetDateTime::from_unix_timestamp_nanos(millis).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let go = format_description!("[year]-[month]-[day] [hour]:[minute]:[second] +0000 UTC");
    FileDto {
        name: file.name,
        path: file.path,
        is_dir: kind == FileType::Directory,
        size: file.size,
        mod_time: at.format(go).unwrap_or_default(),
        modified_at: time_text(at),
        mode: letters(kind, file.mode),
        permissions: format!("{:04o}", file.mode & 0o7777),
        owner: file.owner,
        group: file.group,
    }
}

/// `drwxr-xr-x`.
fn letters(kind: FileType, mode: u32) -> String {
    let first = match kind {
        FileType::Directory => 'd',
        FileType::Symlink => 'L',
        FileType::Socket => 'S',
        FileType::Fifo => 'p',
        FileType::Device => 'D',
        FileType::File | FileType::Other => '-',
    };
    let bits = "rwxrwxrwx".chars().enumerate().map(|(at, letter)| {
        let set = mode & (1 << (8 - at)) != 0;
        if set { letter } else { '-' }
    });
    std::iter::once(first).chain(bits).collect()
}

/// A way in, with the path made absolute.
async fn into(
    front: &Front,
    caller: &Principal,
    id: &str,
    action: GuestAction,
    path: String,
) -> Result<(GuestAccess, String), Refusal> {
    let path = absolute(front, caller, id, path).await?;
    let access = front.control.guest(caller, id, action).await?;
    Ok((access, path))
}

fn user(access: &GuestAccess) -> String {
    access.default_user().to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listing {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    depth: Option<u32>,
}

pub async fn list(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Listing>,
) -> Answer {
    let depth = query.depth.unwrap_or(1);
    if !(1..=DEPTH_MAX).contains(&depth) {
        return Err(Refusal::invalid(format!(
            "depth must be between 1 and {DEPTH_MAX}"
        )));
    }
    let path = query.path.unwrap_or_else(|| ".".into());
    let (access, path) = into(&front, &caller, &id, GuestAction::FileRead, path).await?;
    let request = ListDir {
        path,
        user: user(&access),
        depth,
        limit: ENTRIES_MAX,
    };
    let listing = access.guest().list(request).await.map_err(about_path)?;
    if listing.truncated {
        let message = "there are more entries than one listing has; ask for less depth";
        return Err(Refusal::new(400, "BAD_REQUEST", message));
    }
    let files: Vec<FileDto> = listing.entries.into_iter().map(shown).collect();
    Ok(axum::Json(files).into_response())
}

pub async fn info(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(at): Query<At>,
) -> Answer {
    let (access, path) = into(&front, &caller, &id, GuestAction::FileRead, at.path).await?;
    Ok(axum::Json(shown(stat(&access, path).await?)).into_response())
}

pub async fn stat(access: &GuestAccess, path: String) -> Result<FileInfo, Refusal> {
    let request = PathRequest {
        path,
        user: user(access),
        follow: true,
    };
    access.guest().stat(request).await.map_err(about_path)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Folder {
    path: String,
    #[serde(default)]
    mode: Option<String>,
}

fn mode(text: Option<&str>) -> Result<Option<u32>, Refusal> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let octal = text.len() <= 5 && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if octal && mode <= 0o7777 => Ok(Some(mode)),
        _ => Err(Refusal::invalid("mode must be octal, at most 7777")),
    }
}

pub async fn folder(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Folder>,
) -> Answer {
    let mode = mode(query.mode.as_deref())?;
    let (access, path) = into(&front, &caller, &id, GuestAction::FileMkdir, query.path).await?;
    let request = MakeDir {
        path,
        user: user(&access),
        mode,
        parents: true,
    };
    access.guest().mkdir(request).await.map_err(about_path)?;
    Ok(StatusCode::CREATED.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    path: String,
    #[serde(default)]
    recursive: bool,
}

pub async fn remove(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Removal>,
) -> Answer {
    let (access, path) = into(&front, &caller, &id, GuestAction::FileRemove, query.path).await?;
    let request = Remove {
        path,
        user: user(&access),
        recursive: query.recursive,
    };
    access.guest().remove(request).await.map_err(about_path)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moving {
    source: String,
    destination: String,
}

pub async fn rename(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Moving>,
) -> Answer {
    let to = absolute(&front, &caller, &id, query.destination).await?;
    let (access, from) = into(&front, &caller, &id, GuestAction::FileMove, query.source).await?;
    let request = Move {
        from,
        to,
        user: user(&access),
        replace: true,
    };
    access.guest().rename(request).await.map_err(about_path)?;
    Ok(StatusCode::OK.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permissions {
    path: String,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    group: Option<String>,
}

pub async fn permissions(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Permissions>,
) -> Answer {
    let mode = mode(query.mode.as_deref())?;
    let name = |name: Option<String>| name.filter(|name| !name.is_empty());
    let (owner, group) = (name(query.owner), name(query.group));
    let bad = |name: &Option<String>| {
        name.as_ref()
            .is_some_and(|n| n.len() > 64 || n.contains(':') || n.chars().any(char::is_control))
    };
    if bad(&owner) || bad(&group) {
        return Err(Refusal::invalid("owner and group must be names or numbers"));
    }
    let action = GuestAction::FileAttributes;
    let (access, path) = into(&front, &caller, &id, action, query.path).await?;
    let owner = match (owner, group) {
        (None, None) => String::new(),
        (Some(owner), None) => owner,
        (Some(owner), Some(group)) => format!("{owner}:{group}"),
        (None, Some(group)) => {
            let now = stat(&access, path.clone()).await?;
            format!("{}:{group}", now.uid)
        }
    };
    let request = SetAttributes {
        path,
        user: user(&access),
        mode,
        owner,
    };
    access
        .guest()
        .set_attributes(request)
        .await
        .map_err(about_path)?;
    Ok(StatusCode::OK.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_ls_does() {
        assert_eq!(letters(FileType::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(letters(FileType::File, 0o640), "-rw-r-----");
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode(Some("0755")).unwrap(), Some(0o755));
        assert_eq!(mode(None).unwrap(), None);
        for bad in ["9", "+7", "77777", "rwx", "-1"] {
            assert!(mode(Some(bad)).is_err(), "{bad} was taken");
        }
    }
}
