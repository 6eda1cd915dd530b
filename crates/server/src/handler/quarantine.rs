//! What hosts keep that nobody can use: listing, adopting and deleting it.

use axum::extract::State;
use cove_api::quarantine::{AdoptQuarantined, Quarantined, QuarantinedKind};
use cove_api::{NoQuery, Timestamp};
use cove_control::QuarantinedId;
use cove_model::OrgId;

use super::{Answer, nothing, ok};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query};
use crate::failure::Failure;
use crate::state::App;

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let found = app.control.list_quarantine(&caller.principal).await?;
    ok(convert::everything(found.into_iter().map(entry).collect()))
}

pub async fn adopt(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<AdoptQuarantined>,
) -> Answer {
    let org = body.org.map(|org| {
        let missing =
            |_| Failure::from(cove_control::ControlError::not_found("organisation", &org));
        org.parse::<OrgId>().map_err(missing)
    });
    app.control
        .adopt_quarantined(&caller.principal, &id, org.transpose()?.as_ref())
        .await?;
    nothing()
}

pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    app.control
        .delete_quarantined(&caller.principal, &id)
        .await?;
    nothing()
}

fn entry(found: cove_control::Quarantined) -> Quarantined {
    Quarantined {
        id: found.id.as_str().to_owned(),
        kind: match found.id {
            QuarantinedId::Sandbox(_) => QuarantinedKind::Sandbox,
            QuarantinedId::Snapshot(_) => QuarantinedKind::Snapshot,
            QuarantinedId::Volume(_) => QuarantinedKind::Volume,
        },
        reason: found.reason,
        state: found.state.map(|state| state.to_string()),
        name: found.name,
        org: found.org.map(|org| org.to_string()),
        sandbox: found.of.map(|sandbox| sandbox.to_string()),
        created_at: Timestamp(found.created_at),
    }
}
