//! Arguments about images, keys and organisations.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use cove_api::tenancy::Scope;

use crate::units::{duration_s, megabytes};

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List images
    Ls,
    /// Show an image
    Show { image: String },
    /// Pull from an OCI registry
    Pull {
        reference: String,
        /// For registries that ask; the password comes from COVE_REGISTRY_PASSWORD
        #[arg(long)]
        username: Option<String>,
    },
    /// Bootstrap the default Debian image
    BuildDebian,
    /// Bootstrap the image for code: numpy, pandas, matplotlib and a current Node
    BuildCodeInterpreter,
    /// Make an image of a snapshot, with its processes when it has memory
    Create {
        name: String,
        /// Name or id of the snapshot
        #[arg(long, value_name = "SNAPSHOT")]
        from: String,
    },
    /// Import a directory or tarball, as root on the server's own machine
    Import { name: String, path: PathBuf },
    /// Remove images
    Rm {
        #[arg(required = true)]
        images: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// List keys
    Ls,
    /// Make a key; its token is shown this once
    Create {
        name: String,
        /// What it may do; each scope includes those before it
        #[arg(long, value_enum, default_value = "manage")]
        scope: ScopeArg,
        /// Until when it works, from now, like 30d; default: for ever
        #[arg(long, value_parser = duration_s, value_name = "TIME")]
        expires: Option<u64>,
        /// For another organisation
        #[arg(long, value_name = "ID")]
        org: Option<String>,
    },
    /// Revoke keys
    Rm {
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Replace the first key of this machine's server; the old one stops working at once
    ResetRoot,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ScopeArg {
    Read,
    Use,
    Manage,
    Admin,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Read => Scope::Read,
            ScopeArg::Use => Scope::Use,
            ScopeArg::Manage => Scope::Manage,
            ScopeArg::Admin => Scope::Admin,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum QuarantineCommand {
    /// List what the host keeps and nobody can use
    Ls,
    /// Give a sandbox, with its snapshots, or a snapshot to an organisation
    Adopt {
        id: String,
        /// Id of the organisation; default: your own
        #[arg(long, value_name = "ID")]
        org: Option<String>,
    },
    /// Delete sandboxes and snapshots with all that is in them
    Rm {
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum OrgCommand {
    /// List organisations
    Ls,
    /// Make an organisation
    Create {
        name: String,
        #[command(flatten)]
        quota: QuotaArgs,
    },
    /// Change an organisation's quota
    Quota {
        org: String,
        #[command(flatten)]
        quota: QuotaArgs,
    },
}

#[derive(Debug, Clone, clap::Args)]
pub struct QuotaArgs {
    #[arg(long)]
    pub sandboxes: Option<u64>,
    #[arg(long)]
    pub cpu: Option<f64>,
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub memory: Option<u64>,
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub disk: Option<u64>,
}
