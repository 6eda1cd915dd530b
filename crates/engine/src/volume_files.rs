//! Files of volumes without a sandbox.
//!
//! A volume's tree is its tenants' and may hold anything, so no process of the host resolves paths in it. It is
//! mounted in a machine of its own, made when somebody asks: an empty root, no network, no program but the guest,
//! ids of its own. The guest answers file calls, whose connection goes to control as that of a sandbox's does.
//! A machine that nobody asks any more ends by itself; what a killed engine left is ended by the next one's sweep.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cove_isolation::{Boot, Machine, MachineSpec, MountedVolume, Root};
use cove_model::{NetworkPolicy, Resources, SandboxId, VolumeId};
use cove_runner_api::{GuestStream, RunnerError, VOLUME_FILES};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::commitments::RunPromise;
use crate::data_volumes::{VolumeRecord, pool_id};
use crate::ending::end;
use crate::engine::{Engine, Inner};
use crate::error::{from_isolation, from_pool, internal};
use crate::snapshots::staging;
use crate::volumes::Draft;

/// How long a machine stays after it was last asked and did anything.
const IDLE: Duration = Duration::from_secs(30);
/// Volumes whose files are served at once, on this host and of one organisation.
const SERVED_MAX: usize = 64;
const SERVED_OF_ONE_MAX: usize = 16;
/// What such a machine may use: the guest has at most 64 file calls, each with a thread.
const MEMORY_MB: u64 = 128;
const PIDS: u64 = 96;
/// Of the tier that serves them.
const TIER: &str = cove_model::spec::DEFAULT_ISOLATION;
/// An image without anything in it, in the data directory.
const EMPTY: &str = "empty";

#[derive(Default)]
pub struct VolumeFiles {
    places: Mutex<BTreeMap<VolumeId, Arc<Place>>>,
}

/// What serves one volume; whoever asks while it is being made waits.
struct Place {
    owner: String,
    server: tokio::sync::Mutex<Option<Server>>,
}

struct Server {
    machine: Arc<dyn Machine>,
    disk: Draft,
    _run: RunPromise,
    asked: Instant,
    /// What it had used of the CPU when it was last looked at.
    cpu_usec: u64,
}

impl Server {
    async fn end(self) {
        end(self.machine.as_ref()).await;
        let disk = self.disk;
        let _ = spawn_blocking(move || drop(disk)).await;
    }
}

impl VolumeFiles {
    fn place(&self, record: &VolumeRecord) -> Result<Arc<Place>, RunnerError> {
        let mut places = self.places.lock();
        if let Some(place) = places.get(&record.id) {
            return Ok(Arc::clone(place));
        }
        let own = places.values().filter(|place| place.owner == record.owner);
        if places.len() >= SERVED_MAX || own.count() >= SERVED_OF_ONE_MAX {
            return Err(RunnerError::NoCapacity {
                resource: "file servers".into(),
                message: format!(
                    "files of {SERVED_MAX} volumes are served at once, and of {SERVED_OF_ONE_MAX} of one organisation; try again in a minute"
                ),
            });
        }
        let place = Arc::new(Place {
            owner: record.owner.clone(),
            server: tokio::sync::Mutex::default(),
        });
        places.insert(record.id.clone(), Arc::clone(&place));
        Ok(place)
    }

    /// Ends what serves a volume, with every call that is open.
    pub async fn end(&self, id: &VolumeId) {
        let place = self.places.lock().remove(id);
        if let Some(place) = place
            && let Some(server) = place.server.lock().await.take()
        {
            server.end().await;
        }
    }

    pub async fn end_all(&self) {
        let ids: Vec<VolumeId> = self.places.lock().keys().cloned().collect();
        for id in ids {
            self.end(&id).await;
        }
    }
}

impl Engine {
    pub(crate) async fn reach_volume(&self, id: &VolumeId) -> Result<GuestStream, RunnerError> {
        let record = self.inner.data_volumes.get(id);
        let record = record.ok_or_else(|| RunnerError::NotFound {
            what: "volume".into(),
            id: id.to_string(),
        })?;
        // A caller that goes away must not leave a machine that nobody knows.
        let inner = Arc::clone(&self.inner);
        let task = tokio::spawn(async move { inner.reach_volume(&record).await });
        task.await.map_err(internal)?
    }
}

impl Inner {
    async fn reach_volume(
        self: &Arc<Self>,
        record: &VolumeRecord,
    ) -> Result<GuestStream, RunnerError> {
        let place = self.volume_files.place(record)?;
        let mut held = place.server.lock().await;
        if let Some(server) = held.as_mut() {
            if let Ok(stream) = server.machine.connect().await {
                server.asked = Instant::now();
                return Ok(stream);
            }
            if let Some(dead) = held.take() {
                dead.end().await;
            }
        }
        let served = self.serve_volume(record).await;
        // It may have been deleted meanwhile: then nobody may find its files again.
        let is_there = self.data_volumes.get(&record.id).is_some();
        let served = match served {
            Ok(server) if !is_there => {
                server.end().await;
                Err(RunnerError::NotFound {
                    what: "volume".into(),
                    id: record.id.to_string(),
                })
            }
            other => other,
        };
        let server = match served {
            Ok(server) => server,
            Err(error) => {
                self.volume_files.places.lock().remove(&record.id);
                return Err(error);
            }
        };
        let connected = server.machine.connect().await;
        *held = Some(server);
        tokio::spawn(end_when_idle(
            Arc::downgrade(self),
            record.id.clone(),
            Arc::downgrade(&place),
        ));
        connected.map_err(|error| RunnerError::GuestUnreachable {
            message: error.to_string(),
        })
    }

    async fn serve_volume(self: &Arc<Self>, record: &VolumeRecord) -> Result<Server, RunnerError> {
        let tier = self.tiers.named(TIER).map_err(from_isolation)?;
        let limits = Resources {
            memory_mb: MEMORY_MB,
            memory_max_mb: None,
            pids: PIDS,
            ..Resources::default()
        };
        let run = self.commitments.promise_run(&limits)?;
        let disk = Draft::new(&self.pool, staging("files", record.id.as_str()));
        let (inner, made) = (Arc::clone(self), disk.id().clone());
        let image = self.config.data_dir.join(EMPTY);
        let root = spawn_blocking(move || -> Result<Root, RunnerError> {
            fs::create_dir_all(&image)
                .map_err(|error| internal(format!("make an empty image: {error}")))?;
            inner.pool.delete(&made).map_err(from_pool)?;
            inner.pool.create(&made).map_err(from_pool)?;
            if inner.disk_limits {
                // Nothing but the mount point is ever made on it.
                let limit = cove_limits::DISK_MIN_MB << 20;
                let limited = inner.pool.set_limit(&made, Some(limit));
                limited.map_err(from_pool)?;
            }
            Ok(Root {
                image,
                disk: inner.pool.disk(&made),
            })
        });
        let root = root.await.map_err(internal)??;
        let boot = Boot {
            machine: MachineSpec {
                id: SandboxId::random(),
                hostname: "volume".into(),
                limits,
                no_new_privs: true,
                network: NetworkPolicy::default(),
                volumes: vec![MountedVolume {
                    dir: self.pool.path(&pool_id(&record.id)),
                    path: VOLUME_FILES.into(),
                    read_only: record.read_only,
                }],
            },
            root: Box::new(move || Ok(root)),
        };
        let machine = tier.boot(boot).await.map_err(from_isolation)?;
        Ok(Server {
            machine: Arc::from(machine),
            disk,
            _run: run,
            asked: Instant::now(),
            cpu_usec: 0,
        })
    }
}

/// A call may last longer than it takes to be asked again: as long as the guest does something it stays.
async fn end_when_idle(inner: Weak<Inner>, id: VolumeId, place: Weak<Place>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let (Some(inner), Some(place)) = (inner.upgrade(), place.upgrade()) else {
            return;
        };
        let mut held = place.server.lock().await;
        let Some(server) = held.as_mut() else {
            return;
        };
        let used = server
            .machine
            .usage()
            .await
            .map_or(0, |usage| usage.cpu_usec);
        let is_busy = std::mem::replace(&mut server.cpu_usec, used) != used;
        if is_busy || server.asked.elapsed() < IDLE {
            continue;
        }
        // Under the place's lock: whoever waits for it finds no server there and makes another.
        let server = held.take();
        inner.volume_files.places.lock().remove(&id);
        if let Some(server) = server {
            server.end().await;
        }
        return;
    }
}
