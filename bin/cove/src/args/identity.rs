//! Arguments of `cove identity`.

use clap::Subcommand;

use crate::units::duration_s;

#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// Print an identity token of a sandbox: a JWT that says which sandbox its holder is
    Token {
        /// Name or id
        sandbox: String,
        /// Whom the token is for, like sts.amazonaws.com
        #[arg(long, short = 'a', value_name = "AUDIENCE")]
        audience: String,
        /// How long it is valid, 15m at most [default: 5m]
        #[arg(long, value_parser = duration_s, value_name = "TIME")]
        expires: Option<u64>,
    },
    /// Show who signs the tokens and with which keys
    Issuer,
    /// Replace the key that signs; the new one signs after an hour and tokens stay valid
    Rotate {
        /// Sign with the new key now and withdraw all others, for keys that somebody else may have
        #[arg(long)]
        at_once: bool,
    },
}
