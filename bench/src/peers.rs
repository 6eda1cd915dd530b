//! The same job by the programs others build on: a container from the same files that says hello.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::host::{Host, ms};
use crate::report::{Report, Sample};

pub async fn run(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let rounds = if quick { 10 } else { 50 };
    let mut ours = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        let (id, _) = host.create_and_echo().await?;
        host.delete(&id).await?;
        ours.push(ms(begun.elapsed()));
    }
    let ours = Sample::new(ours).median();
    report.figure("cove: create + echo + delete, median", ours, "ms");
    let image = host
        .engine
        .images()
        .resolve("debian")
        .context("the default image is there")?;
    let root = host.engine.images().root(&image);
    match runc(host.dir(), &root, rounds) {
        Ok(median) => {
            report.figure("runc run echo, median", median, "ms");
            report.figure("runc against cove", median / ours, "×");
        }
        Err(error) => println!("  runc was left out: {error:#}"),
    }
    match docker(&root, rounds.min(10)) {
        Ok(median) => {
            report.figure("docker run echo, median", median, "ms");
            report.figure("docker against cove", median / ours, "×");
        }
        Err(error) => println!("  Docker was left out: {error:#}"),
    }
    Ok(())
}

fn installed(name: &str) -> Result<()> {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join(name).exists());
    anyhow::ensure!(found, "it is not installed");
    Ok(())
}

fn runc(dir: &Path, root: &Path, rounds: usize) -> Result<f64> {
    installed("runc")?;
    let bundle: PathBuf = dir.join("runc");
    fs::create_dir_all(&bundle)?;
    let done = Command::new("runc")
        .args(["spec", "--bundle"])
        .arg(&bundle)
        .status()?;
    anyhow::ensure!(done.success(), "runc spec failed");
    let path = bundle.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
    config["root"] = serde_json::json!({ "path": root, "readonly": true });
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = serde_json::json!(["/bin/echo", "hello"]);
    fs::write(&path, serde_json::to_vec(&config)?)?;
    let times = (0..rounds)
        .map(|round| {
            let begun = Instant::now();
            let done = Command::new("runc")
                .args(["run", "--bundle"])
                .arg(&bundle)
                .arg(format!("cove-bench-{}-{round}", std::process::id()))
                .output()?;
            anyhow::ensure!(
                done.stdout == b"hello\n",
                "runc said: {}",
                String::from_utf8_lossy(&done.stderr)
            );
            Ok(ms(begun.elapsed()))
        })
        .collect::<Result<Vec<f64>>>()?;
    Ok(Sample::new(times).median())
}

fn docker(root: &Path, rounds: usize) -> Result<f64> {
    installed("docker")?;
    let reachable = Command::new("docker")
        .args(["version", "--format", "{{.Server.Version}}"])
        .output()?;
    anyhow::ensure!(reachable.status.success(), "no Docker engine answers");
    let name = "cove-bench:latest";
    let imported = Command::new("bash")
        .args([
            "-c",
            "tar -C \"$0\" -c . | docker import - \"$1\" >/dev/null",
        ])
        .arg(root)
        .arg(name)
        .status()?;
    anyhow::ensure!(imported.success(), "docker import failed");
    let times = (0..rounds)
        .map(|_| {
            let begun = Instant::now();
            let done = Command::new("docker")
                .args(["run", "--rm", name, "/bin/echo", "hello"])
                .output()?;
            anyhow::ensure!(
                done.stdout == b"hello\n",
                "docker said: {}",
                String::from_utf8_lossy(&done.stderr)
            );
            Ok(ms(begun.elapsed()))
        })
        .collect::<Result<Vec<f64>>>();
    let _ = Command::new("docker").args(["rmi", name]).output();
    Ok(Sample::new(times?).median())
}
