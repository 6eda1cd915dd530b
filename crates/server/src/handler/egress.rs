//! What a sandbox's network policy decided, as a list or line by line as it happens.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use cove_api::egress::{EgressEntry, EgressLine, EgressList, EgressQuery};
use cove_api::route::NDJSON;
use cove_control::egress::EgressFilter;
use cove_dialect::Kind;
use tokio::time::{Instant, sleep_until};

use cove_limits::{PAGE_DEFAULT, PAGE_MAX};

use super::{Answer, ok};
use crate::extract::{Caller, Names, Query, accepts};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::ndjson;

/// How long the host is asked to wait for the next entry, over and over.
const WAIT_MS: u64 = 20_000;
/// How soon it is asked again when it did not wait: a host with too many followers answers at once.
const ASK_AGAIN: Duration = Duration::from_secs(1);

pub async fn of_sandbox(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<EgressQuery>,
    Names(id): Names<String>,
    headers: HeaderMap,
) -> Answer {
    let limit = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Failure::invalid("limit must be between 1 and 1000"));
    }
    let filter = EgressFilter {
        verdict: query.verdict,
        protocol: query.protocol,
        name: query.name,
    };
    let after = query.after.unwrap_or(0);
    let mut reader = app
        .control
        .egress(&caller.principal, &id, after, filter)
        .await?;
    if !query.follow && !accepts(&headers, NDJSON) {
        let batch = reader.next(limit, 0).await?;
        return ok(EgressList {
            items: batch.entries.into_iter().map(entry).collect(),
            next: batch.next,
            lost: batch.lost,
        });
    }
    let slot = app
        .front
        .streams
        .enter(&caller.principal.org, Kind::Egress)?;
    // The first reading is done before the answer begins, so that an error is one.
    let first = reader.next(PAGE_MAX, 0).await?;
    let state = (reader, lines(first), app.draining.clone());
    let lines = futures_util::stream::unfold(state, |(mut reader, mut ready, until)| async move {
        loop {
            if let Some(line) = ready.pop_front() {
                return Some((line, (reader, ready, until)));
            }
            let again = Instant::now() + ASK_AGAIN;
            let batch = tokio::select! {
                batch = reader.next(PAGE_MAX, WAIT_MS) => batch.ok()?,
                () = until.cancelled() => return None,
            };
            ready = lines(batch);
            if ready.is_empty() {
                tokio::select! {
                    () = sleep_until(again) => {}
                    () = until.cancelled() => return None,
                }
            }
        }
    });
    Ok(ndjson(&app, slot.hold(lines)))
}

fn lines(batch: cove_runner_api::EgressBatch) -> std::collections::VecDeque<EgressLine> {
    let lost = batch.lost.then_some(EgressLine::Lost);
    let entries = batch.entries.into_iter().map(entry).map(EgressLine::Entry);
    lost.into_iter().chain(entries).collect()
}

fn entry(entry: cove_runner_api::EgressEntry) -> EgressEntry {
    EgressEntry {
        id: entry.sequence,
        at: entry.at.into(),
        protocol: entry.protocol,
        name: entry.name,
        address: entry.address.map(|address| address.to_string()),
        port: entry.port,
        verdict: entry.verdict,
        rule: entry.rule,
        sent_bytes: entry.sent_bytes,
        received_bytes: entry.received_bytes,
    }
}
