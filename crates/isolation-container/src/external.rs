//! Mounts of a sandbox that come from the host and are not saved with it: a restore brings its own.
//! Both sides name them alike.

use cove_spawner::message::{CgroupEntry, places};

use cove_seats::cgroup::Group;
use cove_seats::volumes::Place;

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

fn volume(number: usize) -> String {
    format!("volume-{number}")
}

pub fn on_dump(group: &Group, volumes: &[Place]) -> Vec<String> {
    let volumes = volumes.iter().enumerate();
    let volumes = volumes.map(|(number, place)| format!("mnt[{}]:{}", place.found, volume(number)));
    cgroup_mounts(group)
        .into_iter()
        .map(|(inside, name, _)| format!("mnt[{inside}]:{name}"))
        .chain([format!("mnt[/.cove/bin]:{GUEST}")])
        .chain(volumes)
        .collect()
}

pub fn on_restore(group: &Group, volumes: usize) -> Vec<String> {
    let volumes =
        (0..volumes).map(|number| format!("mnt[{}]:{}/{number}", volume(number), places::VOLUMES));
    cgroup_mounts(group)
        .into_iter()
        .map(|(_, name, host)| format!("mnt[{name}]:{host}"))
        .chain([format!("mnt[{GUEST}]:{}", places::GUEST)])
        .chain(volumes)
        .collect()
}
