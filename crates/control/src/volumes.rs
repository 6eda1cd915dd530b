//! Volumes: making, finding, listing and deleting them, and their files.
//!
//! The row is written before the host is asked, so whatever a crash leaves can be finished or undone (`tend`). A
//! volume is on one host; sandboxes that mount it are made there. It is no part of any sandbox's snapshot.

use cove_model::placement::Strategy;
use cove_model::spec::check_name;
use cove_model::{HostId, OrgId, Placement, SandboxSpec, VolumeId, VolumeMount};
use cove_runner_api::{RunnerError, VolumeRequest};
use cove_store::{
    IdempotencyKey, Page, PageRequest, Scope, StoreError, VolumeCreated, VolumeDoomed,
    VolumeRecord, VolumeRef, VolumeState, VolumeUser,
};

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::sandboxes::{claim, key_reused};

mod files;
mod tend;

pub use files::VolumeAccess;

/// How often a request looks again when the one it would repeat has just failed.
const REPLAYS_MAX: u32 = 3;
/// Users of a volume that a refusal names.
const USERS_NAMED: usize = 5;

#[derive(Debug, Clone, Default)]
pub struct CreateVolume {
    pub name: String,
    /// Absent: the source's, else the default.
    pub size_mb: Option<u64>,
    /// Begin as a copy of this volume, by id or name.
    pub from: Option<String>,
    /// Nobody writes to it, ever: a copy that stays as it is.
    pub read_only: bool,
    /// What it asks of its host. It is not kept: the volume stays where it is.
    pub placement: Placement,
    /// Two requests with the same key within a day are one.
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Clone)]
pub struct CreatedVolume {
    pub volume: VolumeRecord,
    /// An earlier request with the same idempotency key made it.
    pub replayed: bool,
}

/// A volume at a place in a new sandbox, as its maker names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRequest {
    /// Id or name.
    pub volume: String,
    pub path: String,
    pub read_only: bool,
}

pub(crate) fn no_volume(given: &str) -> ControlError {
    ControlError::not_found("volume", given).hint("see `cove volume ls`")
}

fn name_taken(error: StoreError, name: &str) -> ControlError {
    match error {
        StoreError::Exists { .. } => ControlError::new(
            ErrorCode::AlreadyExists,
            format!("a volume named '{name}' exists already"),
        )
        .hint("choose another name, or delete that volume first"),
        error => error.into(),
    }
}

impl Control {
    /// The caller's own volume that is there, by id or name.
    pub(crate) async fn find_volume(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<VolumeRecord, ControlError> {
        let id: Option<VolumeId> = which.parse().ok();
        let reference = id.as_ref().map_or(VolumeRef::Name(which), VolumeRef::Id);
        let found = self.store().volume(&principal.org, reference).await?;
        found
            .filter(|found| found.state == VolumeState::Ready)
            .ok_or_else(|| no_volume(which))
    }

    /// Needs `read`. By id or by name, as everywhere below; with the sandboxes that mount it.
    pub async fn get_volume(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(VolumeRecord, Vec<VolumeUser>), ControlError> {
        principal.require(Scope::Read)?;
        let found = self.find_volume(principal, which).await?;
        let users = self.store().volume_users(&found.id).await?;
        Ok((found, users))
    }

    /// Needs `read`. Newest first.
    pub async fn list_volumes(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<VolumeRecord>, ControlError> {
        principal.require(Scope::Read)?;
        let mut found = self.store().volumes(&principal.org, page).await?;
        found
            .items
            .retain(|record| record.state == VolumeState::Ready);
        Ok(found)
    }

    /// Needs `manage`. Answers once it is on disk.
    pub async fn create_volume(
        &self,
        principal: &Principal,
        request: CreateVolume,
    ) -> Result<CreatedVolume, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let name = request.name.clone();
            let outcome = control.make_volume(&principal, request).await;
            let target = match &outcome {
                Ok(created) => created.volume.id.to_string(),
                Err(_) => name,
            };
            let operation = Operation::new("volume.create", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. Refused while a sandbox mounts it, running or not.
    pub async fn delete_volume(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let mut target = which.clone();
            let outcome = async {
                principal.require(Scope::Manage)?;
                let found = control.find_volume(&principal, &which).await?;
                target = found.id.to_string();
                let _turn = control.lock_volume(&found.id).await?;
                // Whoever had the turn before may have deleted it.
                control.find_volume(&principal, found.id.as_str()).await?;
                let doomed = control.store().doom_volume(&principal.org, &found.id).await;
                match doomed? {
                    VolumeDoomed::Marked(row) => {
                        let deleted = control.finish_delete_volume(&row).await;
                        if let Err(error) = &deleted
                            && error.code == ErrorCode::InUse
                        {
                            // By a sandbox that only the host knows. It was there until now, so nobody on the host
                            // makes or deletes it.
                            control.store().spare_volume(&row.id).await?;
                        }
                        deleted
                    }
                    VolumeDoomed::InUse(users) => Err(in_use(&found, &users)),
                }
            }
            .await;
            let operation = Operation::new("volume.delete", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// The volumes that a maker names, found. Whether they fit the sandbox is checked when it is made.
    pub async fn mounts(
        &self,
        principal: &Principal,
        asked: Vec<MountRequest>,
    ) -> Result<Vec<VolumeMount>, ControlError> {
        let most = cove_limits::VOLUME_MOUNTS_MAX;
        if asked.len() > most {
            return Err(ControlError::invalid(format!(
                "volumes: at most {most} volumes, not {}",
                asked.len()
            )));
        }
        let mut mounts = Vec::with_capacity(asked.len());
        for mount in asked {
            mounts.push(VolumeMount {
                volume: self.find_volume(principal, &mount.volume).await?.id,
                path: mount.path,
                read_only: mount.read_only,
            });
        }
        Ok(mounts)
    }

    /// The host that a sandbox with these volumes must be on. Refuses volumes that are gone, such as a snapshot's
    /// settings may name, and writing to one that cannot be written to.
    pub(crate) async fn check_volumes(
        &self,
        principal: &Principal,
        spec: &SandboxSpec,
        begins_from_snapshot: bool,
    ) -> Result<Option<HostId>, ControlError> {
        let mut host = None;
        for mount in &spec.volumes {
            let found = self.find_volume(principal, mount.volume.as_str()).await;
            let found = match found {
                Err(error) if error.code == ErrorCode::NotFound && begins_from_snapshot => {
                    return Err(error.hint(
                        "it may have been deleted since the snapshot was taken; name the volumes to mount, or none with volumes: []",
                    ));
                }
                found => found?,
            };
            if found.read_only && !mount.read_only {
                return Err(ControlError::invalid(format!(
                    "volumes: '{}' is read-only; mount it with read_only",
                    found.name
                )));
            }
            if host.get_or_insert_with(|| found.host.clone()) != &found.host {
                return Err(ControlError::invalid(
                    "volumes: they are on different hosts, and a sandbox is on one",
                ));
            }
        }
        Ok(host)
    }

    async fn make_volume(
        &self,
        principal: &Principal,
        request: CreateVolume,
    ) -> Result<CreatedVolume, ControlError> {
        use cove_limits::{VOLUME_DEFAULT_MB, VOLUME_MAX_MB, VOLUME_MIN_MB};
        principal.require(Scope::Manage)?;
        check_name(&request.name)?;
        let source = match &request.from {
            Some(which) => Some(self.find_volume(principal, which).await?),
            None if request.read_only => {
                return Err(ControlError::invalid(
                    "read_only: only a copy of another volume can be read-only",
                )
                .hint("name the volume to copy in from"));
            }
            None => None,
        };
        let default = source.as_ref().map_or(VOLUME_DEFAULT_MB, |row| row.size_mb);
        let size_mb = request.size_mb.unwrap_or(default);
        if !(VOLUME_MIN_MB..=VOLUME_MAX_MB).contains(&size_mb) {
            return Err(ControlError::invalid(format!(
                "size_mb: must be between {VOLUME_MIN_MB} and {VOLUME_MAX_MB}"
            )));
        }
        if request.placement.strategy != Strategy::default() {
            return Err(ControlError::invalid(
                "placement.strategy: is for sandboxes; a volume goes to the first host that fits",
            ));
        }
        let origin = source.as_ref().map(|row| row.id.clone());
        let key = request
            .idempotency_key
            .map(|key| {
                let asked = ("volume", &request.name, size_mb, &origin, request.read_only);
                match request.placement.is_empty() {
                    // In this form, so that keys of earlier versions keep their meaning.
                    true => claim(key, &asked),
                    false => claim(key, &(asked, &request.placement)),
                }
            })
            .transpose()?;
        let choose = async {
            let host = match &source {
                Some(source) => source.host.clone(),
                None => self.choose_host(&request.placement)?,
            };
            let hosts = std::slice::from_ref(&host);
            self.check_placement(principal, &request.placement, hosts)
                .await?;
            Ok(host)
        };
        let host = match choose.await {
            Ok(host) => host,
            Err(error) => {
                return self
                    .repeated_volume_or(&principal.org, key.as_ref(), error)
                    .await;
            }
        };
        let row = VolumeRecord {
            id: VolumeId::random(),
            org: principal.org.clone(),
            host,
            name: request.name,
            state: VolumeState::Making,
            size_mb,
            read_only: request.read_only,
            origin,
            used_bytes: 0,
            created_at: self.now(),
            created_steady: self.steady(),
            deleted_at: None,
        };
        self.insert_volume(&row, key.as_ref()).await
    }

    /// A repeated request gets the volume of the first, whatever has become of hosts and permissions meanwhile.
    async fn repeated_volume_or(
        &self,
        org: &OrgId,
        key: Option<&IdempotencyKey>,
        error: ControlError,
    ) -> Result<CreatedVolume, ControlError> {
        let Some(key) = key else {
            return Err(error);
        };
        match self.store().claimed_volume(org, key).await? {
            Some(VolumeCreated::Replayed(first)) => {
                self.repeated_volume(&first).await?.ok_or(error)
            }
            Some(VolumeCreated::KeyReused) => Err(key_reused("for another request")),
            Some(VolumeCreated::New) | None => Err(error),
        }
    }

    /// What an earlier request made; `None` where nothing is left of it.
    async fn repeated_volume(
        &self,
        first: &VolumeId,
    ) -> Result<Option<CreatedVolume>, ControlError> {
        let volume = match self.store().any_volume(first).await? {
            // Its maker is gone, or still at it: making it again comes to the same.
            Some(found) if found.state == VolumeState::Making => self.place_volume(&found).await?,
            Some(found) if found.deleted_at.is_none() => found,
            Some(_) => return Err(key_reused("for a volume that is gone")),
            None => return Ok(None),
        };
        Ok(Some(CreatedVolume {
            volume,
            replayed: true,
        }))
    }

    async fn insert_volume(
        &self,
        row: &VolumeRecord,
        key: Option<&IdempotencyKey>,
    ) -> Result<CreatedVolume, ControlError> {
        for _ in 0..REPLAYS_MAX {
            let inserted = self.store().create_volume(row, key).await;
            match inserted.map_err(|error| name_taken(error, &row.name))? {
                VolumeCreated::New => {
                    return Ok(CreatedVolume {
                        volume: self.place_volume(row).await?,
                        replayed: false,
                    });
                }
                VolumeCreated::KeyReused => return Err(key_reused("for another request")),
                VolumeCreated::Replayed(first) => {
                    if let Some(created) = self.repeated_volume(&first).await? {
                        return Ok(created);
                    }
                }
            }
        }
        Err(key_reused("for a volume that could not be made"))
    }

    /// Asks the host for a volume whose row is there already. One that the host refuses leaves nothing.
    async fn place_volume(&self, row: &VolumeRecord) -> Result<VolumeRecord, ControlError> {
        let _turn = self.lock_volume(&row.id).await?;
        // Whoever had the turn before may have finished it, or given it up.
        let found = self.store().any_volume(&row.id).await?;
        match found.filter(|found| found.deleted_at.is_none()) {
            Some(found) if found.state == VolumeState::Ready => return Ok(found),
            Some(found) if found.state == VolumeState::Making => {}
            _ => return Err(no_volume(&row.name)),
        }
        let request = VolumeRequest {
            id: row.id.clone(),
            owner: row.org.to_string(),
            size_mb: row.size_mb,
            from: row.origin.clone(),
            read_only: row.read_only,
        };
        let made = async { self.runner(&row.host).await?.create_volume(request).await };
        match made.await {
            Ok(_) => Ok(self.store().ready_volume(&row.id).await?),
            // Whether it was made is unknown: the next reconcile finds out.
            Err(error @ RunnerError::Unreachable { .. }) => {
                if let Some(host) = self.0.hosts.get(&row.host) {
                    host.stale.mark_all();
                }
                Err(error.into())
            }
            Err(error) => {
                if !matches!(error, RunnerError::InUse { .. }) {
                    self.store().forget_volume(&row.id).await?;
                }
                Err(error.into())
            }
        }
    }

    /// Has the host delete what is marked for it, while its turn is held. May be repeated.
    pub(crate) async fn finish_delete_volume(
        &self,
        row: &VolumeRecord,
    ) -> Result<(), ControlError> {
        let deleted = async { self.runner(&row.host).await?.delete_volume(&row.id).await };
        if let Err(error) = deleted.await {
            if let Some(host) = self.0.hosts.get(&row.host) {
                host.stale.mark_all();
            }
            return Err(error.into());
        }
        self.meter_volume_end(row).await;
        Ok(self.store().bury_volume(&row.id, self.now()).await?)
    }
}

fn in_use(row: &VolumeRecord, users: &[VolumeUser]) -> ControlError {
    let named = users.iter().take(USERS_NAMED);
    let mut named: Vec<String> = named
        .map(|user| match &user.name {
            Some(name) => format!("{} ({name})", user.id),
            None => user.id.to_string(),
        })
        .collect();
    if users.len() > USERS_NAMED {
        named.push(format!("{} more", users.len() - USERS_NAMED));
    }
    ControlError::new(
        ErrorCode::InUse,
        format!(
            "the volume '{}' is mounted in {}",
            row.name,
            named.join(", ")
        ),
    )
    .hint("delete those sandboxes first; stopped sandboxes mount it too")
}
