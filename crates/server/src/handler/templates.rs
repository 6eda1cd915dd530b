//! Templates: named, versioned starting points of sandboxes.

use axum::extract::State;
use axum::http::HeaderMap;
use cove_api::template::{CreateTemplate, DeleteTemplate, ListTemplates};
use cove_api::{NoQuery, PageQuery};
use cove_model::SandboxSpec;

use super::sandboxes::{idempotency_key, mount_request};
use super::{Answer, made, nothing, ok, page_request};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query};
use crate::state::App;

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    headers: HeaderMap,
    Json(body): Json<CreateTemplate>,
) -> Answer {
    let request = cove_control::CreateTemplate {
        name: body.name,
        snapshot: body.snapshot,
        memory: body.memory,
        tags: body.tags,
        idempotency_key: idempotency_key(&headers)?,
        config: None,
    };
    let defaults = body.defaults;
    let mounts = defaults.volumes.iter().map(mount_request).collect();
    let volumes = app.control.mounts(&caller.principal, mounts).await?;
    let created = app
        .control
        .create_template(&caller.principal, request, |base| {
            let spec = defaults.into_spec_over(base)?;
            Ok(SandboxSpec { volumes, ..spec })
        })
        .await?;
    made(convert::template(created.template), created.replayed)
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListTemplates>,
) -> Answer {
    let page = page_request(PageQuery {
        limit: query.limit,
        cursor: query.cursor,
    })?;
    let name = query.name.as_deref();
    let found = app.control.list_templates(&caller.principal, name, &page);
    ok(convert::page(found.await?, convert::template))
}

pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(template): Names<String>,
) -> Answer {
    let found = app.control.get_template(&caller.principal, &template);
    ok(convert::template(found.await?))
}

pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<DeleteTemplate>,
    Names(template): Names<String>,
) -> Answer {
    let control = &app.control;
    control
        .delete_template(&caller.principal, &template, query.all)
        .await?;
    nothing()
}

pub async fn tag(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((template, tag)): Names<(String, String)>,
) -> Answer {
    let control = &app.control;
    let tagged = control.tag_template(&caller.principal, &template, &tag);
    ok(convert::template(tagged.await?))
}

pub async fn untag(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((template, tag)): Names<(String, String)>,
) -> Answer {
    let control = &app.control;
    control
        .untag_template(&caller.principal, &template, &tag)
        .await?;
    nothing()
}
