//! What the host has and the database does not know, and what the host cannot use.
//!
//! Absence of a row never deletes: the database may be an older copy of itself, or another one. A sandbox
//! without a row is frozen, a snapshot without one is left alone, and both wait for an operator to adopt
//! them into an organisation or to delete them. Deletion by reconcile needs a tombstone, the row of
//! something that somebody deleted. What the host has set aside (a damaged record) is listed too; one that
//! has a row is put back into service with what the row says.

use async_recursion::async_recursion as boxed;
use std::collections::HashSet;
use std::sync::Arc;

use cove_model::{HostId, OrgId, SandboxId, SandboxSpec, SnapshotId, State, VolumeId};
use cove_runner_api::{Finding, Level, RunnerError, SandboxView, SnapshotView};
use cove_store::{PAGE_MAX, PageRequest, SandboxRecord, SnapshotRecord};
use time::OffsetDateTime;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::principal::Principal;

mod adopt;

/// Entries that `cove doctor` names.
const FINDING_MAX: usize = 5;
/// Milliseconds an unknown sandbox gets to stop where it cannot be frozen.
const STOP_GRACE_MS: u64 = cove_limits::STOP_GRACE_DEFAULT_MS;

/// Something that is kept and that nobody can use.
#[derive(Debug, Clone, PartialEq)]
pub struct Quarantined {
    pub id: QuarantinedId,
    /// Whose it is, when there is a row.
    pub org: Option<OrgId>,
    /// Of a sandbox.
    pub state: Option<State>,
    /// The sandbox a snapshot was taken of.
    pub of: Option<SandboxId>,
    pub name: Option<String>,
    pub reason: String,
    pub created_at: OffsetDateTime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuarantinedId {
    Sandbox(SandboxId),
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

impl QuarantinedId {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sandbox(id) => id.as_str(),
            Self::Snapshot(id) => id.as_str(),
            Self::Volume(id) => id.as_str(),
        }
    }

    fn parse(text: &str) -> Result<Self, ControlError> {
        let sandbox = text.parse().map(Self::Sandbox).ok();
        sandbox
            .or_else(|| text.parse().map(Self::Snapshot).ok())
            .or_else(|| text.parse().map(Self::Volume).ok())
            .ok_or_else(|| not_here(text))
    }
}

const UNKNOWN: &str = "the database does not know it";
const ELSEWHERE: &str = "the database has it on another host";

fn not_here(which: &str) -> ControlError {
    ControlError::not_found("quarantined sandbox, snapshot or volume", which)
        .hint("see `cove quarantine ls`")
}

fn is_known(which: &str) -> ControlError {
    ControlError::new(
        ErrorCode::Conflict,
        format!("'{which}' is not in quarantine: it belongs to an organisation"),
    )
}

impl Control {
    /// Stops a sandbox nobody has a row for where it is, and keeps it.
    pub(crate) async fn quarantine(&self, host: &Host, id: &SandboxId) -> Result<(), ControlError> {
        let runner = host.runner().await?;
        let view = match runner.get(id).await {
            Ok(view) => view,
            Err(RunnerError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if view.state != State::Running {
            return Ok(());
        }
        tracing::warn!(sandbox = %id, host = %host.id, "the database has no such sandbox on that host; freezing and keeping it");
        let held = match runner.freeze(id).await {
            Err(RunnerError::Unsupported { .. }) => runner.stop(id, STOP_GRACE_MS).await,
            held => held,
        };
        match held {
            // It ended by itself meanwhile, or is being made to.
            Ok(_) | Err(RunnerError::NotFound { .. } | RunnerError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Operators only.
    #[boxed]
    pub async fn list_quarantine(
        &self,
        principal: &Principal,
    ) -> Result<Vec<Quarantined>, ControlError> {
        principal.require_operator()?;
        self.quarantined().await
    }

    pub(crate) async fn quarantined(&self) -> Result<Vec<Quarantined>, ControlError> {
        let asked = self.ask_hosts(|host| async move { self.quarantined_on(&host).await });
        let mut found: Vec<_> = asked.await?.into_iter().flatten().collect();
        found.sort_by(|a, b| (a.created_at, a.id.as_str()).cmp(&(b.created_at, b.id.as_str())));
        Ok(found)
    }

    async fn quarantined_on(&self, host: &Host) -> Result<Vec<Quarantined>, ControlError> {
        // The host first, as in a reconcile.
        let views = host.runner().await?.list().await?;
        let snapshots = self.snapshots_on_host(host).await?;
        let mut found = Vec::new();
        if !views.is_empty() {
            let known = self.known_sandboxes(host).await?;
            for view in views {
                let is_known = known.contains(&view.id);
                if is_known && !view.set_aside {
                    continue;
                }
                let row = self.store().any_sandbox(&view.id).await?;
                let is_elsewhere = row.as_ref().is_some_and(|row| row.host != host.id);
                let row = row.filter(|_| !is_elsewhere);
                // A tombstone: the host is about to get it.
                if row.as_ref().is_some_and(|row| row.deleted_at.is_some()) {
                    continue;
                }
                found.push(sandbox_entry(view, row, is_elsewhere));
            }
        }
        let unknown = self.unknown_snapshots(host, &snapshots).await?;
        for (id, view) in snapshots {
            let is_unknown = unknown.contains(&id);
            if !is_unknown && view.set_aside.is_none() {
                continue;
            }
            let row = self.store().any_snapshot(&id).await?;
            let is_elsewhere = row.as_ref().is_some_and(|row| row.host != host.id);
            let row = row.filter(|_| !is_elsewhere);
            if row.as_ref().is_some_and(|row| row.deleted_at.is_some()) {
                continue;
            }
            found.push(snapshot_entry(view, row, is_elsewhere));
        }
        for (id, view) in self.volumes_on_host(host).await? {
            let row = self.store().any_volume(&id).await?;
            if row.as_ref().is_some_and(|row| row.host == host.id) {
                continue;
            }
            found.push(Quarantined {
                id: QuarantinedId::Volume(id),
                org: None,
                state: None,
                of: None,
                name: None,
                reason: match row {
                    Some(_) => ELSEWHERE.to_owned(),
                    None => UNKNOWN.to_owned(),
                },
                created_at: view.created_at,
            });
        }
        Ok(found)
    }

    /// What `cove doctor` says about it.
    pub(crate) async fn quarantine_finding(&self) -> Finding {
        let (level, message, fix) = match self.quarantined().await {
            Ok(found) if found.is_empty() => (Level::Ok, "the quarantine is empty".into(), None),
            Ok(found) => {
                let mut shown: Vec<_> = found
                    .iter()
                    .take(FINDING_MAX)
                    .map(|entry| format!("{} ({})", entry.id.as_str(), entry.reason))
                    .collect();
                if found.len() > FINDING_MAX {
                    shown.push(format!("and {} more", found.len() - FINDING_MAX));
                }
                let fix = "`cove quarantine ls` lists all; `cove quarantine adopt` and `cove quarantine rm` resolve them";
                (Level::Warning, shown.join(", "), Some(fix.to_owned()))
            }
            Err(error) => (
                Level::Warning,
                format!("cannot list what is in quarantine: {error}"),
                Some("see the server's log".to_owned()),
            ),
        };
        Finding {
            name: "quarantine".into(),
            level,
            message,
            fix,
        }
    }

    async fn known_sandboxes(&self, host: &Host) -> Result<HashSet<SandboxId>, ControlError> {
        let mut known = HashSet::new();
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = self.store().sandboxes_on(&host.id, &page).await?;
            known.extend(found.items.into_iter().map(|record| record.id));
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return Ok(known),
            }
        }
    }

    /// The first of these hosts that has something. Those that do not answer count only when no other has it.
    async fn find_on_hosts<T, F>(
        &self,
        which: impl Fn(&HostId) -> bool,
        look: impl Fn(Arc<Host>) -> F,
    ) -> Result<Option<(Arc<Host>, T)>, ControlError>
    where
        F: Future<Output = Result<T, RunnerError>>,
    {
        let mut failed = None;
        for host in self.hosts().iter().filter(|host| which(&host.id)) {
            match look(Arc::clone(host)).await {
                Ok(found) => return Ok(Some((Arc::clone(host), found))),
                Err(RunnerError::NotFound { .. }) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(None), |error| Err(error.into()))
    }

    /// Operators only. Deletes what no organisation owns, and all that is in it.
    #[boxed]
    pub async fn delete_quarantined(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.remove_quarantined(&principal, &which).await;
            let operation = Operation::new("quarantine.delete", which);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn remove_quarantined(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        principal.require_operator()?;
        match QuarantinedId::parse(which)? {
            QuarantinedId::Sandbox(id) => {
                let _turn = self.lock_sandbox(&id).await?;
                let id = &id;
                let row = self.store().any_sandbox(id).await?;
                let row = row.filter(|row| row.deleted_at.is_none());
                // A copy on another host than the row's is nobody's.
                let found = self.find_on_hosts(
                    |host| row.as_ref().is_none_or(|row| row.host != *host),
                    |host| async move { host.runner().await?.get(id).await },
                );
                match found.await? {
                    Some((host, _)) => host.runner().await?.delete(id).await?,
                    None if row.is_some() => {
                        return Err(is_known(which).hint("delete it with `cove rm`"));
                    }
                    None => return Err(not_here(which)),
                }
            }
            QuarantinedId::Volume(id) => {
                let host = self.host_of_stray_volume(&id).await?;
                host.runner().await?.delete_volume(&id).await?;
            }
            QuarantinedId::Snapshot(id) => {
                let id = &id;
                let row = self.store().any_snapshot(id).await?;
                let row = row.filter(|row| row.deleted_at.is_none());
                let found = self.find_on_hosts(
                    |host| row.as_ref().is_none_or(|row| row.host != *host),
                    |host| async move { host.runner().await?.get_snapshot(id).await },
                );
                match found.await? {
                    Some((host, _)) => host.runner().await?.delete_snapshot(id).await?,
                    None if row.is_some() => {
                        return Err(is_known(which).hint("delete it with `cove snapshot rm`"));
                    }
                    None => return Err(not_here(which)),
                }
            }
        }
        Ok(())
    }
}

impl Control {
    /// A host that has a volume which the database does not know there.
    async fn host_of_stray_volume(&self, id: &VolumeId) -> Result<Arc<Host>, ControlError> {
        let row = self.store().any_volume(id).await?;
        for host in self.hosts().iter() {
            let is_its = row.as_ref().is_some_and(|row| row.host == host.id);
            if !is_its && self.volumes_on_host(host).await?.contains_key(id) {
                return Ok(Arc::clone(host));
            }
        }
        match row.is_some_and(|row| row.deleted_at.is_none()) {
            true => Err(is_known(id.as_str()).hint("delete it with `cove volume rm`")),
            false => Err(not_here(id.as_str())),
        }
    }
}

fn sandbox_entry(view: SandboxView, row: Option<SandboxRecord>, is_elsewhere: bool) -> Quarantined {
    let spec: &SandboxSpec = row.as_ref().map_or(&view.spec, |row| &row.spec);
    let reason = match (&view.reason, view.set_aside) {
        (Some(reason), true) => reason.clone(),
        _ if is_elsewhere => ELSEWHERE.to_owned(),
        _ => UNKNOWN.to_owned(),
    };
    Quarantined {
        name: spec.name.clone(),
        org: row.as_ref().map(|row| row.org.clone()),
        state: Some(view.state),
        of: None,
        reason,
        created_at: row.map_or(view.created_at, |row| row.created_at),
        id: QuarantinedId::Sandbox(view.id),
    }
}

fn snapshot_entry(
    view: SnapshotView,
    row: Option<SnapshotRecord>,
    is_elsewhere: bool,
) -> Quarantined {
    let unknown = match is_elsewhere {
        true => ELSEWHERE,
        false => UNKNOWN,
    };
    let is_aside = view.set_aside.is_some();
    Quarantined {
        name: row.as_ref().and_then(|row| row.name.clone()),
        of: match &row {
            Some(row) => row.sandbox.clone(),
            None => (!is_aside).then_some(view.sandbox),
        },
        org: row.as_ref().map(|row| row.org.clone()),
        state: None,
        reason: view.set_aside.unwrap_or_else(|| unknown.to_owned()),
        created_at: row.map_or(view.created_at, |row| row.created_at),
        id: QuarantinedId::Snapshot(view.id),
    }
}
