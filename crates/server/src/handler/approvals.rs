//! Approvals: what waits, and what a person decides.

use axum::extract::State;
use cove_api::approval::{Approval, ApprovalDecision, DecideApproval};
use cove_api::{NoQuery, Page};
use cove_model::approval::Decision;

use super::{Answer, nothing, ok};
use crate::extract::{Caller, Json, Names, Query};
use crate::failure::Failure;
use crate::state::App;

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let approvals = app.control.list_approvals(&caller.principal).await?;
    ok(Page {
        items: approvals.into_iter().map(shown).collect(),
        next_cursor: None,
    })
}

pub async fn decide(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<DecideApproval>,
) -> Answer {
    let decision = match (body.decision, body.for_seconds) {
        (ApprovalDecision::Approve, None) => Decision::Once,
        (ApprovalDecision::Approve, Some(seconds)) => Decision::For(seconds),
        (ApprovalDecision::Deny, None) => Decision::Deny,
        (ApprovalDecision::Deny, Some(_)) => {
            return Err(Failure::invalid(
                "for_seconds belongs to approve, not to deny",
            ));
        }
    };
    let control = &app.control;
    control
        .decide_approval(&caller.principal, &id, decision)
        .await?;
    nothing()
}

fn shown(approval: cove_model::approval::Approval) -> Approval {
    Approval {
        id: approval.id.to_string(),
        sandbox: approval.sandbox.to_string(),
        secret: approval.secret,
        host: approval.host.to_string(),
        method: approval.method,
        path: approval.path,
        body_sha256: approval.body.map(|body| hex::encode(body.sha256)),
        body_bytes: approval.body.map(|body| body.bytes),
        state: approval.state,
        waiting: approval.waiting,
        asked_at: approval.asked_at.into(),
        expires_at: approval.expires_at.into(),
    }
}
