//! `cove mcp`: sandboxes as tools for the program that started this.

use cove_client::Client;

use crate::report::CliError;

pub async fn run(client: Client) -> Result<(), CliError> {
    cove_mcp::stdio::serve(client)
        .await
        .map_err(|error| CliError::Io {
            what: "MCP over standard input and output failed".into(),
            source: std::io::Error::other(error),
        })
}
