//! The MCP server: the table of tools, and how one is called.

use std::sync::Arc;

use cove_client::Client;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use crate::answer;
use crate::call::Call;
use crate::tool::{self, Entry};

const INSTRUCTIONS: &str = "Cove gives you isolated Linux machines (sandboxes). Create one with \
sandbox_create, then work in it with run, code and the file tools. A sandbox has no network unless you \
allow destinations when you create it. Commands that take longer than wait_s return a process id and \
offsets; call run_output with them to get the rest. Take a snapshot before risky steps, and delete \
sandboxes that you no longer need.";

/// All tools, over one server of Cove. Cheap to clone.
#[derive(Clone)]
pub struct CoveTools {
    /// Absent over HTTP, where every request brings its own.
    client: Option<Client>,
    table: Arc<Vec<Entry>>,
}

impl CoveTools {
    /// For one caller: every call is made with this client's key.
    pub fn of(client: Client) -> Self {
        Self {
            client: Some(client),
            table: Arc::new(tool::table()),
        }
    }

    /// For callers who are told apart by request.
    pub(crate) fn of_many() -> Self {
        Self {
            client: None,
            table: Arc::new(tool::table()),
        }
    }

    /// Bytes that answering this call holds in memory at most; of any call when the tool is unknown.
    pub(crate) fn holds(&self, tool: Option<&str>) -> usize {
        let named = |entry: &&Entry| tool.is_none_or(|name| entry.tool.name == name);
        let holds = self.table.iter().filter(named).map(|entry| entry.holds);
        holds.max().unwrap_or_default()
    }

    fn client(&self, context: &RequestContext<RoleServer>) -> Result<Client, ErrorData> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let parts = context.extensions.get::<::http::request::Parts>();
        parts
            .and_then(|parts| parts.extensions.get::<Client>().cloned())
            .ok_or_else(|| ErrorData::internal_error("the request has no caller", None))
    }
}

impl ServerHandler for CoveTools {
    fn get_info(&self) -> ServerConfig {
        let implementation = Implementation::new("cove", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(implementation)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.table.iter().map(|entry| entry.tool.clone()).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let entry = self.table.iter().find(|entry| entry.tool.name == name)?;
        Some(entry.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(entry) = self.table.iter().find(|e| e.tool.name == request.name) else {
            let message = format!("there is no tool '{}'", request.name.escape_debug());
            return Err(ErrorData::invalid_params(message, None));
        };
        let client = self.client(&context)?;
        // Over HTTP an ended request means that the connection is gone: nobody waits for the call any more,
        // but the command goes on. Over stdio it means that the caller cancelled, and tools see to it.
        let cancellable = self.client.is_some();
        let gone = context.ct.clone();
        let call = Call::new(client, context, cancellable);
        let arguments = request.arguments.unwrap_or_default();
        tokio::select! {
            biased;
            result = (entry.run)(call, arguments) => {
                Ok(result.unwrap_or_else(answer::refused).into())
            }
            () = gone.cancelled(), if !cancellable => {
                Err(ErrorData::internal_error("the caller is gone", None))
            }
        }
    }
}
