//! The server: one supervisor and two children of the same binary.
//!
//! ```text
//!  cove serve (root)  binds the port, makes the first key, starts and restarts its children
//!    ├─ runner  (root)          the engine, behind <data-dir>/runner.sock
//!    └─ control (unprivileged)  HTTP and the database; gets the listening sockets over standard input
//! ```
//!
//! ```text
//! <data-dir>/             0711  may be passed through, not read
//! <data-dir>/root.key     0600  the first key
//! <data-dir>/url          0644  where the command line of this machine finds the server
//! <data-dir>/engine/      0700  root's: the pool, images, records
//! <data-dir>/control.uid  0644  the user id that is the control side's alone
//! <data-dir>/control/     0700  the control side's: its database
//! <data-dir>/runner.sock  0600  the control side's way to the runner
//! ```
//!
//! Whoever of them dies, sandboxes live on and nothing acknowledged is lost; the supervisor keeps the
//! listening socket, so that callers wait through a restart of the control side instead of failing.

mod authorities;
mod confine;
mod control;
mod handover;
mod logging;
mod node;
mod objects;
mod open_files;
mod ownership;
mod privileges;
mod ready;
mod relay;
mod reload;
mod role;
mod runner;
mod secrets;
mod settings;
mod supervisor;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::args::Global;
use crate::report::CliError;
pub use reload::{reset_root_key, running};
pub use settings::{SETTINGS, Settings};
pub use supervisor::LOCK_FILE;

/// Exit code of a child that must not be restarted: what is wrong will not go away by itself.
pub const FATAL: u8 = 78;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{message}")]
    Settings { message: String },
    #[error("{message}")]
    Start {
        message: String,
        hint: Option<String>,
    },
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
}

impl ServeError {
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    pub fn start(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Start {
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Settings { .. } => Some("`cove serve --help` lists all settings".into()),
            Self::Start { hint, .. } => hint.clone(),
            Self::Io { .. } => None,
        }
    }
}

/// What was given on the command line, by setting.
#[derive(Debug, Clone, Default)]
pub struct ServeArgs {
    config: Option<String>,
    role: Option<String>,
    given: Vec<(&'static str, String)>,
}

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("COVE_CONFIG")
            .help("A TOML file with settings [default: /etc/cove/cove.toml where there is one]");
        let role = Arg::new("role").long("role").hide(true);
        let settings = SETTINGS
            .iter()
            .filter(|setting| setting.key != "data_dir")
            .map(|setting| {
                let default = setting.default_text();
                let help = match default.as_str() {
                    "" => setting.help.to_owned(),
                    default => format!("{} [default: {default}]", setting.help),
                };
                Arg::new(setting.key)
                    .long(setting.flag())
                    .value_name(setting.value_name)
                    .help(help)
            });
        command.arg(config).arg(role).args(settings)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<String>("config").cloned();
        self.role = matches.get_one::<String>("role").cloned();
        for setting in SETTINGS.iter().filter(|setting| setting.key != "data_dir") {
            if let Some(value) = matches.get_one::<String>(setting.key) {
                self.given.push((setting.key, value.clone()));
            }
        }
        Ok(())
    }
}

pub fn run(args: Box<ServeArgs>, global: &Global) -> Result<u8, CliError> {
    let result = match args.role.as_deref() {
        None => {
            open_files::raise();
            resolve(&args, global).and_then(supervisor::run)
        }
        Some("relay") => return role::child(logging::Process::Control, relay::run),
        Some("runner") => return role::child(logging::Process::Runner, runner::run),
        Some("control") => return role::child(logging::Process::Control, control::run),
        Some(other) => Err(ServeError::Settings {
            message: format!("there is no role '{other}'"),
        }),
    };
    result.map(|()| 0).map_err(CliError::from)
}

/// The control plane alone.
pub fn run_control(args: &ServeArgs, global: &Global) -> Result<u8, CliError> {
    open_files::raise();
    let result = resolve(args, global).and_then(supervisor::run_control);
    result.map(|()| 0).map_err(CliError::from)
}

/// A node of a fleet.
pub fn run_node(args: &ServeArgs, global: &Global) -> Result<u8, CliError> {
    open_files::raise();
    let result = resolve(args, global).and_then(node::run);
    result.map(|()| 0).map_err(CliError::from)
}

/// Every setting at its default.
pub fn default_settings() -> impl serde::Serialize {
    Settings::default()
}

/// A configuration file that changes nothing: every setting at its default, as a comment.
pub fn config_file() -> String {
    let mut text = String::from(
        "# Settings of `cove serve`. Each line shows the default; remove the '#' to change it, then restart.\n\
         # Environment variables (COVE_LISTEN for listen) and flags (--listen) win over this file.\n",
    );
    for setting in SETTINGS {
        text.push_str(&format!("\n# {}\n#{}\n", setting.help, setting.toml()));
    }
    text
}

/// The settings a server of this machine would have, flags aside.
pub fn settings(global: &Global) -> Result<Settings, ServeError> {
    let config = std::env::var("COVE_CONFIG").ok();
    resolve(
        &ServeArgs {
            config,
            ..ServeArgs::default()
        },
        global,
    )
}

/// File, then environment, then flags: the later wins.
fn resolve(args: &ServeArgs, global: &Global) -> Result<Settings, ServeError> {
    let mut settings = Settings::default();
    settings.read_file(args.config.as_deref())?;
    settings.read_environment(|name| std::env::var(name).ok())?;
    for (key, value) in &args.given {
        settings.set(key, value, &format!("--{}", key.replace('_', "-")))?;
    }
    if let Some(data_dir) = &global.data_dir {
        settings.data_dir = data_dir.clone();
    }
    settings.check()?;
    Ok(settings)
}
