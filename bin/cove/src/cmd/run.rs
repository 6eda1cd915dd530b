//! `cove run`: a sandbox for one command.

use cove_client::Client;

use super::making;
use super::{exec, shell};
use crate::args::RunArgs;
use crate::args::work::CommandOptions;
use crate::output;
use crate::report::CliError;

/// A sandbox that nobody uses for this long is deleted by the server: this program may be killed before it can.
const ABANDONED_AFTER_S: u64 = 30;

pub async fn run(client: &Client, args: &RunArgs, json: bool) -> Result<u8, CliError> {
    let mut create = args.options.request(Some(&args.image));
    create
        .labels
        .entry("cove.run".into())
        .or_insert_with(|| "1".into());
    if !args.keep {
        let lifecycle = create.lifecycle.get_or_insert_with(Default::default);
        lifecycle
            .delete_after_s
            .get_or_insert(Some(ABANDONED_AFTER_S));
    }
    // A terminal is asked for before anything is made that would have to be removed again.
    let timeout_ms = args.timeout.map(|seconds| seconds.saturating_mul(1000));
    let options = CommandOptions::default();
    let terminal = if args.tty {
        Some(shell::terminal_process(
            &options,
            None,
            Some(args.argv.clone()),
            timeout_ms,
        )?)
    } else {
        None
    };
    let sandbox = making::make(client, &create, json).await?;
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
    if args.keep && json {
        output::json_line(&serde_json::json!({ "type": "kept", "sandbox": sandbox.id }))?;
    } else if args.keep {
        eprintln!("kept as {}", sandbox.id);
    } else if let Err(error) = client.delete_sandbox(&sandbox.id).await {
        // What the command did matters more than this; both are reported.
        eprintln!(
            "cove: the sandbox {} could not be deleted: {error}",
            sandbox.id
        );
    }
    result
}
