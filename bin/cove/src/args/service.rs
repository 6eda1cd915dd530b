//! Arguments about services.

use clap::{Args, Subcommand, ValueEnum};
use cove_api::service::RestartPolicy;

use super::work::CommandOptions;

#[derive(Debug, Clone, Subcommand)]
pub enum ServiceCommand {
    /// Start a service and print the id of its process
    Start(StartServiceArgs),
    /// List the services of a sandbox
    #[command(visible_alias = "list")]
    Ls { sandbox: String },
    /// End services and remove them
    #[command(visible_alias = "delete")]
    Rm {
        sandbox: String,
        /// Names of services
        #[arg(required = true)]
        names: Vec<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub struct StartServiceArgs {
    #[command(flatten)]
    pub options: CommandOptions,
    /// When it is started again after its end
    #[arg(long, value_enum, default_value_t = Restart::OnFailure, value_name = "POLICY")]
    pub restart: Restart,
    /// Command line for the user's login shell, instead of a program and its arguments
    #[arg(long, short = 'c', value_name = "COMMAND", conflicts_with = "argv")]
    pub shell: Option<String>,
    pub sandbox: String,
    /// Name, unique in the sandbox
    pub name: String,
    /// Program and arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "shell"
    )]
    pub argv: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Restart {
    No,
    OnFailure,
    Always,
}

impl From<Restart> for RestartPolicy {
    fn from(restart: Restart) -> Self {
        match restart {
            Restart::No => Self::No,
            Restart::OnFailure => Self::OnFailure,
            Restart::Always => Self::Always,
        }
    }
}
