//! `cove run`: a sandbox for one command.

use std::net::Ipv4Addr;

use cove_api::process::StartProcess;
use cove_api::sandbox::CreateSandbox;
use cove_client::Client;

use super::making;
use super::{exec, forward, shell};
use crate::args::RunArgs;
use crate::args::work::CommandOptions;
use crate::output;
use crate::report::CliError;
use crate::terminal;

/// A sandbox that nobody uses for this long is deleted by the server: this program may be killed before it can.
const ABANDONED_AFTER_S: u64 = 30;

pub async fn run(client: &Client, args: &RunArgs, json: bool) -> Result<u8, CliError> {
    if args.detach && !args.publish.is_empty() {
        return Err(CliError::hinted(
            "--publish ends with this command, and with --detach that is at once",
            "run without --publish, then forward the port: `cove port-forward SANDBOX PORT`",
        ));
    }
    let terminal = !args.detach && !json && terminal::is_interactive();
    let tty = args.tty || (args.argv.is_empty() && terminal);
    if args.argv.is_empty() && !tty {
        return Err(CliError::hinted(
            "no command to run",
            "`cove run IMAGE -- COMMAND` runs one; `cove run -it IMAGE` opens a shell; `cove create IMAGE` makes a \
             sandbox that stays",
        ));
    }
    let mut create = args.options.request(Some(&args.image));
    create
        .labels
        .entry("cove.run".into())
        .or_insert_with(|| "1".into());
    let timeout_ms = args.timeout.map(|seconds| seconds.saturating_mul(1000));
    if args.detach {
        return detached(client, args, &create, timeout_ms, json).await;
    }
    if !args.keep {
        let lifecycle = create.lifecycle.get_or_insert_with(Default::default);
        lifecycle
            .delete_after_s
            .get_or_insert(Some(ABANDONED_AFTER_S));
    }
    // Terminal and ports are asked for before anything is made that would have to be removed again.
    let options = CommandOptions::default();
    let terminal = if tty {
        let argv = (!args.argv.is_empty()).then(|| args.argv.clone());
        let command = argv.is_none().then(|| shell::LOGIN_SHELL.to_owned());
        Some(shell::terminal_process(
            &options, command, argv, timeout_ms,
        )?)
    } else {
        None
    };
    let ports = forward::listen(&args.publish, Ipv4Addr::LOCALHOST.into()).await?;
    let sandbox = making::make(client, &create, json).await?;
    for (address, inside) in ports.places() {
        // Standard output is the command's.
        match json {
            true => output::json_line(&serde_json::json!({
                "type": "forwarded", "local": address.to_string(), "port": inside,
            }))?,
            false => eprintln!("{address} leads to port {inside}"),
        }
    }
    let forwarding = ports.serve(client, &sandbox.id);
    let result = match terminal {
        Some(start) => shell::start_and_attach(client, &sandbox.id, &start, None).await,
        None => {
            let mut request = exec::request(&options, timeout_ms);
            request.argv = Some(args.argv.clone());
            request.stdin_open = args.interactive;
            // A command that nobody waits for any more would keep the sandbox from being idle.
            request.kill_on_disconnect = !args.keep;
            exec::foreground(client, &sandbox.id, &request, json).await
        }
    };
    drop(forwarding);
    if args.keep && json {
        output::json_line(&serde_json::json!({ "type": "kept", "sandbox": sandbox.id }))?;
    } else if args.keep {
        eprintln!("kept as {}", sandbox.id);
    } else {
        delete(client, &sandbox.id).await;
    }
    result
}

/// What the command did matters more than a failure here; both are reported.
async fn delete(client: &Client, sandbox: &str) {
    if let Err(error) = client.delete_sandbox(sandbox).await {
        eprintln!("cove: the sandbox {sandbox} could not be deleted: {error}");
    }
}

/// The sandbox stays; one whose command could not be started does not.
async fn detached(
    client: &Client,
    args: &RunArgs,
    create: &CreateSandbox,
    timeout_ms: Option<u64>,
    json: bool,
) -> Result<u8, CliError> {
    let sandbox = making::make(client, create, json).await?;
    let start = StartProcess {
        argv: Some(args.argv.clone()),
        timeout_ms,
        ..StartProcess::default()
    };
    let process = match client.start_process(&sandbox.id, &start).await {
        Ok(process) => process,
        Err(error) => {
            delete(client, &sandbox.id).await;
            return Err(error.into());
        }
    };
    if json {
        let kept = serde_json::json!({ "sandbox": sandbox.id, "process": process.id });
        return output::json(&kept).map(|()| 0);
    }
    output::note(&format!(
        "Output: cove logs {0}   Delete: cove rm {0}",
        sandbox.id
    ));
    output::line(&sandbox.id).map(|()| 0)
}
