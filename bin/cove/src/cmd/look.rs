//! Commands that only look.

use std::collections::VecDeque;

use cove_api::event::{Event, EventKind};
use cove_api::port::SharePort;
use cove_api::process::{OutputChunk, OutputEvent, OutputQuery, Process};
use cove_api::{PageQuery, Timestamp};
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
        since: args.since,
        timestamps: args.timestamps,
        ..OutputQuery::default()
    };
    let mut printer = Printer {
        timestamps: args.timestamps,
        json,
        begins: [true, true],
    };
    if let Some(count) = args.tail {
        let seen = tail(client, &args.sandbox, &process, &query, count, &mut printer).await?;
        if !args.follow {
            return Ok(());
        }
        [query.stdout_from, query.stderr_from] = seen;
    }
    let mut lines = client.output(&args.sandbox, &process, &query).await?;
    while let Some(event) = lines.next().await? {
        match event {
            OutputEvent::Stdout(chunk) => printer.print(0, chunk)?,
            OutputEvent::Stderr(chunk) => printer.print(1, chunk)?,
            event if json => output::json_line(&event)?,
            OutputEvent::Error { error } => return Err(CliError::usage(error.message)),
            OutputEvent::Started { .. } | OutputEvent::Exit(_) => {}
        }
    }
    Ok(())
}

/// Prints output, on request with the time in front of each line.
struct Printer {
    timestamps: bool,
    json: bool,
    /// Whether the next byte of each stream begins a line.
    begins: [bool; 2],
}

impl Printer {
    fn print(&mut self, stream: usize, chunk: OutputChunk) -> Result<(), CliError> {
        if self.json {
            return output::json_line(&match stream {
                0 => OutputEvent::Stdout(chunk),
                _ => OutputEvent::Stderr(chunk),
            });
        }
        let chunk = match self.timestamps {
            true => self.dated(stream, chunk)?,
            false => chunk,
        };
        match stream {
            0 => exec::write_chunk(chunk, &mut std::io::stdout().lock()),
            _ => exec::write_chunk(chunk, &mut std::io::stderr().lock()),
        }
    }

    fn dated(&mut self, stream: usize, chunk: OutputChunk) -> Result<OutputChunk, CliError> {
        let (dropped, at) = (chunk.dropped, units::millis(chunk.at));
        let mut dated = Vec::new();
        for piece in bytes_of(chunk)?.split_inclusive(|byte| *byte == b'\n') {
            if self.begins[stream] {
                dated.extend_from_slice(at.as_bytes());
                dated.push(b' ');
            }
            dated.extend_from_slice(piece);
            self.begins[stream] = piece.ends_with(b"\n");
        }
        Ok(OutputChunk::new(0, dropped, &dated))
    }
}

fn bytes_of(chunk: OutputChunk) -> Result<Vec<u8>, CliError> {
    chunk
        .into_bytes()
        .ok_or_else(|| CliError::usage("the server sent output that cannot be read"))
}

/// Prints the last lines of the present output, and returns where each stream continues.
async fn tail(
    client: &Client,
    sandbox: &str,
    process: &str,
    query: &OutputQuery,
    count: usize,
    printer: &mut Printer,
) -> Result<[u64; 2], CliError> {
    let present = OutputQuery {
        follow: false,
        ..query.clone()
    };
    let mut lines = client.output(sandbox, process, &present).await?;
    let mut next = [0, 0];
    // Whole lines in the order they came, each with its stream and time; the last may be without an end.
    let mut kept: VecDeque<(usize, Option<Timestamp>, Vec<u8>)> = VecDeque::new();
    while let Some(event) = lines.next().await? {
        let (stream, chunk) = match event {
            OutputEvent::Stdout(chunk) => (0, chunk),
            OutputEvent::Stderr(chunk) => (1, chunk),
            OutputEvent::Error { error } => return Err(CliError::usage(error.message)),
            OutputEvent::Started { .. } | OutputEvent::Exit(_) => continue,
        };
        let (offset, at) = (chunk.offset, chunk.at);
        let bytes = bytes_of(chunk)?;
        next[stream] = offset.saturating_add(bytes.len() as u64);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match kept.back_mut() {
                Some((last, _, line)) if *last == stream && !line.ends_with(b"\n") => {
                    line.extend_from_slice(piece);
                }
                _ => kept.push_back((stream, at, piece.to_vec())),
            }
            while kept.len() > count {
                kept.pop_front();
            }
        }
    }
    for (stream, at, line) in kept {
        let chunk = OutputChunk {
            at,
            ..OutputChunk::new(0, 0, &line)
        };
        printer.print(stream, chunk)?;
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
    fn each_line_has_the_time_of_its_first_byte() {
        let mut printer = Printer {
            timestamps: true,
            json: false,
            begins: [true, true],
        };
        let mut text = |at, bytes: &[u8]| {
            let chunk = OutputChunk {
                at: Some(Timestamp::from_unix_ms(at)),
                ..OutputChunk::new(0, 0, bytes)
            };
            printer.dated(0, chunk).unwrap().text.unwrap()
        };
        assert_eq!(
            text(0, b"one\ntw"),
            "1970-01-01T00:00:00.000Z one\n1970-01-01T00:00:00.000Z tw"
        );
        assert_eq!(text(1, b"o\n"), "o\n");
        assert_eq!(text(2, b"\n"), "1970-01-01T00:00:00.002Z \n");
    }

    #[test]
    fn commands_are_shown_as_they_can_be_typed() {
        let shown =
            |argv: &[&str]| typed(&argv.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        assert_eq!(shown(&["ls", "-l", "/tmp"]), "ls -l /tmp");
        assert_eq!(shown(&["sh", "-c", "echo it's"]), r"sh -c 'echo it'\''s'");
        assert_eq!(shown(&["x", ""]), "x ''");
    }
}
