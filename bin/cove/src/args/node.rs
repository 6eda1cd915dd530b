//! Arguments of `cove node`.

use clap::{Args, Subcommand};

use crate::serve::ServeArgs;
use crate::units::key_value;

#[derive(Debug, Args)]
pub struct JoinTraits {
    /// Zone that the node is in
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Label that sandboxes can ask for
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub label: Vec<(String, String)>,
    /// Only sandboxes that tolerate this taint may come
    #[arg(long, value_name = "TAINT")]
    pub taint: Vec<String>,
}

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
        #[command(flatten)]
        traits: JoinTraits,
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
    /// Change a node's zone, labels and taints; what is not named stays
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true)
        .args(["zone", "label", "no_label", "taint", "no_taint"]))]
    Set {
        node: String,
        /// Zone that it is in; an empty one removes the zone
        #[arg(long, value_name = "ZONE")]
        zone: Option<String>,
        /// Set a label that sandboxes can ask for
        #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
        label: Vec<(String, String)>,
        /// Remove a label
        #[arg(long, value_name = "KEY")]
        no_label: Vec<String>,
        /// Keep new sandboxes away that do not tolerate this taint
        #[arg(long, value_name = "TAINT")]
        taint: Vec<String>,
        /// Remove a taint
        #[arg(long, value_name = "TAINT")]
        no_taint: Vec<String>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        command: NodeCommand,
    }

    #[test]
    fn a_change_of_a_node_names_what_it_changes() {
        let read = |args: &[&str]| {
            let line = [&["node"], args].concat();
            <Line as clap::Parser>::try_parse_from(line).map(|line| line.command)
        };
        assert!(read(&["set", "n1"]).is_err());
        assert!(read(&["set", "n1", "--label", "gpu"]).is_err());
        let args = [
            "set",
            "n1",
            "--label",
            "gpu=h100",
            "--no-label",
            "disk",
            "--taint",
            "lab",
            "--no-taint",
            "spot",
        ];
        let NodeCommand::Set {
            node,
            zone,
            label,
            no_label,
            taint,
            no_taint,
        } = read(&args).unwrap()
        else {
            panic!("another command");
        };
        assert_eq!((node.as_str(), zone), ("n1", None));
        assert_eq!(label, [("gpu".to_owned(), "h100".to_owned())]);
        assert_eq!(
            [no_label, taint, no_taint].concat(),
            ["disk", "lab", "spot"]
        );
    }
}
