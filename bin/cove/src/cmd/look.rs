//! Commands that only look.

use std::collections::VecDeque;

use cove_api::PageQuery;
use cove_api::event::{Event, EventKind};
use cove_api::port::SharePort;
use cove_api::process::{OutputChunk, OutputEvent, OutputQuery, Process};
use cove_client::Client;

use super::exec;
use crate::args::{LogsArgs, PsArgs};
use crate::output::{self, Table};
use crate::report::CliError;
use crate::units;

pub async fn processes(client: &Client, args: &PsArgs, json: bool) -> Result<(), CliError> {
    let mut all = client.processes(&args.sandbox).await?.items;
    all.retain(|process| args.all || process.exit.is_none());
    all.sort_by_key(|process| process.started_at);
    if args.quiet {
        return output::ids(all.iter().map(|process| process.id.as_str()), json);
    }
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&[
        "ID", "PID", "STATE", "USER", "CPU", "MEMORY", "STARTED", "COMMAND",
    ]);
    for process in &all {
        table.row([
            process.id.clone(),
            process.pid.to_string(),
            state(process),
            process.user.clone(),
            format!("{:.1} s", process.cpu_ms as f64 / 1e3),
            units::bytes(process.memory_bytes),
            units::ago(process.started_at),
            typed(&process.argv),
        ]);
    }
    table.print()
}

fn state(process: &Process) -> String {
    match &process.exit {
        None => "running".into(),
        Some(exit) if exit.oom => "out of memory".into(),
        Some(exit) if exit.timed_out => "timed out".into(),
        Some(exit) => match exit.signal {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit {}", exit.exit_code),
        },
    }
}

/// Arguments as a shell would take them.
fn typed(argv: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    let quoted = argv
        .iter()
        .map(|word| match !word.is_empty() && word.chars().all(plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        });
    quoted.collect::<Vec<_>>().join(" ")
}

pub async fn logs(client: &Client, args: &LogsArgs, json: bool) -> Result<(), CliError> {
    let process = match &args.process {
        Some(process) => process.clone(),
        None => {
            let all = client.processes(&args.sandbox).await?.items;
            all.into_iter()
                .max_by_key(|process| process.started_at)
                .map(|process| process.id)
                .ok_or_else(|| CliError::usage("nothing was run in this sandbox"))?
        }
    };
    let mut query = OutputQuery {
        follow: args.follow,
        ..OutputQuery::default()
    };
    if let Some(count) = args.tail {
        let seen = tail(client, &args.sandbox, &process, count, json).await?;
        if !args.follow {
            return Ok(());
        }
        [query.stdout_from, query.stderr_from] = seen;
    }
    let mut lines = client.output(&args.sandbox, &process, &query).await?;
    while let Some(event) = lines.next().await? {
        if json {
            output::json_line(&event)?;
            continue;
        }
        match event {
            OutputEvent::Stdout(chunk) => exec::write_chunk(chunk, &mut std::io::stdout().lock())?,
            OutputEvent::Stderr(chunk) => exec::write_chunk(chunk, &mut std::io::stderr().lock())?,
            OutputEvent::Error { error } => return Err(CliError::usage(error.message)),
            OutputEvent::Started { .. } | OutputEvent::Exit(_) => {}
        }
    }
    Ok(())
}

/// Prints the last lines of the present output, and returns where each stream continues.
async fn tail(
    client: &Client,
    sandbox: &str,
    process: &str,
    count: usize,
    json: bool,
) -> Result<[u64; 2], CliError> {
    let mut lines = client
        .output(sandbox, process, &OutputQuery::default())
        .await?;
    let mut next = [0, 0];
    // Whole lines in the order they came, each with its stream; the last may be without an end.
    let mut kept: VecDeque<(usize, Vec<u8>)> = VecDeque::new();
    while let Some(event) = lines.next().await? {
        let (stream, chunk) = match event {
            OutputEvent::Stdout(chunk) => (0, chunk),
            OutputEvent::Stderr(chunk) => (1, chunk),
            OutputEvent::Error { error } => return Err(CliError::usage(error.message)),
            OutputEvent::Started { .. } | OutputEvent::Exit(_) => continue,
        };
        let offset = chunk.offset;
        let bytes = chunk
            .into_bytes()
            .ok_or_else(|| CliError::usage("the server sent output that cannot be read"))?;
        next[stream] = offset.saturating_add(bytes.len() as u64);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match kept.back_mut() {
                Some((last, line)) if *last == stream && !line.ends_with(b"\n") => {
                    line.extend_from_slice(piece);
                }
                _ => kept.push_back((stream, piece.to_vec())),
            }
            while kept.len() > count {
                kept.pop_front();
            }
        }
    }
    for (stream, line) in kept {
        let chunk = OutputChunk::new(0, 0, &line);
        if json {
            let event = match stream {
                0 => OutputEvent::Stdout(chunk),
                _ => OutputEvent::Stderr(chunk),
            };
            output::json_line(&event)?;
        } else if stream == 0 {
            exec::write_chunk(chunk, &mut std::io::stdout().lock())?;
        } else {
            exec::write_chunk(chunk, &mut std::io::stderr().lock())?;
        }
    }
    Ok(next)
}

pub async fn ports(client: &Client, sandbox: &str, json: bool) -> Result<(), CliError> {
    let ports = client.ports(sandbox).await?.items;
    if json {
        return output::json(&ports);
    }
    let mut table = Table::new(&["PORT", "ADDRESS", "PID", "PROCESS", "PREVIEW"]);
    for port in ports {
        table.row([
            port.port.to_string(),
            port.address,
            port.pid.map_or_else(String::new, |pid| pid.to_string()),
            port.process.unwrap_or_default(),
            match (port.url, port.public) {
                (Some(url), true) => format!("{url} (public)"),
                (url, _) => url.unwrap_or_default(),
            },
        ]);
    }
    table.print()
}

pub async fn share(
    client: &Client,
    sandbox: &str,
    port: u16,
    expires_s: Option<u64>,
    public: bool,
    json: bool,
) -> Result<(), CliError> {
    let request = SharePort { expires_s, public };
    let share = client.share_port(sandbox, port, &request).await?;
    if json {
        return output::json(&share);
    }
    output::line(&share.url)
}

pub async fn unshare(
    client: &Client,
    sandbox: &str,
    port: u16,
    json: bool,
) -> Result<(), CliError> {
    client.unshare_port(sandbox, port).await?;
    match json {
        true => {
            output::json(&serde_json::json!({ "sandbox": sandbox, "port": port, "shared": false }))
        }
        false => Ok(()),
    }
}

pub async fn events(
    client: &Client,
    sandbox: Option<&str>,
    follow: bool,
    after: Option<u64>,
    json: bool,
) -> Result<(), CliError> {
    let mut last = after.unwrap_or(0);
    loop {
        let page = client.events(sandbox, Some(last)).await?;
        let Some(newest) = page.items.last().map(|event| event.id) else {
            break;
        };
        for event in &page.items {
            print_event(event, json)?;
        }
        last = newest;
    }
    if !follow {
        return Ok(());
    }
    let mut stream = client.follow_events(sandbox, Some(last)).await?;
    while let Some(event) = stream.next().await? {
        print_event(&event, json)?;
    }
    Ok(())
}

fn print_event(event: &Event, json: bool) -> Result<(), CliError> {
    if json {
        return output::json_line(event);
    }
    let what = match &event.kind {
        EventKind::State {
            state,
            reason: None,
        } => state.as_str().to_owned(),
        EventKind::State {
            state,
            reason: Some(reason),
        } => format!("{}: {reason}", state.as_str()),
        EventKind::Oom {
            kills,
            limit_mb,
            peak_mb,
        } => {
            format!("out of memory: {kills} killed, limit {limit_mb} MiB, peak {peak_mb} MiB")
        }
        EventKind::MemoryGrown { from_mb, to_mb } => {
            format!("memory grew from {from_mb} to {to_mb} MiB")
        }
        EventKind::DiskHeld { limit_mb } => format!(
            "the host's disk is nearly full: it may use {limit_mb} MiB until there is room again"
        ),
        EventKind::DiskReleased => "the host's disk has room again".into(),
        EventKind::NetworkChanged => "network policy changed".into(),
        EventKind::Resized => "limits changed".into(),
        EventKind::Adopted => "taken over by a restarted server".into(),
        EventKind::Snapshotted { snapshot, memory } => {
            let memory = if *memory { " with memory" } else { "" };
            format!("snapshot {snapshot}{memory}")
        }
        EventKind::CaptureFailed { reason } => format!("its memory was not captured: {reason}"),
        EventKind::RolledBack { to, kept } => {
            format!("rolled back to {to}; previous state: {kept}")
        }
        EventKind::ApprovalRequested {
            approval,
            secret,
            host,
            method,
            path,
        } => format!("{approval}: asks to use {secret} for {method} {host}{path}"),
        EventKind::ApprovalDecided { approval, decision } => {
            format!("{approval}: {}", decision.as_str())
        }
    };
    let what = crate::report::printable(&what);
    output::line(&format!(
        "{:>6}  {}  {}  {what}",
        event.id, event.at, event.sandbox
    ))
}

pub async fn audit(client: &Client, limit: u32, json: bool) -> Result<(), CliError> {
    let query = PageQuery {
        limit: Some(limit),
        cursor: None,
    };
    let records = client.audit(&query).await?.items;
    if json {
        return output::json(&records);
    }
    let mut table = Table::new(&["AT", "KEY", "ACTION", "TARGET", "FROM", "RESULT"]);
    for record in records {
        table.row([
            record.at.to_string(),
            record.key.unwrap_or_else(|| "system".into()),
            record.action,
            record.target.unwrap_or_default(),
            record.source.unwrap_or_default(),
            record.result,
        ]);
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_they_can_be_typed() {
        let shown =
            |argv: &[&str]| typed(&argv.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        assert_eq!(shown(&["ls", "-l", "/tmp"]), "ls -l /tmp");
        assert_eq!(shown(&["sh", "-c", "echo it's"]), r"sh -c 'echo it'\''s'");
        assert_eq!(shown(&["x", ""]), "x ''");
    }
}
