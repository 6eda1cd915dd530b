//! The gVisor tier against bare runsc, which runs the same program with as few additions as it allows: no network,
//! and no limits.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cove_model::{Resources, SandboxId, SandboxSpec};

use crate::host::{Host, ms, run as run_command};
use crate::report::{Bar, Report, Sample};

/// Where `scripts/provide-runsc` puts it.
const RUNSC: &str = "/usr/local/lib/cove/runsc/bin/runsc";
/// Uids of sandboxes begin here.
const FIRST_UID: u32 = 0x7000_0000;

pub async fn run(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let bare = Bare::new(host)?;
    starts(host, &bare, report, if quick { 5 } else { 20 }).await?;
    commands(host, report, if quick { 50 } else { 300 }).await?;
    idle(host, &bare, report).await
}

async fn create(host: &Host) -> Result<SandboxId> {
    host.create_as(SandboxSpec {
        isolation: "gvisor".into(),
        resources: Resources {
            memory_mb: 512,
            ..Resources::default()
        },
        ..SandboxSpec::default()
    })
    .await
}

async fn starts(host: &Host, bare: &Bare, report: &mut Report, rounds: usize) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // Taken in turns, so that both see the same noise.
    for round in 0..rounds {
        let begun = Instant::now();
        let id = create(host).await?;
        let said = run_command(&host.guest(&id)?, &["/bin/echo", "hello"]).await?;
        ours.push(ms(begun.elapsed()));
        anyhow::ensure!(
            &*said.stdout == b"hello\n",
            "the command said something else"
        );
        host.delete(&id).await?;
        let begun = Instant::now();
        let said = bare.run("echo", &format!("start-{round}")).output()?;
        theirs.push(ms(begun.elapsed()));
        anyhow::ensure!(
            said.stdout == b"hello\n",
            "runsc said: {}",
            String::from_utf8_lossy(&said.stderr)
        );
    }
    let (ours, theirs) = (Sample::new(ours).median(), Sample::new(theirs).median());
    report.figure("gvisor: create to first output, median", ours, "ms");
    report.figure("bare runsc run echo, median", theirs, "ms");
    report.bar("ratio", ours / theirs, "×", Bar::AtMost(1.3));
    Ok(())
}

async fn commands(host: &Host, report: &mut Report, rounds: usize) -> Result<()> {
    let id = create(host).await?;
    let guest = host.guest(&id)?;
    let mut asked = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        run_command(&guest, &["/bin/true"]).await?;
        asked.push(ms(begun.elapsed()));
    }
    // A shell's fork and exec inside, without the shell's own start.
    let spawns = |count: usize| {
        let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
        let guest = &guest;
        async move {
            let begun = Instant::now();
            run_command(guest, &["/bin/sh", "-c", &script]).await?;
            Ok::<_, anyhow::Error>(ms(begun.elapsed()))
        }
    };
    let inside = (spawns(rounds).await? - spawns(0).await?) / rounds as f64;
    host.delete(&id).await?;
    let asked = Sample::new(asked).median();
    report.figure("gvisor: exec of true, median", asked, "ms");
    report.figure("gvisor: fork + exec of true inside, mean", inside, "ms");
    report.bar("ratio", asked / inside, "×", Bar::AtMost(1.5));
    Ok(())
}

async fn idle(host: &Host, bare: &Bare, report: &mut Report) -> Result<()> {
    let before = processes()?;
    let id = create(host).await?;
    run_command(&host.guest(&id)?, &["/bin/true"]).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ours = processes()?
        .difference(&before)
        .filter(|pid| uid(**pid).is_some_and(|uid| uid >= FIRST_UID))
        .map(|pid| pss_kb(*pid))
        .sum::<f64>();
    host.delete(&id).await?;
    let before = processes()?;
    let mut sleeping = bare.run("idle", "idle").spawn()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // What `runsc run` itself has is not the sandbox's.
    let launcher = sleeping.id();
    let theirs = processes()?
        .difference(&before)
        .filter(|pid| **pid != launcher && is_runsc(**pid))
        .map(|pid| pss_kb(*pid))
        .sum::<f64>();
    bare.end("idle")?;
    sleeping.wait()?;
    anyhow::ensure!(ours > 0.0 && theirs > 0.0, "no process was found to weigh");
    report.figure(
        "gvisor: memory of an idle sandbox (PSS)",
        ours / 1024.0,
        "MiB",
    );
    report.figure("bare runsc run sleep (PSS)", theirs / 1024.0, "MiB");
    let more = (ours - theirs) / 1024.0;
    report.bar("difference", more, "MiB", Bar::AtMost(5.0));
    Ok(())
}

/// runsc without Cove.
struct Bare {
    dir: PathBuf,
}

impl Bare {
    fn new(host: &Host) -> Result<Self> {
        anyhow::ensure!(
            Path::new(RUNSC).exists(),
            "{RUNSC} is missing; run scripts/provide-runsc"
        );
        let image = host.engine.images().resolve("debian");
        let root = host
            .engine
            .images()
            .root(&image.context("the default image is there")?);
        let bare = Self {
            dir: host.dir().join("bare-runsc"),
        };
        bare.bundle("echo", &root, &["/bin/echo", "hello"])?;
        bare.bundle("idle", &root, &["/bin/sleep", "1000"])?;
        Ok(bare)
    }

    fn bundle(&self, name: &str, root: &Path, argv: &[&str]) -> Result<()> {
        let bundle = self.dir.join(name);
        fs::create_dir_all(&bundle)?;
        let done = Command::new(RUNSC)
            .arg("spec")
            .arg(format!("--bundle={}", bundle.display()))
            .status()?;
        anyhow::ensure!(done.success(), "runsc spec failed");
        let path = bundle.join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
        config["root"] = serde_json::json!({ "path": root, "readonly": true });
        config["process"]["terminal"] = false.into();
        config["process"]["args"] = serde_json::json!(argv);
        fs::write(&path, serde_json::to_vec(&config)?)?;
        Ok(())
    }

    fn runsc(&self) -> Command {
        let mut command = Command::new(RUNSC);
        command.arg(format!("--root={}", self.dir.join("state").display()));
        command.args(["--platform=systrap", "--network=none", "--overlay2=none"]);
        command.arg("--ignore-cgroups");
        command
    }

    fn run(&self, bundle: &str, id: &str) -> Command {
        let mut command = self.runsc();
        let bundle = self.dir.join(bundle);
        command
            .arg("run")
            .arg(format!("--bundle={}", bundle.display()));
        command.arg(id);
        command
    }

    fn end(&self, id: &str) -> Result<()> {
        let done = self.runsc().args(["kill", id, "KILL"]).status()?;
        anyhow::ensure!(done.success(), "runsc kill failed");
        Ok(())
    }
}

fn processes() -> Result<HashSet<u32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

fn uid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn is_runsc(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(RUNSC))
}

fn pss_kb(pid: u32) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}
