//! The document is complete: nothing undescribed, no reference that leads nowhere.

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

/// Places that lack a description, as pointers into the document.
fn bare(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(properties) = map.get("properties").and_then(Value::as_object) {
                for (name, property) in properties {
                    if property["description"].as_str().is_none_or(str::is_empty) {
                        found.push(format!("{at}.{name}"));
                    }
                }
            }
            for (name, below) in map.iter().filter(|(name, _)| *name != "example") {
                bare(below, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, below) in items.iter().enumerate() {
                bare(below, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_property_parameter_and_schema_is_described() {
    let document = document("0");
    let mut found = Vec::new();
    bare(&document, "", &mut found);
    for (name, schema) in document["components"]["schemas"]
        .as_object()
        .expect("schemas")
    {
        if schema["description"].as_str().is_none_or(str::is_empty) {
            found.push(format!("schema {name}"));
        }
    }
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (verb, operation) in operations.as_object().expect("operations") {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                if parameter["description"].as_str().is_none_or(str::is_empty) {
                    found.push(format!("{verb} {path}: {}", parameter["name"]));
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "{} without a description: {found:#?}",
        found.len()
    );
}

#[test]
fn every_operation_has_a_tag_and_every_tag_an_operation() {
    let mut used = std::collections::HashSet::new();
    for route in ROUTES {
        let name = route.operation.as_str();
        used.insert(tag(name).unwrap_or_else(|| panic!("{name} has no tag: add it to TAGS")));
    }
    assert_eq!(used.len(), TAGS.len());
}

#[test]
fn every_json_body_has_an_example_that_its_schema_takes() {
    let document = document("0");
    for route in ROUTES {
        let name = route.operation.as_str();
        let takes_json = matches!(route.body, Body::Json(_) | Body::OptionalJson(_));
        let example = examples::request(route.operation);
        assert_eq!(takes_json, example.is_some(), "{name} and its example");
        if let Some(example) = example {
            check_example(name, &example);
        }
    }
    for name in ["ErrorBody", "ExecResult"] {
        assert!(document["components"]["schemas"][name]["examples"][0].is_object());
    }
}

/// Read by the type of its route, which refuses fields that it does not know.
fn check_example(name: &str, example: &Value) {
    fn reads<T: serde::de::DeserializeOwned>(value: &Value) -> Result<(), String> {
        let read = serde_json::from_value::<T>(value.clone());
        read.map(|_| ()).map_err(|error| error.to_string())
    }
    use crate::{
        approval, build, code, file, identity, image, lifecycle, node, port, process, quarantine,
        sandbox, secret, service, snapshot, ssh, template, tenancy, volume,
    };
    let read = match name {
        "sandbox.create" => reads::<sandbox::CreateSandbox>(example),
        "sandbox.update" => reads::<sandbox::PatchSandbox>(example),
        "lease.take" => reads::<lifecycle::LeaseRequest>(example),
        "lease.renew" => reads::<lifecycle::RenewLeases>(example),
        "sandbox.stop" => reads::<sandbox::StopSandbox>(example),
        "snapshot.create" => reads::<snapshot::TakeSnapshot>(example),
        "sandbox.fork" | "snapshot.fork" => reads::<snapshot::Fork>(example),
        "sandbox.rollback" => reads::<snapshot::Rollback>(example),
        "exec" => reads::<process::Exec>(example),
        "process.start" => reads::<process::StartProcess>(example),
        "service.start" => reads::<service::StartService>(example),
        "process.signal" => reads::<process::SignalProcess>(example),
        "process.resize" => reads::<process::TerminalSize>(example),
        "file.mkdir" | "volume.file_mkdir" => reads::<file::MakeDirectory>(example),
        "file.move" | "volume.file_move" => reads::<file::MoveFile>(example),
        "file.chmod" | "volume.file_chmod" => reads::<file::ChangeMode>(example),
        "code.context_create" => reads::<code::CreateCodeContext>(example),
        "code.run" => reads::<code::RunCode>(example),
        "port.share" => reads::<port::SharePort>(example),
        "ssh.token" => reads::<ssh::CreateSshToken>(example),
        "identity.token" => reads::<identity::CreateIdentityToken>(example),
        "identity.rotate" => reads::<identity::RotateIdentityKeys>(example),
        "image.add" => reads::<image::AddImage>(example),
        "volume.create" => reads::<volume::CreateVolume>(example),
        "template.create" => reads::<template::CreateTemplate>(example),
        "build.create" => reads::<build::CreateBuild>(example),
        "key.create" => reads::<tenancy::CreateKey>(example),
        "ssh_key.add" => reads::<ssh::AddSshKey>(example),
        "secret.set" => reads::<secret::SetSecret>(example),
        "approval.decide" => reads::<approval::DecideApproval>(example),
        "org.create" => reads::<tenancy::CreateOrg>(example),
        "org.update" => reads::<tenancy::PatchOrg>(example),
        "node.token" => reads::<node::CreateJoinToken>(example),
        "node.join" => reads::<node::JoinNode>(example),
        "node.update" => reads::<node::PatchNode>(example),
        "quarantine.adopt" => reads::<quarantine::AdoptQuarantined>(example),
        _ => Err("name the type of the body here".into()),
    };
    assert_eq!(read, Ok(()), "{name}");
}
