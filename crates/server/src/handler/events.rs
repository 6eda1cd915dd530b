//! What happened, as a list or as a stream that can be resumed.

use axum::extract::State;
use axum::http::HeaderMap;
use cove_api::event::EventsQuery;
use cove_api::route::SSE;
use cove_control::EventItem;
use cove_dialect::Kind;
use serde_json::json;

use super::{Answer, ok};
use crate::convert;
use crate::extract::{Caller, Names, Query, accepts};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::{ServerEvent, sse};

pub async fn of_all(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Answer {
    answer(app, caller, None, query, headers).await
}

pub async fn of_sandbox(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<EventsQuery>,
    Names(id): Names<String>,
    headers: HeaderMap,
) -> Answer {
    answer(app, caller, Some(id), query, headers).await
}

async fn answer(
    app: App,
    caller: Caller,
    sandbox: Option<String>,
    query: EventsQuery,
    headers: HeaderMap,
) -> Answer {
    let after = match headers.get("last-event-id") {
        None => query.after,
        Some(value) => match value.to_str().ok().and_then(|text| text.parse().ok()) {
            Some(after) => Some(after),
            None => return Err(Failure::invalid("Last-Event-ID must be the id of an event")),
        },
    };
    let sandbox = sandbox.as_deref();
    if !query.follow && !accepts(&headers, SSE) {
        let after = after.unwrap_or(0);
        let events = app
            .control
            .list_events(&caller.principal, sandbox, after, cove_limits::PAGE_MAX)
            .await?;
        return ok(convert::everything(
            events.into_iter().map(convert::event).collect(),
        ));
    }
    let slot = app.front.streams.enter(&caller.principal.org, Kind::Live)?;
    let subscription = app
        .control
        .events(&caller.principal, sandbox, after)
        .await?;
    let state = (subscription, app.draining.clone());
    let events = futures_util::stream::unfold(state, |(mut subscription, until)| async move {
        let item = tokio::select! {
            item = subscription.next() => item,
            () = until.cancelled() => return None,
        };
        let event = match item {
            // Encoded once, however many follow.
            Ok(Some(EventItem::Event(event))) => event.written(|event| {
                let written = ServerEvent {
                    id: Some(event.sequence),
                    name: None,
                    data: convert::event(event.clone()),
                };
                written.frame()
            }),
            Ok(Some(EventItem::Lost { before })) => {
                let lost = ServerEvent {
                    id: None,
                    name: Some("lost"),
                    data: json!({"before": before}),
                };
                lost.frame()
            }
            Ok(None) | Err(_) => return None,
        };
        Some((event, (subscription, until)))
    });
    Ok(sse(&app, slot.hold(events)))
}
