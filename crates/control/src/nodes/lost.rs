//! A node that is gone for good: what only it had is given up, durable snapshots go to other hosts.

use std::sync::Arc;

use cove_model::{HostId, State};
use cove_store::{
    Desired, ObjectCopy, PAGE_MAX, PageRequest, SandboxChange, SandboxRecord, SnapshotChange,
    SnapshotRecord, SnapshotState, StoreError, VolumeDoomed, VolumeRecord,
};

use super::Node;
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;

/// How the reason of a sandbox begins that was given up with its node.
const LOST: &str = "its host was lost";

fn in_storage(row: &SnapshotRecord) -> bool {
    row.state == SnapshotState::Ready && row.object_copy == ObjectCopy::Stored
}

/// Every row that a list of the store has for a host.
macro_rules! every {
    ($store:expr, $list:ident, $host:expr) => {{
        let mut all = Vec::new();
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = $store.$list($host, &page).await?;
            all.extend(found.items);
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => break all,
            }
        }
    }};
}

impl Control {
    /// Ends with nothing on the node but rows that say so. It may be repeated after a crash: what was given up stays
    /// given up. The node is cordoned first, so nothing new goes there meanwhile.
    pub(super) async fn give_up_node(&self, node: &Node) -> Result<(), ControlError> {
        let host = self.host_of(&node.host)?;
        if host.away().is_none() {
            return Err(ControlError::conflict(format!(
                "node {} answers, so it is not lost",
                node.name
            ))
            .hint("cordon it, delete what is on it, and remove it without `--lost`"));
        }
        let store = self.store();
        let snapshots = every!(store, snapshots_on, &node.host);
        if snapshots.iter().any(in_storage) {
            // They would be lost with it. Asked before anything changes.
            self.require_objects()?;
            self.remaining_host(&node.host)?;
        }
        store.cordon_node(&node.host, true).await?;
        let sandboxes = every!(store, sandboxes_on, &node.host);
        let reason = format!("{LOST}: node {}", node.name);
        for row in &sandboxes {
            self.give_up_sandbox(row, &reason).await?;
        }
        // Once more: an upload may have ended meanwhile.
        for row in every!(store, snapshots_on, &node.host) {
            self.give_up_snapshot_of(&node.host, row).await?;
        }
        let volumes = every!(store, volumes_on, &node.host);
        for row in &volumes {
            self.give_up_volume(row).await?;
        }
        tracing::warn!(
            node = %node.name, sandboxes = sandboxes.len(), volumes = volumes.len(),
            "removed a lost node; data that only it had is lost"
        );
        Ok(())
    }

    fn remaining_host(&self, lost: &HostId) -> Result<HostId, ControlError> {
        let hosts = self.hosts();
        let others = hosts.iter().filter(|host| host.id != *lost);
        let mut others = others.filter(|host| self.takes_new(&host.id));
        // One that is kept for some is only named: nothing is fetched by it that it does not take.
        let first = others.next();
        let plain = |host: &&Arc<Host>| host.traits().taints.is_empty();
        let found = first.into_iter().chain(others).find(plain).or(first);
        found.map(|host| host.id.clone()).ok_or_else(|| {
            ControlError::new(
                ErrorCode::NoCapacity,
                "no other host is available for the node's durable snapshots",
            )
            .hint("add a node first: `cove node token`, then `cove node join` there")
        })
    }

    async fn give_up_sandbox(&self, row: &SandboxRecord, reason: &str) -> Result<(), ControlError> {
        let _turn = self.lock_sandbox(&row.id).await?;
        let found = self.store().any_sandbox(&row.id).await?;
        let Some(row) = found.filter(|row| row.deleted_at.is_none()) else {
            return Ok(());
        };
        self.meter_now(&row, None).await;
        let lost = SandboxChange {
            desired: Some(Desired::Deleted),
            state: Some(State::Deleting),
            reason: Some(Some(reason.to_owned())),
            ..SandboxChange::default()
        };
        let row = self
            .store()
            .note_sandbox(&row.id, &lost, self.now())
            .await?;
        self.bury(&row).await?;
        self.tell_the_end(&[row]).await
    }

    /// A durable one goes to another host, the others are gone.
    async fn give_up_snapshot_of(
        &self,
        lost: &HostId,
        mut row: SnapshotRecord,
    ) -> Result<(), ControlError> {
        if let Some(objects) = &self.0.objects {
            objects.cancel_upload(&row.id);
        }
        loop {
            if in_storage(&row) {
                self.move_row(row, &self.remaining_host(lost)?).await?;
                return Ok(());
            }
            let gone = SnapshotChange {
                only_copy: Some(row.object_copy),
                deleted_at: Some(self.now()),
                ..SnapshotChange::default()
            };
            match self.store().change_snapshot(&row.id, &gone).await {
                Ok(_) => {
                    self.meter_snapshot(&row, None).await;
                    return Ok(());
                }
                Err(StoreError::NotFound { .. }) => return Ok(()),
                // Its upload went on until now.
                Err(StoreError::Stale) => match self.store().any_snapshot(&row.id).await? {
                    Some(now) if now.deleted_at.is_none() => row = now,
                    _ => return Ok(()),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn give_up_volume(&self, row: &VolumeRecord) -> Result<(), ControlError> {
        let _turn = self.lock_volume(&row.id).await?;
        match self.store().doom_volume(&row.org, &row.id).await {
            Ok(VolumeDoomed::Marked(_)) | Err(StoreError::NotFound { .. }) => {}
            Ok(VolumeDoomed::InUse(_)) => {
                return Err(ControlError::conflict(format!(
                    "the volume '{}' was mounted in a new sandbox meanwhile",
                    row.name
                ))
                .hint("try again"));
            }
            Err(error) => return Err(error.into()),
        }
        self.meter_volume_end(row).await;
        Ok(self.store().bury_volume(&row.id, self.now()).await?)
    }
}
