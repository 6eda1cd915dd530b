//! Volumes: made, found, listed and deleted with an API key, and mounted in new sandboxes.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use cove_control::{
    Control, ControlError, CreateVolume, ErrorCode, MountRequest, PageRequest, Principal,
    VolumeRecord,
};
use cove_model::{VolumeId, VolumeMount};
use serde::{Deserialize, Serialize};

use super::{Answer, Caller, Json, nothing, with_status};
use crate::Dialect;
use crate::naming;
use crate::refusal::{Kind, Refusal};

const READ_AT_ONCE: u32 = 200;
/// One answer has all of them: the contract has no pages.
const ALL_MAX: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    name: String,
}

/// A volume in a new sandbox, and in what is said of one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    pub name: String,
    pub path: String,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(rename = "volumeID")]
    id: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

fn shown(record: &VolumeRecord, token: Option<String>) -> Shown {
    Shown {
        id: record.id.to_string(),
        name: naming::volume_shown(&record.name),
        token,
    }
}

fn opened(
    dialect: &Dialect,
    principal: &Principal,
    status: StatusCode,
    record: &VolumeRecord,
) -> Answer {
    let token = dialect.front.control.volume_token(principal, &record.id)?;
    with_status(status, shown(record, Some(token)))
}

pub async fn create(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Json(request): Json<NewVolume>,
) -> Answer {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if request.name.is_empty() || !request.name.bytes().all(plain) {
        return Err(
            Refusal::invalid("Invalid volume name: it has letters, digits, - and _").into(),
        );
    }
    let wish = CreateVolume {
        name: naming::volume_kept(&request.name),
        ..CreateVolume::default()
    };
    let made = dialect.front.control.create_volume(&principal, wish).await;
    let made = made.map_err(|error| match error.code {
        ErrorCode::AlreadyExists => Refusal::invalid(format!(
            "Volume with name '{}' already exists",
            request.name
        )),
        _ => error.into(),
    })?;
    opened(&dialect, &principal, StatusCode::CREATED, &made.volume)
}

/// What a path names. Names are understood too, which E2B's clients never send.
async fn found(
    dialect: &Dialect,
    principal: &Principal,
    id: &str,
) -> Result<VolumeRecord, ControlError> {
    let found = dialect.front.control.get_volume(principal, id).await?;
    Ok(found.0)
}

pub async fn get(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path(id): Path<String>,
) -> Answer {
    let record = found(&dialect, &principal, &id).await?;
    opened(&dialect, &principal, StatusCode::OK, &record)
}

pub async fn list(State(dialect): State<Dialect>, Caller(principal): Caller) -> Answer {
    let control = &dialect.front.control;
    let mut page = PageRequest {
        limit: READ_AT_ONCE,
        cursor: None,
    };
    let mut all: Vec<Shown> = Vec::new();
    loop {
        let read = control.list_volumes(&principal, &page).await?;
        all.extend(read.items.iter().map(|record| shown(record, None)));
        page.cursor = read.next_cursor;
        if page.cursor.is_none() {
            return with_status(StatusCode::OK, all);
        }
        if all.len() >= ALL_MAX {
            let message = format!("there are more than {ALL_MAX} volumes; list them with cove");
            return Err(Refusal::new(Kind::Exhausted, message).into());
        }
    }
}

pub async fn destroy(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path(id): Path<String>,
) -> Answer {
    let control = &dialect.front.control;
    control.delete_volume(&principal, &id).await?;
    nothing()
}

/// The volumes that a create names. All that is wrong is said at once.
pub async fn mounts(
    control: &Control,
    principal: &Principal,
    asked: &[Mount],
) -> Result<Vec<VolumeMount>, Refusal> {
    let most = cove_limits::VOLUME_MOUNTS_MAX;
    if asked.len() > most {
        return Err(Refusal::invalid(format!(
            "a sandbox mounts at most {most} volumes, not {}",
            asked.len()
        )));
    }
    let mut wrong = Vec::new();
    let mut wanted = Vec::with_capacity(asked.len());
    for (at, mount) in asked.iter().enumerate() {
        let mut refuse = |why: String| wrong.push(format!("volume mount #{at}: {why}"));
        if let Err(why) = check_path(&mount.path) {
            refuse(why.to_owned());
        } else if asked[..at].iter().any(|other| other.path == mount.path) {
            refuse(format!("path '{:.256}' is used twice", mount.path));
        }
        let name = naming::volume_kept(&mount.name);
        match control.get_volume(principal, &name).await {
            Ok((record, _)) => wanted.push(MountRequest {
                volume: record.id.to_string(),
                path: mount.path.clone(),
                read_only: record.read_only,
            }),
            Err(error) if error.code == ErrorCode::NotFound => {
                refuse(format!("volume '{:.128}' not found", mount.name));
            }
            Err(error) => return Err(error.into()),
        }
    }
    match wrong.is_empty() {
        true => Ok(control.mounts(principal, wanted).await?),
        false => Err(Refusal::invalid(wrong.join("; "))),
    }
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("path is empty");
    }
    if !path.starts_with('/') {
        return Err("path is not absolute");
    }
    match path.split('/').any(|part| part == "." || part == "..") {
        true => Err("path has . or .. in it"),
        false => Ok(()),
    }
}

/// Names of volumes that have been looked up for one answer.
#[derive(Default)]
pub struct Names(BTreeMap<VolumeId, String>);

impl Names {
    /// A sandbox's volumes with their names; one that is gone is called by its id.
    pub async fn of(
        &mut self,
        control: &Control,
        principal: &Principal,
        mounts: &[VolumeMount],
    ) -> Result<Vec<Mount>, ControlError> {
        let mut told = Vec::with_capacity(mounts.len());
        for mount in mounts {
            if !self.0.contains_key(&mount.volume) {
                let name = match control.get_volume(principal, mount.volume.as_str()).await {
                    Ok((record, _)) => naming::volume_shown(&record.name),
                    Err(error) if error.code == ErrorCode::NotFound => mount.volume.to_string(),
                    Err(error) => return Err(error),
                };
                self.0.insert(mount.volume.clone(), name);
            }
            told.push(Mount {
                name: self.0[&mount.volume].clone(),
                path: mount.path.clone(),
            });
        }
        Ok(told)
    }
}
