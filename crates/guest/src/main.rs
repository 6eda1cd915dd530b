//! PID 1 of a sandbox: owns its processes and their output, and answers the host's calls.
//!
//! Started with a listening unix socket as descriptor 3 and an empty environment. One thread runs
//! everything that only waits; what may block on a disk runs on short-lived threads of its own.
//!
//! With the one argument `sftp` the program is not PID 1 but the SFTP server of one session.

use std::path::PathBuf;
use std::process::ExitCode;

mod account;
mod call;
mod failure;
mod figures;
mod files;
mod ports;
mod process;
mod quiesce;
mod relay;
mod server;
mod setup;
mod sftp;
mod shutdown;
mod state;
mod thread;
mod watched;

/// Where the sandbox keeps what belongs to the guest.
const ROOT_FILES: &str = "/.cove";

struct Options {
    root_files: PathBuf,
    /// Bind the socket under `root_files` instead of taking descriptor 3.
    listen: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        root_files: PathBuf::from(ROOT_FILES),
        listen: false,
    };
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--listen") => options.listen = true,
            Some("--root-files") => {
                options.root_files = arguments
                    .next()
                    .ok_or("--root-files needs a directory")?
                    .into();
            }
            _ => return Err(format!("unknown argument {argument:?}")),
        }
    }
    Ok(options)
}

fn run() -> Result<(), String> {
    let options = options()?;
    setup::prepare_process()?;
    let listener = setup::listener(options.listen.then_some(options.root_files.as_path()))?;
    let children = setup::signals(libc::SIGCHLD)?;
    let wake = setup::signals(quiesce::WAKE)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| format!("no event loop: {error}"))?;
    let state = state::State::new(options.root_files);
    if !options.listen && std::process::id() == 1 {
        quiesce::identity::claim(&state.hostname.borrow());
    }
    tokio::task::LocalSet::new()
        .block_on(&runtime, server::serve(state, listener, children, wake))
        .map_err(|error| format!("cannot serve: {error}"))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments
        .next()
        .is_some_and(|first| first == sftp::ARGUMENT)
    {
        return sftp::run();
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cove-guest: {message}");
            ExitCode::FAILURE
        }
    }
}
