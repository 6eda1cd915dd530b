//! What the host offers and lacks, each line with the fix.

use cove_isolation::finding::{bad, good, warning};
use cove_model::State;
use cove_pool::Pool;
use cove_runner_api::{
    Finding, HostInventory, HostReport, ImageView, Level, RunnerError, TierReport,
};

use crate::aside::NOT_TAKEN_OVER;
use crate::engine::Inner;
use crate::error::from_pool;
use crate::network;

/// `tiers` is what the tiers found, `working` names those that boot machines.
pub(crate) fn report(
    inner: &Inner,
    tiers: Vec<Finding>,
    working: &[&'static str],
) -> Result<HostReport, RunnerError> {
    let space = inner.pool.space().map_err(from_pool)?;
    let (capacity, promised) = (inner.commitments.capacity(), inner.commitments.promised());
    let sandboxes = inner.all();
    Ok(HostReport {
        cpus: capacity.cpus,
        memory_bytes: capacity.memory_bytes,
        disk_bytes: capacity.disk_bytes,
        disk_free_bytes: space.free,
        promised_cpu: promised.cpu(),
        promised_memory_bytes: promised.memory_bytes,
        promised_disk_bytes: promised.disk_bytes,
        running: sandboxes
            .iter()
            .filter(|sandbox| sandbox.machine().is_some())
            .count() as u64,
        sandboxes: sandboxes.len() as u64,
        warm: inner.tiers.warm().wanted as u64,
        tiers: inner
            .tiers
            .list()
            .into_iter()
            .map(|tier| TierReport {
                usable: working.contains(&tier.name.as_str()),
                ..tier
            })
            .collect(),
        findings: findings(inner, tiers),
    })
}

pub(crate) fn inventory(
    inner: &Inner,
    tiers: Vec<TierReport>,
    images: &[ImageView],
) -> HostInventory {
    let (cpu_milli, memory_bytes, disk_bytes) = inner.commitments.limits();
    let promised = inner.commitments.promised();
    let sandboxes = inner.all();
    let running = sandboxes
        .iter()
        .filter(|sandbox| sandbox.machine().is_some());
    let mut names = Vec::new();
    for image in images {
        names.push(image.id.to_string());
        names.extend(image.names.iter().cloned());
    }
    HostInventory {
        cpu_milli,
        memory_bytes,
        disk_bytes,
        promised_cpu_milli: promised.cpu_milli(),
        promised_memory_bytes: promised.memory_bytes,
        promised_disk_bytes: promised.disk_bytes,
        running: running.count() as u64,
        sandboxes: sandboxes.len() as u64,
        tiers,
        images: names,
    }
}

fn findings(inner: &Inner, tiers: Vec<Finding>) -> Vec<Finding> {
    let mut found = tiers;
    found.extend([bootstrap_tool(), open_files()]);
    found.extend(network::findings(inner));
    found.push(good(
        "export key",
        format!(
            "exported snapshots are signed by {}; hosts that trust it take their memory",
            inner.keys.public()
        ),
    ));
    found.push(disk_room(inner));
    found.push(set_aside(inner));
    found.extend(
        Pool::probe(&inner.config.data_dir)
            .into_iter()
            .map(|finding| Finding {
                name: finding.check.into(),
                level: match finding.status {
                    cove_pool::Status::Good => Level::Ok,
                    cove_pool::Status::Degraded => Level::Warning,
                    cove_pool::Status::Missing => Level::Error,
                },
                message: finding.detail,
                fix: finding.fix.map(str::to_owned),
            }),
    );
    found
}

/// Names at most this many of those that are set aside.
const ASIDE_MAX: usize = 5;

fn set_aside(inner: &Inner) -> Finding {
    let sandboxes = inner.aside.all().into_iter();
    let sandboxes = sandboxes.map(|(id, entry)| format!("{id} ({})", entry.reason));
    let snapshots = inner.snapshots.aside.all().into_iter();
    let snapshots = snapshots.map(|(id, entry)| format!("{id} ({})", entry.reason));
    // Those that could not be taken over and were ended can be started again.
    let ended = inner.all().into_iter().filter_map(|sandbox| {
        let record = sandbox.record();
        let reason = record
            .reason
            .filter(|reason| record.state == State::Failed && reason.starts_with(NOT_TAKEN_OVER))?;
        Some(format!("{} ({reason})", sandbox.id))
    });
    let mut all: Vec<_> = sandboxes.chain(snapshots).chain(ended).collect();
    let images = inner.images.store.damaged();
    all.extend(
        images
            .iter()
            .map(|id| format!("image {id} (its record is damaged)")),
    );
    if all.is_empty() {
        return good(
            "records",
            "all sandboxes, snapshots and images can be used".into(),
        );
    }
    let more = all.len().saturating_sub(ASIDE_MAX);
    all.truncate(ASIDE_MAX);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    warning(
        "records",
        format!("set aside, disks are kept: {}", all.join(", ")),
        "`cove quarantine adopt` puts a sandbox back into service, `cove start` one that was ended; `cove rm` gives it up".into(),
    )
}

fn disk_room(inner: &Inner) -> Finding {
    if let Err(error) = inner.pool.check_writable() {
        return bad(
            "disk room",
            format!("{error}: sandboxes cannot write, and nothing can be made"),
            error.hint().unwrap_or_default().into(),
        );
    }
    match (inner.guard.short(), inner.disk_limits) {
        (Some(room), _) => bad(
            "disk room",
            format!(
                "the host's disk is nearly full: {} MiB are left, so sandboxes may not use more than they do now",
                room.bytes >> 20
            ),
            "delete sandboxes, snapshots or images, or add disk space; limits come back by themselves".into(),
        ),
        (None, true) => good("disk room", "the disk reserve of the host is complete".into()),
        (None, false) => warning(
            "disk room",
            "disk_mb cannot be enforced on this pool: one sandbox can fill the disk of all".into(),
            match inner.pool.backend().is_btrfs() {
                true => "run Linux 6.7 or newer, whose btrfs can limit disks",
                false => "choose a btrfs pool, where disks can be limited",
            }
            .into(),
        ),
    }
}

fn bootstrap_tool() -> Finding {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).any(|dir| dir.join("mmdebstrap").exists());
    match found {
        true => good(
            "image bootstrap",
            "mmdebstrap can build the default image".into(),
        ),
        false => warning(
            "image bootstrap",
            "mmdebstrap was not found: the default image cannot be built here".into(),
            "apt-get install mmdebstrap, or pull an image from a registry".into(),
        ),
    }
}

fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // About three descriptors stay open for each running sandbox.
    let sandboxes = limit.map_or(u64::MAX, |limit| limit / 4);
    if sandboxes >= 1000 {
        good(
            "open files",
            limit.map_or("no limit".into(), |limit| {
                format!("{limit}, enough for about {sandboxes} sandboxes")
            }),
        )
    } else {
        warning(
            "open files",
            format!("the limit allows about {sandboxes} running sandboxes"),
            "raise LimitNOFILE of the service".into(),
        )
    }
}
