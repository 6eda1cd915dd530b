//! Volumes, and their places in new sandboxes.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cove_control::{CreateVolume, ErrorCode, MountRequest, PageRequest, Principal, VolumeRecord};
use cove_dialect::Front;
use cove_model::VolumeMount;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::asking::{Caller, Json, Names, Query};
use crate::convert::time_text;
use crate::refusal::{Answer, Refusal};
use crate::wire::VolumeWish;

const READ_AT_ONCE: u32 = 200;
const ALL_MAX: usize = 10_000;
/// Where Daytona mounts nothing. The control plane has rules of its own beside these.
const TAKEN: &[&str] = &[
    "/proc", "/sys", "/dev", "/boot", "/etc", "/bin", "/sbin", "/lib", "/lib64",
];

fn shown(record: &VolumeRecord) -> Value {
    let created = time_text(record.created_at);
    json!({
        "id": record.id.as_str(),
        "name": record.name,
        "organizationId": record.org.as_str(),
        "state": "ready",
        "createdAt": created,
        "updatedAt": created,
        "errorReason": null,
    })
}

fn check_path(path: &str) -> Result<(), Refusal> {
    let below = |root: &&&str| path == **root || path.starts_with(&format!("{root}/"));
    let odd = !path.starts_with('/')
        || path == "/"
        || path.contains("//")
        || path.split('/').any(|part| part == "." || part == "..");
    if odd {
        return Err(Refusal::invalid(
            "volumes: mountPath must be absolute, not /, and without '.', '..' or '//'",
        ));
    }
    match TAKEN.iter().find(below) {
        Some(root) => Err(Refusal::invalid(format!(
            "volumes: mountPath cannot be at or under {root}"
        ))),
        None => Ok(()),
    }
}

/// The volumes that a create names, by id or name.
pub async fn mounts(
    front: &Front,
    caller: &Principal,
    asked: &[VolumeWish],
) -> Result<Vec<VolumeMount>, Refusal> {
    let most = cove_limits::VOLUME_MOUNTS_MAX;
    if asked.len() > most {
        return Err(Refusal::invalid(format!("volumes: at most {most}")));
    }
    let mut wanted = Vec::with_capacity(asked.len());
    for wish in asked {
        check_path(&wish.mount_path)?;
        if wish.subpath.as_ref().is_some_and(|path| !path.is_empty()) {
            return Err(Refusal::unsupported(
                "volumes: subpath is not supported; make a volume for it, see docs/daytona.md, Volumes",
            ));
        }
        let found = front.control.get_volume(caller, &wish.volume_id).await;
        let (record, _) = found?;
        wanted.push(MountRequest {
            volume: record.id.to_string(),
            path: wish.mount_path.clone(),
            read_only: record.read_only,
        });
    }
    Ok(front.control.mounts(caller, wanted).await?)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Listing {
    /// Deleted volumes are not remembered, so there are none to add.
    #[serde(rename = "includeDeleted")]
    _include_deleted: bool,
}

pub async fn list(
    State(front): State<Front>,
    Caller(caller): Caller,
    Query(_): Query<Listing>,
) -> Answer {
    let mut all: Vec<Value> = Vec::new();
    let mut cursor = None;
    while all.len() < ALL_MAX {
        let page = PageRequest {
            limit: READ_AT_ONCE,
            cursor,
        };
        let found = front.control.list_volumes(&caller, &page).await?;
        all.extend(found.items.iter().map(shown));
        cursor = found.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(axum::Json(all).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    name: String,
}

pub async fn create(
    State(front): State<Front>,
    Caller(caller): Caller,
    Json(body): Json<Create>,
) -> Answer {
    let request = CreateVolume {
        name: body.name,
        ..CreateVolume::default()
    };
    match front.control.create_volume(&caller, request).await {
        Ok(created) => Ok(axum::Json(shown(&created.volume)).into_response()),
        // As it is there, and not a conflict.
        Err(error) if error.code == ErrorCode::AlreadyExists => {
            Err(Refusal::invalid(error.message))
        }
        Err(error) => Err(error.into()),
    }
}

pub async fn get(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(which): Names<String>,
) -> Answer {
    let (found, _) = front.control.get_volume(&caller, &which).await?;
    Ok(axum::Json(shown(&found)).into_response())
}

pub async fn delete(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(which): Names<String>,
) -> Answer {
    front.control.delete_volume(&caller, &which).await?;
    Ok(StatusCode::OK.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_mounted_where_daytona_mounts_them() {
        for good in ["/data", "/home/daytona/x", "/devices", "/a.b"] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        for bad in [
            "", "/", "data", "/a//b", "/a/../b", "/a/.", "/proc", "/proc/x", "/lib64/x", "/etc",
        ] {
            assert!(check_path(bad).is_err(), "{bad:?} was taken");
        }
    }
}
