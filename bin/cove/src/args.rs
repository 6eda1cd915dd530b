//! The command line as clap sees it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub mod access;
pub mod code;
pub mod identity;
pub mod lifecycle;
pub mod sandbox;
pub mod secret;
pub mod snapshot;
pub mod ssh;
pub mod volume;
pub mod work;

pub use access::{ImageCommand, KeyCommand, OrgCommand, QuarantineCommand};
pub use code::CodeCommand;
pub use identity::IdentityCommand;
pub use sandbox::{CreateArgs, ListArgs, UpdateArgs};
pub use secret::SecretCommand;
pub use snapshot::{ForkArgs, RollbackArgs, SnapshotArgs, SnapshotCommand};
pub use ssh::{SshArgs, SshKeyCommand};
pub use volume::VolumeCommand;
pub use work::{BenchArgs, CpArgs, ExecArgs, LogsArgs, RunArgs, ShellArgs};

use crate::serve::ServeArgs;

/// Sandboxes for agents: isolated Linux machines in milliseconds.
#[derive(Debug, Parser)]
#[command(name = "cove", version = crate::VERSION, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The server; on its own machine this is found by itself
    #[arg(
        long,
        global = true,
        env = "COVE_URL",
        value_name = "URL",
        help_heading = "Connection"
    )]
    pub url: Option<String>,
    /// The API key; on the server's own machine root finds it by itself
    #[arg(
        long = "api-key",
        global = true,
        env = "COVE_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        help_heading = "Connection"
    )]
    pub api_key: Option<String>,
    /// Certificates to trust for https, instead of the system's
    #[arg(
        long,
        global = true,
        env = "COVE_CA_FILE",
        value_name = "FILE",
        help_heading = "Connection"
    )]
    pub ca_file: Option<PathBuf>,
    /// A server this user has logged in to [default: the current context, then the server of this machine]
    #[arg(
        long,
        global = true,
        env = "COVE_CONTEXT",
        value_name = "NAME",
        help_heading = "Connection"
    )]
    pub context: Option<String>,
    /// Where the server of this machine keeps its state
    #[arg(
        long,
        global = true,
        env = "COVE_DATA_DIR",
        value_name = "DIR",
        help_heading = "Connection"
    )]
    pub data_dir: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(Box<ServeArgs>),
    /// Create a sandbox
    Create(CreateArgs),
    /// List sandboxes
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Show a sandbox
    Show { sandbox: String },
    /// Run a command in a sandbox
    Exec(ExecArgs),
    /// Run code that keeps its variables from run to run
    #[command(subcommand)]
    Code(CodeCommand),
    /// Open a terminal in a sandbox
    Shell(ShellArgs),
    /// Copy files and directories into and out of a sandbox
    Cp(CpArgs),
    /// Show a command's output
    Logs(LogsArgs),
    /// List a sandbox's commands
    #[command(visible_alias = "top")]
    Ps { sandbox: String },
    /// Send a signal to a command
    Kill {
        sandbox: String,
        /// A command's id, from `cove ps`
        process: String,
        #[arg(long, short, default_value = "TERM")]
        signal: String,
    },
    /// Start stopped sandboxes
    Start {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// End a sandbox's processes and keep its disk
    Stop {
        #[arg(required = true)]
        sandboxes: Vec<String>,
        /// Time between SIGTERM and SIGKILL
        #[arg(long, value_parser = crate::units::duration_s, value_name = "TIME")]
        grace: Option<u64>,
    },
    /// Hold sandboxes' processes still, memory kept
    Freeze {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Put sandboxes' memory on disk, so that they use neither CPU nor memory
    Pause {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Bring frozen or paused sandboxes back where they were
    Resume {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Keep a sandbox's present state; or show, delete, export and import snapshots
    Snapshot(SnapshotArgs),
    /// List snapshots
    Snapshots {
        /// Only of this sandbox
        sandbox: Option<String>,
        /// Print ids only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Make copies of a sandbox or of a snapshot
    Fork(ForkArgs),
    /// Put a sandbox back to a snapshot; what it was before is kept
    Rollback(RollbackArgs),
    /// Draw a sandbox's tree of snapshots, forks and rollbacks
    Timeline { sandbox: String },
    /// Delete sandboxes and all that is in them
    #[command(visible_alias = "delete")]
    Rm {
        /// Do not fail when one is not there
        #[arg(long, short)]
        force: bool,
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Give a sandbox another name
    Rename { sandbox: String, name: String },
    /// Print all that is known of sandboxes, as JSON
    Inspect {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Change a sandbox's name, labels, lifecycle or limits
    #[command(alias = "resize")]
    Update(UpdateArgs),
    /// Create a sandbox, run a command in it, delete it
    Run(RunArgs),
    /// Images
    #[command(subcommand)]
    Image(ImageCommand),
    /// List images
    Images,
    /// Volumes: directories that outlive sandboxes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Log in to a server on another machine; the API key is read from standard input or COVE_API_KEY
    Login(crate::cmd::login::LoginArgs),
    /// Servers this user has logged in to
    #[command(subcommand)]
    Context(crate::cmd::login::ContextCommand),
    /// API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Organisations
    #[command(subcommand)]
    Org(OrgCommand),
    /// List the ports a sandbox listens on
    Ports { sandbox: String },
    /// Make a link to a port's preview that anybody who has it may open
    Share {
        sandbox: String,
        port: u16,
        /// How long the link is good, or the port public [default: an hour; public: until taken back]
        #[arg(long, value_parser = crate::units::duration_s, value_name = "TIME")]
        expires: Option<u64>,
        /// Open the preview to everybody, without a link
        #[arg(long, conflicts_with = "revoke")]
        public: bool,
        /// Take back all links and make the preview private
        #[arg(long, conflicts_with = "expires")]
        revoke: bool,
    },
    /// Reach ports inside a sandbox through ports of this machine
    PortForward {
        sandbox: String,
        /// PORT, or LOCAL:PORT; a LOCAL of 0 takes any that is free
        #[arg(required = true, value_name = "[LOCAL:]PORT", value_parser = crate::cmd::forward::pair)]
        ports: Vec<crate::cmd::forward::Pair>,
        /// The address of this machine to listen at
        #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
        bind: std::net::IpAddr,
    },
    /// Identity tokens of sandboxes, for clouds and services that trust this server
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Secrets, kept sealed and bound to hosts
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Log in to a sandbox with this machine's ssh, or make a token to log in with
    Ssh(SshArgs),
    /// Public keys that may log in over SSH
    #[command(subcommand)]
    SshKey(SshKeyCommand),
    /// Show what was used
    Usage {
        /// Only this sandbox
        sandbox: Option<String>,
    },
    /// Show what happened
    Events {
        /// Only to this sandbox
        sandbox: Option<String>,
        /// Wait for more
        #[arg(long, short)]
        follow: bool,
        /// Only after this event
        #[arg(long, value_name = "ID")]
        after: Option<u64>,
    },
    /// Show what a sandbox's network policy allowed and denied
    Egress(crate::cmd::egress::EgressArgs),
    /// Show who changed what
    #[command(args_conflicts_with_subcommands = true)]
    Audit {
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(subcommand)]
        command: Option<crate::cmd::audit::AuditCommand>,
    },
    /// Show what sandboxes use now
    Stats {
        /// All running ones unless named
        sandboxes: Vec<String>,
    },
    /// Check the host
    Doctor {
        /// Remove what nobody owns any more
        #[arg(long)]
        sweep: bool,
        /// Mount a storage pool anew that turned read-only; stops the server and restarts all sandboxes
        #[arg(long, conflicts_with = "sweep")]
        repair_pool: bool,
    },
    /// Delete a stopped server's data directory: sandboxes, snapshots, images, keys
    Destroy(crate::cmd::destroy::DestroyArgs),
    /// Sandboxes and snapshots that the database does not know or that cannot be used
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
    /// Serve sandboxes as MCP tools over standard input and output, for the program that starts this
    Mcp,
    /// Measure this installation over HTTP
    Bench(BenchArgs),
    /// Print the versions of this program and of the server
    Version,
    /// Print the server's configuration file with every setting at its default
    Config,
    /// Print a completion script
    Completion { shell: clap_complete::Shell },
    /// Write the manual pages
    Man {
        /// Where to; the main page goes to standard output without it
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}
