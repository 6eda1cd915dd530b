//! Arguments about SSH.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::units::duration_s;

#[derive(Debug, Args)]
pub struct SshArgs {
    /// Name or id
    pub sandbox: String,
    /// User in the sandbox [default: the sandbox's user]
    #[arg(long, short = 'u')]
    pub user: Option<String>,
    /// Print a token to log in with instead of running ssh
    #[arg(long, conflicts_with_all = ["revoke", "arguments"])]
    pub token: bool,
    /// How long the token is valid [default: an hour]
    #[arg(long, value_parser = duration_s, value_name = "TIME", requires = "token")]
    pub expires: Option<u64>,
    /// Revoke all tokens of the sandbox
    #[arg(long, conflicts_with = "arguments")]
    pub revoke: bool,
    /// Options for ssh, or a command to run in the sandbox
    #[arg(last = true, value_name = "SSH ARGUMENTS")]
    pub arguments: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum SshKeyCommand {
    /// List public keys
    #[command(visible_alias = "list")]
    Ls,
    /// Add a public key: its holder can use all sandboxes of the organisation over SSH
    Add {
        name: String,
        /// The .pub file; - reads standard input
        file: PathBuf,
        /// How long it is valid, like 30d [default: until removed]
        #[arg(long, value_parser = duration_s, value_name = "TIME")]
        expires: Option<u64>,
    },
    /// Remove public keys
    #[command(visible_alias = "delete")]
    Rm {
        /// Names or ids
        #[arg(required = true)]
        keys: Vec<String>,
    },
}
