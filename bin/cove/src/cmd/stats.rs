//! `cove stats`: what sandboxes use now, once or until interrupted.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use cove_api::ErrorCode;
use cove_api::host::Metrics;
use cove_api::sandbox::{ListSandboxes, Sandbox, State};
use cove_client::Client;

use crate::args::StatsArgs;
use crate::output::{self, Table};
use crate::report::CliError;
use crate::units;

/// Between two rounds of a live display.
const ROUND: Duration = Duration::from_secs(1);

/// A sandbox and its figures.
struct Row {
    id: String,
    shown: String,
    metrics: Metrics,
}

/// CPU time at an earlier moment, to compute the share of the last round.
type Earlier = HashMap<String, (Instant, u64)>;

pub async fn run(client: &Client, args: StatsArgs, json: bool) -> Result<(), CliError> {
    let terminal = std::io::stdout().is_terminal() && !json;
    let live = args.follow || (terminal && !args.once);
    let mut earlier = Earlier::new();
    let mut drawn = 0;
    loop {
        let rows = round(client, &args.sandboxes).await?;
        if json {
            let all: Vec<_> = rows
                .iter()
                .map(|row| serde_json::json!({ "sandbox": row.shown, "id": row.id, "metrics": row.metrics }))
                .collect();
            match live {
                true => output::json_line(&all)?,
                false => output::json(&all)?,
            }
        } else {
            let text = table(&rows, &earlier).render(false);
            let before = match terminal && drawn > 0 {
                // Over the table of the round before.
                true => format!("\x1b[{drawn}A\x1b[J"),
                false => String::new(),
            };
            output::write(format!("{before}{text}").as_bytes())?;
            drawn = text.lines().count();
        }
        if !live {
            return Ok(());
        }
        let now = Instant::now();
        earlier = rows
            .into_iter()
            .map(|row| (row.id, (now, row.metrics.cpu_usec)))
            .collect();
        tokio::time::sleep(ROUND).await;
    }
}

/// One that is gone by the time it is asked about is left out, unless it was named.
async fn round(client: &Client, named: &[String]) -> Result<Vec<Row>, CliError> {
    let mut rows = Vec::new();
    for name in named {
        let metrics = client.metrics(name).await?;
        rows.push(Row {
            id: name.clone(),
            shown: name.clone(),
            metrics,
        });
    }
    if !named.is_empty() {
        return Ok(rows);
    }
    for sandbox in running(client).await? {
        match client.metrics(&sandbox.id).await {
            Ok(metrics) => rows.push(Row {
                shown: sandbox.name.unwrap_or_else(|| sandbox.id.clone()),
                id: sandbox.id,
                metrics,
            }),
            Err(error)
                if matches!(
                    error.code(),
                    Some(ErrorCode::NotFound | ErrorCode::Conflict)
                ) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rows)
}

fn table(rows: &[Row], earlier: &Earlier) -> Table {
    let mut table = Table::new(&[
        "SANDBOX",
        "CPU",
        "CPU TIME",
        "MEMORY",
        "PEAK",
        "LIMIT",
        "PROCESSES",
        "DISK",
    ]);
    for row in rows {
        let metrics = &row.metrics;
        let share = earlier.get(&row.id).map_or_else(
            || "-".to_owned(),
            |(at, before)| {
                let used = metrics.cpu_usec.saturating_sub(*before) as f64 / 1e6;
                format!("{:.0} %", used / at.elapsed().as_secs_f64() * 100.0)
            },
        );
        table.row([
            row.shown.clone(),
            share,
            format!("{:.2} s", metrics.cpu_usec as f64 / 1e6),
            units::bytes(metrics.memory_bytes),
            units::bytes(metrics.memory_peak_bytes),
            units::bytes(metrics.memory_limit_bytes),
            metrics.pids.to_string(),
            units::bytes(metrics.disk_bytes),
        ]);
    }
    table
}

async fn running(client: &Client) -> Result<Vec<Sandbox>, CliError> {
    let mut query = ListSandboxes {
        state: Some(State::Running),
        ..ListSandboxes::default()
    };
    let mut all = Vec::new();
    loop {
        let page = client.list_sandboxes(&query).await?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(all),
        }
    }
}
