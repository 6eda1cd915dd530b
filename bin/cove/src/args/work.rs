//! Arguments about what is done inside sandboxes.

use clap::Args;

use super::sandbox::CreateOptions;
use crate::units::{EnvFile, duration_s, env_file, key_value, variables};

/// How a command runs.
#[derive(Debug, Clone, Default, Args)]
pub struct CommandOptions {
    /// Who it runs as
    #[arg(long, short)]
    pub user: Option<String>,
    /// Where it starts
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Set a variable
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub env: Vec<(String, String)>,
    /// Set the variables of a file, KEY=VALUE a line
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
    /// End it after this long, like 90s or 10m
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub timeout: Option<u64>,
    /// Forward standard input even from a terminal
    #[arg(long, short)]
    pub interactive: bool,
    /// Give it a terminal
    #[arg(long, short)]
    pub tty: bool,
    /// Start it in the background and print its id
    #[arg(long, short, conflicts_with_all = ["interactive", "tty"])]
    pub detach: bool,
    /// A string for the user's login shell, instead of a program and its arguments
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
    /// Come back to a terminal that was left, by the id of its command
    #[arg(long, value_name = "PROCESS", conflicts_with_all = ["argv", "user", "workdir", "env", "env_file"])]
    pub attach: Option<String>,
    /// The key that leaves the terminal and lets it run: ctrl- and a letter or ], or none
    #[arg(long, default_value = "ctrl-]", value_parser = detach_key, value_name = "KEY")]
    pub detach_key: DetachKey,
    pub sandbox: String,
    /// Instead of the user's login shell
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
    /// Whose rights to use inside
    #[arg(long, short)]
    pub user: Option<String>,
    /// No progress bar
    #[arg(long, short)]
    pub quiet: bool,
    /// A path here, SANDBOX:PATH, or - for standard input
    pub source: String,
    /// A path here, SANDBOX:PATH, or - for standard output
    pub target: String,
}

#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Go on until the command ends
    #[arg(long, short)]
    pub follow: bool,
    /// Begin with the last lines only
    #[arg(long, short = 'n', value_name = "LINES")]
    pub tail: Option<usize>,
    pub sandbox: String,
    /// A command's id, from `cove ps`; default: the newest
    pub process: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub options: CreateOptions,
    /// End the command after this long
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub timeout: Option<u64>,
    /// Give it a terminal
    #[arg(long, short)]
    pub tty: bool,
    /// Forward standard input even from a terminal
    #[arg(long, short)]
    pub interactive: bool,
    /// Keep the sandbox afterwards
    #[arg(long)]
    pub keep: bool,
    /// Delete the sandbox afterwards; the default
    #[arg(long, conflicts_with = "keep")]
    pub rm: bool,
    pub image: String,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub argv: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Sandboxes made one after the other for the latency figures
    #[arg(long, default_value_t = 50)]
    pub count: usize,
    /// Sandboxes made at once
    #[arg(long, default_value_t = 100)]
    pub burst: usize,
    /// For how long sandboxes are made and deleted
    #[arg(long, default_value = "5s", value_parser = duration_s, value_name = "TIME")]
    pub sustain: u64,
    /// Workers of the sustained part
    #[arg(long, default_value_t = 4)]
    pub workers: usize,
    /// Streams of events and output that are open while commands of another sandbox are timed; 0: none
    #[arg(long, default_value_t = 200)]
    pub streams: usize,
    /// Sandboxes that only wait while the server's memory is read, on its own machine; 0: none
    #[arg(long, default_value_t = 1000)]
    pub idle: usize,
    /// The image to measure with
    #[arg(long, default_value = "debian")]
    pub image: String,
    /// Measure Docker in the same way, through its socket
    #[arg(long, value_name = "SOCKET")]
    pub docker: Option<std::path::PathBuf>,
    /// The image Docker is measured with
    #[arg(long, default_value = "debian")]
    pub docker_image: String,
}
