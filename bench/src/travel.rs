//! Snapshots, forks, pause and resume: what a program inside notices, and what a caller waits for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cove_model::{ProcessId, Resources, SandboxId, SandboxSpec, SnapshotId};
use cove_protocol::message::Start;
use cove_runner_api::{CreateRequest, FromSnapshot, RunnerApi, SnapshotRequest, SnapshotView};

use crate::create::join_all;
use crate::host::{Host, ms, run as run_command};
use crate::report::{Bar, Report, Sample};

/// How long a step inside may take, on a slow disk.
const PATIENCE: Duration = Duration::from_secs(900);

/// Prints the longest time that it was not running, in milliseconds, of the time given in seconds.
const STALL: &str = "import time, sys
end = time.monotonic() + float(sys.argv[1])
worst, last = 0.0, time.monotonic()
while last < end:
    time.sleep(0.0002)
    now = time.monotonic()
    worst, last = max(worst, now - last), now
print(worst * 1000)";

/// Many changed files: argv are their number and the size of each.
const FILL: &str = "import os, sys
block = os.urandom(int(sys.argv[2]))
for i in range(int(sys.argv[1])):
    d = f'/root/fill/{i // 500}'
    if i % 500 == 0: os.makedirs(d, exist_ok=True)
    with open(f'{d}/{i}', 'wb') as f: f.write(block)";

/// Holds 50 MB and notes the longest time that it was not running in a file.
const HOLDER: &str = "import os, time
held = bytearray(os.urandom(50 << 20))
last = time.monotonic()
open('/root/ready', 'w').close()
while True:
    time.sleep(0.0005)
    now = time.monotonic()
    if now - last > 0.005:
        with open('/root/gaps', 'a') as f: f.write(f'{(now - last) * 1000}\\n')
        now = time.monotonic()
    last = now";

/// Appends a count that it holds in memory.
const COUNTER: &str = "import os, time
n, f = 0, os.open('/root/log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    n += 1
    os.write(f, f'{n}\\n'.encode())
    time.sleep(0.002)";

async fn snapshot(host: &Host, id: &SandboxId, memory: bool) -> Result<(SnapshotView, f64)> {
    let begun = Instant::now();
    let view = host
        .engine
        .snapshot(SnapshotRequest {
            id: SnapshotId::random(),
            sandbox: id.clone(),
            memory,
            unless_unchanged: false,
        })
        .await?;
    Ok((view, ms(begun.elapsed())))
}

async fn fork(host: &Host, snapshot: &SnapshotId, memory: bool) -> Result<(SandboxId, f64)> {
    let begun = Instant::now();
    let id = SandboxId::random();
    let spec = SandboxSpec {
        resources: Resources {
            memory_mb: 256,
            ..Resources::default()
        },
        ..SandboxSpec::default()
    };
    host.engine
        .create(CreateRequest {
            owner: None,
            id: id.clone(),
            spec,
            from: Some(FromSnapshot {
                snapshot: snapshot.clone(),
                memory,
            }),
        })
        .await?;
    run_command(&host.guest(&id)?, &["/bin/echo", "hello"]).await?;
    Ok((id, ms(begun.elapsed())))
}

async fn python(host: &Host, id: &SandboxId, program: &str, arguments: &[&str]) -> Result<String> {
    let guest = host.guest(id)?.within(PATIENCE);
    let argv: Vec<&str> = ["python3", "-c", program]
        .into_iter()
        .chain(arguments.iter().copied())
        .collect();
    let result = run_command(&guest, &argv).await?;
    Ok(String::from_utf8_lossy(&result.stdout).trim().to_owned())
}

async fn start(host: &Host, id: &SandboxId, program: &str) -> Result<()> {
    host.guest(id)?
        .start(Start {
            id: ProcessId::random().to_string(),
            argv: ["python3", "-c", program].map(str::to_owned).to_vec(),
            ..Start::default()
        })
        .await?;
    Ok(())
}

/// The stall a program sees and the time a caller waits, one sample of each.
async fn stall(host: &Host, id: &SandboxId) -> Result<(f64, f64, f64)> {
    let watching = python(host, id, STALL, &["0.6"]);
    let taking = async {
        // In the middle of the time that the program watches.
        tokio::time::sleep(Duration::from_millis(350)).await;
        snapshot(host, id, false).await
    };
    let (seen, taken) = tokio::join!(watching, taking);
    let (view, call) = taken?;
    host.engine.delete_snapshot(&view.id).await?;
    Ok((seen?.parse()?, call, view.stopped_us as f64 / 1000.0))
}

pub async fn disks(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let rounds = if quick { 5 } else { 20 };
    let (files, size) = if quick {
        (5_000, "40000")
    } else {
        (50_000, "40000")
    };
    let resources = Resources {
        memory_mb: 4096,
        disk_mb: 16 << 10,
        ..Resources::default()
    };
    let id = host.create_with(resources).await?;
    let idle: f64 = python(host, &id, STALL, &["0.6"]).await?.parse()?;
    report.figure("longest gap a program sees without a snapshot", idle, "ms");
    let large = format!("{} MB in {files} files", files * 40_000 / 1_000_000);
    for (what, files) in [("1 MB", 25), (large.as_str(), files)] {
        let count = files.to_string();
        python(host, &id, FILL, &[&count, size]).await?;
        let (dirty, call) = snapshot(host, &id, false).await?;
        report.figure(&format!("snapshot call, {what} dirty"), call, "ms");
        host.engine.delete_snapshot(&dirty.id).await?;
        let (mut seen, mut calls, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (gap, call, held) = stall(host, &id).await?;
            seen.push(gap);
            calls.push(call);
            stopped.push(held);
        }
        report.bar(
            &format!("stall seen inside, {what}, median"),
            Sample::new(seen).median(),
            "ms",
            Bar::AtMost(25.0),
        );
        let stopped = Sample::new(stopped).median();
        report.figure(
            &format!("stopped by the engine, {what}, median"),
            stopped,
            "ms",
        );
        let calls = Sample::new(calls).median();
        report.figure(&format!("snapshot call, {what} clean, median"), calls, "ms");
    }
    let (taken, _) = snapshot(host, &id, false).await?;
    let (mut plain, mut forked) = (Vec::new(), Vec::new());
    for _ in 0..rounds * 2 {
        host.engine.cool_down().await;
        let (made, took) = host.create_and_echo().await?;
        plain.push(ms(took));
        host.delete(&made).await?;
        host.engine.cool_down().await;
        let (made, took) = fork(host, &taken.id, false).await?;
        forked.push(took);
        host.delete(&made).await?;
    }
    let (plain, forked) = (Sample::new(plain).median(), Sample::new(forked).median());
    report.figure("plain create to first output, median", plain, "ms");
    report.figure(
        &format!("fork of {large} to first output, median"),
        forked,
        "ms",
    );
    report.bar(
        "fork over plain create",
        forked - plain,
        "ms",
        Bar::AtMost(15.0),
    );
    host.engine.delete_snapshot(&taken.id).await?;
    host.delete(&id).await
}

pub async fn memory(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let tiers = host.engine.host().await?.tiers;
    if !tiers
        .iter()
        .any(|tier| tier.capabilities.iter().any(|name| name == "memory"))
    {
        println!("  skipped: memory cannot be captured on this host");
        return Ok(());
    }
    let rounds = if quick { 3 } else { 10 };
    let resources = Resources {
        memory_mb: 256,
        ..Resources::default()
    };
    let id = host.create_with(resources.clone()).await?;
    start(host, &id, HOLDER).await?;
    until(host, &id, "test -e /root/ready").await?;
    let (mut seen, mut calls) = (Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..rounds {
        run_command(&host.guest(&id)?, &["/bin/sh", "-c", "> /root/gaps"]).await?;
        let (view, call) = snapshot(host, &id, true).await?;
        until(host, &id, "test -s /root/gaps").await?;
        let gaps = run_command(&host.guest(&id)?, &["/bin/cat", "/root/gaps"]).await?;
        let worst = String::from_utf8_lossy(&gaps.stdout)
            .lines()
            .filter_map(|line| line.parse::<f64>().ok())
            .fold(0.0, f64::max);
        seen.push(worst);
        calls.push(call);
        if let Some(older) = last.replace(view.id) {
            host.engine.delete_snapshot(&older).await?;
        }
    }
    let taken = last.context("there was at least one round")?;
    report.bar(
        "pause seen by a 50 MB Python, full snapshot, median",
        Sample::new(seen).median(),
        "ms",
        Bar::AtMost(150.0),
    );
    report.figure(
        "full snapshot call, median",
        Sample::new(calls).median(),
        "ms",
    );
    let mut restores = Vec::new();
    for _ in 0..rounds {
        let (made, took) = fork(host, &taken, true).await?;
        restores.push(took);
        host.delete(&made).await?;
    }
    report.bar(
        "restore of a 50 MB Python to first answer, median",
        Sample::new(restores).median(),
        "ms",
        Bar::AtMost(150.0),
    );
    let mut thaws = Vec::new();
    for _ in 0..rounds * 2 {
        host.engine.freeze(&id).await?;
        let begun = Instant::now();
        host.engine.resume(&id).await?;
        thaws.push(ms(begun.elapsed()));
    }
    report.bar(
        "resume from frozen, median",
        Sample::new(thaws).median(),
        "ms",
        Bar::AtMost(5.0),
    );
    let begun = Instant::now();
    let forks = join_all((0..20).map(|_| fork(host, &taken, true))).await;
    let took = begun.elapsed().as_secs_f64();
    report.bar("20 forks with memory at once", took, "s", Bar::AtMost(3.0));
    let mut held = Vec::new();
    let forks = forks.into_iter().collect::<Result<Vec<_>>>()?;
    let (resident, own) = holders();
    report.figure(
        "shared with others of what the 50 MB Pythons have",
        100.0 * (1.0 - own / resident.max(1.0)),
        "%",
    );
    for (made, _) in forks {
        held.push(host.engine.sample(&made).await?.memory_bytes as f64 / f64::from(1 << 20));
        host.delete(&made).await?;
    }
    report.figure(
        "memory charged to each of them, median",
        Sample::new(held).median(),
        "MiB",
    );
    host.engine.delete_snapshot(&taken).await?;
    host.delete(&id).await?;
    cycles(host, report, if quick { 20 } else { 200 }, resources).await
}

/// What every [`HOLDER`] on the host has in memory together, and their fair share of it, in kB.
fn holders() -> (f64, f64) {
    let (mut resident, mut own) = (0.0, 0.0);
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        if !String::from_utf8_lossy(&line).contains("held = bytearray") {
            continue;
        }
        let told = std::fs::read_to_string(process.path().join("smaps_rollup"));
        let told = told.unwrap_or_default();
        let figure = |name: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        resident += figure("Rss:").unwrap_or(0.0);
        own += figure("Pss:").unwrap_or(0.0);
    }
    (resident, own)
}

/// Pause and resume over and over; a count that is lost or repeated fails the benchmark.
async fn cycles(host: &Host, report: &mut Report, rounds: u32, resources: Resources) -> Result<()> {
    let id = host.create_with(resources).await?;
    start(host, &id, COUNTER).await?;
    until(host, &id, "test -s /root/log").await?;
    let (mut pauses, mut resumes) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begun = Instant::now();
        host.engine.pause(&id).await?;
        pauses.push(ms(begun.elapsed()));
        let begun = Instant::now();
        host.engine.resume(&id).await?;
        run_command(&host.guest(&id)?, &["/bin/true"]).await?;
        resumes.push(ms(begun.elapsed()));
    }
    let log = run_command(&host.guest(&id)?, &["/bin/cat", "/root/log"]).await?;
    for (at, line) in String::from_utf8_lossy(&log.stdout).lines().enumerate() {
        anyhow::ensure!(
            line.parse() == Ok(at + 1),
            "line {at} says {line}: a count was lost or repeated"
        );
    }
    let rounds = f64::from(rounds);
    report.figure(
        "cycles of pause and resume without a wrong count",
        rounds,
        "",
    );
    report.figure("pause, proven, median", Sample::new(pauses).median(), "ms");
    report.figure(
        "resume to first answer, median",
        Sample::new(resumes).median(),
        "ms",
    );
    host.delete(&id).await
}

async fn until(host: &Host, id: &SandboxId, test: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while run_command(&host.guest(id)?, &["/bin/sh", "-c", test])
        .await
        .is_err()
    {
        anyhow::ensure!(Instant::now() < deadline, "never true: {test}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
