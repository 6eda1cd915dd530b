//! The OpenAPI 3.1 document, written from the route table and the wire types.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::ErrorBody;
use crate::route::{Access, Body, NDJSON, ROUTES, Route, SSE};

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
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cove",
            "version": version,
            "description": "Sandboxes for agents. Every error has the form of ErrorBody and a stable code.",
            "license": {"name": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut parameters: Vec<Value> = route.parameters().map(path_parameter).collect();
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
    operation
}

fn request_body(required: bool, media_type: &str, schema: Value) -> Value {
    json!({"required": required, "content": {media_type: {"schema": schema}}})
}

fn path_parameter(name: &str) -> Value {
    // An image may be named by its whole reference.
    let length = if name == "image" {
        cove_limits::IMAGE_REF_MAX
    } else {
        cove_limits::ID_OR_NAME_MAX
    };
    json!({
        "name": name, "in": "path", "required": true,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_of_the_document_leads_somewhere() {
        let document = document("0");
        let mut stack = vec![&document];
        let mut references = 0;
        while let Some(value) = stack.pop() {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(target)) = map.get("$ref") {
                        let pointer = target.strip_prefix('#').expect("references are local");
                        assert!(
                            document.pointer(pointer).is_some(),
                            "{target} leads nowhere"
                        );
                        references += 1;
                    }
                    stack.extend(map.values());
                }
                Value::Array(items) => stack.extend(items),
                _ => {}
            }
        }
        assert!(references > 50);
    }

    #[test]
    fn required_query_fields_are_required_parameters() {
        let document = document("0");
        let parameters = &document["paths"]["/v1/sandboxes/{id}/files"]["get"]["parameters"];
        let path = parameters
            .as_array()
            .and_then(|all| all.iter().find(|p| p["name"] == "path"));
        assert_eq!(path.expect("the path is a parameter")["required"], true);
    }
}
