//! Over standard input and output, for a program that started `cove mcp`.

use cove_client::Client;
use rmcp::ServiceExt;
use rmcp::transport::io::stdio_pipes;

use crate::CoveTools;

/// Serves until the other side closes its end.
pub async fn serve(client: Client) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let running = CoveTools::of(client).serve(stdio_pipes()).await?;
    running.waiting().await?;
    Ok(())
}
