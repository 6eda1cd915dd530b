//! Arguments of the code interpreter's commands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::units::duration_s;

#[derive(Debug, Subcommand)]
pub enum CodeCommand {
    /// Run code in a context; variables persist between runs
    Run(CodeRunArgs),
    /// List contexts
    #[command(visible_alias = "list")]
    Ls { sandbox: String },
    /// Create a context in addition to the default ones
    New {
        sandbox: String,
        /// Language of its code
        #[arg(long, value_enum, default_value_t = LanguageArg::Python)]
        language: LanguageArg,
        /// Working directory
        #[arg(long, short)]
        workdir: Option<String>,
    },
    /// Interrupt the code a context runs
    Interrupt { sandbox: String, context: String },
    /// Delete contexts
    #[command(visible_alias = "delete")]
    Rm {
        sandbox: String,
        #[arg(required = true)]
        contexts: Vec<String>,
    },
}

#[derive(Debug, Clone, Args)]
pub struct CodeRunArgs {
    /// Language of the code [default: by the file's extension, else python]
    #[arg(long, value_enum)]
    pub language: Option<LanguageArg>,
    /// Id of a context, from `cove code ls` [default: the default context of the language]
    #[arg(long)]
    pub context: Option<String>,
    /// Interrupt the code after this long
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    pub timeout: Option<u64>,
    /// Directory for pictures and other files that the code shows
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// The code
    #[arg(long, short, conflicts_with = "file")]
    pub code: Option<String>,
    pub sandbox: String,
    /// Local file with the code, or - for standard input
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
