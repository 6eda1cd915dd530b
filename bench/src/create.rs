//! From nothing to a command's output, one at a time and many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::host::{Host, ms};
use crate::report::{Bar, Report, Sample};

pub async fn latency(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let rounds = if quick { 50 } else { 300 };
    for warm in [false, true] {
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            // Seats refill in the background after a create; here each round starts from a known pool.
            if warm {
                host.engine.warm_up().await;
            } else {
                drain(host).await?;
            }
            let (id, took) = host.create_and_echo().await?;
            times.push(ms(took));
            host.delete(&id).await?;
        }
        let sample = Sample::new(times);
        let kind = if warm { "pooled" } else { "cold" };
        report.bar(
            &format!("create to first output, {kind}, median"),
            sample.median(),
            "ms",
            Bar::AtMost(8.0),
        );
        report.bar(
            &format!("create to first output, {kind}, p99"),
            sample.quantile(0.99),
            "ms",
            Bar::AtMost(30.0),
        );
    }
    Ok(())
}

/// Uses up the prepared seats, so that the next create is cold.
async fn drain(host: &Host) -> Result<()> {
    host.engine.cool_down().await;
    Ok(())
}

pub async fn throughput(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    const IN_FLIGHT: usize = 4;
    let time = Duration::from_secs(if quick { 10 } else { 60 });
    drain(host).await?;
    let done = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let workers = (0..IN_FLIGHT).map(|_| async {
        while begun.elapsed() < time {
            let (id, _) = host.create_and_echo().await?;
            host.delete(&id).await?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<(), anyhow::Error>(())
    });
    for outcome in join_all(workers).await {
        outcome?;
    }
    // The pool was empty at the start; filling it again belongs to the work done.
    host.engine.warm_up().await;
    let rate = done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    report.bar(
        "create + exec + delete with 4 in flight",
        rate,
        "/s",
        Bar::AtLeast(100.0),
    );
    Ok(())
}

pub async fn join_all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.into_iter().map(Box::pin).map(Some).collect();
    let mut results: Vec<Option<T>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (slot, result) in pending.iter_mut().zip(&mut results) {
            if let Some(future) = slot {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => {
                        *result = Some(value);
                        *slot = None;
                    }
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        if waiting {
            std::task::Poll::Pending
        } else {
            std::task::Poll::Ready(())
        }
    })
    .await;
    results
        .into_iter()
        .map(|result| result.expect("all are ready"))
        .collect()
}
