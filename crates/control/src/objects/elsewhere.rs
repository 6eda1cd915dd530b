//! Durable snapshots on another host than the one that took them.
//!
//! A snapshot's row names one host. When that host cannot be asked, the row names another one from then on, which
//! fetches the snapshot from object storage. A copy that the former host still has is deleted once it answers and the
//! new host has fetched its own (`snapshots/tend.rs`).

use cove_model::{HostId, Placement, SandboxSpec};
use cove_store::{ObjectCopy, SnapshotChange, SnapshotRecord, StoreError};

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;

impl Control {
    /// Whether new things may go to this host: it is there, answers, and is not cordoned.
    pub(crate) fn takes_new(&self, host: &HostId) -> bool {
        let found = self.0.hosts.get(host);
        found.is_some_and(|host| host.away().is_none() && !host.cordoned())
    }

    /// The snapshot with a host having it that can be asked for a sandbox from it. For whoever holds the snapshot.
    pub(crate) async fn bring_back_for(
        &self,
        principal: &Principal,
        row: SnapshotRecord,
        spec: &SandboxSpec,
    ) -> Result<SnapshotRecord, ControlError> {
        let former = row.host.clone();
        let placement = &spec.placement;
        let stays = self.takes_new(&former) && self.suits(&former, placement);
        let row = match self.is_stored(&row) && !stays {
            true => match self.another_host(principal, &former, spec).await? {
                Some(next) => self.move_row(row, &next).await?,
                None => row,
            },
            false => row,
        };
        // Before anything is fetched.
        let host = std::slice::from_ref(&row.host);
        self.check_placement(principal, placement, host).await?;
        self.bring_back_from(row, &former).await
    }

    /// The same for a file or an image of it: a host that is reserved for others fetches nothing.
    pub(crate) async fn bring_back_for_copy(
        &self,
        principal: &Principal,
        row: SnapshotRecord,
    ) -> Result<SnapshotRecord, ControlError> {
        let former = row.host.clone();
        let is_fetched = self.is_stored(&row) && !row.on_host;
        let row = match is_fetched && !self.may_use(principal, &row).await? {
            true => {
                let open = self.choose_host(&self.tolerated(principal, &row).await?)?;
                self.move_row(row, &open).await?
            }
            false => row,
        };
        self.bring_back_from(row, &former).await
    }

    /// Whether the snapshot's host is not reserved for others.
    pub(crate) async fn may_use(
        &self,
        principal: &Principal,
        row: &SnapshotRecord,
    ) -> Result<bool, ControlError> {
        let tolerated = self.tolerated(principal, row).await?;
        Ok(self.suits(&row.host, &tolerated))
    }

    /// What the snapshot's sandbox tolerated, as far as its organisation still may.
    async fn tolerated(
        &self,
        principal: &Principal,
        row: &SnapshotRecord,
    ) -> Result<Placement, ControlError> {
        let tolerated = Placement {
            tolerate: row.spec.placement.tolerate.clone(),
            ..Placement::default()
        };
        match self.check_tolerations(principal, &tolerated).await {
            Ok(()) => Ok(tolerated),
            Err(error) if error.code == ErrorCode::Forbidden => Ok(Placement::default()),
            Err(error) => Err(error),
        }
    }

    /// The same on a host that the caller names.
    pub(crate) async fn bring_back_to(
        &self,
        row: SnapshotRecord,
        host: &HostId,
    ) -> Result<SnapshotRecord, ControlError> {
        let former = row.host.clone();
        let row = match former == *host {
            true => row,
            false => {
                // It stays where it is when this host does not answer, or another one is at it.
                self.runner(host).await?;
                let fetching =
                    |objects: &super::ObjectStorage| objects.fetches.lock().contains_key(&row.id);
                if self.0.objects.as_ref().is_some_and(fetching) {
                    return Err(ControlError::conflict(
                        "another host is fetching the snapshot from object storage",
                    )
                    .hint("try again in a moment"));
                }
                self.move_row(row, host).await?
            }
        };
        self.bring_back_from(row, &former).await
    }

    pub(crate) fn is_stored(&self, row: &SnapshotRecord) -> bool {
        row.object_copy == ObjectCopy::Stored && self.0.objects.is_some()
    }

    async fn another_host(
        &self,
        principal: &Principal,
        former: &HostId,
        spec: &SandboxSpec,
    ) -> Result<Option<HostId>, ControlError> {
        match self.place_anywhere(principal, spec).await {
            Ok(hosts) => Ok(hosts
                .into_iter()
                .find(|host| host != former && self.takes_new(host))),
            // A cordoned host still takes what begins from its own snapshots.
            Err(error) if error.code == ErrorCode::NoCapacity && self.answers(former) => {
                tracing::debug!(%error, "leaving a snapshot on its cordoned host");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn answers(&self, host: &HostId) -> bool {
        let found = self.0.hosts.get(host);
        found.is_some_and(|host| host.away().is_none())
    }

    /// The row names this host from now on. Where somebody else moved it first, theirs counts.
    pub(crate) async fn move_row(
        &self,
        row: SnapshotRecord,
        to: &HostId,
    ) -> Result<SnapshotRecord, ControlError> {
        let change = SnapshotChange {
            only_on: Some(row.host.clone()),
            host: Some(to.clone()),
            ..SnapshotChange::default()
        };
        match self.store().change_snapshot(&row.id, &change).await {
            Ok(moved) => {
                tracing::info!(snapshot = %row.id, from = %row.host, %to, "moving a snapshot to another host");
                self.meter_snapshot(&row, None).await;
                Ok(moved)
            }
            Err(StoreError::Stale) => {
                let found = self.store().any_snapshot(&row.id).await?;
                let found = found.filter(|found| found.deleted_at.is_none());
                found.ok_or_else(|| ControlError::not_found("snapshot", row.id.as_str()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Memory is taken only by hosts that trust who signed it: a snapshot that its new host refuses goes back.
    async fn bring_back_from(
        &self,
        row: SnapshotRecord,
        former: &HostId,
    ) -> Result<SnapshotRecord, ControlError> {
        let moved = (row.host != *former).then(|| row.clone());
        let outcome = self.bring_back(row).await;
        if let (Err(error), Some(moved)) = (&outcome, moved)
            && error.code == ErrorCode::UnfitHost
            && let Err(error) = self.move_row(moved, former).await
        {
            tracing::debug!(%error, "cannot return a refused snapshot to its former host");
        }
        outcome
    }
}
