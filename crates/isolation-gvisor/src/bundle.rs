//! What runsc is told: the bundle's configuration and its arguments.

use cove_isolation::MachineSpec;
use cove_spawner::message::{Keeper, Runsc};
use cove_spawner::shared;
use serde_json::json;

/// What a program inside can have of the sentry: what containers have of the host's kernel.
const KEPT: [&str; 12] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_AUDIT_WRITE",
    "CAP_SETFCAP",
];
/// What the guest takes besides to set its kernel up, and gives up before the first command.
const AT_FIRST: [&str; 1] = ["CAP_SYS_ADMIN"];
const GUEST: &str = "/.cove/bin/guest";
/// What runsc calls the one container that it holds.
const NAME: &str = "sandbox";

/// What the sentry and the gofer take of a machine's memory at least. Files in memory are the sentry's memory:
/// were they to take the rest of it, the kernel would have nobody to end but the sentry.
const SENTRY_MB: u64 = 64;

/// Of a machine in the keeper's tree.
pub fn keeper(spec: &MachineSpec) -> Keeper {
    Keeper::Runsc(Runsc {
        config: config(spec).to_string(),
        arguments: ARGUMENTS.map(str::to_owned).to_vec(),
    })
}

/// Writes reach the overlay at once, so that the disk can be copied at any time; sockets that the guest binds
/// in `/.cove` can be connected to from the host; limits are the seat's cgroup's.
const ARGUMENTS: [&str; 15] = [
    "--root=/state",
    "--log=/state/log",
    "--platform=systrap",
    "--network=sandbox",
    "--net-disconnect-ok",
    "--overlay2=none",
    "--host-uds=create",
    "--directfs",
    "--ignore-cgroups",
    "--num-network-channels=1",
    "run",
    "--detach",
    "--pid-file=/state/pid",
    "--bundle=/bundle",
    NAME,
];

fn config(spec: &MachineSpec) -> serde_json::Value {
    let limits = &spec.limits;
    let capabilities: Vec<&str> = KEPT.into_iter().chain(AT_FIRST).collect();
    let shm = shared::shm_bytes(limits.memory_mb.saturating_sub(SENTRY_MB));
    json!({
        "ociVersion": "1.0.0",
        "hostname": spec.hostname,
        "root": { "path": "/root", "readonly": false },
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "cwd": "/",
            "env": [],
            "args": [GUEST, "--own-kernel", limits.pids.to_string()],
            "noNewPrivileges": spec.no_new_privs,
            "capabilities": {
                "bounding": capabilities,
                "effective": capabilities,
                "permitted": capabilities,
            },
            "rlimits": [
                { "type": "RLIMIT_NOFILE", "hard": limits.open_files, "soft": limits.open_files },
            ],
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"] },
            // The sentry's own groups, in which the guest limits processes.
            { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup" },
            {
                "destination": "/dev/shm",
                "type": "tmpfs",
                "source": "shm",
                "options": ["nosuid", "nodev", "mode=1777", format!("size={shm}")],
            },
            { "destination": "/.cove", "type": "bind", "source": "/.cove", "options": ["rbind"] },
            {
                "destination": "/.cove/bin",
                "type": "bind",
                "source": "/.cove/bin",
                "options": ["bind", "ro"],
            },
        ],
        "linux": {
            "namespaces": [
                { "type": "pid" },
                { "type": "ipc" },
                { "type": "uts" },
                { "type": "mount" },
                // The seat's, which the keeper is in.
                { "type": "network", "path": "/proc/1/ns/net" },
            ],
        },
    })
}
