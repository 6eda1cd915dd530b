//! Every call that changes something leaves a record: who, what, from where, and how it ended.

use cove_api::PageQuery;
use cove_api::route::{Operation as Op, ROUTES, Route};
use cove_client::Outgoing;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;

use super::harness::Server;
use super::walk::filled;

/// A query and a body that say enough for a route to act on.
fn said(route: &Route) -> (&'static str, &'static str) {
    match route.operation {
        Op::TakeLease => ("", r#"{"holder":"me"}"#),
        Op::PatchSandbox => ("", r#"{"labels":{"a":"b"}}"#),
        Op::RollbackSandbox => ("", r#"{"snapshot":"snap_aaaaaaaaaaaaaaaaaaaa"}"#),
        Op::Exec | Op::StartProcess => ("", r#"{"command":"true"}"#),
        Op::StartService => ("", r#"{"name":"made","command":"true"}"#),
        Op::SignalProcess => ("", r#"{"signal":"TERM"}"#),
        Op::ResizeProcess => ("", r#"{"cols":80,"rows":24}"#),
        Op::WriteFile
        | Op::WriteArchive
        | Op::RemoveFile
        | Op::WriteVolumeFile
        | Op::RemoveVolumeFile => ("?path=/x", ""),
        Op::CreateTemplate => (
            "",
            r#"{"name":"made","snapshot":"snap_aaaaaaaaaaaaaaaaaaaa"}"#,
        ),
        Op::CreateBuild => ("", r#"{"name":"made","dockerfile":"FROM debian"}"#),
        Op::CreateVolume => ("", r#"{"name":"made"}"#),
        Op::MakeDirectory | Op::MakeVolumeDirectory => ("", r#"{"path":"/x"}"#),
        Op::MoveFile | Op::MoveVolumeFile => ("", r#"{"from":"/x","to":"/y"}"#),
        Op::ChangeMode | Op::ChangeVolumeMode => ("", r#"{"path":"/x","mode":"600"}"#),
        Op::CreateCodeContext => ("", r#"{"language":"python"}"#),
        Op::RunCode => ("", r#"{"code":"1"}"#),
        Op::IdentityToken => ("", r#"{"audience":"vault"}"#),
        Op::AddImage => ("", r#"{"type":"debian"}"#),
        Op::CreateKey => ("", r#"{"name":"made","scopes":["read"]}"#),
        Op::AddSshKey => ("", r#"{"name":"made","public_key":"ssh-ed25519 AAAA"}"#),
        Op::SetSecret => (
            "",
            r#"{"name":"made","value":"sk-0123456789","hosts":["api.example"]}"#,
        ),
        Op::DecideApproval => ("", r#"{"decision":"approve"}"#),
        Op::CreateOrg => ("", r#"{"name":"made"}"#),
        Op::PatchOrg => ("", r#"{"quota":{"sandboxes":1}}"#),
        Op::CreateSandbox | Op::AdoptQuarantined | Op::CreateJoinToken => ("", "{}"),
        Op::PatchNode => ("", r#"{"cordoned":true}"#),
        _ => ("", ""),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_changing_call_is_written_down_with_its_end_also_when_it_is_refused() {
    let mut unwritten = Vec::new();
    // A renewal says only that somebody is still there, and comes every few minutes for each sandbox.
    // Whoever asks to join has no key, and is recorded once its token proved right.
    let is_recorded = |route: &&Route| {
        route.mutates() && ![Op::RenewLeases, Op::JoinNode].contains(&route.operation)
    };
    let routes: Vec<&Route> = ROUTES.iter().filter(is_recorded).collect();
    // One organisation's refusals are recorded one by one only up to 60 in a minute.
    for routes in routes.chunks(40) {
        let server = Server::bare().await;
        unwritten.extend(unrecorded(&server, routes).await);
    }
    assert!(unwritten.is_empty(), "{}", unwritten.join("\n"));
}

/// Asks for each route, and tells which have no record.
async fn unrecorded(server: &Server, routes: &[&Route]) -> Vec<String> {
    let client = &server.client;
    let mut unwritten = Vec::new();
    for route in routes {
        let (query, body) = said(route);
        let path = format!("{}{query}", filled(route.path, "sbx_aaaaaaaaaaaaaaaaaaaa"));
        let method = route.verb.as_str().parse().unwrap();
        let headers = match body {
            "" => vec![],
            _ => vec![(CONTENT_TYPE, "application/json")],
        };
        let body = Outgoing::bytes(body.as_bytes().to_vec());
        let response = client.send(method, &path, &headers, body).await.unwrap();
        let id = response.headers()["x-request-id"].to_str().unwrap();
        let (id, status) = (id.to_owned(), response.status().as_u16());
        let told = response.into_body().collect().await.unwrap().to_bytes();
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(
            !told.contains("the body is invalid") && !told.contains("the query is invalid"),
            "{}: {told}",
            route.operation.as_str()
        );
        let trail = client.audit(&PageQuery::default()).await.unwrap().items;
        let written = trail
            .iter()
            .find(|record| record.request_id.as_ref() == Some(&id));
        match written {
            None => unwritten.push(format!("{} {status} {told}", route.operation.as_str())),
            Some(record) => {
                assert!(
                    record.key.is_some() && record.source.is_some(),
                    "{record:?}"
                );
                assert_eq!(status < 400, record.result == "ok", "{record:?}: {told}");
            }
        }
    }
    unwritten
}
