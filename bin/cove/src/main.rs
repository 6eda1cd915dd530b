//! The one binary: the server in its roles, and every command of the command line.
//!
//! Arguments are parsed before anything else is set up, so that a command that only prints costs a
//! few milliseconds. Client commands run on one thread; the server builds its own runtime.
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod connect;
mod contexts;
mod output;
mod report;
mod serve;
mod terminal;
mod units;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use report::CliError;

/// The version, and what it was built from.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("COVE_BUILD"), ")");

fn main() -> ExitCode {
    if cmd::ssh::answered() {
        return ExitCode::SUCCESS;
    }
    let cli = Cli::parse();
    let json = cli.global.json;
    let code = match run(cli) {
        Ok(code) => code,
        Err(error) => report::print(&error, json),
    };
    ExitCode::from(code)
}

fn run(cli: Cli) -> Result<u8, CliError> {
    match cli.command {
        Command::Serve(args) => serve::run(args, &cli.global),
        Command::Config => cmd::meta::config(),
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
