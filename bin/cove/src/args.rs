//! The command line as clap sees it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub mod access;
pub mod approvals;
pub mod build;
pub mod code;
pub mod identity;
pub mod lifecycle;
pub mod node;
pub mod sandbox;
pub mod secret;
mod service;
pub mod snapshot;
pub mod ssh;
pub mod template;
pub mod volume;
pub mod work;

pub use access::{ImageCommand, KeyCommand, OrgCommand, QuarantineCommand};
pub use approvals::ApprovalsCommand;
pub use build::BuildArgs;
pub use code::CodeCommand;
pub use identity::IdentityCommand;
pub use node::NodeCommand;
pub use sandbox::{CreateArgs, ListArgs, UpdateArgs};
pub use secret::SecretCommand;
pub use service::{ServiceCommand, StartServiceArgs};
pub use snapshot::{ForkArgs, RollbackArgs, SnapshotArgs, SnapshotCommand};
pub use ssh::{SshArgs, SshKeyCommand};
pub use template::TemplateCommand;
pub use volume::VolumeCommand;
pub use work::{
    BenchArgs, CpArgs, ExecArgs, LogsArgs, PsArgs, RunArgs, ShellArgs, StatsArgs, UsageArgs,
};

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
    /// Address of the server [default: the server of this machine]
    #[arg(
        long,
        global = true,
        env = "COVE_URL",
        value_name = "URL",
        help_heading = "Connection"
    )]
    pub url: Option<String>,
    /// API key [default: for root on the server's machine, the server's first key]
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
    /// Server to use, from `cove context ls` [default: the current context, then the server of this machine]
    #[arg(
        long,
        global = true,
        env = "COVE_CONTEXT",
        value_name = "NAME",
        help_heading = "Connection"
    )]
    pub context: Option<String>,
    /// Data directory of this machine's server
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
    /// Run a control plane without sandboxes of its own; nodes join it
    Control(Box<ServeArgs>),
    /// Manage the nodes of a fleet, or run one
    #[command(subcommand)]
    Node(NodeCommand),
    /// Create a sandbox
    Create(CreateArgs),
    /// List sandboxes
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Show a sandbox
    Show { sandbox: String },
    /// Run a command in a sandbox
    Exec(ExecArgs),
    /// Run code in an interpreter that keeps variables between runs
    #[command(subcommand)]
    Code(CodeCommand),
    /// Open a terminal in a sandbox
    Shell(ShellArgs),
    /// Copy files and directories into and out of a sandbox
    Cp(CpArgs),
    /// Show a command's output
    Logs(LogsArgs),
    /// List the commands that run in a sandbox
    #[command(visible_alias = "top")]
    Ps(PsArgs),
    /// Send a signal to a command
    Kill {
        sandbox: String,
        /// A command's id, from `cove ps`
        process: String,
        /// Name or number of the signal
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
    /// Stop and start sandboxes; their disks stay
    Restart {
        #[arg(required = true)]
        sandboxes: Vec<String>,
        /// Time between SIGTERM and SIGKILL
        #[arg(long, value_parser = crate::units::duration_s, value_name = "TIME")]
        grace: Option<u64>,
    },
    /// End the lease of sandboxes that an SDK made: they stay until they are deleted
    Detach {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Suspend the processes of sandboxes and keep them in memory
    Freeze {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Save the memory of sandboxes to disk and free CPU and memory
    Pause {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Continue frozen or paused sandboxes
    #[command(visible_alias = "unpause")]
    Resume {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Take a snapshot of a sandbox; or list, show, delete, export and import snapshots
    Snapshot(SnapshotArgs),
    /// List snapshots
    Snapshots {
        /// Only snapshots of this sandbox
        sandbox: Option<String>,
        /// Print ids only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Create copies of a sandbox or snapshot
    Fork(ForkArgs),
    /// Return a sandbox to a snapshot; its previous state is saved
    Rollback(RollbackArgs),
    /// Show a sandbox's tree of snapshots, forks and rollbacks
    Timeline { sandbox: String },
    /// Delete sandboxes and their disks
    #[command(visible_alias = "delete")]
    Rm {
        /// Do not fail if a sandbox does not exist
        #[arg(long, short)]
        force: bool,
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Change a sandbox's name
    Rename { sandbox: String, name: String },
    /// Print everything about sandboxes as JSON
    Inspect {
        #[arg(required = true)]
        sandboxes: Vec<String>,
    },
    /// Change a sandbox's name, labels, lifecycle or limits
    #[command(alias = "resize")]
    Update(UpdateArgs),
    /// Create a sandbox, run a command in it, delete it
    Run(RunArgs),
    /// Manage images
    #[command(subcommand)]
    Image(ImageCommand),
    /// List images
    Images,
    /// Manage templates: named, versioned starting points of sandboxes
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Manage services: commands that come back when their sandbox is started
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Manage volumes: directories that outlive sandboxes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Log in to a server on another machine; the API key is read from standard input or COVE_API_KEY
    Login(crate::cmd::login::LoginArgs),
    /// Manage servers that this user has logged in to
    #[command(subcommand)]
    Context(crate::cmd::login::ContextCommand),
    /// Manage API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Manage organisations
    #[command(subcommand)]
    Org(OrgCommand),
    /// List the ports a sandbox listens on
    Ports { sandbox: String },
    /// Create a link to the preview of a port; everyone who has the link can open it
    Share {
        sandbox: String,
        port: u16,
        /// How long the link is valid [default: an hour; with --public until revoked]
        #[arg(long, value_parser = crate::units::duration_s, value_name = "TIME")]
        expires: Option<u64>,
        /// Make the preview public, without a link
        #[arg(long, conflicts_with = "revoke")]
        public: bool,
        /// Revoke all links and make the preview private
        #[arg(long, conflicts_with = "expires")]
        revoke: bool,
    },
    /// Forward ports of this machine to ports in a sandbox
    PortForward {
        sandbox: String,
        /// PORT, or LOCAL:PORT; a LOCAL of 0 selects a free port
        #[arg(required = true, value_name = "[LOCAL:]PORT", value_parser = crate::cmd::forward::pair)]
        ports: Vec<crate::cmd::forward::Pair>,
        /// The address of this machine to listen at
        #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
        bind: std::net::IpAddr,
    },
    /// Create identity tokens of sandboxes for services that trust this server
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Manage secrets: encrypted at rest and bound to hosts
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Approve or deny requests with secrets that need an approval
    #[command(subcommand)]
    Approvals(ApprovalsCommand),
    /// Log in to a sandbox with ssh, or create a token for other SSH clients
    Ssh(SshArgs),
    /// Manage public keys that can log in over SSH
    #[command(subcommand)]
    SshKey(SshKeyCommand),
    /// Show usage, the largest consumers first
    Usage(UsageArgs),
    /// Show events of sandboxes
    Events {
        /// Only events of this sandbox
        sandbox: Option<String>,
        /// Wait for new events
        #[arg(long, short)]
        follow: bool,
        /// Only after this event
        #[arg(long, value_name = "ID")]
        after: Option<u64>,
    },
    /// Show connections that a sandbox's network policy allowed and denied
    Egress(crate::cmd::egress::EgressArgs),
    /// Show audit records: who changed what
    #[command(args_conflicts_with_subcommands = true)]
    Audit {
        /// How many records, newest first
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(subcommand)]
        command: Option<crate::cmd::audit::AuditCommand>,
    },
    /// Show the resource usage of running sandboxes; in a terminal until interrupted
    Stats(StatsArgs),
    /// Check the host and the server
    Doctor {
        /// Remove what a crash left behind; only while no server runs
        #[arg(long)]
        sweep: bool,
        /// Remount a storage pool that turned read-only; stops the server and restarts all sandboxes
        #[arg(long, conflicts_with = "sweep")]
        repair_pool: bool,
    },
    /// Delete a stopped server's data directory: sandboxes, snapshots, images, keys
    Destroy(crate::cmd::destroy::DestroyArgs),
    /// Manage sandboxes and snapshots that are not in the database or cannot be used
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
    /// Run an MCP server on standard input and output
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
        /// Directory for the pages [default: the main page on standard output]
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::CommandFactory;

    use super::Cli;

    /// Every command that can be run, as it is typed.
    fn runnable(command: &clap::Command, typed: &str, all: &mut Vec<(String, clap::Command)>) {
        for below in command
            .get_subcommands()
            .filter(|one| one.get_name() != "help")
        {
            let typed = format!("{typed} {}", below.get_name()).trim().to_owned();
            if !below.is_subcommand_required_set() {
                all.push((typed.clone(), below.clone()));
            }
            runnable(below, &typed, all);
        }
    }

    fn commands() -> Vec<(String, clap::Command)> {
        let mut all = Vec::new();
        runnable(&Cli::command(), "", &mut all);
        all
    }

    /// The table is run, with `--json`, by an end-to-end test.
    #[test]
    fn every_command_is_in_the_table_of_the_json_test() {
        let table = include_str!("../tests/e2e/commands.txt");
        let listed: BTreeSet<&str> = table
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(" | ").next())
            .collect();
        let commands = commands();
        let there: BTreeSet<&str> = commands.iter().map(|(typed, _)| typed.as_str()).collect();
        let missing: Vec<_> = there.difference(&listed).collect();
        let gone: Vec<_> = listed.difference(&there).collect();
        assert!(
            missing.is_empty(),
            "add to bin/cove/tests/e2e/commands.txt: {missing:?}"
        );
        assert!(gone.is_empty(), "no such commands any more: {gone:?}");
    }

    #[test]
    fn listing_and_deleting_go_by_both_names() {
        for (typed, command) in commands() {
            let alias = match command.get_name() {
                "ls" => "list",
                "rm" => "delete",
                _ => continue,
            };
            let known = command.get_visible_aliases().any(|name| name == alias);
            assert!(known, "{typed} has no alias {alias}");
        }
    }

    /// Letters that mean two things, each as Docker, tail or cp have them.
    const TWO_MEANINGS: &[(char, &[&str])] = &[
        ('a', &["--all", "--archive"]),
        ('c', &["--code", "--shell"]),
        ('f', &["--file", "--follow", "--force"]),
        ('n', &["--name", "--tail"]),
        ('t', &["--tag", "--timestamps", "--tty"]),
    ];

    #[test]
    fn a_letter_means_the_same_everywhere() {
        let mut meanings: BTreeMap<char, BTreeSet<String>> = BTreeMap::new();
        for (_, command) in commands() {
            for arg in command.get_arguments() {
                let (Some(letter), Some(long)) = (arg.get_short(), arg.get_long()) else {
                    continue;
                };
                // A size and a switch of one name are two meanings.
                let value = if arg.get_action().takes_values() {
                    ""
                } else {
                    " (switch)"
                };
                let all = meanings.entry(letter).or_default();
                all.insert(format!("--{long}{value}"));
            }
        }
        for (letter, all) in meanings {
            let allowed = TWO_MEANINGS.iter().find(|(one, _)| *one == letter);
            let names: Vec<&str> = all.iter().filter_map(|one| one.split(' ').next()).collect();
            match allowed {
                Some((_, allowed)) => assert_eq!(names, *allowed, "-{letter}"),
                None => assert_eq!(all.len(), 1, "-{letter}: {all:?}"),
            }
        }
    }

    #[test]
    fn every_command_and_option_is_described() {
        let mut bare = Vec::new();
        for (typed, command) in commands() {
            if command.get_about().is_none() {
                bare.push(typed.clone());
            }
            let options = command
                .get_arguments()
                .filter(|arg| !arg.is_positional() && !arg.is_hide_set());
            let silent = options.filter(|arg| arg.get_help().is_none());
            bare.extend(silent.map(|arg| format!("{typed} --{}", arg.get_id())));
        }
        assert!(bare.is_empty(), "without help: {bare:?}");
    }
}
