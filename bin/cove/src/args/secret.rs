//! Arguments of `cove secret`.

use std::path::PathBuf;

use clap::Subcommand;
use cove_api::secret::SecretLimit;

#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Store a secret, or a new value: from a file, standard input or a prompt
    Set {
        name: String,
        /// Host that the secret may be sent to, like api.example.com or git.example.com:8443
        #[arg(long = "host", value_name = "HOST[:PORT]")]
        hosts: Vec<String>,
        /// Place in the request: bearer, basic, header:NAME, query:NAME, form:NAME, totp:PLACE:NAME,
        /// sigv4:REGION/SERVICE, or exposed for values that sandboxes hold
        #[arg(long = "use", default_value = "bearer", value_name = "USE")]
        usage: String,
        /// Hold each request that uses it until it is approved
        #[arg(long)]
        ask: bool,
        /// What requests that use it may use in all, like requests=1000/day. Units: requests, bytes; scopes:
        /// sandbox (each by itself), day (UTC) and organisation (all together)
        #[arg(long = "limit", value_name = "UNIT=NUMBER/SCOPE")]
        limits: Vec<SecretLimit>,
        /// File with the value; - is standard input [default: standard input, or a prompt in a terminal]
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// List secrets, without values
    #[command(visible_alias = "list")]
    Ls,
    /// Show which sandboxes used a secret
    Uses { name: String },
    /// Remove secrets and close connections that use them
    #[command(visible_alias = "delete")]
    Rm {
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Re-encrypt the keys of all organisations with the newest host key
    Rotate,
}
