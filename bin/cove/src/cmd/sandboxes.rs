//! Sandboxes themselves.

use cove_api::ErrorCode;
use cove_api::sandbox::{Accel, ListSandboxes, NetworkMode, PatchSandbox, Sandbox, StopSandbox};
use cove_client::Client;
use cove_model::Placement;
use cove_model::placement::Strategy;

use super::making;
use crate::args::{CreateArgs, ListArgs, UpdateArgs};
use crate::output::{self, Facts, Table, waiting};
use crate::report::CliError;
use crate::units;

pub async fn create(client: &Client, args: &CreateArgs, json: bool) -> Result<(), CliError> {
    let sandbox = making::make(client, &args.request(), json).await?;
    if json {
        return output::json(&sandbox);
    }
    let name = sandbox.name.as_deref().unwrap_or(&sandbox.id);
    let rules = &sandbox.lifecycle;
    if rules.delete_after_s.is_none() && rules.max_lifetime_s.is_none() {
        output::note(&format!("It stays until it is deleted: cove rm {name}"));
    }
    output::line(name)
}

pub async fn detach(client: &Client, sandboxes: &[String], json: bool) -> Result<(), CliError> {
    for sandbox in sandboxes {
        client.end_lease(sandbox).await?;
        told(&client.sandbox(sandbox).await?, sandbox, json)?;
    }
    Ok(())
}

pub async fn list(client: &Client, args: &ListArgs, json: bool) -> Result<(), CliError> {
    let labels: Vec<String> = args
        .label
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let mut query = ListSandboxes {
        state: args.state,
        labels: Some(labels.join(",")).filter(|labels| !labels.is_empty()),
        ..ListSandboxes::default()
    };
    let mut all: Vec<Sandbox> = Vec::new();
    loop {
        let page = client.list_sandboxes(&query).await?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    if args.quiet {
        return output::ids(all.iter().map(|sandbox| sandbox.id.as_str()), json);
    }
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "STATE",
        "IMAGE",
        "ISOLATION",
        "CPU",
        "MEMORY",
        "NETWORK",
        "CREATED",
    ]);
    for sandbox in all {
        table.row([
            sandbox.id,
            sandbox.name.unwrap_or_default(),
            sandbox.state.as_str().into(),
            sandbox.image,
            isolation(&sandbox.isolation, sandbox.accel),
            sandbox.resources.cpu.to_string(),
            memory(&sandbox.resources),
            network(&sandbox.network),
            units::ago(sandbox.created_at),
        ]);
    }
    table.print()
}

fn memory(resources: &cove_api::sandbox::ResourcesView) -> String {
    match resources.memory_max_mb {
        Some(max) => format!("{}-{} MiB", resources.memory_mb, max),
        None => format!("{} MiB", resources.memory_mb),
    }
}

/// What it asks of its host; absent for nothing.
pub fn placement(asked: &Placement) -> Option<String> {
    let mut parts: Vec<String> = asked.wishes().map(|wish| wish.to_string()).collect();
    let tolerated = asked.tolerate.iter();
    parts.extend(tolerated.map(|taint| format!("tolerates {taint}")));
    if asked.strategy == Strategy::Pack {
        parts.push("packed".into());
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// A tier, and what executes a virtual machine.
pub fn isolation(tier: &str, accel: Option<Accel>) -> String {
    match accel {
        None => tier.to_owned(),
        Some(Accel::Kvm) => format!("{tier} (kvm)"),
        Some(Accel::Software) => format!("{tier} (emulated in software)"),
    }
}

/// A policy in full.
pub fn policy(network: &cove_api::sandbox::Network) -> String {
    match (network.mode, network.allow.as_deref().unwrap_or_default()) {
        (NetworkMode::None, _) => {
            "off (allow destinations with `cove update --allow ENTRY`)".into()
        }
        (NetworkMode::Open, _) => "open".into(),
        (NetworkMode::Allowlist, []) => "allow nothing".into(),
        (NetworkMode::Allowlist, entries) => format!("allow {}", entries.join(" ")),
    }
}

/// A policy in a few words.
fn network(policy: &cove_api::sandbox::Network) -> String {
    let entries = policy.allow.as_deref().unwrap_or_default();
    match (policy.mode, entries) {
        (NetworkMode::None, _) => "off".into(),
        (NetworkMode::Open, _) => "open".into(),
        (NetworkMode::Allowlist, []) => "allow nothing".into(),
        (NetworkMode::Allowlist, [one]) => one.clone(),
        (NetworkMode::Allowlist, [first, rest @ ..]) => format!("{first} +{}", rest.len()),
    }
}

/// All that is known, as JSON.
pub async fn inspect(client: &Client, sandboxes: &[String]) -> Result<(), CliError> {
    let mut all = Vec::new();
    for sandbox in sandboxes {
        all.push(client.sandbox(sandbox).await?);
    }
    output::json(&all)
}

pub async fn rename(
    client: &Client,
    sandbox: &str,
    name: &str,
    json: bool,
) -> Result<(), CliError> {
    let patch = PatchSandbox {
        name: Some(Some(name.to_owned())),
        ..PatchSandbox::default()
    };
    let renamed = client.patch_sandbox(sandbox, &patch).await?;
    told(&renamed, name, json)
}

pub async fn show(client: &Client, sandbox: &str, json: bool) -> Result<(), CliError> {
    let sandbox = client.sandbox(sandbox).await?;
    print(&sandbox, json)
}

fn print(sandbox: &Sandbox, json: bool) -> Result<(), CliError> {
    if json {
        return output::json(sandbox);
    }
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        let pairs: Vec<_> = map
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        Some(pairs.join(" ")).filter(|text| !text.is_empty())
    };
    let after = |seconds: Option<u64>| seconds.map(units::span);
    let resources = &sandbox.resources;
    let mut facts = Facts::new();
    facts
        .add("id", &sandbox.id)
        .maybe("name", sandbox.name.clone())
        .add("state", sandbox.state.as_str())
        .maybe("reason", sandbox.reason.clone())
        .add("image", &sandbox.image)
        .add("isolation", isolation(&sandbox.isolation, sandbox.accel))
        .add("cpu", resources.cpu.to_string())
        .add("memory", memory(resources))
        .add("disk", format!("{} MiB", resources.disk_mb))
        .add("processes", resources.pids.to_string())
        .add("network", policy(&sandbox.network))
        .maybe("user", sandbox.user.clone())
        .maybe("workdir", sandbox.workdir.clone())
        .maybe("env", pairs(&sandbox.env))
        .maybe("labels", pairs(&sandbox.labels))
        .maybe("placement", placement(&sandbox.placement))
        .maybe("from snapshot", sandbox.from_snapshot.clone())
        .maybe("grew from", sandbox.head.clone())
        .maybe("freeze after", after(sandbox.lifecycle.freeze_after_s))
        .maybe("pause after", after(sandbox.lifecycle.pause_after_s))
        .maybe("stop after", after(sandbox.lifecycle.stop_after_s))
        .maybe("delete after", after(sandbox.lifecycle.delete_after_s))
        .maybe("max lifetime", after(sandbox.lifecycle.max_lifetime_s))
        .maybe("lease", sandbox.lease.as_ref().map(lease))
        .maybe(
            "auto resume",
            (sandbox.lifecycle.auto_resume == Some(false)).then_some("off"),
        )
        .maybe(
            "auto snapshot",
            sandbox.lifecycle.auto_snapshot.as_ref().map(automatic),
        )
        .add(
            "created",
            format!(
                "{} ({})",
                sandbox.created_at,
                units::ago(sandbox.created_at)
            ),
        )
        .maybe("started", sandbox.started_at.map(units::ago))
        .maybe("stopped", sandbox.stopped_at.map(units::ago))
        .add("last active", units::ago(sandbox.last_active_at));
    facts.print()
}

fn lease(lease: &cove_api::lifecycle::Lease) -> String {
    let within = units::span(lease.renew_within_s);
    let after = units::span(lease.delete_after_s);
    let lapsed = if lease.lapsed { ", ran out" } else { "" };
    format!(
        "held by {}: paused after {within} without renewal, deleted {after} later{lapsed}",
        lease.holder
    )
}

fn automatic(auto: &cove_api::lifecycle::AutoSnapshot) -> String {
    let mut words = Vec::new();
    if let Some(every) = auto.every_s {
        words.push(format!("every {}", units::span(every)));
    }
    if auto.before_exec {
        words.push("before each command".into());
    }
    if let Some(keep) = auto.keep {
        words.push(format!("{keep} kept"));
    }
    words.join(", ")
}

pub async fn start(client: &Client, sandboxes: &[String], json: bool) -> Result<(), CliError> {
    for sandbox in sandboxes {
        let what = format!("starting {sandbox}");
        let started = waiting(json, &what, client.start_sandbox(sandbox)).await?;
        told(&started, sandbox, json)?;
    }
    Ok(())
}

fn stop_request(grace_s: Option<u64>) -> StopSandbox {
    StopSandbox {
        grace_ms: grace_s.map(|seconds| seconds.saturating_mul(1000)),
    }
}

pub async fn stop(
    client: &Client,
    sandboxes: &[String],
    grace_s: Option<u64>,
    json: bool,
) -> Result<(), CliError> {
    let stop = stop_request(grace_s);
    for sandbox in sandboxes {
        let what = format!("stopping {sandbox}");
        let stopped = waiting(json, &what, client.stop_sandbox(sandbox, &stop)).await?;
        told(&stopped, sandbox, json)?;
    }
    Ok(())
}

/// One that is stopped already is only started.
pub async fn restart(
    client: &Client,
    sandboxes: &[String],
    grace_s: Option<u64>,
    json: bool,
) -> Result<(), CliError> {
    let stop = stop_request(grace_s);
    for sandbox in sandboxes {
        let what = format!("restarting {sandbox}");
        let work = async {
            client.stop_sandbox(sandbox, &stop).await?;
            client.start_sandbox(sandbox).await
        };
        let started = waiting(json, &what, work).await?;
        told(&started, sandbox, json)?;
    }
    Ok(())
}

pub fn told(sandbox: &Sandbox, named: &str, json: bool) -> Result<(), CliError> {
    if json {
        output::json_line(sandbox)
    } else {
        output::line(named)
    }
}

/// With `force` one that is not there is no failure.
pub async fn remove(
    client: &Client,
    sandboxes: &[String],
    force: bool,
    json: bool,
) -> Result<(), CliError> {
    let mut failed = None;
    for sandbox in sandboxes {
        // The others are removed all the same; the last failure is reported.
        let what = format!("deleting {sandbox}");
        match waiting(json, &what, client.delete_sandbox(sandbox)).await {
            Ok(()) if json => output::json_line(&serde_json::json!({ "deleted": sandbox }))?,
            Ok(()) => output::line(sandbox)?,
            Err(error) if force && error.code() == Some(ErrorCode::NotFound) => {}
            Err(error) => {
                if let Some(earlier) = failed.replace(CliError::from(error)) {
                    crate::report::print(&earlier, json);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

pub async fn update(client: &Client, args: &UpdateArgs, json: bool) -> Result<(), CliError> {
    let mut patch = args.request();
    if args.network.request().is_some() {
        let now = client.sandbox(&args.sandbox).await?;
        patch.network = args.network.over(&now.network);
        // Nobody's change in between is overwritten.
        patch.expected_generation = Some(now.generation);
    }
    let unchanged = patch.name.is_none()
        && patch.labels.is_none()
        && patch.lifecycle.is_none()
        && patch.network.is_none()
        && patch.resources.is_none();
    if unchanged {
        return Err(CliError::hinted(
            "nothing to change",
            "`cove update --help` lists what can be",
        ));
    }
    let sandbox = client.patch_sandbox(&args.sandbox, &patch).await?;
    print(&sandbox, json)
}
