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
const SERVED_OF_ONE_MAX: usize = 4;
/// What such a machine may use: the guest has at most 64 file calls, each with a thread.
const MEMORY_MB: u64 = 128;
const PIDS: u64 = 96;
/// Of the tier that serves them.
const TIER: &str = cove_model::DEFAULT_ISOLATION;
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
    running: Option<Running>,
    asked: Instant,
    /// What it had used of the CPU when it was last looked at.
    cpu_usec: u64,
}

struct Running {
    machine: Arc<dyn Machine>,
    disk: Draft,
    _run: RunPromise,
}

impl Running {
    async fn end(self) {
        end(self.machine.as_ref()).await;
        let disk = self.disk;
        let _ = spawn_blocking(move || drop(disk)).await;
    }
}

impl Server {
    fn machine(&self) -> Option<&Arc<dyn Machine>> {
        self.running.as_ref().map(|running| &running.machine)
    }

    async fn end(mut self) {
        if let Some(running) = self.running.take() {
            running.end().await;
        }
    }
}

impl Drop for Server {
    /// A machine that is dropped goes on, and its ids and its cgroup would go to another sandbox: it is ended first,
    /// or stays what it is until the next engine's sweep.
    fn drop(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(running.end())),
            Err(_) => std::mem::forget(running),
        }
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

    /// Whoever waited for a place may have got it after it was taken away.
    fn has(&self, id: &VolumeId, place: &Arc<Place>) -> bool {
        let places = self.places.lock();
        places.get(id).is_some_and(|one| Arc::ptr_eq(one, place))
    }

    /// Only with the place's lock held: nobody serves on a place that is not here any more.
    fn remove(&self, id: &VolumeId, place: &Arc<Place>) {
        let mut places = self.places.lock();
        if places.get(id).is_some_and(|one| Arc::ptr_eq(one, place)) {
            places.remove(id);
        }
    }

    /// Ends what serves a volume, with every call that is open.
    pub async fn end(&self, id: &VolumeId) {
        let place = self.places.lock().get(id).cloned();
        if let Some(place) = place {
            let mut held = place.server.lock().await;
            let server = held.take();
            self.remove(id, &place);
            if let Some(server) = server {
                server.end().await;
            }
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
        loop {
            let place = self.volume_files.place(record)?;
            let mut held = place.server.lock().await;
            if self.volume_files.has(&record.id, &place) {
                let reached = self.reach_at(record, &place, &mut held).await;
                if held.is_none() {
                    self.volume_files.remove(&record.id, &place);
                }
                return reached;
            }
        }
    }

    async fn reach_at(
        self: &Arc<Self>,
        record: &VolumeRecord,
        place: &Arc<Place>,
        held: &mut Option<Server>,
    ) -> Result<GuestStream, RunnerError> {
        // A delete marks the volume first and ends its server then: either this sees the mark, or the delete waits
        // for the place's lock and finds the server.
        if !self.data_volumes.can_be_served(&record.id) {
            return Err(RunnerError::NotFound {
                what: "volume".into(),
                id: record.id.to_string(),
            });
        }
        if let Some(server) = held.as_mut()
            && let Some(machine) = server.machine()
            && let Ok(stream) = machine.connect().await
        {
            server.asked = Instant::now();
            return Ok(stream);
        }
        if let Some(dead) = held.take() {
            dead.end().await;
        }
        let server = held.insert(self.serve_volume(record).await?);
        let machine = server.machine().map(Arc::clone);
        let machine = machine.ok_or_else(|| internal("the file server is gone"))?;
        tokio::spawn(end_when_idle(
            Arc::downgrade(self),
            record.id.clone(),
            Arc::downgrade(place),
            Arc::downgrade(&machine),
        ));
        let connected = machine.connect().await;
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
        let machine_id = SandboxId::random();
        // Its own name, whatever another server of the same volume has.
        let disk = Draft::new(&self.pool, staging("files", machine_id.as_str()));
        let (inner, made) = (Arc::clone(self), disk.id().clone());
        let image = self.config.data_dir.join(EMPTY);
        let root = spawn_blocking(move || -> Result<Root, RunnerError> {
            fs::create_dir_all(&image)
                .map_err(|error| internal(format!("make an empty image: {error}")))?;
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
                id: machine_id,
                owner: Some(record.owner.clone()),
                hostname: "volume".into(),
                limits,
                no_new_privs: true,
                accel: None,
                network: NetworkPolicy::default(),
                volumes: vec![MountedVolume {
                    dir: self.pool.path(&pool_id(&record.id)),
                    path: VOLUME_FILES.into(),
                    read_only: record.read_only,
                }],
            },
            root: Box::new(move || Ok(root)),
            turn: None,
        };
        let machine = tier.boot(boot).await.map_err(from_isolation)?;
        Ok(Server {
            running: Some(Running {
                machine: Arc::from(machine),
                disk,
                _run: run,
            }),
            asked: Instant::now(),
            cpu_usec: 0,
        })
    }
}

/// A call may last longer than it takes to be asked again: as long as the guest does something it stays.
async fn end_when_idle(
    inner: Weak<Inner>,
    id: VolumeId,
    place: Weak<Place>,
    machine: Weak<dyn Machine>,
) {
    loop {
        tokio::time::sleep(IDLE).await;
        let (Some(inner), Some(place)) = (inner.upgrade(), place.upgrade()) else {
            return;
        };
        let mut held = place.server.lock().await;
        let Some(server) = held.as_mut() else {
            return;
        };
        // Another one took its place, which has its own watch.
        let Some(own) = server
            .machine()
            .filter(|own| machine.ptr_eq(&Arc::downgrade(own)))
        else {
            return;
        };
        let used = own.usage().await.map_or(0, |usage| usage.cpu_usec);
        let is_busy = std::mem::replace(&mut server.cpu_usec, used) != used;
        if is_busy || server.asked.elapsed() < IDLE {
            continue;
        }
        // Under the place's lock: whoever waits for it sees that it is not here any more, and makes another.
        let server = held.take();
        inner.volume_files.remove(&id, &place);
        if let Some(server) = server {
            server.end().await;
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(owner: &str) -> VolumeRecord {
        VolumeRecord {
            id: VolumeId::random(),
            owner: owner.to_owned(),
            size_mb: 16,
            read_only: false,
            from: None,
            inherited_bytes: 0,
            created_at: time::OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn whoever_has_an_old_place_neither_serves_there_nor_removes_the_new_one() {
        let files = VolumeFiles::default();
        let volume = record("a");
        let old = files.place(&volume).expect("there is room");
        assert!(files.has(&volume.id, &old));
        files.remove(&volume.id, &old);
        let new = files.place(&volume).expect("there is room");
        assert!(!files.has(&volume.id, &old));
        files.remove(&volume.id, &old);
        assert!(files.has(&volume.id, &new));
    }

    #[tokio::test]
    async fn a_place_is_ended_only_by_whoever_has_its_turn() {
        let files = Arc::new(VolumeFiles::default());
        let volume = record("a");
        let place = files.place(&volume).expect("there is room");
        let held = place.server.lock().await;
        let ending = tokio::spawn({
            let (files, id) = (Arc::clone(&files), volume.id.clone());
            async move { files.end(&id).await }
        });
        tokio::task::yield_now().await;
        assert!(files.has(&volume.id, &place), "somebody serves there");
        drop(held);
        ending.await.expect("it ends");
        assert!(!files.has(&volume.id, &place));
    }

    #[test]
    fn no_organisation_has_all_places() {
        let files = VolumeFiles::default();
        for _ in 0..SERVED_OF_ONE_MAX {
            files.place(&record("a")).expect("there is room");
        }
        assert!(files.place(&record("a")).is_err());
        files.place(&record("b")).expect("there is room for others");
    }
}
