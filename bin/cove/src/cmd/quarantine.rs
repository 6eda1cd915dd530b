//! `cove quarantine`: what the host keeps and nobody can use.

use cove_api::quarantine::{AdoptQuarantined, QuarantinedKind};
use cove_client::Client;

use crate::args::QuarantineCommand;
use crate::output::{self, Table};
use crate::report::CliError;

pub async fn run(client: &Client, command: QuarantineCommand, json: bool) -> Result<(), CliError> {
    match command {
        QuarantineCommand::Ls => list(client, json).await,
        QuarantineCommand::Adopt { id, org } => {
            client
                .adopt_quarantined(&id, &AdoptQuarantined { org })
                .await?;
            output::done("adopted", &id, json)
        }
        QuarantineCommand::Rm { ids } => {
            for id in ids {
                client.delete_quarantined(&id).await?;
                output::done("deleted", &id, json)?;
            }
            Ok(())
        }
    }
}

async fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let found = client.quarantine().await?.items;
    if json {
        return output::json(&found);
    }
    let mut table = Table::new(&["ID", "KIND", "STATE", "NAME", "OWNER", "CREATED", "WHY"]);
    for entry in found {
        let kind = match entry.kind {
            QuarantinedKind::Sandbox => "sandbox",
            QuarantinedKind::Snapshot => "snapshot",
            QuarantinedKind::Volume => "volume",
        };
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        table.row([
            entry.id,
            kind.into(),
            text(entry.state),
            text(entry.name),
            text(entry.org),
            entry.created_at.to_string(),
            entry.reason,
        ]);
    }
    table.print()
}
