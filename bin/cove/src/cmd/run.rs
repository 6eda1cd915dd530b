//! `cove run`: a sandbox for one command.

use cove_client::Client;

use super::making::{self, Wanted};
use super::{exec, shell, stdin};
use crate::args::RunArgs;
use crate::args::work::CommandOptions;
use crate::report::CliError;

pub async fn run(client: &Client, args: &RunArgs) -> Result<u8, CliError> {
    let mut create = args.options.request(Some(&args.image));
    create
        .labels
        .entry("cove.run".into())
        .or_insert_with(|| "1".into());
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
    let wanted = Wanted {
        image: args.image.clone(),
        certain: Wanted::is_reference(&args.image),
        maybe_name: false,
    };
    let sandbox = making::make(client, &create, Some(&wanted), false).await?;
    let result = match terminal {
        Some(start) => shell::start_and_attach(client, &sandbox.id, &start, None).await,
        None => {
            let mut request = exec::request(&options, timeout_ms);
            request.argv = Some(args.argv.clone());
            request.stdin_open = args.interactive || stdin::is_fed();
            exec::foreground(client, &sandbox.id, &request).await
        }
    };
    if args.keep {
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
