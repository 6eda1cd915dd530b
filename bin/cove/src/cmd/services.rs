//! Services: commands that come back with their sandbox.

use cove_api::service::{Service, ServiceState, StartService};
use cove_client::Client;

use crate::args::{ServiceCommand, StartServiceArgs};
use crate::output::{self, Table};
use crate::report::{self, CliError, printable};

pub async fn run(client: &Client, command: ServiceCommand, json: bool) -> Result<(), CliError> {
    match command {
        ServiceCommand::Start(args) => start(client, args, json).await,
        ServiceCommand::Ls { sandbox } => list(client, &sandbox, json).await,
        ServiceCommand::Rm { sandbox, names } => remove(client, &sandbox, &names, json).await,
    }
}

async fn start(client: &Client, args: StartServiceArgs, json: bool) -> Result<(), CliError> {
    let start = StartService {
        name: args.name,
        command: args.shell,
        argv: Some(args.argv).filter(|argv| !argv.is_empty()),
        cwd: args.options.workdir.clone(),
        env: args.options.variables(),
        user: args.options.user,
        restart: args.restart.into(),
    };
    let service = client.start_service(&args.sandbox, &start).await?;
    match json {
        true => output::json(&service),
        false => output::line(&service.process),
    }
}

async fn list(client: &Client, sandbox: &str, json: bool) -> Result<(), CliError> {
    let all = client.services(sandbox).await?.items;
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&[
        "NAME",
        "STATE",
        "RESTARTS",
        "LAST EXIT",
        "PROCESS",
        "COMMAND",
    ]);
    for one in &all {
        let words = one.argv.as_deref().unwrap_or_default().join(" ");
        let command = one.command.as_deref().unwrap_or(&words);
        table.row([
            printable(&one.name),
            state(one).to_owned(),
            one.restarts.to_string(),
            last(one),
            printable(&one.process),
            printable(command),
        ]);
    }
    table.print()
}

fn state(service: &Service) -> &'static str {
    match service.state {
        ServiceState::Pending => "pending",
        ServiceState::Running => "running",
        ServiceState::Waiting => "waiting",
        ServiceState::Ended => "ended",
    }
}

fn last(service: &Service) -> String {
    match (&service.error, &service.last_exit) {
        (Some(error), _) => printable(error),
        (None, Some(exit)) => exit.exit_code.to_string(),
        (None, None) => "-".to_owned(),
    }
}

async fn remove(
    client: &Client,
    sandbox: &str,
    names: &[String],
    json: bool,
) -> Result<(), CliError> {
    let mut failed = None;
    for name in names {
        match client.remove_service(sandbox, name).await {
            Ok(()) if json => output::json_line(&serde_json::json!({ "deleted": name }))?,
            Ok(()) => output::line(name)?,
            // The others are removed all the same; the last failure is reported.
            Err(error) => {
                if let Some(earlier) = failed.replace(CliError::from(error)) {
                    report::print(&earlier, json);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}
