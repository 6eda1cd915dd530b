//! `cove doctor`: what the host has and lacks, from the server; `--sweep`, which removes what nobody owns
//! when no server runs to do it by itself; and `--repair-pool`.

pub mod repair;

use cove_api::host::{Finding, Level};
use cove_client::{Client, ClientError};
use cove_engine::Engine;

use crate::args::Global;
use crate::connect;
use crate::output::{self, Table};
use crate::report::CliError;

pub async fn run(global: &Global, sweep: bool) -> Result<u8, CliError> {
    if sweep {
        return self::sweep(global).await.map(|()| 0);
    }
    let client = connect::client(global)?;
    let mut runners = match client.runners().await {
        Ok(page) => page.items,
        Err(error @ ClientError::Connect { .. }) => {
            return Err(CliError::hinted(
                format!("{error}: no server to ask"),
                "`cove serve` checks the host when it starts and says what is missing",
            ));
        }
        Err(error) => return Err(error.into()),
    };
    let audit = self::audit(&client).await;
    if let Some(runner) = runners.first_mut() {
        runner.findings.push(audit);
    }
    if global.json {
        output::json(&runners)?;
    } else {
        for runner in &runners {
            print(&runner.findings)?;
        }
    }
    let broken = runners
        .iter()
        .flat_map(|runner| &runner.findings)
        .any(|finding| finding.level == Level::Error);
    Ok(u8::from(broken))
}

/// Whether the audit records of all organisations are still what was recorded.
async fn audit(client: &Client) -> Finding {
    let finding = |level, message: String, fix: Option<&str>| Finding {
        level,
        name: "audit".into(),
        message,
        fix: fix.map(Into::into),
    };
    let chains = match super::audit::chains(client).await {
        Ok(chains) => chains,
        Err(error) => {
            let message = format!("the chains of audit records cannot be checked: {error}");
            return finding(Level::Warning, message, None);
        }
    };
    let broken: Vec<String> = chains
        .iter()
        .filter_map(|chain| Some(format!("{}: {}", chain.org, chain.broken.as_ref()?)))
        .collect();
    if broken.is_empty() {
        let records: u64 = chains.iter().filter_map(|chain| chain.verified).sum();
        let message = format!(
            "{records} records of {} organisations, unchanged",
            chains.len()
        );
        return finding(Level::Ok, message, None);
    }
    finding(
        Level::Error,
        broken.join("; "),
        Some("the database was changed; compare it with an export or a backup"),
    )
}

fn print(findings: &[Finding]) -> Result<(), CliError> {
    let mut table = Table::new(&["STATE", "CHECK", "FOUND"]);
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        };
        let mut found = finding.message.clone();
        if let Some(fix) = &finding.fix {
            found.push_str("; ");
            found.push_str(fix);
        }
        table.row([mark.into(), finding.name.clone(), found]);
    }
    table.print()
}

/// Keeps servers away from a data directory; nothing when one has it.
pub fn lock(data_dir: &std::path::Path) -> Result<Option<std::fs::File>, CliError> {
    if !data_dir.is_dir() {
        return Err(CliError::usage(format!(
            "{} does not exist",
            data_dir.display()
        )));
    }
    let lock = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(data_dir.join(crate::serve::LOCK_FILE))
        .map_err(|source| CliError::io("cannot lock the data directory", source))?;
    Ok(lock.try_lock().is_ok().then_some(lock))
}

/// Opening an engine takes over what runs and removes what was half made; closing it leaves the rest.
async fn sweep(global: &Global) -> Result<(), CliError> {
    let settings = crate::serve::settings(global)?;
    let _lock = lock(&settings.data_dir)?.ok_or_else(|| {
        CliError::hinted(
            "a server runs and sweeps by itself",
            "restart it if something looks left behind",
        )
    })?;
    let engine = Engine::open(settings.engine(), settings.tiers())
        .await
        .map_err(|error| CliError::usage(format!("cannot sweep: {error}")))?;
    engine.close().await;
    match global.json {
        true => output::json(&serde_json::json!({ "swept": settings.data_dir })),
        false => output::line("swept"),
    }
}
