//! Mounts of a sandbox that come from the host and are not saved with it: a restore brings its own.
//! Both sides name them alike.

use cove_spawner::message::{CgroupEntry, places};

use crate::cgroup::Group;

const GUEST: &str = "guest";

fn cgroup_mounts(group: &Group) -> Vec<(String, String, String)> {
    match group.entry() {
        CgroupEntry::V1 { shown, .. } => shown
            .into_iter()
            .map(|(_, name)| {
                (
                    format!("/.cove/cgroup/{name}"),
                    format!("cgroup-{name}"),
                    format!("{}/{name}", places::CGROUP),
                )
            })
            .collect(),
        CgroupEntry::V2 { .. } => vec![(
            "/sys/fs/cgroup".into(),
            "cgroup".into(),
            places::CGROUP.into(),
        )],
    }
}

pub fn on_dump(group: &Group) -> Vec<String> {
    cgroup_mounts(group)
        .into_iter()
        .map(|(inside, name, _)| format!("mnt[{inside}]:{name}"))
        .chain([format!("mnt[/.cove/bin]:{GUEST}")])
        .collect()
}

pub fn on_restore(group: &Group) -> Vec<String> {
    cgroup_mounts(group)
        .into_iter()
        .map(|(_, name, host)| format!("mnt[{name}]:{host}"))
        .chain([format!("mnt[{GUEST}]:{}", places::GUEST)])
        .collect()
}
