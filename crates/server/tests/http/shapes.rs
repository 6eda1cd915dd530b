//! The shape of bodies: wherever the contract has an object, a list is refused, on every route and at
//! every depth. The bodies are made from the OpenAPI document, so that a new route is covered when it
//! is in the table.

use cove_api::route::{Body, ROUTES};
use cove_client::Outgoing;
use http::header;
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};

use super::harness::Server;
use super::walk::{error_of, filled};

/// Deeper than any body of the contract.
const DEPTH_MAX: usize = 12;

struct Document(Value);

impl Document {
    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema.get("$ref").and_then(Value::as_str) {
            Some(reference) => {
                let pointer = reference.trim_start_matches('#');
                self.resolved(self.0.pointer(pointer).unwrap())
            }
            None => schema,
        }
    }

    /// Something the schema allows, with every optional part in it.
    fn sample(&self, schema: &Value, depth: usize) -> Value {
        assert!(depth < DEPTH_MAX, "the contract has no endless bodies");
        let schema = self.resolved(schema);
        let is_null = |schema: &&Value| schema.get("type") == Some(&json!("null"));
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(choices) = schema.get(key).and_then(Value::as_array) {
                let choice = choices.iter().find(|choice| !is_null(choice)).unwrap();
                let mut made = self.sample(choice, depth + 1);
                // Fields beside the choice belong to the same object.
                if let (Some(object), Some(Value::Object(own))) = (
                    made.as_object_mut(),
                    schema.get("properties").map(|_| self.object(schema, depth)),
                ) {
                    object.extend(own);
                }
                return made;
            }
        }
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return values[0].clone();
        }
        let kind = match schema.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            Some(Value::Array(kinds)) => kinds
                .iter()
                .filter_map(Value::as_str)
                .find(|kind| *kind != "null")
                .unwrap(),
            _ => panic!("a schema without a type: {schema}"),
        };
        match kind {
            "object" => self.object(schema, depth),
            "array" => json!([self.sample(&schema["items"], depth + 1)]),
            "boolean" => json!(true),
            "integer" | "number" => schema.get("minimum").cloned().unwrap_or(json!(1)),
            "string" if schema.get("format") == Some(&json!("date-time")) => {
                json!("2040-01-01T00:00:00Z")
            }
            "string" => json!("x"),
            other => panic!("a schema of the type {other}"),
        }
    }

    fn object(&self, schema: &Value, depth: usize) -> Value {
        let mut object = Map::new();
        for (name, part) in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            object.insert(name.clone(), self.sample(part, depth + 1));
        }
        if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
            object.insert("key".into(), self.sample(values, depth + 1));
        }
        Value::Object(object)
    }
}

/// The places of all objects, as pointers.
fn objects(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(parts) => {
            found.push(place.to_owned());
            for (name, part) in parts {
                objects(part, &format!("{place}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                objects(item, &format!("{place}/{index}"), found);
            }
        }
        _ => {}
    }
}

async fn send(server: &Server, method: &str, path: &str, body: &Value) -> (u16, Vec<u8>) {
    let response = server
        .client
        .send(
            method.parse().unwrap(),
            path,
            &[(header::CONTENT_TYPE, "application/json")],
            Outgoing::bytes(body.to_string()),
        )
        .await
        .unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, bytes.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_never_taken_for_an_object_in_any_body() {
    let server = Server::bare().await;
    let (_, text) =
        super::walk::ask(&server.client, cove_api::route::Verb::Get, "/openapi.json").await;
    let document = Document(serde_json::from_slice(&text).unwrap());
    let (mut routes, mut places) = (0, 0);
    for route in ROUTES {
        if !matches!(route.body, Body::Json(_) | Body::OptionalJson(_)) {
            continue;
        }
        routes += 1;
        let verb = route.verb.as_str().to_lowercase();
        let schema = &document.0["paths"][route.path][&verb]["requestBody"]["content"]["application/json"]
            ["schema"];
        let good = document.sample(schema, 0);
        let path = filled(route.path, "nobody");
        // The sample itself is read; what becomes of it is not the point here.
        let (status, body) = send(&server, route.verb.as_str(), &path, &good).await;
        if status >= 400 {
            let error = error_of(&body);
            assert!(
                !error.message.starts_with("the body is invalid"),
                "{} {path}: {}: {good}",
                route.verb.as_str(),
                error.message
            );
        }
        let mut found = Vec::new();
        objects(&good, "", &mut found);
        for place in found {
            places += 1;
            for fill in [true, false] {
                let mut bad = good.clone();
                let target = bad.pointer_mut(&place).unwrap();
                let parts = target.as_object().unwrap().values().cloned();
                *target = match fill {
                    true => Value::Array(parts.collect()),
                    false => json!([]),
                };
                let (status, body) = send(&server, route.verb.as_str(), &path, &bad).await;
                let error = error_of(&body);
                assert_eq!(
                    (status, error.code.as_str()),
                    (422, "invalid_request"),
                    "{} {path} with a list at '{place}': {}",
                    route.verb.as_str(),
                    error.message
                );
                assert!(
                    error.message.contains("not a list"),
                    "refused for the list: {}",
                    error.message
                );
            }
        }
    }
    assert!(
        routes >= 10 && places > routes,
        "{routes} routes, {places} places"
    );
}
