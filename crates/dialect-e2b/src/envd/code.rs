//! Code in contexts that keep what it defined, as E2B's code interpreter is asked for it.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cove_control::{CodeContext, CodeContextRequest, CodeEvent, CodeOutput, CodeRequest, Language};
use cove_dialect::{LiveCode, Slot};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::{Door, Service};
use crate::Dialect;
use crate::refusal::{Api, Refusal, entry};

/// Bytes of a request with code in it: each byte may take six in JSON.
const BODY_MAX: usize = 24 * 1024 * 1024;
/// Forms of a result and E2B's names for them; others are shown as they are called.
const FORMS: [(&str, &str); 10] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NewContext {
    language: Option<String>,
    cwd: Option<String>,
}

fn language(name: Option<&str>) -> Result<Option<Language>, Refusal> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    Ok(Some(match name.to_ascii_lowercase().as_str() {
        "python" | "python3" => Language::Python,
        "javascript" | "js" => Language::JavaScript,
        "typescript" | "ts" => Language::TypeScript,
        "bash" | "sh" => Language::Bash,
        other => {
            let shown: String = other.chars().take(32).collect();
            return Err(Refusal::unsupported(&format!(
                "the language '{}'",
                shown.escape_debug()
            )));
        }
    }))
}

async fn parse<T: for<'a> Deserialize<'a>>(door: &Door, body: Body) -> Result<T, Refusal> {
    let front = &door.dialect().front;
    let bytes = front.whole(&door.tab, body, BODY_MAX, door.known()).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Refusal::invalid(format!(
            "the body is invalid: {}",
            cove_dialect::wording::plain("", &error)
        ))
    })
}

pub async fn execute(State(dialect): State<Dialect>, request: Request) -> Result<Response, Api> {
    let (door, body) = Door::open(&dialect, request, Service::Code).await?;
    let wish: Execute = parse(&door, body).await?;
    if wish.env_vars.is_some_and(|env| !env.is_empty()) {
        return Err(Refusal::unsupported(
            "envs of one run: give them when the sandbox is made, or set them in the code; envs",
        )
        .into());
    }
    let request = CodeRequest {
        code: wish.code,
        language: language(wish.language.as_deref())?,
        context: wish.context_id.filter(|id| !id.is_empty()),
        timeout_ms: None,
    };
    let slot = door.slot()?;
    let control = &dialect.front.control;
    let run = control.run_code(door.principal(), door.id.as_str(), request);
    let run = run.await.map_err(inside)?;
    let live = Live {
        run: LiveCode::new(&dialect.front, door.principal(), door.id.as_str(), run),
        closing: dialect.front.closing.clone(),
        begun: false,
        over: false,
    };
    Ok(lines(live, slot))
}

/// Contexts are looked for inside: one that is missing is not a sandbox that is.
fn inside(error: cove_control::ControlError) -> Refusal {
    match error.message.contains("context") {
        true => error.into(),
        false => entry(error),
    }
}

struct Live {
    run: LiveCode,
    closing: CancellationToken,
    begun: bool,
    over: bool,
}

fn lines(live: Live, slot: Slot) -> Response {
    let lines = futures_util::stream::unfold(live, |mut live| async move {
        if live.over {
            return None;
        }
        let mut text = live.next().await.to_string();
        text.push('\n');
        Some((Ok::<_, Infallible>(Bytes::from(text)), live))
    });
    let mut response = Body::from_stream(slot.hold(lines)).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Live {
    async fn next(&mut self) -> Value {
        if !self.begun {
            // Which run of its context it is, nobody counts.
            self.begun = true;
            return json!({"type": "number_of_executions", "execution_count": 1});
        }
        let said = tokio::select! {
            biased;
            said = self.run.next() => said,
            () = self.closing.cancelled() => {
                self.over = true;
                return broken("ServerRestarted", "the server is restarting");
            }
        };
        let timestamp = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
        let timestamp = i64::try_from(timestamp).unwrap_or(i64::MAX);
        match said {
            Ok(Some(CodeEvent::Stdout(text))) => {
                json!({"type": "stdout", "text": text, "timestamp": timestamp})
            }
            Ok(Some(CodeEvent::Stderr(text))) => {
                json!({"type": "stderr", "text": text, "timestamp": timestamp})
            }
            Ok(Some(CodeEvent::Result(output))) => result(output),
            Ok(Some(CodeEvent::Error(error))) => json!({
                "type": "error",
                "name": error.name,
                "value": error.value,
                "traceback": error.traceback,
            }),
            Ok(None) => {
                self.over = true;
                json!({"type": "end_of_execution"})
            }
            Err(error) => {
                self.over = true;
                broken("ContextEnded", &error.message)
            }
        }
    }
}

fn broken(name: &str, value: &str) -> Value {
    json!({"type": "error", "name": name, "value": value, "traceback": ""})
}

fn result(output: CodeOutput) -> Value {
    let mut told = Map::new();
    let mut extra = Map::new();
    told.insert("type".into(), json!("result"));
    told.insert("is_main_result".into(), json!(output.main));
    for (form, raw) in output.data {
        let raw: Box<RawValue> = raw;
        let Ok(value) = serde_json::from_str::<Value>(raw.get()) else {
            continue;
        };
        match FORMS.iter().find(|(media, _)| *media == form) {
            Some((_, name)) => told.insert((*name).to_owned(), value),
            None => extra.insert(form, value),
        };
    }
    if !extra.is_empty() {
        told.insert("extra".into(), extra.into());
    }
    told.into()
}

fn shown(context: &CodeContext) -> Value {
    json!({
        "id": context.id,
        "language": context.language.as_str(),
        "cwd": context.cwd,
    })
}

pub async fn create(State(dialect): State<Dialect>, request: Request) -> Result<Response, Api> {
    let (door, body) = Door::open(&dialect, request, Service::Code).await?;
    let wish: NewContext = parse(&door, body).await?;
    let request = CodeContextRequest {
        language: language(wish.language.as_deref())?.unwrap_or_default(),
        cwd: wish.cwd,
        ..CodeContextRequest::default()
    };
    let control = &dialect.front.control;
    let made = control.create_code_context(door.principal(), door.id.as_str(), request);
    let made = made.await.map_err(inside)?;
    Ok(axum::Json(shown(&made)).into_response())
}

pub async fn list(State(dialect): State<Dialect>, request: Request) -> Result<Response, Api> {
    let (door, _) = Door::open(&dialect, request, Service::Code).await?;
    let control = &dialect.front.control;
    let all = control.code_contexts(door.principal(), door.id.as_str());
    let all: Vec<Value> = all.await.map_err(inside)?.iter().map(shown).collect();
    Ok(axum::Json(all).into_response())
}

pub async fn remove(
    State(dialect): State<Dialect>,
    Path(context): Path<String>,
    request: Request,
) -> Result<Response, Api> {
    let (door, _) = Door::open(&dialect, request, Service::Code).await?;
    let control = &dialect.front.control;
    let gone = control.remove_code_context(door.principal(), door.id.as_str(), &context);
    gone.await.map_err(inside)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A context's id is its process's, so a fresh one in its place cannot have the same.
pub async fn restart(
    State(dialect): State<Dialect>,
    Path(_): Path<String>,
    request: Request,
) -> Result<Response, Api> {
    let (_door, _) = Door::open(&dialect, request, Service::Code).await?;
    Err(Refusal::unsupported("restarting a context: remove it and make another; restarting").into())
}
