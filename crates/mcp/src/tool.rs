//! The table of tools.

use futures_util::future::BoxFuture;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::{Outcome, Refusal};
use crate::call::Call;

mod code;
mod edit;
mod files;
mod output;
mod ports;
mod processes;
mod run;
mod sandboxes;
mod snapshots;

type Run = Box<dyn Fn(Call, JsonObject) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// What most tools hold in memory at most: a document of the API, and the answer made of it.
const HOLDS: usize = 4 * crate::http::DOCUMENT_MAX;

pub struct Entry {
    pub tool: Tool,
    /// Bytes that one call holds in memory at most, beside its message.
    pub holds: usize,
    pub run: Run,
}

/// What a tool does to the world, for clients that ask before they call.
#[derive(Clone, Copy)]
enum Effect {
    Reads,
    Adds,
    Destroys,
}

fn entry<A, F>(
    name: &'static str,
    effect: Effect,
    description: &'static str,
    run: impl Fn(Call, A) -> F + Send + Sync + 'static,
) -> Entry
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Future<Output = Outcome> + Send + 'static,
{
    let annotations = ToolAnnotations::new()
        .read_only(matches!(effect, Effect::Reads))
        .destructive(matches!(effect, Effect::Destroys));
    let tool = Tool::new(name, description, schema::<A>()).with_annotations(annotations);
    let run = move |call, arguments| -> BoxFuture<'static, Outcome> {
        // Unknown fields are refused here, with serde's list of those there are.
        match serde_json::from_value::<A>(Value::Object(arguments)) {
            Ok(arguments) => Box::pin(run(call, arguments)),
            Err(error) => {
                let text = format!("the arguments of {name} are invalid: {error}");
                Box::pin(std::future::ready(Err(Refusal::new(text))))
            }
        }
    };
    Entry {
        tool,
        holds: HOLDS,
        run: Box::new(run),
    }
}

impl Entry {
    fn holding(self, holds: usize) -> Self {
        Self { holds, ..self }
    }
}

fn schema<A: JsonSchema>() -> JsonObject {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<A>();
    match schema.to_value() {
        Value::Object(mut object) => {
            // The name of a type of this program says nothing to a model.
            object.remove("title");
            object.remove("description");
            object
        }
        _ => JsonObject::new(),
    }
}

pub fn table() -> Vec<Entry> {
    use Effect::{Adds, Destroys, Reads};
    vec![
        entry(
            "sandbox_create",
            Adds,
            "Create an isolated Linux machine and return its id. It stays until it is deleted. It has no \
             network unless `allow` lists what it may reach, e.g. [\"preset:packages\"] for package \
             registries or [\"api.example.com\"].",
            sandboxes::create,
        ),
        entry(
            "sandbox_find",
            Reads,
            "Show one sandbox by name or id, or list sandboxes.",
            sandboxes::find,
        ),
        entry(
            "sandbox_delete",
            Destroys,
            "Delete a sandbox, its processes and all its files. This cannot be undone.",
            sandboxes::delete,
        ),
        entry(
            "run",
            Destroys,
            "Run a shell command in a sandbox and return its output and exit code. If it is still running \
             after wait_s it keeps running, and the answer has `process`, `stdout_next` and `stderr_next`: \
             pass them to run_output to get the rest.",
            run::run,
        ),
        entry(
            "run_output",
            Reads,
            "Continue to read the output of a command that run started, from the given offsets, until it ends or wait_s has passed.",
            run::output,
        ),
        entry(
            "code",
            Destroys,
            "Run code in the sandbox's interpreter and return output, results and charts. Variables and \
             imports stay for the next call. Needs an image with the language, e.g. code-interpreter.",
            code::run,
        )
        .holding(code::HOLDS),
        entry(
            "file_read",
            Reads,
            "Read a file of a sandbox, or a part of it by byte offset. Images are returned as images.",
            files::read,
        )
        .holding(files::READ_HOLDS),
        entry(
            "file_write",
            Destroys,
            "Write a file in a sandbox. Replaces the whole file unless `append` is true. Makes missing \
             parent directories.",
            files::write,
        ),
        entry(
            "file_edit",
            Destroys,
            "Replace a piece of text in a file of a sandbox. `old_text` must match exactly, and exactly \
             once unless `all` is true.",
            edit::edit,
        )
        .holding(edit::EDIT_HOLDS),
        entry(
            "file_list",
            Reads,
            "List a directory of a sandbox.",
            files::list,
        ),
        entry(
            "file_search",
            Adds,
            "Search a directory of a sandbox: files whose name matches `name` (a glob), lines that match \
             `text` (an extended regular expression), or both.",
            edit::search,
        ),
        entry(
            "process_list",
            Reads,
            "List a sandbox's processes that were started through Cove, running and finished.",
            processes::list,
        ),
        entry(
            "process_signal",
            Destroys,
            "Send a signal to a process and its children; TERM by default.",
            processes::signal,
        ),
        entry(
            "port_list",
            Reads,
            "List the TCP ports that programs in a sandbox listen on.",
            ports::list,
        ),
        entry(
            "port_share",
            Adds,
            "Make a link to a port of a sandbox, e.g. to show a web application to the user. Everyone who has the link can open it until it expires.",
            ports::share,
        ),
        entry(
            "port_unshare",
            Destroys,
            "Revoke all links to a port of a sandbox.",
            ports::unshare,
        ),
        entry(
            "snapshot_create",
            Adds,
            "Save the state of a sandbox: its files, and with `memory` its running processes too.",
            snapshots::take,
        ),
        entry(
            "snapshot_list",
            Reads,
            "List snapshots, of one sandbox or of all.",
            snapshots::list,
        ),
        entry(
            "sandbox_fork",
            Adds,
            "Make copies of a sandbox or of a snapshot as new sandboxes.",
            snapshots::fork,
        ),
        entry(
            "sandbox_rollback",
            Destroys,
            "Put a sandbox back to a snapshot. The present state is saved as another snapshot first.",
            snapshots::rollback,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_and_every_argument_is_described_and_unknown_arguments_are_refused_by_schema() {
        let table = table();
        assert_eq!(table.len(), 20);
        for entry in &table {
            let schema = &entry.tool.input_schema;
            let name = &entry.tool.name;
            assert_eq!(schema["additionalProperties"], false, "{name}");
            assert!(entry.tool.description.is_some(), "{name}");
            for (field, property) in schema["properties"].as_object().unwrap() {
                assert!(property.get("description").is_some(), "{name}.{field}");
                assert!(!property.to_string().contains("$ref"), "{name}.{field}");
            }
        }
    }
}
