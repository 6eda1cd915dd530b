//! One message of each kind that the engine, its spawner and the children exchange.

use cove_spawner::message::*;

fn version_1() -> CgroupEntry {
    CgroupEntry::V1 {
        procs: vec!["/sys/fs/cgroup/memory/box/cgroup.procs".into()],
        shown: vec![("memory".into(), "/sys/fs/cgroup/memory/box".into())],
    }
}

fn version_2() -> CgroupEntry {
    CgroupEntry::V2 {
        dir: "/sys/fs/cgroup/box".into(),
    }
}

fn prepare(cgroup: CgroupEntry) -> Request {
    Request::Prepare(Prepare {
        uid_base: 1_000_000,
        cgroup,
        guest_dir: "/var/lib/cove/runtime/guest-1".into(),
        staging: "/run/cove/staging".into(),
    })
}

fn criu(restore: Option<Restorer>) -> Request {
    Request::Criu(Criu {
        program: "/usr/sbin/criu".into(),
        library: b"\x7fELF".to_vec(),
        owner: 1_000_000,
        staging: "/run/cove/staging".into(),
        restore,
    })
}

pub fn requests() -> Vec<(&'static str, Request)> {
    vec![
        ("prepare-v1", prepare(version_1())),
        ("prepare-v2", prepare(version_2())),
        ("criu-dump", criu(None)),
        (
            "criu-restore",
            criu(Some(Restorer {
                cgroup: version_2(),
                guest_dir: "/var/lib/cove/runtime/guest-1".into(),
            })),
        ),
        (
            "ids",
            Request::Ids {
                uid_base: 1_000_000,
            },
        ),
    ]
}

fn failure() -> Failure {
    Failure {
        step: "mount proc".into(),
        errno: 13,
    }
}

pub fn prepare_replies() -> Vec<(&'static str, PrepareReply)> {
    vec![
        ("reply-prepared", PrepareReply::Prepared { pid: 4242 }),
        ("reply-criu", PrepareReply::Criu { pid: 4243 }),
        ("reply-ids", PrepareReply::Ids),
        ("reply-failed", PrepareReply::Failed(failure())),
    ]
}

pub fn starts() -> Vec<(&'static str, Start)> {
    vec![(
        "start",
        Start {
            hostname: "box".into(),
            sandbox: "sbx_abcdefghijklmnopqrst".into(),
            boot_id: "00000000-0000-4000-8000-000000000000".into(),
            cpuinfo: "processor : 0\n".into(),
            cpu_online: "0".into(),
            meminfo: "MemTotal: 65536 kB\n".into(),
            shm_bytes: 32 << 20,
            open_files: 16_384,
            no_new_privs: true,
        },
    )]
}

pub fn child_replies() -> Vec<(&'static str, ChildReply)> {
    vec![
        ("child-parked", ChildReply::Parked),
        ("child-ready", ChildReply::Ready),
        ("child-failed", ChildReply::Failed(failure())),
    ]
}
