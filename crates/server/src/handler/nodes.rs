//! Nodes of the fleet.

use std::time::Duration;

use axum::extract::{Request, State};
use cove_api::node::{
    CreateJoinToken, DeleteNode, JoinNode, JoinToken, JoinedNode, Node, NodeCapacity, NodeState,
    PatchNode,
};
use cove_api::{NoQuery, Timestamp};
use cove_control::ControlError;
use cove_model::HostTraits;

use super::{Answer, made, nothing, ok};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query, parse};
use crate::failure::Failure;
use crate::state::App;

/// More than a request to join has.
const JOIN_BODY_MAX: usize = 16 * 1024;
const JOIN_BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn token(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<CreateJoinToken>,
) -> Answer {
    let new = app
        .control
        .create_join_token(&caller.principal, body.valid_s)
        .await?;
    let token = JoinToken {
        token: new.token.to_string(),
        expires_at: Timestamp(new.expires_at),
    };
    made(token, false)
}

pub async fn join(
    State(app): State<App>,
    Query(NoQuery {}): Query<NoQuery>,
    request: Request,
) -> Answer {
    let body = join_body(request).await?;
    let JoinNode {
        token,
        host,
        name,
        address,
        public_key,
        zone,
        labels,
        taints,
        proof,
    } = body;
    let host = host
        .parse()
        .map_err(|_| ControlError::invalid("host: not the id of a host"))?;
    let request = cove_control::JoinNode {
        token,
        host,
        name,
        address,
        public_key,
        traits: HostTraits {
            zone: zone.unwrap_or_default(),
            labels,
            taints,
        },
        proof,
    };
    let answer = app.control.join_node(request).await?;
    let joined = JoinedNode {
        fleet: answer.fleet,
        authority: answer.authority,
        certificate: answer.certificate,
        proof: answer.proof,
    };
    made(joined, false)
}

/// The sender has no account that could pay for what is held, so it is little and not for long.
async fn join_body(request: Request) -> Result<JoinNode, Failure> {
    let read = axum::body::to_bytes(request.into_body(), JOIN_BODY_MAX);
    let bytes = tokio::time::timeout(JOIN_BODY_TIMEOUT, read).await;
    let bytes = bytes
        .map_err(|_| Failure::invalid("the body did not arrive in time"))?
        .map_err(|_| {
            Failure::invalid(format!(
                "the body has more than {JOIN_BODY_MAX} bytes, or ended too early"
            ))
        })?;
    parse(&bytes)
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let found = app.control.list_nodes(&caller.principal).await?;
    ok(convert::everything(found.into_iter().map(entry).collect()))
}

pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(node): Names<String>,
) -> Answer {
    let found = app.control.get_node(&caller.principal, &node).await?;
    ok(entry(found))
}

pub async fn patch(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(node): Names<String>,
    Json(body): Json<PatchNode>,
) -> Answer {
    let (control, principal) = (&app.control, &caller.principal);
    let change = body.traits();
    let found = match (body.cordoned, change.is_empty()) {
        (Some(cordoned), true) => control.cordon_node(principal, &node, cordoned).await,
        (None, false) => control.change_traits(principal, &node, change).await,
        (None, true) => control.get_node(principal, &node).await,
        // Each leaves a record of its own.
        (Some(_), false) => Err(ControlError::invalid(
            "cordoned: change it in a request of its own",
        )),
    };
    ok(entry(found?))
}

pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<DeleteNode>,
    Names(node): Names<String>,
) -> Answer {
    let control = &app.control;
    control
        .remove_node(&caller.principal, &node, query.lost)
        .await?;
    nothing()
}

fn entry(node: cove_control::Node) -> Node {
    let capacity = node.inventory.map(|known| NodeCapacity {
        cpu: known.cpu_milli as f64 / 1000.0,
        promised_cpu: known.promised_cpu_milli as f64 / 1000.0,
        memory_bytes: known.memory_bytes,
        promised_memory_bytes: known.promised_memory_bytes,
        disk_bytes: known.disk_bytes,
        promised_disk_bytes: known.promised_disk_bytes,
        sandboxes: known.sandboxes,
        running: known.running,
        tiers: known
            .tiers
            .into_iter()
            .filter(|tier| tier.usable)
            .map(|tier| tier.name)
            .collect(),
    });
    Node {
        id: node.host.to_string(),
        name: node.name,
        address: node.address,
        state: match node.state {
            cove_control::NodeState::Joining => NodeState::Joining,
            cove_control::NodeState::Ready => NodeState::Ready,
            cove_control::NodeState::Away => NodeState::Away,
        },
        reason: node.reason,
        cordoned: node.cordoned,
        zone: Some(node.traits.zone).filter(|zone| !zone.is_empty()),
        labels: node.traits.labels,
        taints: node.traits.taints,
        joined_at: Timestamp(node.joined_at),
        certificate_expires_at: Timestamp(node.certificate_expires_at),
        last_seen_at: node.last_seen_at.map(Timestamp),
        version: node.release,
        clock_skew_ms: node.clock_skew_ms,
        capacity,
    }
}
