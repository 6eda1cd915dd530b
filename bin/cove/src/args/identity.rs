//! Arguments of `cove identity`.

use clap::Subcommand;

use crate::units::duration_s;

#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// Print an identity token of a sandbox (a JWT)
    Token {
        /// Name or id
        sandbox: String,
        /// Audience of the token, like sts.amazonaws.com
        #[arg(long, value_name = "AUDIENCE")]
        audience: String,
        /// How long it is valid, 15m at most [default: 5m]
        #[arg(long, value_parser = duration_s, value_name = "TIME")]
        expires: Option<u64>,
    },
    /// Show the issuer and its public keys
    Issuer,
    /// Rotate the signing key; the new one is used after an hour and tokens stay valid
    Rotate {
        /// Use the new key immediately and withdraw all others, for leaked keys
        #[arg(long)]
        at_once: bool,
    },
}
