//! Completion of sandboxes' names in the shell. The script that `cove completion` prints asks this program, which
//! asks the server; where that fails or takes long, nothing is completed and nothing is printed.

use std::ffi::OsStr;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};
use cove_api::sandbox::ListSandboxes;

use crate::args::{Cli, Global};
use crate::connect;
use crate::report::CliError;

/// Longer than this nobody waits for a completion.
const ANSWER_WITHIN: Duration = Duration::from_millis(800);
/// The variable by which a shell asks for completions.
const VARIABLE: &str = "COMPLETE";
const PROGRAM: &str = "cove";

/// Where a shell asks for completions, that is all this program does.
pub fn answer() {
    if std::env::var_os(VARIABLE).is_some() {
        CompleteEnv::with_factory(command).var(VARIABLE).complete();
    }
}

/// The script for a shell to load.
pub fn script(shell: clap_complete::Shell) -> Result<Vec<u8>, CliError> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let found = shells.completer(&name);
    let shell = found.ok_or_else(|| CliError::usage(format!("there is no script for {name}")))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
        .map_err(|source| CliError::io("cannot write the script", source))?;
    Ok(script)
}

/// The command line, with the arguments that take a sandbox.
fn command() -> clap::Command {
    knowing(Cli::command())
}

fn knowing(command: clap::Command) -> clap::Command {
    let fork = command.get_name() == "fork";
    let copy = command.get_name() == "cp";
    command
        .mut_args(|arg| match arg.get_id().as_str() {
            "sandbox" | "sandboxes" => arg.add(ArgValueCompleter::new(names)),
            "source" if fork => arg.add(ArgValueCompleter::new(names)),
            "sources" | "target" if copy => arg.add(ArgValueCompleter::new(places)),
            _ => arg,
        })
        .mut_subcommands(knowing)
}

fn names(typed: &OsStr) -> Vec<CompletionCandidate> {
    matching(typed).map(CompletionCandidate::new).collect()
}

/// What `cove cp` takes: files here, and sandboxes with a colon.
fn places(typed: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = PathCompleter::any().complete(typed);
    all.extend(matching(typed).map(|name| CompletionCandidate::new(name + ":")));
    all
}

fn matching(typed: &OsStr) -> impl Iterator<Item = String> {
    let typed = typed.to_string_lossy().into_owned();
    let all = sandboxes().unwrap_or_default();
    all.into_iter().filter(move |name| name.starts_with(&typed))
}

/// Names, and ids of those that have none.
fn sandboxes() -> Option<Vec<String>> {
    let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let global = Global {
        url: text("COVE_URL"),
        api_key: text("COVE_API_KEY"),
        ca_file: text("COVE_CA_FILE").map(Into::into),
        context: text("COVE_CONTEXT"),
        data_dir: text("COVE_DATA_DIR").map(Into::into),
        json: false,
    };
    let client = connect::client(&global).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    let query = ListSandboxes {
        limit: Some(cove_limits::PAGE_MAX),
        ..ListSandboxes::default()
    };
    let page = runtime.block_on(async {
        tokio::time::timeout(ANSWER_WITHIN, client.list_sandboxes(&query)).await
    });
    let items = page.ok()?.ok()?.items;
    Some(
        items
            .into_iter()
            .map(|sandbox| sandbox.name.unwrap_or(sandbox.id))
            .collect(),
    )
}
