//! What an engine could leave on its host, looked for after everything was deleted.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cove_runner_api::RunnerApi;

use crate::world::World;

/// The kernel lets go of devices and processes some time after their last user did.
const DEADLINE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

/// Ends the world and tells what is left of it.
pub async fn after(world: World) -> Vec<String> {
    let World {
        host, neighbour, ..
    } = world;
    let mut left = Vec::new();
    let data_dir = host.data_dir();
    let instance = fs::read_to_string(data_dir.join("instance")).expect("the instance has a name");
    host.settle().await;
    let alive = host.engine.list().await.expect("sandboxes can be listed");
    for view in alive.iter().filter(|view| view.id != neighbour.id) {
        left.push(format!("sandbox {}", view.id));
    }
    let volumes = fs::read_dir(data_dir.join("pool/sandboxes")).expect("the pool is mounted");
    if volumes.count() != 1 {
        left.push("subvolumes of deleted sandboxes".into());
    }
    drop(neighbour);
    let scratch = host.dir().to_owned();
    host.destroy().await;
    let deadline = Instant::now() + DEADLINE;
    let mut found = on_host(&scratch, instance.trim());
    while !found.is_empty() && Instant::now() < deadline {
        tokio::time::sleep(PAUSE).await;
        found = on_host(&scratch, instance.trim());
    }
    left.extend(found);
    left
}

fn on_host(scratch: &Path, instance: &str) -> Vec<String> {
    let mut left = Vec::new();
    let here = scratch.to_string_lossy().into_owned();
    if scratch.exists() {
        left.push(format!("directory {here}"));
    }
    let group = format!("cove-{instance}");
    let mut held_elsewhere = false;
    for process in entries("/proc") {
        let Ok(pid) = process.parse::<u32>() else {
            continue;
        };
        let read =
            |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        if read("mountinfo").contains(&here) {
            let space = |who: &str| fs::read_link(format!("/proc/{who}/ns/mnt")).ok();
            // Any program that makes a mount namespace while a pool is mounted gets a copy of the
            // mount, and keeps the loop device for as long as it lives. That is not the engine's.
            match space("self") == space(process.as_str()) {
                true => left.push(format!("a mount of {here}, seen by process {pid}")),
                false => held_elsewhere = true,
            }
        }
        if read("cgroup").contains(&group) {
            left.push(format!("process {pid} {}", read("comm").trim()));
        }
        let parent = format!("PPid:\t{}", std::process::id());
        if read("status").lines().any(|line| line == parent) {
            left.push(format!("child {pid} {}", read("comm").trim()));
        }
    }
    if !held_elsewhere {
        left.extend(loop_devices(&here));
    }
    for hierarchy in entries("/sys/fs/cgroup") {
        for place in [
            format!("/sys/fs/cgroup/{hierarchy}/{group}"),
            format!("/sys/fs/cgroup/{group}"),
        ] {
            if Path::new(&place).exists() {
                left.push(format!("cgroup {place}"));
            }
        }
    }
    for claim in entries("/run/cove/uids") {
        let text = fs::read_to_string(format!("/run/cove/uids/{claim}")).unwrap_or_default();
        if text.contains(&here) {
            left.push(format!("claim {claim}"));
        }
    }
    for descriptor in entries("/proc/self/fd") {
        let Ok(target) = fs::read_link(format!("/proc/self/fd/{descriptor}")) else {
            continue;
        };
        let target = target.to_string_lossy();
        if target.contains(":[")
            && !target.starts_with("pipe")
            && !target.starts_with("socket")
            && !target.starts_with("anon_inode:[event")
            || target.contains("pidfd")
            || target.contains(&here)
        {
            left.push(format!("descriptor {descriptor} of {target}"));
        }
    }
    left
}

fn loop_devices(backed_by: &str) -> Vec<String> {
    entries("/sys/block")
        .into_iter()
        .filter(|block| {
            fs::read_to_string(format!("/sys/block/{block}/loop/backing_file"))
                .is_ok_and(|backing| backing.contains(backed_by))
        })
        .map(|block| format!("loop device {block}"))
        .collect()
}

fn entries(directory: &str) -> Vec<String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect()
}
