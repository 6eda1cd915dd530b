//! Completions, manual pages and the configuration file, made from the program's own definitions.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::output;
use crate::report::CliError;

pub fn completion(shell: clap_complete::Shell) -> Result<u8, CliError> {
    output::write(&crate::complete::script(shell)?)?;
    Ok(0)
}

pub fn man(directory: Option<&Path>) -> Result<u8, CliError> {
    let failed = |source| CliError::io("cannot write the manual", source);
    match directory {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(failed)?;
            output::write(&page)?;
        }
        Some(directory) => {
            std::fs::create_dir_all(directory).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), directory).map_err(failed)?;
        }
    }
    Ok(0)
}

/// This program's version, and the server's where one answers.
pub async fn version(client: &cove_client::Client, json: bool) -> Result<(), CliError> {
    let server = client.health().await.ok().map(|health| health.version);
    if json {
        let told = serde_json::json!({ "client": crate::VERSION, "server": server });
        return crate::output::json(&told);
    }
    crate::output::line(&format!("client  {}", crate::VERSION))?;
    let server = server.unwrap_or_else(|| format!("no server answers at {}", client.url()));
    crate::output::line(&format!("server  {server}"))
}

pub fn config(json: bool) -> Result<u8, CliError> {
    if json {
        output::json(&crate::serve::default_settings())?;
        return Ok(0);
    }
    output::write(crate::serve::config_file().as_bytes())?;
    Ok(0)
}
