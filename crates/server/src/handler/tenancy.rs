//! Keys, organisations, usage and the audit trail.

use std::collections::VecDeque;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use cove_api::route::NDJSON;
use cove_api::tenancy::{
    AuditLine, CreateKey, CreateOrg, NewKey, PatchOrg, QuotaRequest, SandboxUsage, Usage,
    UsageQuery,
};
use cove_api::{NoQuery, PageQuery};
use cove_control::{ControlError, Period, QuotaChange};
use cove_dialect::Kind;
use cove_limits::{QUOTA_CPU_MAX, QUOTA_MB_MAX, QUOTA_SANDBOXES_MAX};
use cove_model::spec::SECONDS_MAX;
use cove_model::{KeyId, OrgId};
use time::{Duration, OffsetDateTime};

use super::{Answer, nothing, ok, page_request, with_status};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query, accepts};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::ndjson;

pub async fn list_keys(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Answer {
    let page = page_request(query)?;
    ok(convert::page(
        app.control.list_keys(&caller.principal, &page).await?,
        convert::key,
    ))
}

pub async fn create_key(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<CreateKey>,
) -> Answer {
    let expires_at = match body.expires_in_s {
        None => None,
        Some(seconds) if (1..=SECONDS_MAX).contains(&seconds) => {
            Some(OffsetDateTime::now_utc() + Duration::seconds(seconds.cast_signed()))
        }
        Some(_) => {
            return Err(Failure::invalid(format!(
                "expires_in_s must be between 1 and {SECONDS_MAX}"
            )));
        }
    };
    let request = cove_control::CreateKey {
        name: body.name,
        scopes: body.scopes,
        expires_at,
        org: body.org.map(|org| org_id(&org)).transpose()?,
        sandbox: body.sandbox,
    };
    let new = app.control.create_key(&caller.principal, request).await?;
    let token = new.token.reveal().to_owned();
    with_status(
        StatusCode::CREATED,
        NewKey {
            key: convert::key(new.key),
            token,
        },
    )
}

pub async fn revoke_key(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(key): Names<String>,
) -> Answer {
    let id: KeyId = key.parse().map_err(|_| missing("key", &key))?;
    app.control.revoke_key(&caller.principal, &id).await?;
    nothing()
}

pub async fn list_orgs(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Answer {
    let page = page_request(query)?;
    ok(convert::page(
        app.control
            .list_organisations(&caller.principal, &page)
            .await?,
        convert::org,
    ))
}

pub async fn create_org(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<CreateOrg>,
) -> Answer {
    let quota = quota(&body.quota.unwrap_or_default())?;
    let org = app
        .control
        .create_organisation(&caller.principal, &body.name, quota)
        .await?;
    with_status(StatusCode::CREATED, convert::org(org))
}

pub async fn patch_org(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(org): Names<String>,
    Json(body): Json<PatchOrg>,
) -> Answer {
    let id = org_id(&org)?;
    let (control, principal) = (&app.control, &caller.principal);
    let changed = match (body.quota, body.tolerations.is_empty()) {
        (Some(asked), true) => {
            let asked = quota(&asked)?;
            let change = move |now| Ok(asked.over(now));
            control.change_quota(principal, &id, change).await
        }
        (None, false) => control.tolerate(principal, &id, body.tolerations).await,
        // Each leaves a record of its own.
        _ => Err(ControlError::invalid("give one of quota and tolerations")),
    };
    ok(convert::org(changed?))
}

pub async fn delete_org(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(org): Names<String>,
) -> Answer {
    let id = org_id(&org)?;
    app.control
        .remove_organisation(&caller.principal, &id)
        .await?;
    nothing()
}

fn quota(asked: &QuotaRequest) -> Result<QuotaChange, Failure> {
    let cpu_milli = match asked.cpu {
        None => None,
        Some(cpu) if cpu.is_finite() && (0.0..=QUOTA_CPU_MAX).contains(&cpu) => {
            Some((cpu * 1000.0).round() as u64)
        }
        Some(_) => return Err(Failure::invalid("cpu is out of range")),
    };
    if asked.sandboxes > Some(QUOTA_SANDBOXES_MAX)
        || asked.memory_mb > Some(QUOTA_MB_MAX)
        || asked.disk_mb > Some(QUOTA_MB_MAX)
    {
        return Err(Failure::invalid("the quota is out of range"));
    }
    Ok(QuotaChange {
        sandboxes: asked.sandboxes,
        cpu_milli,
        memory_mb: asked.memory_mb,
        disk_mb: asked.disk_mb,
    })
}

fn org_id(text: &str) -> Result<OrgId, Failure> {
    text.parse().map_err(|_| missing("organisation", text))
}

fn missing(what: &str, given: &str) -> Failure {
    cove_control::ControlError::not_found(what, given).into()
}

pub async fn usage(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<UsageQuery>,
) -> Answer {
    if let Some(which) = &query.sandbox {
        if query.from.is_some()
            || query.to.is_some()
            || query.cursor.is_some()
            || query.limit.is_some()
        {
            return Err(Failure::invalid(
                "the usage of one sandbox covers its whole life; leave out the other parameters",
            ));
        }
        let usage = app.control.sandbox_usage(&caller.principal, which).await?;
        let figures = convert::usage(&usage);
        let one = SandboxUsage {
            sandbox: which.clone(),
            figures: figures.clone(),
        };
        return ok(Usage {
            total: figures,
            items: vec![one],
            next_cursor: None,
        });
    }
    let page = page_request(PageQuery {
        limit: query.limit,
        cursor: query.cursor,
    })?;
    let from = query.from.map_or(OffsetDateTime::UNIX_EPOCH, |from| from.0);
    // The hour that is not over counts as well.
    let to = query
        .to
        .map_or_else(|| OffsetDateTime::now_utc() + Duration::HOUR, |to| to.0);
    if to <= from {
        return Err(Failure::invalid("to must be after from"));
    }
    let period = Period { from, to };
    let total = app.control.usage(&caller.principal, period).await?;
    let items = app
        .control
        .usage_by_sandbox(&caller.principal, period, &page)
        .await?;
    ok(Usage {
        total: convert::usage(&total),
        items: items
            .items
            .iter()
            .map(|item| SandboxUsage {
                sandbox: item.sandbox.to_string(),
                figures: convert::usage(&item.usage),
            })
            .collect(),
        next_cursor: items.next_cursor,
    })
}

pub async fn audit(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
    headers: HeaderMap,
) -> Answer {
    if accepts(&headers, NDJSON) {
        if query.limit.is_some() || query.cursor.is_some() {
            return Err(Failure::invalid("an export has no pages")
                .hint("leave out limit and cursor, or the Accept header"));
        }
        return export_audit(app, caller).await;
    }
    let page = page_request(query)?;
    ok(convert::page(
        app.control.audit(&caller.principal, &page).await?,
        convert::audit,
    ))
}

/// Everything there is now, oldest first, read as fast as the caller takes it. An export that was cut off
/// ends before the sequence that its first line names.
async fn export_audit(app: App, caller: Caller) -> Answer {
    let slot = app.front.streams.enter(&caller.principal.org, Kind::Live)?;
    let head = app.control.audit_head(&caller.principal).await?;
    let (after, last) = head
        .as_ref()
        .map_or((0, 0), |head| (head.anchor_sequence, head.sequence));
    let chain = head.map(|head| convert::audit_ends(&caller.principal.org, head));
    let ready: VecDeque<AuditLine> = chain.map(AuditLine::Chain).into_iter().collect();
    let state = (app.control.clone(), caller.principal, ready, after);
    let lines = futures_util::stream::unfold(state, move |state| async move {
        let (control, principal, mut ready, mut after) = state;
        if ready.is_empty() && after < last {
            let found = control.audit_after(&principal, after).await.ok()?;
            after = found.last().map_or(last, |record| record.sequence);
            let known = found.into_iter().filter(|record| record.sequence <= last);
            ready.extend(known.map(|record| AuditLine::Record(convert::audit(record))));
        }
        let line = ready.pop_front()?;
        Some((line, (control, principal, ready, after)))
    });
    Ok(ndjson(&app, slot.hold(lines)))
}

pub async fn audit_chain(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Answer {
    let page = page_request(query)?;
    ok(convert::page(
        app.control.verify_audit(&caller.principal, &page).await?,
        convert::audit_chain,
    ))
}
