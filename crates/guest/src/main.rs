//! PID 1 of a sandbox: owns its processes and their output, and answers the host's calls.
//!
//! Started with a listening unix socket as descriptor 3 and, at most, one variable in its environment. One thread runs
//! everything that only waits; what may block on a disk runs on short-lived threads of its own.
//!
//! As PID 1 of a virtual machine it sets that up first (`machine`) and takes calls over a port.
//!
//! With the one argument `sftp` the program is not PID 1 but the SFTP server of one session.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

mod account;
mod call;
mod failure;
mod figures;
mod files;
mod machine;
mod own_kernel;
mod ports;
mod process;
mod quiesce;
mod refusals;
mod relay;
mod server;
mod services;
mod setup;
mod sftp;
mod shutdown;
mod standstill;
mod state;
mod thread;
mod watched;

/// Where the spawner says which address that is; see `cove_spawner::RESOLVER_VARIABLE`.
const RESOLVER_VARIABLE: &str = "COVE_RESOLVER";
/// Where the sandbox keeps what belongs to the guest.
const ROOT_FILES: &str = "/.cove";

struct Options {
    root_files: PathBuf,
    /// Bind the socket under `root_files` instead of taking descriptor 3.
    listen: bool,
    /// This sandbox has a kernel of its own, which is set up first; its programs may have this many processes.
    own_kernel: Option<u64>,
    /// Keep output over a stop in this directory.
    kept: Option<PathBuf>,
    /// This is PID 1 of a virtual machine: calls come over its port.
    machine: bool,
}

/// The address of the host's resolver, which is the loopback's own while the network is off.
fn resolver() -> Option<Ipv4Addr> {
    std::env::var(RESOLVER_VARIABLE).ok()?.parse().ok()
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        root_files: PathBuf::from(ROOT_FILES),
        listen: false,
        own_kernel: None,
        kept: None,
        machine: false,
    };
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--listen") => options.listen = true,
            Some(machine::ARGUMENT) => options.machine = true,
            Some("--own-kernel") => {
                let pids = arguments.next();
                let pids = pids.as_ref().and_then(|pids| pids.to_str()?.parse().ok());
                options.own_kernel = Some(pids.ok_or("--own-kernel needs a number")?);
                options.listen = true;
            }
            Some("--root-files") => {
                options.root_files = arguments
                    .next()
                    .ok_or("--root-files needs a directory")?
                    .into();
            }
            Some("--kept") => {
                options.kept = Some(arguments.next().ok_or("--kept needs a directory")?.into());
            }
            _ => return Err(format!("unknown argument {argument:?}")),
        }
    }
    Ok(options)
}

fn run() -> Result<(), String> {
    let options = options()?;
    if let Some(pids) = options.own_kernel {
        own_kernel::set_up(pids)?;
    }
    let standstill = match options.machine {
        true => Some(standstill::Standstill::new(machine::set_up()?)),
        false => None,
    };
    setup::prepare_process()?;
    let calls = match options.machine {
        true => server::Calls::Port(machine::port()?),
        false => server::Calls::Socket(setup::listener(
            options.listen.then_some(options.root_files.as_path()),
        )?),
    };
    let children = setup::signals(libc::SIGCHLD)?;
    let wake = setup::signals(quiesce::WAKE)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| format!("no event loop: {error}"))?;
    // With a socket of its own it may be on somebody else's disk.
    let is_machine = options.own_kernel.is_some() || (!options.listen && std::process::id() == 1);
    let kept = options.kept;
    let kept = kept.or_else(|| is_machine.then(|| PathBuf::from(process::kept::DIRECTORY)));
    let state = state::State::new(
        options.root_files,
        options.own_kernel.is_some(),
        kept,
        resolver(),
        standstill,
    );
    process::kept::read(&state);
    services::read(&state);
    if !options.listen && !options.machine && std::process::id() == 1 {
        quiesce::identity::claim(&state.hostname.borrow());
    }
    tokio::task::LocalSet::new()
        .block_on(&runtime, server::serve(state, calls, children, wake))
        .map_err(|error| format!("cannot serve: {error}"))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments
        .next()
        .is_some_and(|program| program == machine::FIRST)
        && std::process::id() == 1
    {
        eprintln!("cove-guest: {}", machine::first_run());
        machine::turn_off();
    }
    if arguments
        .next()
        .is_some_and(|first| first == sftp::ARGUMENT)
    {
        return sftp::run();
    }
    let is_machine = std::env::args_os().any(|argument| argument == machine::ARGUMENT);
    let ended = run();
    if let Err(message) = &ended {
        eprintln!("cove-guest: {message}");
    }
    if is_machine {
        machine::turn_off();
    }
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
