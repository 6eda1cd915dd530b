//! Arguments of `cove approvals`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum ApprovalsCommand {
    /// List requests that wait for an approval, and decided ones
    #[command(visible_alias = "list")]
    Ls,
    /// Approve a request once, or all requests of its sandbox with the secret to the host for a time
    Approve {
        approval: String,
        /// Approve all requests of the sandbox with this secret to this host, like 1h
        #[arg(long = "for", value_name = "TIME", value_parser = crate::units::duration_s)]
        time: Option<u64>,
    },
    /// Deny a request, or revoke an approval
    Deny { approval: String },
}
