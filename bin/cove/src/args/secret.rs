//! Arguments of `cove secret`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Keep a secret, or set a new value of one: read from a file, from standard input or typed
    Set {
        name: String,
        /// A host that it may be sent to, like api.example.com or git.example.com:8443
        #[arg(long = "host", required = true, value_name = "HOST[:PORT]")]
        hosts: Vec<String>,
        /// Where in a request it belongs: bearer, basic, header:NAME or query:NAME
        #[arg(long = "use", default_value = "bearer", value_name = "USE")]
        usage: String,
        /// A file with the value; - reads standard input, which is the default where it is not a terminal
        #[arg(long, short)]
        file: Option<PathBuf>,
    },
    /// List secrets, without values
    #[command(visible_alias = "list")]
    Ls,
    /// Show which sandboxes used a secret
    Uses { name: String },
    /// Remove secrets; connections that used them are cut
    Rm {
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Wrap the keys of all organisations with the newest host key, after adding it to the host key file
    Rotate,
}
