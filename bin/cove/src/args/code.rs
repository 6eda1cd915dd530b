//! Arguments of the code interpreter's commands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::units::duration_s;

#[derive(Debug, Subcommand)]
pub enum CodeCommand {
    /// Run code in a context; variables stay for the next run
    Run(CodeRunArgs),
    /// List contexts
    Ls { sandbox: String },
    /// Start another context, beside the default ones
    New {
        sandbox: String,
        #[arg(long, short, value_enum, default_value_t = LanguageArg::Python)]
        language: LanguageArg,
        /// Where its code starts
        #[arg(long, short)]
        workdir: Option<String>,
    },
    /// Interrupt the code a context runs
    Interrupt { sandbox: String, context: String },
    /// End contexts
    Rm {
        sandbox: String,
        #[arg(required = true)]
        contexts: Vec<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub struct CodeRunArgs {
    #[arg(long, short, value_enum)]
    pub language: Option<LanguageArg>,
    /// A context's id, from `cove code ls`; default: the language's own
    #[arg(long)]
    pub context: Option<String>,
    /// Interrupt the code after this long
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub timeout: Option<u64>,
    /// Write pictures and other files it shows to this directory
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// The code itself
    #[arg(long, short, conflicts_with = "file")]
    pub code: Option<String>,
    pub sandbox: String,
    /// A file here with the code, or - for standard input
    #[arg(required_unless_present = "code")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LanguageArg {
    Python,
    #[value(alias = "js")]
    Javascript,
    #[value(alias = "ts")]
    Typescript,
    #[value(alias = "sh")]
    Bash,
}
