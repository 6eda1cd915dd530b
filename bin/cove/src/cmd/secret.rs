//! Secrets. A value is never an argument: those are seen by every process of the machine.

use std::io::{IsTerminal, Read};
use std::path::Path;

use cove_api::PageQuery;
use cove_api::secret::{Secret, SecretBudget, SetSecret};
use cove_client::Client;

use crate::args::SecretCommand;
use crate::output::{self, Table};
use crate::report::CliError;
use crate::{terminal, units};

/// More than a value may have, with its line end.
const INPUT_MAX: u64 = 64 * 1024;

pub async fn run(client: &Client, command: SecretCommand, json: bool) -> Result<(), CliError> {
    match command {
        SecretCommand::Set {
            name,
            hosts,
            usage,
            ask,
            limits,
            file,
        } => {
            let value = read_value(&name, file.as_deref())?;
            let set = SetSecret {
                name,
                value,
                hosts,
                usage,
                ask,
                limits,
            };
            let secret = client.set_secret(&set).await?;
            tell_missing(&secret.hosts_pending);
            match json {
                true => output::json(&secret),
                false => output::line(&format!("{} version {}", secret.name, secret.version)),
            }
        }
        SecretCommand::Ls => list(client, json).await,
        SecretCommand::Uses { name } => {
            let uses = client.secret_uses(&name).await?.items;
            if json {
                return output::json(&uses);
            }
            let mut table = Table::new(&["SANDBOX", "USES", "LAST", "BUDGETS"]);
            for used in uses {
                table.row([
                    used.sandbox,
                    used.uses.to_string(),
                    units::ago(used.last_used_at),
                    budgets(&used.budgets),
                ]);
            }
            table.print()
        }
        SecretCommand::Rm { names } => {
            for name in names {
                let removed = client.remove_secret(&name).await?;
                tell_missing(&removed.hosts_pending);
                output::done("deleted", &name, json)?;
            }
            Ok(())
        }
        SecretCommand::Rotate => {
            let rotated = client.rotate_secret_keys().await?;
            match json {
                true => output::json(&rotated),
                false => output::line(&format!("{} organisations", rotated.organisations)),
            }
        }
    }
}

fn tell_missing(hosts: &[String]) {
    if !hosts.is_empty() {
        let hosts = crate::report::printable(&hosts.join(", "));
        eprintln!(
            "warning: not in force yet on {hosts}: the server cannot reach them and tries again"
        );
    }
}

fn read_value(name: &str, file: Option<&Path>) -> Result<String, CliError> {
    let stdin = std::io::stdin();
    let mut text = String::new();
    let read =
        |reader: &mut dyn Read, text: &mut String| reader.take(INPUT_MAX).read_to_string(text);
    match file {
        Some(path) if path != Path::new("-") => {
            let failed = |error| CliError::io(format!("cannot read {}", path.display()), error);
            let mut file = std::fs::File::open(path).map_err(failed)?;
            read(&mut file, &mut text).map_err(failed)?;
        }
        None if stdin.is_terminal() => text = terminal::hidden_line(&format!("Value of {name}: "))?,
        _ => {
            let failed = |error| CliError::io("cannot read the value".to_owned(), error);
            read(&mut stdin.lock(), &mut text).map_err(failed)?;
        }
    }
    // Files and `echo` end with a line end that is no part of the value.
    let value = text.strip_suffix('\n').unwrap_or(&text);
    Ok(value.strip_suffix('\r').unwrap_or(value).to_owned())
}

pub async fn all(client: &Client) -> Result<Vec<Secret>, CliError> {
    let mut query = PageQuery::default();
    let mut all = Vec::new();
    loop {
        let page = client.secrets(&query).await?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(all),
        }
    }
}

async fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let all = all(client).await?;
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&[
        "NAME",
        "VERSION",
        "HOSTS",
        "USE",
        "ASKS",
        "SET",
        "LAST USED",
        "BUDGETS",
    ]);
    for secret in all {
        table.row([
            secret.name,
            secret.version.to_string(),
            secret.hosts.join(" "),
            secret.usage,
            if secret.ask { "yes" } else { "no" }.to_owned(),
            units::ago(secret.updated_at),
            secret
                .last_used_at
                .map_or_else(|| "never".into(), units::ago),
            budgets(&secret.budgets),
        ]);
    }
    table.print()
}

/// Like `3/1000 requests per day`.
fn budgets(budgets: &[SecretBudget]) -> String {
    let each = budgets.iter().map(|it| {
        let used = it.used.map_or_else(String::new, |used| format!("{used}/"));
        format!(
            "{used}{} {} per {}",
            it.max,
            it.of.as_str(),
            it.per.as_str()
        )
    });
    each.collect::<Vec<_>>().join(", ")
}
