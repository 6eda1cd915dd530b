//! A thousand idle sandboxes together: what each costs, and whether the last came as quickly as the first.

use std::fs;

use anyhow::Result;

use crate::host::{Host, ms, run as run_command};
use crate::report::{Bar, Report, Sample};

pub async fn run_all(host: &Host, count: usize) -> Result<(Vec<cove_model::SandboxId>, Vec<f64>)> {
    let (mut ids, mut times) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let (id, took) = host.create_and_echo().await?;
        ids.push(id);
        times.push(ms(took));
    }
    Ok((ids, times))
}

pub async fn run(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let count = if quick { 200 } else { 1000 };
    host.engine.cool_down().await;
    let before = used_memory()?;
    let outcome = run_all(host, count).await;
    let (ids, times) = outcome?;
    let edge = count / 20;
    let first = Sample::new(times[..edge].to_vec()).median();
    let last = Sample::new(times[count - edge..].to_vec()).median();
    report.figure("create among the first 5 %, median", first, "ms");
    report.figure(
        &format!("create among the last 5 % of {count}, median"),
        last,
        "ms",
    );
    report.bar("last against first", last / first, "×", Bar::AtMost(2.0));
    host.engine.cool_down().await;
    let each = used_memory()?.saturating_sub(before) as f64 / count as f64 / 1e6;
    report.bar("host memory per idle sandbox", each, "MB", Bar::AtMost(3.0));
    let mut alive = 0;
    for id in &ids {
        alive += usize::from(run_true(host, id).await);
    }
    report.bar(
        "alive and answering",
        alive as f64,
        "",
        Bar::AtLeast(count as f64),
    );
    for id in &ids {
        host.delete(id).await?;
    }
    Ok(())
}

async fn run_true(host: &Host, id: &cove_model::SandboxId) -> bool {
    match host.guest(id) {
        Ok(guest) => run_command(&guest, &["/bin/true"]).await.is_ok(),
        Err(_) => false,
    }
}

/// What the kernel could not give to somebody else: not free, not page cache.
fn used_memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let value = |key: &str| {
        text.lines()
            .find_map(|line| {
                line.strip_prefix(key)?
                    .trim_start_matches(':')
                    .trim()
                    .trim_end_matches(" kB")
                    .parse::<u64>()
                    .ok()
            })
            .unwrap_or(0)
    };
    Ok((value("MemTotal") - value("MemAvailable")) * 1024)
}
