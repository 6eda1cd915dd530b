//! Groups of engines that are gone. An engine that is killed and whose data is removed leaves the empty
//! group its sandboxes were in; the next engine of the host takes it away. A live engine that loses
//! its group this way makes it again, so that a wrong guess costs nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::Cgroups;

/// Engines' groups are called this and their instance's name.
const PREFIX: &str = "cove-";
const INSTANCE_LENGTH: usize = 8;

impl Cgroups {
    /// Removes the empty groups of instances that are not alive; tells how many.
    pub fn remove_abandoned(&self, alive: impl Fn(&str) -> bool) -> u64 {
        let parents = self.parents();
        let mut others: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for parent in &parents {
            let (Some(root), Some(own)) = (parent.parent(), parent.file_name()) else {
                continue;
            };
            for entry in fs::read_dir(root).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let text = name.to_string_lossy();
                if let Some(instance) = text.strip_prefix(PREFIX)
                    && name != own
                    && is_instance(instance)
                {
                    let dirs = others.entry(instance.to_owned()).or_default();
                    dirs.push(entry.path());
                }
            }
        }
        let mut removed = 0;
        for (instance, dirs) in others {
            if alive(&instance) || !dirs.iter().all(|dir| is_empty(dir)) {
                continue;
            }
            // The kernel refuses what is in use after all.
            let gone = dirs
                .iter()
                .filter(|dir| fs::remove_dir(dir).is_ok())
                .count();
            removed += u64::from(gone > 0);
        }
        removed
    }
}

fn is_instance(text: &str) -> bool {
    text.len() == INSTANCE_LENGTH && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_empty(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else {
        return false;
    };
    let has_groups = entries
        .flatten()
        .any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let processes = fs::read_to_string(dir.join("cgroup.procs"));
    !has_groups && processes.is_ok_and(|list| list.is_empty())
}
