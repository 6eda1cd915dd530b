//! What the host offers and lacks, each line with the fix.

use std::fs;

use cove_isolation::Isolation;
use cove_isolation_container::OomOrder;
use cove_model::State;
use cove_pool::Pool;
use cove_runner::{Finding, HostReport, Level, RunnerError, TierReport};

use crate::aside::NOT_TAKEN_OVER;
use crate::engine::Inner;
use crate::error::from_pool;
use crate::network;

/// Overlays have idmapped layers since this kernel.
const KERNEL_NEEDED: (u32, u32) = (5, 19);

/// `memory` is what a real capture and restore said.
pub(crate) fn report(
    inner: &Inner,
    memory: Result<String, String>,
) -> Result<HostReport, RunnerError> {
    let space = inner.pool.space().map_err(from_pool)?;
    let (capacity, promised) = (inner.books.capacity(), inner.books.promised());
    let sandboxes = inner.all();
    let tier = &inner.container;
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
        warm: inner.config.warm as u64,
        tiers: vec![TierReport {
            name: tier.name().into(),
            usable: true,
            capabilities: tier.capabilities().names(),
        }],
        findings: findings(inner, memory),
    })
}

fn findings(inner: &Inner, memory: Result<String, String>) -> Vec<Finding> {
    let mut found = host_findings(inner.container.cgroup_version());
    found.extend(network::findings(inner));
    found.push(match memory {
        Ok(told) => good("memory snapshots", told),
        Err(reason) => warning(
            "memory snapshots",
            format!("sandboxes cannot be paused to disk or forked with their memory: {reason}"),
            "run scripts/setup, which provides a CRIU that fits this kernel".into(),
        ),
    });
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
    match (inner.guard.short(), inner.disk_limits) {
        (Some(room), _) => bad(
            "disk room",
            format!(
                "the host's disk is nearly full: {} MiB are left, so sandboxes may not use more than they do",
                room.bytes >> 20
            ),
            "delete sandboxes, snapshots or images, or add disk space; limits come back by themselves".into(),
        ),
        (None, true) => good("disk room", "the reserve of the host's disk is whole".into()),
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

fn host_findings(cgroup_version: u8) -> Vec<Finding> {
    vec![
        kernel(),
        cgroups(cgroup_version),
        user_namespaces(),
        bootstrap_tool(),
        open_files(),
        oom_order(OomOrder::of_this_host()),
    ]
}

fn oom_order(order: OomOrder) -> Finding {
    const NAME: &str = "out-of-memory order";
    let OomOrder {
        pinned,
        own,
        sandboxes,
    } = order;
    if own >= sandboxes {
        return bad(
            NAME,
            format!(
                "the server's OOM score is {own} and sandboxes begin at {sandboxes}: the kernel may end the server before them"
            ),
            "set OOMScoreAdjust of the service to 0 or less, as packaging/cove.service does".into(),
        );
    }
    match pinned {
        true => good(
            NAME,
            format!(
                "sandboxes end before the host's own processes (scores from {sandboxes}, pinned)"
            ),
        ),
        false => warning(
            NAME,
            format!(
                "this root lacks CAP_SYS_RESOURCE: guests can lower their OOM scores below {sandboxes} for up to a second, until the runner raises them again"
            ),
            "give the service CAP_SYS_RESOURCE, so that the kernel pins the scores".into(),
        ),
    }
}

fn kernel() -> Finding {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = KERNEL_NEEDED;
    if version >= KERNEL_NEEDED {
        good("kernel", format!("Linux {release}"))
    } else {
        bad(
            "kernel",
            format!("Linux {release} is too old"),
            format!("run Linux {major}.{minor} or newer"),
        )
    }
}

fn cgroups(version: u8) -> Finding {
    match version {
        2 => good("cgroups", "version 2, all limits can be enforced".into()),
        _ => warning(
            "cgroups",
            "version 1: limits on writing (io_write_mb_s) cannot be enforced and are refused"
                .into(),
            "boot with systemd.unified_cgroup_hierarchy=1".into(),
        ),
    }
}

fn user_namespaces() -> Finding {
    match fs::read_to_string("/proc/sys/user/max_user_namespaces")
        .map(|text| text.trim().parse::<u64>())
    {
        Ok(Ok(0)) => bad(
            "user namespaces",
            "the host allows none".into(),
            "set the sysctl user.max_user_namespaces above the number of sandboxes".into(),
        ),
        Ok(Ok(count)) => good("user namespaces", format!("up to {count}")),
        _ => bad(
            "user namespaces",
            "this kernel has none".into(),
            "run a kernel with CONFIG_USER_NS".into(),
        ),
    }
}

fn bootstrap_tool() -> Finding {
    let found = ["mmdebstrap", "debootstrap"].into_iter().find(|name| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|dir| dir.join(name).exists())
    });
    match found {
        Some(name) => good(
            "image bootstrap",
            format!("{name} can build the default image"),
        ),
        None => warning(
            "image bootstrap",
            "neither mmdebstrap nor debootstrap was found: the default image cannot be built here"
                .into(),
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

pub(crate) fn good(name: &str, message: String) -> Finding {
    Finding {
        name: name.into(),
        level: Level::Ok,
        message,
        fix: None,
    }
}

pub(crate) fn warning(name: &str, message: String, fix: String) -> Finding {
    Finding {
        name: name.into(),
        level: Level::Warning,
        message,
        fix: Some(fix),
    }
}

pub(crate) fn bad(name: &str, message: String, fix: String) -> Finding {
    Finding {
        name: name.into(),
        level: Level::Error,
        message,
        fix: Some(fix),
    }
}
