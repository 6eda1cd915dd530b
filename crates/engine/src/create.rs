//! Making sandboxes and booting them, first or again.

use std::sync::Arc;

use cove_gateway::host::Audience;
use cove_image::{Image, ImageHold};
use cove_isolation::{
    Boot, BootTurn, Isolation, IsolationError, Machine, MachineSpec, Restore, Root,
};
use cove_model::lifecycle::Step;
use cove_model::{SandboxId, SandboxSpec, State};
use cove_pool::{DiskSource, VolumeId};
use cove_runner_api::{CreateRequest, RunnerError, SandboxView};
use time::OffsetDateTime;
use tokio::task::spawn_blocking;

use crate::ending::end;
use crate::engine::{Engine, Inner};
use crate::error::{from_isolation, from_write, internal};
use crate::inherited::room;
use crate::origin::Starting;
use crate::record::{Durability, Record};
use crate::sandbox::Sandbox;
use crate::secrets::org_of;
use crate::visitors::Door;

impl Engine {
    pub(crate) async fn create_sandbox(
        &self,
        request: CreateRequest,
    ) -> Result<SandboxView, RunnerError> {
        let CreateRequest {
            id,
            owner,
            spec,
            from,
        } = request;
        self.inner.check_spec(&spec)?;
        if self.inner.aside.get(&id).is_some() {
            return Err(RunnerError::AlreadyExists {
                what: "sandbox".into(),
                id: id.to_string(),
            });
        }
        let home = owner.as_ref().is_none_or(|owner| owner.home);
        let owner = owner.map(|owner| owner.org);
        let audience = match home {
            true => Audience::Operator,
            false => Audience::Tenants,
        };
        self.inner.check_presets(&spec.network, audience).await?;
        let owner_id = owner.as_deref();
        self.inner.check_allowed(owner_id, &spec)?;
        let placeholders = self.inner.grant_secrets(owner_id, &spec).await?;
        let origin = self.inner.origin(&spec, from).await?;
        let image = origin.image.clone();
        let inherited_bytes = match &origin.snapshot {
            Some(hold) => {
                let disk_mb = spec.resources.disk_mb;
                self.inner.inherit(&hold.snapshot, disk_mb).await?
            }
            None => 0,
        };
        let disk = self
            .inner
            .commitments
            .promise_disk(spec.resources.disk_mb << 20)?;
        let run = self.inner.commitments.promise_run(&spec.resources)?;
        if let (Some(owner), Some(keeper)) = (&owner, self.inner.gatekeeper.get()) {
            keeper.owners().note(&id, owner, audience);
        }
        let mut record = Record {
            id: id.clone(),
            owner,
            home,
            state: State::Creating,
            reason: None,
            limits: spec.resources.clone(),
            grown_mb: None,
            image: image.id.clone(),
            image_env: image.config.env.clone(),
            image_user: image.config.user.clone(),
            image_workdir: image.config.workdir.clone(),
            created_at: OffsetDateTime::now_utc(),
            started_at: None,
            started_boot_us: None,
            machine: None,
            host_boot: self.inner.host_boot.clone(),
            past_cpu_usec: 0,
            past_oom_kills: 0,
            parent: origin.parent(),
            grown_from_snapshot: origin.snapshot.is_some(),
            inherited_bytes,
            accounts: origin
                .snapshot
                .as_ref()
                .map(|hold| hold.snapshot.record.accounts.clone())
                .unwrap_or_default(),
            snapshotted: None,
            memory: None,
            restoring: None,
            placeholders,
            secret_hosts: Vec::new(),
            past_network_sent_bytes: 0,
            past_network_received_bytes: 0,
            spec,
        };
        if let Some(org) = org_of(record.owner.as_deref())
            && !record.placeholders.is_empty()
        {
            record.secret_hosts = self.inner.bound_hosts(&org, &record).await;
        }
        let sandbox = Arc::new(Sandbox::new(
            record.clone(),
            Arc::clone(&self.inner.events),
            self.inner.records.clone(),
        ));
        *sandbox.disk_promise.lock() = Some(disk);
        *sandbox.run_promise.lock() = Some(run);
        let admitted = match record.spec.volumes.is_empty() {
            true => self.inner.admit(&sandbox)?,
            false => {
                let busy = self.inner.data_volumes.turn();
                let owner = record.owner.as_deref().unwrap_or_default();
                self.inner.data_volumes.check(&record.spec, owner, &busy)?;
                self.inner.admit(&sandbox)?
            }
        };
        if !admitted {
            return Err(RunnerError::AlreadyExists {
                what: "sandbox".into(),
                id: id.to_string(),
            });
        }
        // A caller that goes away must not leave a half-made sandbox behind: the work has its own task.
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            let records = engine.inner.records.clone();
            let written = spawn_blocking(move || records.write(&record, Durability::Flushed));
            let from = origin.starting();
            let (booted, written) =
                tokio::join!(engine.inner.boot(&sandbox, &image, from), written);
            drop(origin);
            let written = match written {
                Ok(result) => result.map_err(|error| from_write("the sandbox's record", &error)),
                Err(error) => Err(internal(error)),
            };
            match (booted, written) {
                (Ok(machine), Ok(())) => {
                    let booted = engine
                        .inner
                        .booted(&sandbox, machine, Durability::Written, |_| {})
                        .await;
                    if booted.is_err() {
                        engine.inner.forget(&sandbox).await;
                    }
                    booted
                }
                (booted, written) => {
                    let error = match (&booted, written) {
                        (_, Err(error)) => error,
                        (Err(error), Ok(())) => error.clone(),
                        (Ok(_), Ok(())) => unreachable!("matched above"),
                    };
                    if let Ok(machine) = booted {
                        end(machine.as_ref()).await;
                    }
                    engine.inner.forget(&sandbox).await;
                    Err(error)
                }
            }
        });
        task.await.map_err(internal)?
    }

    pub(crate) async fn start_sandbox(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        let sandbox = self.inner.find(id)?;
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _operation = sandbox.operation.lock().await;
            sandbox.check(Step::Start)?;
            let record = sandbox.record();
            let image = engine
                .inner
                .images
                .store
                .get(&record.image)
                .ok_or_else(|| RunnerError::NotFound {
                    what: "image".into(),
                    id: record.image.to_string(),
                })?;
            let run = engine.inner.commitments.promise_run(&record.limits)?;
            // Before anything changes: a sandbox that gets no turn stays stopped and has not failed.
            let starting = Starting {
                turn: engine.inner.boot_turn(&record).await?,
                ..Starting::own()
            };
            *sandbox.run_promise.lock() = Some(run);
            sandbox.advance(Step::Start, None, Durability::Written, |_| {})?;
            let booted = match engine.inner.boot(&sandbox, &image, starting).await {
                Ok(machine) => {
                    engine
                        .inner
                        .booted(&sandbox, machine, Durability::Written, |_| {})
                        .await
                }
                Err(error) => Err(error),
            };
            match booted {
                Ok(view) => Ok(view),
                Err(error) => {
                    sandbox.run_promise.lock().take();
                    sandbox.advance(
                        Step::BootFailed,
                        Some(error.to_string()),
                        Durability::Written,
                        |_| {},
                    )?;
                    Err(error)
                }
            }
        });
        task.await.map_err(internal)?
    }
}

impl Inner {
    pub(crate) fn check_spec(&self, spec: &SandboxSpec) -> Result<(), RunnerError> {
        spec.check().map_err(|error| RunnerError::Invalid {
            message: error.to_string(),
        })?;
        self.tiers.check(spec).map_err(from_isolation)?;
        self.check_network(&spec.network)?;
        Ok(())
    }

    /// The tier that holds a sandbox.
    pub(crate) fn tier_of(&self, record: &Record) -> Result<&Arc<dyn Isolation>, RunnerError> {
        let tier = self.tiers.named(&record.spec.isolation);
        tier.map_err(from_isolation)
    }

    /// A turn to boot a sandbox's machine, for what must not be refused any more once it has begun.
    pub(crate) async fn boot_turn(&self, record: &Record) -> Result<Option<BootTurn>, RunnerError> {
        let turn = self.tier_of(record)?.turn(record.owner.as_deref()).await;
        turn.map_err(from_isolation)
    }

    /// Refuses what needs memory captured where the sandbox's tier cannot; names the tier that can.
    pub(crate) fn check_memory(&self, record: &Record) -> Result<(), RunnerError> {
        let tier = self.tier_of(record)?;
        if tier.capabilities().memory {
            return Ok(());
        }
        let others = self.tiers.all().iter();
        let able: Vec<&str> = others
            .filter(|tier| tier.capabilities().memory)
            .map(|tier| tier.name())
            .collect();
        let message = match able.is_empty() {
            true => "memory cannot be captured on this host; `cove doctor` says why".into(),
            false => format!(
                "the tier '{}' cannot capture memory; on this host sandboxes with isolation {} can, and the disk can be kept with any",
                tier.name(),
                able.join(" or ")
            ),
        };
        Err(RunnerError::Unsupported { message })
    }

    pub(crate) fn hold_image(&self, name: &str) -> Result<(Image, ImageHold), RunnerError> {
        self.images
            .store
            .resolve(name)
            .and_then(|image| Some((image.clone(), self.images.store.hold(&image.id)?)))
            .ok_or_else(|| RunnerError::NotFound {
                what: "image".into(),
                id: name.to_owned(),
            })
    }

    /// Makes a sandbox's machine run: by booting it, or by bringing captured processes back.
    pub(crate) async fn boot(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        image: &Image,
        from: Starting,
    ) -> Result<Box<dyn Machine>, RunnerError> {
        let (volume, record) = (sandbox.volume(), sandbox.record());
        let tier = self.tier_of(&record)?;
        self.place_secrets(&record).await?;
        let mut boot = self.plan_boot(&record, image, volume, from.disk, from.grown_mb);
        boot.turn = from.turn;
        match from.memory {
            None => tier.boot(boot).await,
            Some(memory) => tier.restore(Restore { boot, memory }).await,
        }
        .map_err(from_isolation)
    }

    pub(crate) fn plan_boot(
        self: &Arc<Self>,
        record: &Record,
        image: &Image,
        volume: VolumeId,
        source: DiskSource,
        grown_mb: Option<u64>,
    ) -> Boot {
        let inner = Arc::clone(self);
        let image_root = self.images.store.root(image);
        let limit = room(record.limits.disk_mb, record.inherited_bytes);
        let limit = self.disk_limits.then_some(limit);
        let root = move || {
            let disk = inner.pool.ready_disk(&volume, &source, limit);
            Ok(Root {
                image: image_root,
                disk: disk.map_err(|error| {
                    IsolationError::failed("make the disk")(std::io::Error::other(error))
                })?,
            })
        };
        let mut limits = record.limits.clone();
        limits.memory_mb = grown_mb.unwrap_or(limits.memory_mb);
        Boot {
            machine: MachineSpec {
                id: record.id.clone(),
                owner: record.owner.clone(),
                hostname: record
                    .spec
                    .name
                    .clone()
                    .unwrap_or_else(|| record.id.as_str().replace('_', "-")),
                limits,
                no_new_privs: record.spec.no_new_privs,
                accel: record.spec.accel,
                network: record.spec.network.clone(),
                volumes: self.mounts_of(&record.spec),
            },
            root: Box::new(root),
            turn: None,
        }
    }

    /// A machine runs: writes that down, and watches it from then on. One that cannot be written down
    /// is ended.
    pub(crate) async fn booted(
        &self,
        sandbox: &Arc<Sandbox>,
        machine: Box<dyn Machine>,
        durability: Durability,
        change: impl FnOnce(&mut Record),
    ) -> Result<SandboxView, RunnerError> {
        let machine: Arc<dyn Machine> = Arc::from(machine);
        // Before anybody hears that it runs, so that its first command finds the endpoint.
        sandbox.set_door(None);
        match self.open_door(sandbox, machine.as_ref()).await {
            Ok(door) => sandbox.set_door(door),
            Err(error @ IsolationError::Unsupported(_)) => {
                end(machine.as_ref()).await;
                return Err(from_isolation(error));
            }
            // A program in restored memory may hold the port. That must not cost the machine; the endpoint is
            // tried again while it is watched.
            Err(error) => tracing::warn!(
                sandbox = %sandbox.id, error = crate::error::chain(&error),
                "cannot open the metadata endpoint; retrying later"
            ),
        }
        let record = machine.record();
        // Whoever hears that it runs finds it; its end is only reported after its beginning.
        sandbox.set_machine(Some(Arc::clone(&machine)));
        let stepped = sandbox.advance(Step::Booted, None, durability, |entry| {
            entry.machine = Some(record);
            entry.started_at = Some(OffsetDateTime::now_utc());
            entry.started_boot_us = Some(cove_runner_api::clock::boot_micros());
            change(entry);
        });
        if let Err(error) = stepped {
            sandbox.set_machine(None);
            end(machine.as_ref()).await;
            return Err(error);
        }
        self.watch(sandbox, machine);
        Ok(sandbox.view())
    }

    /// The metadata endpoint of a machine, where its owner asked for one.
    pub(crate) async fn open_door(
        &self,
        sandbox: &Sandbox,
        machine: &dyn Machine,
    ) -> Result<Option<Door>, IsolationError> {
        match sandbox.record().spec.identity {
            Some(_) => Ok(Some(self.visitors.open(&sandbox.id, machine).await?)),
            None => Ok(None),
        }
    }

    /// Undoes a create that failed.
    pub(crate) async fn forget(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        // Whoever still waits for its turn must not write the record again.
        if let Err(error) = sandbox.advance(Step::Delete, None, Durability::Written, |_| {}) {
            tracing::debug!(sandbox = %sandbox.id, %error, "cannot report a failed create");
        }
        if let Err(error) = self.remove_traces(sandbox).await {
            tracing::warn!(sandbox = %sandbox.id, %error, "cannot clean up after a failed create; the next sweep retries");
        }
    }
}
