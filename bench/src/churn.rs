//! A minute of coming and going must leave the host as it was.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::create::join_all;
use crate::host::Host;
use crate::report::{Bar, Report};

pub async fn run(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let time = Duration::from_secs(if quick { 10 } else { 60 });
    // The first rounds fill caches of this process that are no leak.
    churn(host, Duration::from_secs(2)).await?;
    let before = settle(host).await?;
    let rounds = churn(host, time).await?;
    let after = settle(host).await?;
    report.figure("sandboxes made and deleted", rounds as f64, "");
    for ((name, before), (_, after)) in before.into_iter().zip(after) {
        report.bar(
            &format!("{name} left behind"),
            after as f64 - before as f64,
            "",
            Bar::AtMost(0.0),
        );
    }
    Ok(())
}

async fn churn(host: &Host, time: Duration) -> Result<u64> {
    let begun = Instant::now();
    let workers = (0..4).map(|_| async {
        let mut rounds = 0u64;
        while begun.elapsed() < time {
            let (id, _) = host.create_and_echo().await?;
            host.delete(&id).await?;
            rounds += 1;
        }
        Ok::<u64, anyhow::Error>(rounds)
    });
    join_all(workers).await.into_iter().sum()
}

/// Counts, once what the kernel still clears away in the background is gone.
async fn settle(host: &Host) -> Result<Vec<(&'static str, usize)>> {
    host.engine.cool_down().await;
    let mut last = counts(host)?;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = counts(host)?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}

fn counts(host: &Host) -> Result<Vec<(&'static str, usize)>> {
    let volumes = cove_pool::Kind::ALL
        .into_iter()
        .map(|kind| Ok(host.engine.pool().list(kind)?.len()))
        .sum::<Result<usize>>()?;
    Ok(vec![
        (
            "mounts",
            fs::read_to_string("/proc/self/mountinfo")?.lines().count(),
        ),
        ("namespaces", namespaces()?),
        ("cgroups", cgroups()?),
        ("interfaces", fs::read_dir("/sys/class/net")?.count()),
        ("volumes", volumes),
        ("descriptors", fs::read_dir("/proc/self/fd")?.count()),
    ])
}

fn namespaces() -> Result<usize> {
    let mut seen = HashSet::new();
    for process in fs::read_dir("/proc")?.flatten() {
        if let Ok(links) = fs::read_dir(process.path().join("ns")) {
            seen.extend(
                links
                    .flatten()
                    .filter_map(|link| fs::read_link(link.path()).ok()),
            );
        }
    }
    Ok(seen.len())
}

/// Directories of any engine, in whichever hierarchies are mounted. The kernel's own count would
/// include groups that are gone and only wait for their page cache to be dropped.
fn cgroups() -> Result<usize> {
    let mut count = 0;
    let mut pending = vec![(std::path::PathBuf::from("/sys/fs/cgroup"), false)];
    while let Some((dir, ours)) = pending.pop() {
        for entry in fs::read_dir(&dir)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let ours = ours || entry.file_name().to_string_lossy().starts_with("cove-");
                count += usize::from(ours);
                pending.push((entry.path(), ours));
            }
        }
    }
    Ok(count)
}
