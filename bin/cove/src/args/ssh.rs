//! Arguments about SSH.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::units::duration_s;

#[derive(Debug, Args)]
pub struct SshArgs {
    /// Name or id
    pub sandbox: String,
    /// The user inside; default: the sandbox's own
    #[arg(long, short = 'u')]
    pub user: Option<String>,
    /// Print a token to log in with instead of running ssh
    #[arg(long, conflicts_with_all = ["revoke", "arguments"])]
    pub token: bool,
    /// How long that token is good [default: an hour]
    #[arg(long, value_parser = duration_s, value_name = "TIME", requires = "token")]
    pub expires: Option<u64>,
    /// Take back all tokens of the sandbox
    #[arg(long, conflicts_with = "arguments")]
    pub revoke: bool,
    /// More for ssh: options, or a command to run inside
    #[arg(last = true, value_name = "SSH ARGUMENTS")]
    pub arguments: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum SshKeyCommand {
    /// List the public keys that may log in over SSH
    Ls,
    /// Let the holder of a public key use all sandboxes of the organisation over SSH
    Add {
        name: String,
        /// The .pub file; - reads standard input
        file: PathBuf,
        /// Until when it works, from now, like 30d; default: for ever
        #[arg(long, value_parser = duration_s, value_name = "TIME")]
        expires: Option<u64>,
    },
    /// Remove public keys
    Rm {
        #[arg(required = true)]
        keys: Vec<String>,
    },
}
