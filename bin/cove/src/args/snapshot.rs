//! Arguments about snapshots, forks and rollbacks.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::units::key_value;

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    pub command: Option<SnapshotCommand>,
    /// The sandbox to keep the state of
    #[arg(required = true)]
    pub sandbox: Option<String>,
    /// A name, unique in the organisation
    #[arg(long, short)]
    pub name: Option<String>,
    /// Keep processes and memory too, not only the disk
    #[arg(long, short)]
    pub memory: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum SnapshotCommand {
    /// List snapshots
    #[command(visible_alias = "list")]
    Ls {
        /// Only of this sandbox
        sandbox: Option<String>,
        /// Print ids only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Show a snapshot
    Show { snapshot: String },
    /// Delete snapshots; what grew from them stays
    Rm {
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
    /// Write a snapshot into one file, base image included
    Export {
        snapshot: String,
        /// Where to; - is standard output
        file: PathBuf,
    },
    /// Take in a file that an export wrote, here or elsewhere
    Import {
        /// Where from; - is standard input
        file: PathBuf,
        /// A name, unique in the organisation
        #[arg(long, short)]
        name: Option<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub struct ForkArgs {
    /// A sandbox, or a snapshot by its id
    pub source: String,
    /// How many copies
    #[arg(long = "count", short = 'n', default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub count: u32,
    /// Go on with its processes; without, the copies boot from its disk
    #[arg(long, short)]
    pub memory: bool,
    /// Name of the copy; several are called NAME-1, NAME-2 and so on
    #[arg(long)]
    pub name: Option<String>,
    /// Label the copies
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub label: Vec<(String, String)>,
}

#[derive(Debug, Clone, Args)]
pub struct RollbackArgs {
    pub sandbox: String,
    /// Name or id of a snapshot
    pub snapshot: String,
    /// Bring its processes back too
    #[arg(long, short)]
    pub memory: bool,
}
