//! A gigabyte in and out, against `cp` on the pool.

use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use cove_model::Resources;
use cove_protocol::message::{ReadFile, WriteFile};

use crate::host::{Host, run as run_command};
use crate::report::{Bar, Report};

const CHUNK: usize = 256 * 1024;

pub async fn run(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let total: usize = if quick { 256 << 20 } else { 1 << 30 };
    let id = host
        .create_with(Resources {
            // Page cache of the file counts as the sandbox's memory, as it counts as the host's for `cp`.
            memory_mb: 2048,
            ..Resources::default()
        })
        .await?;
    let guest = host.guest(&id)?;
    // What does not compress and is not all zeroes, as files are.
    let block = Bytes::from(
        (0..CHUNK)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect::<Vec<u8>>(),
    );
    let speed = |begun: Instant| total as f64 / 1e6 / begun.elapsed().as_secs_f64();

    let before = resident("self")?;
    let begun = Instant::now();
    let mut upload = guest
        .write_file(WriteFile {
            path: "/root/large".into(),
            ..WriteFile::default()
        })
        .await?;
    for _ in 0..total / CHUNK {
        upload.write(block.clone()).await?;
    }
    upload.finish().await?;
    let write = speed(begun);

    let begun = Instant::now();
    let mut download = guest
        .read_file(ReadFile {
            path: "/root/large".into(),
            ..ReadFile::default()
        })
        .await?;
    let mut received = 0;
    while let Some(chunk) = download.next().await? {
        received += chunk.len();
    }
    anyhow::ensure!(received == total, "{received} bytes came back of {total}");
    let read = speed(begun);
    let grown = resident("self")?.saturating_sub(before) as f64 / 1e6;
    let inside = run_command(
        &guest,
        &["/bin/sh", "-c", "grep VmHWM /proc/1/status | tr -dc 0-9"],
    )
    .await?;
    let inside_peak: f64 = String::from_utf8_lossy(&inside.stdout)
        .trim()
        .parse::<f64>()
        .unwrap_or(0.0)
        / 1e3;
    host.delete(&id).await?;

    let (from, to) = (
        host.engine.pool().root().join("bench-from"),
        host.engine.pool().root().join("bench-to"),
    );
    let copied = (|| {
        let mut file = fs::File::create(&from)?;
        for _ in 0..total / CHUNK {
            std::io::Write::write_all(&mut file, &block)?;
        }
        drop(file);
        let begun = Instant::now();
        let done = Command::new("cp")
            .arg("--reflink=never")
            .arg(&from)
            .arg(&to)
            .status()?;
        anyhow::ensure!(done.success(), "cp failed");
        Ok(speed(begun))
    })();
    let _ = (fs::remove_file(&from), fs::remove_file(&to));
    let copy = copied.context("copy a file on the pool")?;
    report.figure("cp on the pool", copy, "MB/s");
    report.figure("file into a sandbox", write, "MB/s");
    report.figure("file out of a sandbox", read, "MB/s");
    report.bar(
        "into a sandbox against cp",
        write / copy,
        "×",
        Bar::AtLeast(0.5),
    );
    report.bar(
        "out of a sandbox against cp",
        read / copy,
        "×",
        Bar::AtLeast(0.5),
    );
    report.bar(
        "growth of the host's process",
        grown,
        "MB",
        Bar::AtMost(32.0),
    );
    report.bar(
        "peak memory of the guest",
        inside_peak,
        "MB",
        Bar::AtMost(16.0),
    );
    Ok(())
}

fn resident(process: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}
