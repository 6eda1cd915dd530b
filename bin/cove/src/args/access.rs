//! Arguments about images, keys and organisations.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use cove_api::tenancy::Scope;

use crate::units::{duration_s, megabytes};

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List images
    #[command(visible_alias = "list")]
    Ls,
    /// Show an image
    Show { image: String },
    /// Pull from an OCI registry
    Pull {
        reference: String,
        /// User name for the registry; the password is read from COVE_REGISTRY_PASSWORD
        #[arg(long)]
        username: Option<String>,
    },
    /// Bootstrap the default Debian image
    BuildDebian,
    /// Bootstrap the code interpreter image: Python with numpy, pandas and matplotlib, and Node
    BuildCodeInterpreter,
    /// Create an image from a snapshot, with its processes if the snapshot has memory
    Create {
        name: String,
        /// Name or id of the snapshot
        #[arg(long, value_name = "SNAPSHOT")]
        from: String,
    },
    /// Import a directory or tarball; needs root on the server's machine
    Import { name: String, path: PathBuf },
    /// Remove images
    #[command(visible_alias = "delete")]
    Rm {
        #[arg(required = true)]
        images: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// List keys
    #[command(visible_alias = "list")]
    Ls,
    /// Create a key; its token is shown only once
    Create {
        name: String,
        /// Permissions; each scope includes those before it
        #[arg(long, value_enum, default_value = "manage")]
        scope: ScopeArg,
        /// How long it is valid, like 30d [default: until revoked]
        #[arg(long, value_parser = duration_s, value_name = "TIME")]
        expires: Option<u64>,
        /// Name or id of another organisation
        #[arg(long, value_name = "ID")]
        org: Option<String>,
        /// Bind the key to this sandbox; it can use nothing else
        #[arg(long, value_name = "NAME")]
        sandbox: Option<String>,
    },
    /// Revoke keys
    #[command(visible_alias = "delete")]
    Rm {
        /// Names or ids
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Replace the first key of this machine's server; the old key is revoked immediately
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
    /// List quarantined sandboxes, snapshots and volumes
    #[command(visible_alias = "list")]
    Ls,
    /// Assign a sandbox with its snapshots, or a snapshot, to an organisation
    Adopt {
        id: String,
        /// Id of the organisation [default: your own]
        #[arg(long, value_name = "ID")]
        org: Option<String>,
    },
    /// Delete quarantined sandboxes and snapshots
    #[command(visible_alias = "delete")]
    Rm {
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum OrgCommand {
    /// List organisations
    #[command(visible_alias = "list")]
    Ls,
    /// Show the quota of an organisation, and what it holds of it
    Show {
        /// Name or id
        org: String,
    },
    /// Create an organisation
    Create {
        name: String,
        #[command(flatten)]
        quota: QuotaArgs,
    },
    /// Change an organisation's quota
    Quota {
        /// Name or id
        org: String,
        #[command(flatten)]
        quota: QuotaArgs,
    },
    /// Change which taints of nodes an organisation's sandboxes may tolerate
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true).args(["add", "remove"]))]
    Tolerate {
        /// Name or id
        org: String,
        /// They may tolerate this taint
        #[arg(long, value_name = "TAINT")]
        add: Vec<String>,
        /// They may not tolerate it any more; those that are on such nodes stay
        #[arg(long, value_name = "TAINT")]
        remove: Vec<String>,
    },
    /// Delete organisations that have nothing any more, and revoke their keys
    #[command(visible_alias = "delete")]
    Rm {
        /// Names or ids
        #[arg(required = true)]
        orgs: Vec<String>,
    },
}

#[derive(Debug, Clone, clap::Args)]
pub struct QuotaArgs {
    /// Maximum number of sandboxes
    #[arg(long)]
    pub sandboxes: Option<u64>,
    /// Maximum number of CPUs of all sandboxes
    #[arg(long)]
    pub cpu: Option<f64>,
    /// Maximum memory of all sandboxes, like 64G
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Maximum disk of all sandboxes, like 500G
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub disk: Option<u64>,
}
