//! The OpenAPI 3.1 document, written from the route table and the wire types.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::ErrorBody;
use crate::route::{Access, Body, NDJSON, ROUTES, Route, SSE};

mod examples;
#[cfg(test)]
mod tests;

/// Groups of operations: their name, what they are about, and how the names of their operations begin.
const TAGS: &[(&str, &str, &[&str])] = &[
    (
        "Sandboxes",
        "Create, list, change and delete sandboxes.",
        &["sandbox", "lease"],
    ),
    (
        "Commands",
        "Run commands, background processes and services in a sandbox.",
        &["exec", "process", "service"],
    ),
    (
        "Files",
        "Read, write and watch files in a sandbox.",
        &["file"],
    ),
    (
        "Code",
        "Run code in an interpreter that keeps its variables.",
        &["code"],
    ),
    (
        "Ports",
        "Reach programs that listen in a sandbox.",
        &["port"],
    ),
    (
        "Snapshots",
        "Keep states of sandboxes; fork them and roll back to them.",
        &["snapshot"],
    ),
    (
        "Images",
        "Images and templates that sandboxes start from.",
        &["image", "template", "build"],
    ),
    (
        "Volumes",
        "Directories that outlive sandboxes.",
        &["volume"],
    ),
    (
        "Secrets",
        "Credentials that sandboxes can use and never see.",
        &["secret", "approval"],
    ),
    (
        "Identity",
        "Tokens that prove the identity of a sandbox.",
        &["identity"],
    ),
    ("SSH", "Log in to sandboxes over SSH.", &["ssh", "ssh_key"]),
    (
        "Organisations",
        "Organisations, their API keys, usage and audit records.",
        &["org", "key", "usage", "audit"],
    ),
    ("Events", "What happens to sandboxes.", &["events"]),
    (
        "Server",
        "The hosts, their health and figures, and this document.",
        &[
            "runner",
            "node",
            "quarantine",
            "metrics",
            "health",
            "ready",
            "openapi",
            "error",
        ],
    ),
];

/// The group of an operation. Every operation has one; a test says so.
fn tag(operation: &str) -> Option<&'static str> {
    let begin = operation.split('.').next().unwrap_or_default();
    let found = TAGS.iter().find(|(_, _, begins)| begins.contains(&begin));
    found.map(|(name, _, _)| *name)
}

/// The whole document. It costs some work: make it once.
pub fn document(version: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for route in ROUTES {
        let operation = operation(route, &mut generator);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb.as_str().to_ascii_lowercase()] = operation;
    }
    let mut schemas = generator.take_definitions(true);
    for (name, schema) in &mut schemas {
        if let Some(example) = examples::schema(name) {
            schema["examples"] = json!([example]);
        }
    }
    let tags: Vec<Value> = TAGS
        .iter()
        .map(|(name, description, _)| json!({"name": name, "description": description}))
        .collect();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cove",
            "version": version,
            "description": "Sandboxes for agents. Every error has the form of ErrorBody and a stable code.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The server that sent this document"}],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {
                "type": "http", "scheme": "bearer", "description": "An API key: `cove key create NAME`.",
            }},
        },
    });
    simplify(&mut document);
    document
}

/// Schemas as generators of clients expect them: a choice between texts is one `enum`, whose description lists the
/// values; a field that is always the same says so.
fn simplify(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(simplify),
        Value::Object(map) => {
            map.values_mut().for_each(simplify);
            // Anything at all is `true`, which some generators do not know as a schema.
            for place in ["schema", "items"] {
                if let Some(any) = map.get_mut(place).filter(|any| **any == true) {
                    *any = json!({});
                }
            }
            if let Some(one) = map.get("oneOf").and_then(as_enum) {
                map.remove("oneOf");
                let said = map
                    .get("description")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                let description = format!("{said}{}", one.described);
                map.insert("type".into(), "string".into());
                map.insert("enum".into(), one.values.into());
                map.insert("description".into(), description.trim().into());
            }
            describe_only_property(map);
            if let Some(constant) = map.get("const").and_then(Value::as_str)
                && !map.contains_key("description")
            {
                let description = format!("Always `{constant}`.");
                map.insert("description".into(), description.into());
            }
        }
        _ => {}
    }
}

/// An alternative that holds one thing: what is said of the alternative is said of the thing.
fn describe_only_property(map: &mut Map<String, Value>) {
    let Some(description) = map.get("description").cloned() else {
        return;
    };
    let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    if properties.len() == 1
        && let Some(only) = properties
            .values_mut()
            .next()
            .and_then(Value::as_object_mut)
    {
        only.entry("description").or_insert(description);
    }
}

struct Choice {
    values: Vec<Value>,
    /// A line for each value that has a description.
    described: String,
}

/// A choice of which every alternative is a text.
fn as_enum(alternatives: &Value) -> Option<Choice> {
    let mut choice = Choice {
        values: Vec::new(),
        described: String::new(),
    };
    for one in alternatives.as_array()? {
        if one["type"] != "string" {
            return None;
        }
        if let Some(value) = one["const"].as_str() {
            choice.values.push(value.into());
            let said = one["description"].as_str().unwrap_or_default();
            if !said.starts_with("Always `") {
                choice.described += &format!("\n- `{value}`: {}", said.replace('\n', " "));
            }
        } else {
            choice
                .values
                .extend(one["enum"].as_array()?.iter().cloned());
        }
    }
    Some(choice)
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut parameters: Vec<Value> = route
        .parameters()
        .map(|name| path_parameter(route, name))
        .collect();
    if let Some(query) = route.query {
        let schema = query(generator);
        parameters.extend(query_parameters(&schema, generator));
    }
    if route.idempotent {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": "A repeat with the same key and body gets the first answer.",
            "schema": {"type": "string", "minLength": 1, "maxLength": cove_limits::IDEMPOTENCY_KEY_MAX},
        }));
    }
    let mut operation = json!({
        "operationId": route.operation.as_str(),
        "summary": route.summary,
        "tags": tag(route.operation.as_str()).into_iter().collect::<Vec<_>>(),
        "parameters": parameters,
        "responses": responses(route, generator),
    });
    if let Access::Key(scope) = route.access {
        operation["security"] = json!([{"key": []}]);
        operation["x-scope"] = json!(scope.as_str());
    }
    match route.body {
        Body::None => {}
        Body::Json(schema) => {
            operation["requestBody"] =
                request_body(true, crate::route::JSON, schema(generator).into());
        }
        Body::OptionalJson(schema) => {
            operation["requestBody"] =
                request_body(false, crate::route::JSON, schema(generator).into());
        }
        Body::Raw(media_type) => {
            let schema = json!({"type": "string", "format": "binary"});
            operation["requestBody"] = request_body(true, media_type, schema);
        }
    }
    if let Some(example) = examples::request(route.operation) {
        operation["requestBody"]["content"][crate::route::JSON]["example"] = example;
    }
    operation
}

fn request_body(required: bool, media_type: &str, schema: Value) -> Value {
    json!({"required": required, "content": {media_type: {"schema": schema}}})
}

fn path_parameter(route: &Route, name: &str) -> Value {
    let description = match name {
        "id" if route.path.starts_with("/v1/quarantine") => {
            "Id of the quarantined sandbox, snapshot or volume.".into()
        }
        "id" => "Name or id of the sandbox.".into(),
        "port" => "Port inside the sandbox.".into(),
        "process" => "Id of the process.".into(),
        "service" => "Name of the service.".into(),
        "context" => "Id of the code context.".into(),
        "job" => "Id of the job.".into(),
        "key" => "Id of the key.".into(),
        "org" => "Id of the organisation.".into(),
        "code" => "Code of the error.".into(),
        "tag" => "The tag.".into(),
        other => format!("Name or id of the {other}."),
    };
    // An image may be named by its whole reference.
    let length = if name == "image" {
        cove_limits::IMAGE_REF_MAX
    } else {
        cove_limits::ID_OR_NAME_MAX
    };
    json!({
        "name": name, "in": "path", "required": true, "description": description,
        "schema": {"type": "string", "minLength": 1, "maxLength": length},
    })
}

/// A query struct's fields, each as a parameter.
fn query_parameters(schema: &Schema, generator: &SchemaGenerator) -> Vec<Value> {
    let name = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|reference| reference.rsplit('/').next());
    let object = match name.and_then(|name| generator.definitions().get(name)) {
        Some(definition) => definition,
        None => schema.as_value(),
    };
    let required: Vec<&str> = object["required"]
        .as_array()
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let Some(properties) = object["properties"].as_object() else {
        return Vec::new();
    };
    properties
        .iter()
        .map(|(name, schema)| {
            let mut schema = schema.clone();
            let description = schema
                .as_object_mut()
                .and_then(|schema| schema.remove("description"))
                .unwrap_or(Value::Null);
            let mut parameter = json!({
                "name": name, "in": "query",
                "required": required.contains(&name.as_str()),
                "schema": without_null(schema),
            });
            if !description.is_null() {
                parameter["description"] = description;
            }
            parameter
        })
        .collect()
}

/// A query cannot say `null`: an absent parameter is just absent.
fn without_null(mut schema: Value) -> Value {
    if let Some(types) = schema["type"].as_array() {
        let real: Vec<_> = types.iter().filter(|t| *t != "null").cloned().collect();
        if let [only] = real.as_slice() {
            schema["type"] = only.clone();
        }
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let real: Vec<_> = options
            .iter()
            .filter(|o| o["type"] != "null")
            .cloned()
            .collect();
        if let [only] = real.as_slice() {
            return only.clone();
        }
    }
    schema
}

fn responses(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut content = Map::new();
    for form in route.content.iter().flatten() {
        let schema = match form.schema {
            // A stream's schema is that of one line or message; as a body it is text.
            Some(schema) if matches!(form.media_type, NDJSON | SSE) => {
                let one = schema(generator);
                json!({"type": "string", "x-each": one})
            }
            Some(schema) => schema(generator).into(),
            None => json!({"type": "string", "format": "binary"}),
        };
        content.insert(form.media_type.to_owned(), json!({"schema": schema}));
    }
    let mut success = json!({"description": route.summary});
    if !content.is_empty() {
        success["content"] = content.into();
    }
    let error: Value = generator.subschema_for::<ErrorBody>().into();
    let mut responses = json!({
        "default": {
            "description": "Refused or failed",
            "content": {"application/json": {"schema": error}},
        },
    });
    responses[route.status.to_string()] = success;
    // A live answer begins at once, whatever the plain one's status is.
    if route.status == 202 {
        let live = responses["202"].clone();
        responses["200"] = live;
    }
    if route.operation == crate::route::Operation::ReadFile {
        let partial = responses["200"].clone();
        responses["206"] = partial;
    }
    responses
}
