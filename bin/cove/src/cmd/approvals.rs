//! Approvals: what waits, and the decision.

use cove_api::approval::{ApprovalDecision, DecideApproval};
use cove_client::Client;

use crate::args::ApprovalsCommand;
use crate::output::{self, Table};
use crate::report::{CliError, printable};
use crate::units;

pub async fn run(client: &Client, command: ApprovalsCommand, json: bool) -> Result<(), CliError> {
    let (id, decision, time) = match command {
        ApprovalsCommand::Ls => return list(client, json).await,
        ApprovalsCommand::Approve { approval, time } => (approval, ApprovalDecision::Approve, time),
        ApprovalsCommand::Deny { approval } => (approval, ApprovalDecision::Deny, None),
    };
    let decide = DecideApproval {
        decision,
        // The server says what is too long.
        for_seconds: time.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
    };
    client.decide_approval(&id, &decide).await?;
    let done = match decision {
        ApprovalDecision::Approve => "approved",
        ApprovalDecision::Deny => "denied",
    };
    output::done(done, &id, json)
}

async fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let all = client.approvals().await?.items;
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&[
        "ID", "STATE", "SANDBOX", "SECRET", "REQUEST", "BODY", "ASKED",
    ]);
    for one in all {
        let body = match (one.body_sha256, one.body_bytes) {
            (Some(_), Some(0)) => "none".to_owned(),
            (Some(sha256), Some(bytes)) => {
                let start: String = sha256.chars().take(12).collect();
                format!("{bytes} bytes, {start}")
            }
            _ => "not read".to_owned(),
        };
        table.row([
            one.id,
            one.state.as_str().to_owned(),
            one.sandbox,
            one.secret,
            printable(&format!("{} {}{}", one.method, one.host, one.path)).to_string(),
            body,
            units::ago(one.asked_at),
        ]);
    }
    table.print()
}
