//! What a new sandbox begins from: an image, a snapshot or a template, looked up in one way for every front.

use async_recursion::async_recursion as boxed;
use cove_model::SandboxSpec;
use cove_runner_api::FromSnapshot;
use cove_store::{Scope, SnapshotRecord};

use super::require_memory;
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;

/// What a new sandbox begins from, as its maker names it.
#[derive(Debug, Clone)]
pub enum Source {
    /// An image by name or id; `None`: the default one.
    Image(Option<String>),
    /// A snapshot by id or name. `memory`: go on with its processes; without, it boots from its disk.
    Snapshot { snapshot: String, memory: bool },
    /// A template: `name`, `name:tag`, `name:version` or its id.
    Template(String),
    /// A snapshot of that id or name where there is one, else an image. `memory`: go on with its
    /// processes if it has them.
    SnapshotOrImage { name: String, memory: bool },
}

/// What a maker's own wishes are put over.
#[derive(Debug, Clone)]
pub struct Base {
    /// What it may reach and how long it lives is never taken from a snapshot, only from a template; what it is called
    /// from neither.
    pub spec: SandboxSpec,
    /// Goes into [`crate::CreateSandbox`] as it is.
    pub from: Option<FromSnapshot>,
}

impl Control {
    /// What a new sandbox is like where its maker does not say; needs `manage` for one from a snapshot.
    #[boxed]
    pub async fn base(&self, principal: &Principal, source: Source) -> Result<Base, ControlError> {
        let found = match &source {
            Source::Template(template) => return self.template_base(principal, template).await,
            Source::Image(_) => None,
            Source::Snapshot { snapshot, .. } => {
                principal.require(Scope::Manage)?;
                Some(self.find_snapshot(principal, snapshot).await?)
            }
            Source::SnapshotOrImage { name, .. } => {
                principal.require(Scope::Manage)?;
                match self.find_snapshot(principal, name).await {
                    Ok(row) => Some(row),
                    Err(error) if error.code == ErrorCode::NotFound => None,
                    Err(error) => return Err(error),
                }
            }
        };
        let memory = |row: &SnapshotRecord| match source {
            Source::Image(_) | Source::Template(_) => false,
            Source::Snapshot { memory, .. } => memory,
            Source::SnapshotOrImage { memory, .. } => memory && row.memory,
        };
        if let Some(row) = found {
            let spec = self.defaults_from(&row);
            let memory = memory(&row);
            require_memory(&row, memory)?;
            let snapshot = row.id;
            let from = Some(FromSnapshot { snapshot, memory });
            return Ok(Base { spec, from });
        }
        let mut spec = SandboxSpec {
            isolation: self.default_isolation(&principal.org),
            ..SandboxSpec::default()
        };
        match source {
            Source::Image(Some(image)) | Source::SnapshotOrImage { name: image, .. } => {
                spec.image = image;
            }
            Source::Image(None) | Source::Snapshot { .. } | Source::Template(_) => {}
        }
        Ok(Base { spec, from: None })
    }

    pub(super) fn defaults_from(&self, row: &SnapshotRecord) -> SandboxSpec {
        let base = SandboxSpec::default();
        SandboxSpec {
            name: None,
            network: base.network,
            lifecycle: base.lifecycle,
            labels: base.labels,
            identity: base.identity,
            secrets: base.secrets,
            ..row.spec.clone()
        }
    }

    /// Refuses a create from a snapshot that is not the caller's, is gone, or lacks memory to go on with.
    pub(crate) async fn check_origin(
        &self,
        principal: &Principal,
        from: &FromSnapshot,
    ) -> Result<SnapshotRecord, ControlError> {
        let row = self
            .find_snapshot(principal, from.snapshot.as_str())
            .await?;
        require_memory(&row, from.memory)?;
        Ok(row)
    }
}
