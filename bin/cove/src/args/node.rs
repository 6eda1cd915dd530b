//! Arguments of `cove node`.

use clap::Subcommand;

use crate::serve::ServeArgs;

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Create a join token for one host
    Token {
        /// How long it is valid, such as 30m or 1d [default: 1h]
        #[arg(long, value_name = "TIME", value_parser = crate::units::duration_s)]
        expires: Option<u64>,
    },
    /// Make this host a node of a fleet
    Join {
        /// Address of the control plane's API
        control: String,
        /// Join token, from `cove node token`
        #[arg(
            long,
            value_name = "TOKEN",
            env = "COVE_JOIN_TOKEN",
            hide_env_values = true
        )]
        token: String,
        /// Name of the node [default: the host's name]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Address at which the node listens for the control plane
        #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:7071")]
        listen: std::net::SocketAddr,
        /// Address at which the control plane reaches the node [default: this host's address towards the control plane]
        #[arg(long, value_name = "HOST:PORT")]
        address: Option<String>,
    },
    /// Run the node on this host, after it has joined
    Run(Box<ServeArgs>),
    /// List nodes
    #[command(visible_alias = "list")]
    Ls,
    /// Show a node
    Show { node: String },
    /// Place no new sandboxes on nodes
    Cordon {
        #[arg(required = true)]
        nodes: Vec<String>,
    },
    /// Place new sandboxes on nodes again
    Uncordon {
        #[arg(required = true)]
        nodes: Vec<String>,
    },
    /// Remove nodes that have no sandboxes, snapshots or volumes
    #[command(visible_alias = "delete")]
    Rm {
        #[arg(required = true)]
        nodes: Vec<String>,
        /// The nodes are lost for good: give up data that only they have
        #[arg(long)]
        lost: bool,
    },
}
