//! Arguments about what is done inside sandboxes.

use clap::Args;
use cove_api::Timestamp;

use super::sandbox::CreateOptions;
use crate::units::{EnvFile, duration_s, env_file, key_value, since, variables};

/// How a command runs.
#[derive(Debug, Clone, Default, Args)]
pub struct CommandOptions {
    /// User that it runs as
    #[arg(long, short)]
    pub user: Option<String>,
    /// Working directory
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Set an environment variable
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub env: Vec<(String, String)>,
    /// Read environment variables from a file, one KEY=VALUE per line
    #[arg(long, value_parser = env_file, value_name = "FILE")]
    pub env_file: Vec<EnvFile>,
}

impl CommandOptions {
    pub fn variables(&self) -> std::collections::BTreeMap<String, String> {
        variables(&self.env_file, &self.env)
    }
}

#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    #[command(flatten)]
    pub options: CommandOptions,
    /// Terminate it after this time, like 90s or 10m; the exit code is then 124
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub timeout: Option<u64>,
    /// Forward standard input; without it the command's input is empty
    #[arg(long, short)]
    pub interactive: bool,
    /// Attach a terminal
    #[arg(long, short)]
    pub tty: bool,
    /// Start it in the background and print its id
    #[arg(long, short, conflicts_with_all = ["interactive", "tty"])]
    pub detach: bool,
    /// Command line for the user's login shell, instead of a program and its arguments
    #[arg(long, short = 'c', value_name = "COMMAND", conflicts_with = "argv")]
    pub shell: Option<String>,
    pub sandbox: String,
    /// Program and arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "shell"
    )]
    pub argv: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub struct ShellArgs {
    #[command(flatten)]
    pub options: CommandOptions,
    /// Reattach to a terminal, by the id of its command
    #[arg(long, value_name = "PROCESS", conflicts_with_all = ["argv", "user", "workdir", "env", "env_file"])]
    pub attach: Option<String>,
    /// Key that detaches from the terminal: ctrl- and a letter or ], or none
    #[arg(long, default_value = "ctrl-]", value_parser = detach_key, value_name = "KEY")]
    pub detach_key: DetachKey,
    pub sandbox: String,
    /// Program to run instead of the login shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub argv: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetachKey(pub Option<u8>);

fn detach_key(text: &str) -> Result<DetachKey, String> {
    if text == "none" {
        return Ok(DetachKey(None));
    }
    match text.strip_prefix("ctrl-").map(str::as_bytes) {
        Some([key @ (b'a'..=b'z' | b']' | b'\\' | b'^' | b'_')]) => Ok(DetachKey(Some(key & 0x1f))),
        _ => Err("must be none, or ctrl- and one of a-z ] \\ ^ _".into()),
    }
}

#[derive(Debug, Clone, Args)]
pub struct CpArgs {
    /// User in the sandbox whose permissions apply
    #[arg(long, short)]
    pub user: Option<String>,
    /// No progress bar
    #[arg(long, short)]
    pub quiet: bool,
    /// Keep modification times of single files too, and owners inside the sandbox
    #[arg(long, short)]
    pub archive: bool,
    /// Local paths, SANDBOX:PATH, or - for standard input
    ///
    /// A PATH in a sandbox may contain *, ? and [...]; a relative one begins where commands start.
    /// DIRECTORY/. is the content of a directory.
    #[arg(required = true, num_args = 1.., value_name = "SOURCE")]
    pub sources: Vec<String>,
    /// Local path, SANDBOX:PATH, or - for standard output
    pub target: String,
}

#[derive(Debug, Clone, Args)]
pub struct PsArgs {
    /// Also commands that have ended
    #[arg(long, short)]
    pub all: bool,
    /// Print ids only
    #[arg(long, short)]
    pub quiet: bool,
    pub sandbox: String,
}

#[derive(Debug, Clone, Args)]
pub struct StatsArgs {
    /// Repeat every second until interrupted; the default in a terminal
    #[arg(long, short, conflicts_with = "once")]
    pub follow: bool,
    /// Print the figures once
    #[arg(long, visible_alias = "no-stream")]
    pub once: bool,
    /// Sandboxes [default: all running ones]
    pub sandboxes: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub struct UsageArgs {
    /// Show the last days including today, one line per day (UTC)
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=366), conflicts_with = "sandbox")]
    pub days: Option<u32>,
    /// Show this many sandboxes, those with the most CPU time
    #[arg(long, value_name = "COUNT", conflicts_with = "sandbox")]
    pub top: Option<usize>,
    /// Show this sandbox only
    pub sandbox: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Continue until the command ends
    #[arg(long, short)]
    pub follow: bool,
    /// Print only the last lines
    #[arg(long, short = 'n', value_name = "LINES")]
    pub tail: Option<usize>,
    /// Print only what was written since then: 10m is ten minutes ago, or a moment like 2026-01-31T12:00:00Z
    #[arg(long, value_parser = since, value_name = "TIME")]
    pub since: Option<Timestamp>,
    /// Print in front of each line when it was written
    #[arg(long, short)]
    pub timestamps: bool,
    pub sandbox: String,
    /// Id of a command, from `cove ps` [default: the newest]
    pub process: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub options: CreateOptions,
    /// Terminate the command after this time; the exit code is then 124
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub timeout: Option<u64>,
    /// Attach a terminal
    #[arg(long, short)]
    pub tty: bool,
    /// Forward standard input; without it the command's input is empty
    #[arg(long, short)]
    pub interactive: bool,
    /// Start the command in the background, keep the sandbox and print its id
    #[arg(long, short, conflicts_with_all = ["interactive", "tty", "rm"])]
    pub detach: bool,
    /// Forward a port of this machine to one in the sandbox until the command ends
    #[arg(long, short, value_name = "[LOCAL:]PORT", value_parser = crate::cmd::forward::pair)]
    pub publish: Vec<crate::cmd::forward::Pair>,
    /// Keep the sandbox afterwards
    #[arg(long)]
    pub keep: bool,
    /// Delete the sandbox afterwards; the default
    #[arg(long, conflicts_with = "keep")]
    pub rm: bool,
    pub image: String,
    /// Program and arguments [default in a terminal: a login shell]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub argv: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Number of sandboxes created one after the other for the latency figures
    #[arg(long, default_value_t = 50)]
    pub count: usize,
    /// Number of sandboxes created at once
    #[arg(long, default_value_t = 100)]
    pub burst: usize,
    /// Duration of the sustained part
    #[arg(long, default_value = "5s", value_parser = duration_s, value_name = "TIME")]
    pub sustain: u64,
    /// Number of workers in the sustained part
    #[arg(long, default_value_t = 4)]
    pub workers: usize,
    /// Number of open streams while commands of another sandbox are timed; 0: none
    #[arg(long, default_value_t = 200)]
    pub streams: usize,
    /// Number of idle sandboxes for the memory figures, on the server's machine; 0: none
    #[arg(long, default_value_t = 1000)]
    pub idle: usize,
    /// Image
    #[arg(long, default_value = "debian")]
    pub image: String,
    /// Measure Docker too, through its socket
    #[arg(long, value_name = "SOCKET")]
    pub docker: Option<std::path::PathBuf>,
    /// Image for Docker
    #[arg(long, default_value = "debian")]
    pub docker_image: String,
}
