//! The log of a build as text, as it grows.

use std::convert::Infallible;
use std::fmt::Write as _;

use axum::body::Body;
use axum::http::header;
use axum::response::IntoResponse;
use bytes::Bytes;
use cove_control::{BuildEvent, BuildLog, Principal, StepState};
use cove_dialect::{Front, Kind};
use cove_model::BuildId;
use serde::Deserialize;
use serde_json::json;

use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Follow {
    follow: bool,
}

/// Where the SDKs read it; they add a query of their own.
pub fn url(place: &ServerAddress, of: &str) -> Answer {
    let url = format!("{}{of}/build-logs", place.api());
    Ok(axum::Json(json!({ "url": url })).into_response())
}

fn text(events: &[BuildEvent]) -> String {
    let mut text = String::new();
    for event in events {
        let written = match event {
            BuildEvent::Step {
                number,
                total,
                text: step,
                state,
                ms,
                ..
            } => match state {
                StepState::Started => writeln!(text, "[{number}/{total}] {step}"),
                StepState::Cached => writeln!(text, "[{number}/{total}] {step}\nCACHED"),
                StepState::Done => writeln!(text, "[{number}/{total}] DONE {ms} ms"),
                StepState::Failed => writeln!(text, "[{number}/{total}] FAILED"),
            },
            BuildEvent::Output { text: said, .. } => write!(text, "{said}"),
            BuildEvent::Note(note) => writeln!(text, "{note}"),
            BuildEvent::Dropped(bytes) => writeln!(text, "[{bytes} bytes of the log are gone]"),
        };
        written.expect("a String takes everything");
    }
    text
}

struct Reading {
    front: Front,
    caller: Principal,
    build: BuildId,
    log: Option<BuildLog>,
    at: u64,
    ended: bool,
}

impl Reading {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        if let Some(log) = &self.log {
            let (events, at) = tokio::select! {
                next = log.next(self.at) => next,
                () = self.front.draining.cancelled() => return None,
            };
            self.at = at;
            if !events.is_empty() {
                return Some((Ok(text(&events).into()), self));
            }
        }
        self.ended = true;
        let id = self.build.as_str();
        let record = self.front.control.get_build(&self.caller, id).await.ok()?;
        let last = match &record.error {
            Some(error) => format!("ERROR: {error}\n"),
            None => "the build has ended\n".to_owned(),
        };
        Some((Ok(last.into()), self))
    }
}

/// Follows it to the end of the build, or answers with what there is. `build` waits until there is one.
pub async fn stream(
    front: &Front,
    caller: Principal,
    build: impl Future<Output = Option<BuildId>>,
    query: Follow,
) -> Answer {
    let slot = front.streams.enter(&caller.org, Kind::Live)?;
    let none = || Refusal::new(404, "NOT_FOUND", "the build has not started");
    let build = match query.follow {
        true => tokio::select! {
            build = build => build,
            () = front.draining.cancelled() => None,
        },
        false => {
            let now = std::time::Duration::ZERO;
            tokio::time::timeout(now, build).await.ok().flatten()
        }
    };
    let build = build.ok_or_else(none)?;
    let log = front.control.build_log(&caller, build.as_str()).await?;
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    if !query.follow {
        let now = match &log {
            Some(log) => {
                let all = log.next(0);
                let now = std::time::Duration::from_millis(50);
                tokio::time::timeout(now, all)
                    .await
                    .map_or_else(|_| String::new(), |(events, _)| text(&events))
            }
            None => String::new(),
        };
        return Ok((kind, now).into_response());
    }
    let reading = Reading {
        front: front.clone(),
        caller,
        build,
        log,
        at: 0,
        ended: false,
    };
    let pieces = slot.hold(futures_util::stream::unfold(reading, Reading::next));
    Ok((kind, Body::from_stream(pieces)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_reads_as_text() {
        let step = |state| BuildEvent::Step {
            number: 1,
            total: 2,
            line: 3,
            text: "RUN true".into(),
            state,
            ms: 5,
        };
        let output = BuildEvent::Output {
            stderr: false,
            text: "hello\n".into(),
        };
        let told = text(&[step(StepState::Started), output, step(StepState::Done)]);
        assert_eq!(told, "[1/2] RUN true\nhello\n[1/2] DONE 5 ms\n");
    }
}
