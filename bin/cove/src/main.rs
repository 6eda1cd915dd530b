//! The one binary: the server in its roles, and every command of the command line.
//!
//! Arguments are parsed before anything else is set up, so that a command that only prints costs a
//! few milliseconds. Client commands run on one thread; the server builds its own runtime.
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod colour;
mod complete;
mod connect;
mod contexts;
mod habits;
mod output;
mod report;
mod serve;
mod terminal;
mod units;

use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use args::{Cli, Command};
use report::CliError;

/// The version, and what it was built from.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("COVE_BUILD"), ")");

fn main() -> ExitCode {
    if cmd::ssh::answered() {
        return ExitCode::SUCCESS;
    }
    complete::answer();
    let (cli, connection) = match parse() {
        Ok(parsed) => parsed,
        Err(error) => return ExitCode::from(report::misused(&error, asks_for_json())),
    };
    let json = cli.global.json;
    let code = match run(cli, connection) {
        Ok(code) => code,
        Err(error) => report::print(&error, json),
    };
    ExitCode::from(code)
}

/// The command line, and which option of a connection it has. The environment does not count.
fn parse() -> Result<(Cli, Option<&'static str>), clap::Error> {
    let mut command = Cli::command();
    let arguments: Vec<_> = std::env::args_os().collect();
    let matches = command
        .try_get_matches_from_mut(&arguments)
        .map_err(|error| habits::explained(error, &command, &arguments))?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok((cli, connection_option(&matches)))
}

fn connection_option(matches: &ArgMatches) -> Option<&'static str> {
    let mut deepest = matches;
    while let Some((_, below)) = deepest.subcommand() {
        deepest = below;
    }
    let options = [
        ("url", "--url"),
        ("api_key", "--api-key"),
        ("ca_file", "--ca-file"),
        ("context", "--context"),
    ];
    let given = |id| deepest.value_source(id) == Some(ValueSource::CommandLine);
    let found = options.into_iter().find(|(id, _)| given(id));
    found.map(|(_, option)| option)
}

/// Whether `--json` was given, where the rest of the command line could not be read.
fn asks_for_json() -> bool {
    let own = std::env::args_os().skip(1).take_while(|arg| arg != "--");
    own.into_iter().any(|arg| arg == "--json")
}

/// Commands whose output is a program's or a file's own.
fn without_json(command: &Command) -> Option<&'static str> {
    match command {
        Command::Serve(_) => Some("cove serve"),
        Command::Control(_) => Some("cove control"),
        Command::Node(args::NodeCommand::Run(_)) => Some("cove node run"),
        Command::Shell(_) => Some("cove shell"),
        Command::Ssh(args) if !args.token && !args.revoke => Some("cove ssh"),
        Command::Exec(args) if args.tty => Some("cove exec --tty"),
        Command::Run(args) if args.tty => Some("cove run --tty"),
        Command::Mcp => Some("cove mcp"),
        Command::Completion { .. } => Some("cove completion"),
        Command::Man { .. } => Some("cove man"),
        _ => None,
    }
}

/// Commands that connect to no server by these options.
fn without_connection(command: &Command) -> Option<&'static str> {
    match command {
        Command::Serve(_) => Some("cove serve"),
        Command::Control(_) => Some("cove control"),
        Command::Node(args::NodeCommand::Run(_)) => Some("cove node run"),
        Command::Context(_) => Some("cove context"),
        Command::Destroy(_) => Some("cove destroy"),
        Command::Config => Some("cove config"),
        Command::Completion { .. } => Some("cove completion"),
        Command::Man { .. } => Some("cove man"),
        _ => None,
    }
}

fn run(cli: Cli, connection: Option<&str>) -> Result<u8, CliError> {
    if let (Some(option), Some(command)) = (connection, without_connection(&cli.command)) {
        return Err(CliError::usage(format!("{command} takes no {option}")));
    }
    if cli.global.json
        && let Some(command) = without_json(&cli.command)
    {
        return Err(CliError::no_json(command));
    }
    match cli.command {
        Command::Serve(args) => serve::run(args, &cli.global),
        Command::Control(args) => serve::run_control(&args, &cli.global),
        Command::Node(args::NodeCommand::Run(args)) => serve::run_node(&args, &cli.global),
        Command::Config => cmd::meta::config(cli.global.json),
        Command::Completion { shell } => cmd::meta::completion(shell),
        Command::Man { directory } => cmd::meta::man(directory.as_deref()),
        command => client(command, &cli.global),
    }
}

fn client(command: Command, global: &args::Global) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::Runtime)?;
    let result = runtime.block_on(cmd::run(command, global));
    // A thread may still wait for the terminal's next key; nobody needs what it reads.
    runtime.shutdown_background();
    result
}
