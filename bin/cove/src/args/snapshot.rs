//! Arguments about snapshots, forks and rollbacks.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::units::key_value;

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    pub command: Option<SnapshotCommand>,
    /// Sandbox to take a snapshot of
    #[arg(required = true)]
    pub sandbox: Option<String>,
    /// Name, unique in the organisation
    #[arg(long, short)]
    pub name: Option<String>,
    /// Include processes and memory
    #[arg(long)]
    pub memory: bool,
    /// Return only once object storage has it
    #[arg(long)]
    pub durable: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum SnapshotCommand {
    /// List snapshots
    #[command(visible_alias = "list")]
    Ls {
        /// Only snapshots of this sandbox
        sandbox: Option<String>,
        /// Print ids only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Show a snapshot
    Show { snapshot: String },
    /// Delete snapshots; sandboxes made from them stay
    #[command(visible_alias = "delete")]
    Rm {
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
    /// Write a snapshot and its base image into one file
    Export {
        snapshot: String,
        /// File to write; - is standard output
        file: PathBuf,
    },
    /// Read a file that `cove snapshot export` wrote
    Import {
        /// File to read; - is standard input
        file: PathBuf,
        /// Name, unique in the organisation
        #[arg(long, short)]
        name: Option<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub struct ForkArgs {
    /// A sandbox, or a snapshot by its id
    pub source: String,
    /// Number of copies
    #[arg(long = "count", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub count: u32,
    /// Continue its processes; without it the copies start from its disk
    #[arg(long)]
    pub memory: bool,
    /// Name of the copy; several get the names NAME-1, NAME-2 and so on
    #[arg(long)]
    pub name: Option<String>,
    /// Add a label to the copies
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub label: Vec<(String, String)>,
}

#[derive(Debug, Clone, Args)]
pub struct RollbackArgs {
    pub sandbox: String,
    /// Name or id of a snapshot
    pub snapshot: String,
    /// Restore its processes too
    #[arg(long)]
    pub memory: bool,
}
