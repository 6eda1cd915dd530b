//! The code interpreter: contexts, and runs answered in one piece or live.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use cove_api::NoQuery;
use cove_api::code::{
    CodeContext, CodeEnd, CodeError, CodeEvent, CodeOutput, CreateCodeContext, Form, RunCode,
};
use cove_api::route::NDJSON;
use cove_control::{Account, CodeContextRequest, CodeRequest, CodeRun, ControlError};
use cove_dialect::{JsonAnswer, Kind, Output, Said, Slot};
use cove_limits::{CODE_RESULTS_BYTES_MAX, EXEC_OUTPUT_MAX};
use serde::Serialize;

use super::exec::timeout;
use super::processes::leaving;
use super::{Answer, nothing, ok, with_status};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query, accepts};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::ndjson;

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<CreateCodeContext>,
) -> Answer {
    let request = CodeContextRequest {
        language: body.language,
        cwd: body.cwd,
        env: body.env,
        user: body.user,
    };
    let context = app
        .control
        .create_code_context(&caller.principal, &id, request)
        .await?;
    with_status(StatusCode::CREATED, view(context))
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    let all = app.control.code_contexts(&caller.principal, &id).await?;
    ok(convert::everything(all.into_iter().map(view).collect()))
}

pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, context)): Names<(String, String)>,
) -> Answer {
    app.control
        .remove_code_context(&caller.principal, &id, &context)
        .await?;
    nothing()
}

pub async fn interrupt(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, context)): Names<(String, String)>,
) -> Answer {
    app.control
        .interrupt_code(&caller.principal, &id, &context)
        .await?;
    nothing()
}

pub async fn run(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    headers: HeaderMap,
    Json(body): Json<RunCode>,
) -> Answer {
    let request = CodeRequest {
        code: body.code,
        language: body.language,
        context: body.context,
        timeout_ms: timeout(body.timeout_ms)?,
    };
    let live = accepts(&headers, NDJSON);
    let kind = if live { Kind::Live } else { Kind::Run };
    let slot = app.front.streams.enter(&caller.principal.org, kind)?;
    let account = app.control.budget().account(&caller.principal);
    account.require_output_room()?;
    let mut run = app
        .control
        .run_code(&caller.principal, &id, request)
        .await?;
    if !live {
        return collect(&account, run, slot).await;
    }
    let started = CodeEvent::Started {
        context: view(run.context().clone()),
    };
    // The first thing the code says tells whether it runs at all; before it an error has a status.
    let second = next(&mut run).await?;
    let state = Live {
        until: app.closing.clone(),
        request_id: caller.request_id,
        over: matches!(second, CodeEvent::End(_)),
        ready: vec![second, started],
        run,
    };
    Ok(ndjson(&app, slot.hold(state.events())))
}

struct Live {
    run: CodeRun,
    until: tokio_util::sync::CancellationToken,
    request_id: String,
    /// Last first.
    ready: Vec<CodeEvent>,
    over: bool,
}

impl Live {
    fn events(self) -> impl futures_util::Stream<Item = CodeEvent> + Send + 'static {
        futures_util::stream::unfold(self, |mut live| async move {
            if let Some(event) = live.ready.pop() {
                return Some((event, live));
            }
            if live.over {
                return None;
            }
            let told = tokio::select! {
                biased;
                event = next(&mut live.run) => event,
                () = live.until.cancelled() => Err(leaving()),
            };
            let event = match told {
                Ok(event) => event,
                Err(failure) => CodeEvent::Failed {
                    error: failure.detail(&live.request_id),
                },
            };
            live.over = matches!(event, CodeEvent::End(_) | CodeEvent::Failed { .. });
            Some((event, live))
        })
    }
}

/// What the code says next, its end included.
async fn next(run: &mut CodeRun) -> Result<CodeEvent, Failure> {
    use cove_control::CodeEvent as Said;
    let said = run
        .next()
        .await
        .map_err(|error: ControlError| Failure::from(error))?;
    Ok(match said {
        Some(Said::Stdout(text)) => CodeEvent::Stdout { text },
        Some(Said::Stderr(text)) => CodeEvent::Stderr { text },
        Some(Said::Result(output)) => CodeEvent::Result {
            result: Box::new(CodeOutput {
                data: output
                    .data
                    .into_iter()
                    .map(|(name, form)| (name, Form(form)))
                    .collect(),
                main: output.main,
            }),
        },
        Some(Said::Error(error)) => CodeEvent::Error {
            error: CodeError {
                name: error.name,
                value: error.value,
                traceback: error.traceback,
            },
        },
        None => {
            let outcome = run.outcome();
            CodeEvent::End(CodeEnd {
                context: outcome.context,
                exit_code: outcome.exit_code,
                timed_out: outcome.timed_out,
                context_ended: outcome.ended,
                truncated: outcome.truncated,
                duration_ms: outcome.duration_ms,
            })
        }
    })
}

/// [`cove_api::code::CodeResult`] without what is written behind it.
#[derive(Serialize)]
struct Head {
    #[serde(flatten)]
    end: CodeEnd,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<CodeError>,
}

async fn collect(account: &Account, mut run: CodeRun, _under_way: Slot) -> Answer {
    let mut stdout = Output::new(account, EXEC_OUTPUT_MAX);
    let mut stderr = Output::new(account, EXEC_OUTPUT_MAX);
    let mut results = Output::new(account, CODE_RESULTS_BYTES_MAX);
    results.take(b"[");
    let (mut error, mut truncated) = (None, false);
    loop {
        match next(&mut run).await? {
            CodeEvent::Stdout { text } => stdout.take(text.as_bytes()),
            CodeEvent::Stderr { text } => stderr.take(text.as_bytes()),
            CodeEvent::Result { result } => {
                let comma = if results.len() > 1 { "," } else { "" };
                let mut text = comma.as_bytes().to_vec();
                serde_json::to_writer(&mut text, &result).expect("wire types are always JSON");
                truncated |= !results.take_whole(&text);
            }
            CodeEvent::Error { error: thrown } => error = Some(thrown),
            CodeEvent::End(end) => {
                let cut = stdout.is_cut() || stderr.is_cut();
                let truncated = truncated || cut || end.truncated;
                let end = CodeEnd { truncated, ..end };
                return Ok(JsonAnswer::new(&Head { end, error })
                    .output("stdout", stdout, Said::Text)
                    .output("stderr", stderr, Said::Text)
                    .output_and("results", results, Said::Json, "]")
                    .into_response());
            }
            CodeEvent::Started { .. } | CodeEvent::Failed { .. } => {}
        }
    }
}

fn view(context: cove_control::CodeContext) -> CodeContext {
    CodeContext {
        id: context.id,
        language: context.language,
        default: context.default,
        cwd: context.cwd,
        user: context.user,
        started_at: cove_api::Timestamp::from_unix_ms(context.started_unix_ms),
    }
}
