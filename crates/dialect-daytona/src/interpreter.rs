//! The code interpreter: contexts of the control plane, and runs in them over a WebSocket.

use std::collections::BTreeMap;
use std::pin::pin;

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use cove_control::{
    CodeContext, CodeContextRequest, CodeEvent, CodeRequest, GuestAction, Language, Principal,
};
use cove_dialect::{Front, Kind, LiveCode};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::asking::{Caller, Json, Names};
use crate::convert::time_text;
use crate::exec::{cwd, timeout_ms};
use crate::refusal::{Answer, Refusal};
use crate::streams::{self, DONE, FAILED, Out, Stream};

/// How the SDKs tell a run that was out of time from others.
const TIMED_OUT: u16 = 4008;
const REFUSED: u16 = 1008;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Create {
    cwd: Option<String>,
    language: Option<String>,
}

fn language(named: Option<&str>) -> Result<Language, Refusal> {
    match named.unwrap_or("python") {
        "python" | "" => Ok(Language::Python),
        "javascript" => Ok(Language::JavaScript),
        "typescript" => Ok(Language::TypeScript),
        "bash" => Ok(Language::Bash),
        _ => Err(Refusal::invalid(
            "language: one of python, javascript, typescript and bash",
        )),
    }
}

fn shown(context: CodeContext) -> Value {
    let millis = i128::from(context.started_unix_ms) * 1_000_000;
    let at =
        OffsetDateTime::from_unix_timestamp_nanos(millis).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    json!({
        "id": context.id,
        "language": context.language.as_str(),
        "cwd": context.cwd,
        "active": true,
        "createdAt": time_text(at),
    })
}

pub async fn create(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Create>,
) -> Answer {
    let request = CodeContextRequest {
        language: language(body.language.as_deref())?,
        cwd: cwd(&front, &caller, &id, body.cwd).await?,
        ..CodeContextRequest::default()
    };
    let made = front
        .control
        .create_code_context(&caller, &id, request)
        .await?;
    Ok(axum::Json(shown(made)).into_response())
}

/// The default context is nobody's to manage, so it is not listed.
pub async fn list(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    let all = front.control.code_contexts(&caller, &id).await?;
    let made = all.into_iter().filter(|context| !context.default);
    let contexts: Vec<Value> = made.map(shown).collect();
    Ok(axum::Json(json!({ "contexts": contexts })).into_response())
}

pub async fn delete(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, context)): Names<(String, String)>,
) -> Answer {
    front
        .control
        .remove_code_context(&caller, &id, &context)
        .await?;
    Ok(axum::Json(json!({ "message": "the context was ended" })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Run {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    envs: Option<BTreeMap<String, String>>,
    #[serde(default)]
    timeout: Option<i64>,
}

/// The first message says what to run; what follows is what the code says.
pub async fn execute(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    request: Request,
) -> Answer {
    // Told as a status, which a conversation that has begun no longer can.
    front
        .control
        .guest(&caller, &id, GuestAction::CodeList)
        .await?;
    let seat = front.seat(&caller, Kind::Live)?;
    let (upgrade, wire) = streams::upgrade(&front, &caller, request, Vec::new()).await?;
    let tracker = front.sessions.clone();
    Ok(upgrade
        .on_upgrade(move |socket| {
            tracker.track_future(async move {
                let (sink, stream) = socket.split();
                let mut stream = Stream::new(stream, wire);
                let mut out = Out::new(sink);
                let mut ended = pin!(seat.ended());
                let first = tokio::select! {
                    first = streams::heard(&mut stream) => first,
                    () = &mut ended => None,
                };
                let Some(first) = first else {
                    return;
                };
                let left = async { while streams::heard(&mut stream).await.is_some() {} };
                let end = tokio::select! {
                    end = talk(&front, &caller, &id, &first, &mut out) => end,
                    () = left => None,
                    () = front.closing.cancelled() => Some((1012, "the server is restarting".into())),
                    () = ended => Some(streams::taken_back()),
                };
                if let Some((code, reason)) = end {
                    out.close(code, &reason).await;
                }
            })
        })
        .into_response())
}

/// Until the code has ended, and how; `None` when whoever asked is gone.
async fn talk(
    front: &Front,
    caller: &Principal,
    id: &str,
    first: &[u8],
    out: &mut Out,
) -> Option<(u16, String)> {
    let refused = |refusal: Refusal| Some((REFUSED, refusal.message().to_owned()));
    let run: Run = match serde_json::from_slice(first) {
        Ok(run) => run,
        Err(error) => return refused(Refusal::invalid(format!("the message is invalid: {error}"))),
    };
    if run.envs.is_some_and(|envs| !envs.is_empty()) {
        return refused(Refusal::unsupported(
            "envs: set the environment in the code itself, or when the sandbox is made",
        ));
    }
    let timeout_ms = match timeout_ms(run.timeout) {
        Ok(timeout_ms) => timeout_ms,
        Err(refusal) => return refused(refusal),
    };
    let request = CodeRequest {
        code: run.code,
        context: run.context_id,
        timeout_ms,
        ..CodeRequest::default()
    };
    let mut run = match front.control.run_code(caller, id, request).await {
        Ok(run) => LiveCode::new(front, caller, id, run),
        Err(error) => return refused(error.into()),
    };
    loop {
        let next = Box::pin(run.next());
        let event = match out.while_waiting(next).await? {
            Ok(Some(event)) => event,
            Ok(None) => break,
            Err(error) => return Some((FAILED, Refusal::from(error).message().to_owned())),
        };
        let told = match event {
            CodeEvent::Stdout(text) => json!({ "type": "stdout", "text": text }),
            CodeEvent::Stderr(text) => json!({ "type": "stderr", "text": text }),
            CodeEvent::Error(error) => json!({
                "type": "error",
                "name": error.name,
                "value": error.value,
                "traceback": error.traceback,
            }),
            // There is no word for shown values in this conversation.
            CodeEvent::Result(_) => continue,
        };
        out.text(told.to_string()).await?;
    }
    let outcome = run.outcome();
    match (outcome.timed_out, outcome.ended) {
        (true, _) => Some((TIMED_OUT, "the code did not end in time".into())),
        (false, true) => Some((FAILED, "the context ended with the code".into())),
        (false, false) => Some((DONE, String::new())),
    }
}
