//! Engine-level benchmarks. Each section prints figures beside the bar they are held to, as medians
//! and as ratios to a peer measured in the same run; `--json FILE` keeps them.
//!
//! `cargo run --release -p cove-bench -- [section…]`; without sections all run.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

mod churn;
mod create;
mod density;
mod exec;
mod files;
mod host;
mod network;
mod peers;
mod report;
mod travel;
mod work;

use host::Host;
use report::Report;

#[derive(Parser)]
struct Arguments {
    /// create, throughput, density, exec, files, work, churn, snapshots, memory, network, peers; routed (a part of
    /// network)
    sections: Vec<String>,
    /// A directory or tarball to use as the image, on machines that cannot bootstrap Debian.
    #[arg(long)]
    image: Option<PathBuf>,
    /// Fewer repetitions, for a quick look.
    #[arg(long)]
    quick: bool,
    /// Write all figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

const SECTIONS: [&str; 11] = [
    "create",
    "throughput",
    "exec",
    "files",
    "work",
    "churn",
    "density",
    "snapshots",
    "memory",
    "network",
    "peers",
];

/// The throughput of sandboxes against a routed wire, from `network`.
const ROUTED: &str = "routed";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    for section in &arguments.sections {
        anyhow::ensure!(
            SECTIONS.contains(&section.as_str()) || section == ROUTED,
            "there is no section '{section}'; there are: {}, {ROUTED}",
            SECTIONS.join(", ")
        );
    }
    let wanted = |name: &str| {
        arguments.sections.is_empty() || arguments.sections.iter().any(|section| section == name)
    };
    let mut report = Report::default();
    // They need no sandbox, and so no image, which machines without a network have none of.
    let alone: Option<fn(&mut Report, bool) -> Result<()>> = match arguments.sections.as_slice() {
        [section] if section == "network" => Some(network::run),
        [section] if section == ROUTED => Some(network::routed),
        _ => None,
    };
    if let Some(measure) = alone {
        println!("\n{}", arguments.sections[0]);
        measure(&mut report, arguments.quick)?;
        return finish(&report, arguments.json);
    }
    anyhow::ensure!(
        !wanted(ROUTED) || arguments.sections.is_empty(),
        "{ROUTED} is a part of network, and is run alone"
    );
    let host = Host::open(arguments.image.as_deref())
        .await
        .context("open an engine for the benchmarks")?;
    let outcome = async {
        for section in SECTIONS.into_iter().filter(|section| wanted(section)) {
            println!("\n{section}");
            match section {
                "create" => create::latency(&host, &mut report, arguments.quick).await?,
                "throughput" => create::throughput(&host, &mut report, arguments.quick).await?,
                "exec" => exec::run(&host, &mut report, arguments.quick).await?,
                "files" => files::run(&host, &mut report, arguments.quick).await?,
                "work" => work::run(&host, &mut report, arguments.quick).await?,
                "churn" => churn::run(&host, &mut report, arguments.quick).await?,
                "snapshots" => travel::disks(&host, &mut report, arguments.quick).await?,
                "memory" => travel::memory(&host, &mut report, arguments.quick).await?,
                "network" => network::run(&mut report, arguments.quick)?,
                "density" => density::run(&host, &mut report, arguments.quick).await?,
                _ => peers::run(&host, &mut report, arguments.quick).await?,
            }
        }
        Ok::<(), anyhow::Error>(())
    }
    .await;
    host.close().await?;
    outcome?;
    finish(&report, arguments.json)
}

fn finish(report: &Report, json: Option<PathBuf>) -> Result<()> {
    if let Some(path) = json {
        std::fs::write(&path, serde_json::to_vec_pretty(report)?)
            .with_context(|| format!("write {}", path.display()))?;
    }
    println!("\n{} of {} bars met", report.met(), report.bars());
    Ok(())
}
