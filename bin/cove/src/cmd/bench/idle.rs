//! What the server itself needs while many sandboxes do nothing: the memory of its own processes,
//! read on its machine. Guests are not counted; they are the sandboxes' own.

use std::path::Path;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Subject;
use crate::report::CliError;
use crate::serve;

/// Sandboxes made at once on the way to the number that was asked for.
const MAKERS: usize = 8;
/// The supervisor, its two children, and what those keep: the spawner. Guests are further down.
const GENERATIONS: usize = 2;

/// Makes `count` sandboxes and looks. A host that has no room for all says how many there were.
pub async fn measure<S: Subject>(
    subject: &S,
    count: usize,
    data_dir: &Path,
) -> Result<Value, CliError> {
    let Some(server) = serve::running(data_dir)? else {
        return Ok(json!({}));
    };
    let mut makers = JoinSet::new();
    for maker in 0..MAKERS {
        let subject = subject.clone();
        let share = count / MAKERS + usize::from(maker < count % MAKERS);
        makers.spawn(async move {
            let mut ids = Vec::with_capacity(share);
            for _ in 0..share {
                match subject.create().await {
                    Ok(id) => ids.push(id),
                    Err(_) => break,
                }
            }
            ids
        });
    }
    let ids: Vec<String> = makers.join_all().await.into_iter().flatten().collect();
    let memory = server_memory(server.as_raw_nonzero().get());
    let mut removers = JoinSet::new();
    for part in ids.chunks(ids.len().div_ceil(MAKERS).max(1)) {
        let (subject, part) = (subject.clone(), part.to_vec());
        removers.spawn(async move {
            for id in part {
                // What does not go now is tried again when everything is cleared away.
                subject.delete(&id).await.ok();
            }
        });
    }
    removers.join_all().await;
    let memory =
        memory.map_err(|source| CliError::io("cannot read the server's memory", source))?;
    Ok(json!({
        "idle_sandboxes": ids.len(),
        "idle_server_mb": memory as f64 / (1024.0 * 1024.0),
    }))
}

/// Proportional: what several processes share counts once.
fn server_memory(supervisor: i32) -> std::io::Result<u64> {
    // One that cannot be looked at is an error, and not a server without memory.
    std::fs::read_to_string(format!("/proc/{supervisor}/smaps_rollup"))?;
    let mut processes = vec![supervisor];
    let mut generation = vec![supervisor];
    for _ in 0..GENERATIONS {
        let mut next = Vec::new();
        for pid in generation {
            // Processes and threads may end at any time; what they held is gone with them.
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
                continue;
            };
            for task in tasks.flatten() {
                let children = std::fs::read_to_string(task.path().join("children"));
                let children = children.unwrap_or_default();
                next.extend(
                    children
                        .split_whitespace()
                        .filter_map(|pid| pid.parse::<i32>().ok()),
                );
            }
        }
        processes.extend(&next);
        generation = next;
    }
    let mut total = 0;
    for pid in processes {
        // One may have ended meanwhile.
        if let Ok(rollup) = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
            total += proportional(&rollup);
        }
    }
    Ok(total)
}

fn proportional(rollup: &str) -> u64 {
    rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proportional_share_is_read_from_the_kernels_own_sum() {
        let text =
            "00400000-7fff ---p 0 00:00 0 [rollup]\nRss: 100 kB\nPss:  42 kB\nPss_Dirty: 7 kB\n";
        assert_eq!(proportional(text), 42 * 1024);
        assert_eq!(proportional(""), 0);
        let own = std::process::id().cast_signed();
        assert!(server_memory(own).unwrap() > 0);
    }
}
