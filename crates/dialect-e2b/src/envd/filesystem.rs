//! The tree of files: described, made, moved and removed.

use axum::extract::{Request, State};
use axum::response::Response;
use cove_control::{GuestAccess, GuestAction};
use cove_protocol::client::GuestError;
use cove_protocol::message::{
    ErrorCode as GuestCode, FileInfo, FileType, ListDir, MakeDir, Move, PathRequest, Remove,
};
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::paths::{joined, parent, resolve};
use super::wire;
use super::{Door, Service};
use crate::Dialect;
use crate::plane::sandboxes::time_text;
use crate::refusal::{Kind, Refusal, Unary};

/// How deep a listing may go.
const DEPTH_MAX: u32 = 64;

/// Links on the way to one file.
const LINKS_MAX: usize = 16;
/// Links of one listing that are followed; the others are shown as they are.
const LISTED_LINKS_MAX: usize = 256;

/// What a directory takes elsewhere; the filesystem here says 0 of an empty one.
const BLOCK: u64 = 4096;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    path: String,
    #[serde(default)]
    depth: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Moving {
    source: String,
    destination: String,
}

pub fn entry(info: &FileInfo) -> Value {
    let kind = FileType::try_from(info.r#type).unwrap_or(FileType::Other);
    let (name, letter) = match kind {
        FileType::Directory => ("FILE_TYPE_DIRECTORY", 'd'),
        FileType::Symlink => ("FILE_TYPE_SYMLINK", 'l'),
        // Clients leave out what has no kind; a socket is a file to them.
        _ => ("FILE_TYPE_FILE", '-'),
    };
    let at = i128::from(info.modified_unix_ms) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(at).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let mode = info.mode & 0o7777;
    let size = match kind {
        FileType::Directory => info.size.max(BLOCK),
        _ => info.size,
    };
    let mut told = json!({
        "name": info.name,
        "type": name,
        "path": info.path,
        "size": size.to_string(),
        "mode": mode,
        "permissions": permissions(letter, mode),
        "owner": info.owner,
        "group": info.group,
        "modifiedTime": time_text(at),
    });
    if kind == FileType::Symlink {
        told["symlinkTarget"] = json!(info.symlink_target);
        told["isSymlink"] = json!(true);
    }
    told
}

fn permissions(kind: char, mode: u32) -> String {
    let bits = (0..9).map(|bit| match mode & (0o400 >> bit) {
        0 => '-',
        _ => ['r', 'w', 'x'][bit % 3],
    });
    std::iter::once(kind).chain(bits).collect()
}

pub async fn look(access: &GuestAccess, user: &str, path: &str) -> Result<FileInfo, GuestError> {
    let request = PathRequest {
        path: path.to_owned(),
        user: user.to_owned(),
        follow: false,
    };
    access.guest().stat(request).await
}

pub async fn stat(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let At { path } = wire::unary(&door, body).await?;
    let access = door.inside(GuestAction::FileRead).await?;
    let user = door.user(&access)?;
    let path = resolve(&access, &user, &path).await?;
    let info = look(&access, &user, &path).await?;
    let told = resolved(&access, &user, &info).await?;
    Ok(wire::answer(json!({"entry": told})))
}

/// An entry whose link is followed to its end: the kind and mode are the target's, and the target's path is whole. A
/// link that leads nowhere stays one.
async fn resolved(access: &GuestAccess, user: &str, info: &FileInfo) -> Result<Value, GuestError> {
    let mut told = entry(info);
    if info.r#type != FileType::Symlink as i32 {
        return Ok(told);
    }
    let mut at = info.clone();
    for _ in 0..LINKS_MAX {
        if at.r#type != FileType::Symlink as i32 {
            let target = entry(&at);
            told["symlinkTarget"] = target["path"].clone();
            told["type"] = target["type"].clone();
            told["mode"] = target["mode"].clone();
            break;
        }
        let to = joined(parent(&at.path).unwrap_or("/"), &at.symlink_target);
        at = match look(access, user, &to).await {
            Ok(next) => next,
            Err(GuestError::Refused { .. }) => break,
            Err(error) => return Err(error),
        };
    }
    Ok(told)
}

pub async fn list_dir(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let Listing { path, depth } = wire::unary(&door, body).await?;
    if depth > DEPTH_MAX {
        return Err(Refusal::invalid(format!("depth must be at most {DEPTH_MAX}")).into());
    }
    let access = door.inside(GuestAction::FileRead).await?;
    let user = door.user(&access)?;
    let path = resolve(&access, &user, &path).await?;
    let request = ListDir {
        path,
        user: user.clone(),
        depth,
        limit: 0,
    };
    let listing = access.guest().list(request).await?;
    if listing.truncated {
        // The client has no way to ask for the rest, and must not take this for the whole.
        let message = "there is more in this directory than one answer holds";
        return Err(Refusal::new(Kind::Exhausted, message).into());
    }
    let mut listed = listing.entries;
    // What a directory has comes right behind it.
    listed.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
    let mut entries = Vec::with_capacity(listed.len());
    let mut links = 0;
    for info in listed.iter() {
        links += usize::from(info.r#type == FileType::Symlink as i32);
        entries.push(match links {
            0..=LISTED_LINKS_MAX => resolved(&access, &user, info).await?,
            _ => entry(info),
        });
    }
    Ok(wire::answer(json!({"entries": entries})))
}

pub async fn make_dir(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let At { path } = wire::unary(&door, body).await?;
    let access = door.inside(GuestAction::FileMkdir).await?;
    let user = door.user(&access)?;
    let path = resolve(&access, &user, &path).await?;
    let request = PathRequest {
        path: path.clone(),
        user: user.clone(),
        follow: true,
    };
    match access.guest().stat(request).await {
        Ok(info) if info.r#type == FileType::Directory as i32 => {
            let message = "the directory is there already";
            return Err(Refusal::new(Kind::Exists, message).into());
        }
        Ok(_) => return Err(Refusal::invalid("there is a file of that name").into()),
        Err(GuestError::Refused {
            code: GuestCode::NotFound,
            ..
        }) => {}
        Err(error) => return Err(error.into()),
    }
    make(&access, &user, &path).await?;
    let info = look(&access, &user, &path).await?;
    Ok(wire::answer(json!({"entry": entry(&info)})))
}

async fn make(access: &GuestAccess, user: &str, path: &str) -> Result<(), GuestError> {
    let request = MakeDir {
        path: path.to_owned(),
        user: user.to_owned(),
        mode: None,
        parents: true,
    };
    access.guest().mkdir(request).await
}

pub async fn rename(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let moving: Moving = wire::unary(&door, body).await?;
    let access = door.inside(GuestAction::FileMove).await?;
    let user = door.user(&access)?;
    let from = resolve(&access, &user, &moving.source).await?;
    let to = resolve(&access, &user, &moving.destination).await?;
    // Looked at first: a move of nothing makes no directories.
    look(&access, &user, &from).await?;
    if let Some(parent) = parent(&to) {
        make(&access, &user, parent).await?;
    }
    let request = Move {
        from,
        to: to.clone(),
        user: user.clone(),
        replace: true,
    };
    access.guest().rename(request).await?;
    let info = look(&access, &user, &to).await?;
    Ok(wire::answer(json!({"entry": entry(&info)})))
}

pub async fn remove(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let At { path } = wire::unary(&door, body).await?;
    let access = door.inside(GuestAction::FileRemove).await?;
    let user = door.user(&access)?;
    let path = resolve(&access, &user, &path).await?;
    let request = Remove {
        path,
        user,
        recursive: true,
    };
    match access.guest().remove(request).await {
        // Removing what is not there is done already, by E2B's contract.
        Err(GuestError::Refused {
            code: GuestCode::NotFound,
            ..
        }) => {}
        outcome => outcome?,
    }
    Ok(wire::answer(json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_ls_does() {
        assert_eq!(permissions('-', 0o644), "-rw-r--r--");
        assert_eq!(permissions('d', 0o755), "drwxr-xr-x");
        assert_eq!(permissions('-', 0o4751), "-rwxr-x--x");
    }
}
