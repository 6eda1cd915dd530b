//! What of this host helps or hinders containers, each line with the fix.

use std::fs;

use cove_isolation::finding::{bad, good, warning};
use cove_runner_api::Finding;

use crate::tier::ContainerTier;
use cove_seats::OomOrder;

/// Overlays have idmapped layers since this kernel.
const KERNEL_NEEDED: (u32, u32) = (5, 19);

pub async fn of(tier: &ContainerTier) -> Vec<Finding> {
    let mut found = vec![
        kernel(),
        cgroups(tier.cgroup_version()),
        user_namespaces(),
        oom_order(OomOrder::of_this_host()),
    ];
    found.push(match tier.probe_memory().await {
        Ok(told) => good("memory snapshots", told),
        Err(reason) => warning(
            "memory snapshots",
            format!("sandboxes cannot be paused to disk or forked with their memory: {reason}"),
            "run scripts/setup, which provides a CRIU that fits this kernel".into(),
        ),
    });
    found
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
