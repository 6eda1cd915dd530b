//! `cove egress`: what a sandbox's network policy decided.

use clap::Args;
use cove_api::egress::{EgressEntry, EgressLine, EgressQuery, EgressVerdict};
use cove_client::Client;

use crate::output;
use crate::report::{CliError, printable};
use crate::units;

/// Entries asked for at once.
const PAGE: u32 = cove_limits::PAGE_MAX;

#[derive(Debug, Clone, Args)]
pub struct EgressArgs {
    pub sandbox: String,
    /// Wait for new entries
    #[arg(long, short)]
    pub follow: bool,
    /// Only denied connections
    #[arg(long)]
    pub denied: bool,
    /// Only this name and names below it
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only after this entry
    #[arg(long, value_name = "ID")]
    pub after: Option<u64>,
}

pub async fn run(client: &Client, args: &EgressArgs, json: bool) -> Result<(), CliError> {
    let mut query = EgressQuery {
        after: args.after,
        limit: Some(PAGE),
        verdict: args.denied.then_some(EgressVerdict::Denied),
        name: args.name.clone(),
        ..EgressQuery::default()
    };
    if args.follow {
        let mut lines = client.follow_egress(&args.sandbox, &query).await?;
        while let Some(line) = lines.next().await? {
            match line {
                _ if json => output::json_line(&line)?,
                EgressLine::Entry(entry) => print(&entry)?,
                EgressLine::Lost => {
                    output::line("(some entries were dropped before they could be read)")?
                }
            }
        }
        return Ok(());
    }
    loop {
        let page = client.egress(&args.sandbox, &query).await?;
        if page.items.is_empty() {
            return Ok(());
        }
        for entry in &page.items {
            if json {
                output::json_line(entry)?;
            } else {
                print(entry)?;
            }
        }
        query.after = Some(page.next);
    }
}

fn print(entry: &EgressEntry) -> Result<(), CliError> {
    let verdict = match entry.verdict {
        EgressVerdict::Allowed => "allowed",
        EgressVerdict::Denied => "DENIED",
    };
    let mut to = entry.name.clone().unwrap_or_default();
    if let Some(address) = &entry.address {
        let space = if to.is_empty() { "" } else { " " };
        to = format!("{to}{space}{address}");
    }
    if let Some(port) = entry.port {
        to = format!("{to}:{port}");
    }
    let carried = if entry.sent_bytes + entry.received_bytes > 0 {
        let (sent, received) = (entry.sent_bytes, entry.received_bytes);
        format!(
            "  {} out, {} in",
            units::bytes(sent),
            units::bytes(received)
        )
    } else {
        String::new()
    };
    // Names come from inside the sandbox.
    let line = format!("{to}  {}{carried}", entry.rule);
    output::line(&format!(
        "{}  {verdict:<7}  {:<5}  {}",
        entry.at,
        entry.protocol.as_str(),
        printable(&line)
    ))
}
