//! Builds of templates, in the steps that E2B's clients take: a name is reserved, files are uploaded, the definition is
//! sent, and the state is asked for again and again.
//!
//! Cove's own builds do the work. Here is only what comes before one begins: names that wait for their definition.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{OriginalUri, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::IntoResponse;
use cove_control::{
    BuildEvent, BuildRecord, BuildSteps, Control, CreateBuild, ErrorCode, Principal, Scope,
    StepState,
};
use cove_dialect::{Front, Kind as Held};
use cove_model::spec::{DEFAULT_IMAGE, INTERPRETER_IMAGE, check_name};
use cove_model::template::{TEMPLATE_TAGS_MAX, check_tag};
use cove_model::{BuildId, BuildState, OrgId, SandboxSpec};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::sandboxes::time_text;
use super::steps::{self, Ground, READY_LABEL, START_LABEL, Step, USER};
use super::templates::{find, status_of, tag_within};
use super::{Answer, Caller, Json, Query, ids, network, one, with_status};
use crate::refusal::{Kind, Refusal};
use crate::{Dialect, naming};

/// Names of one organisation that wait for their definition.
const WAITING_MAX: usize = 64;
const WAITING_TIME: Duration = Duration::from_secs(3600);
/// Entries of a log in one answer.
const LOG_PAGE: usize = 100;
const MEMORY_MIN_MB: u64 = 128;
const CPUS_MAX: u32 = 1024;
const MB_MAX: u64 = 1 << 40;
/// Where archives are sent to, below the address of this dialect.
pub const UPLOAD: &str = "/template-files";

/// A name that waits for its definition.
#[derive(Clone)]
struct Reserved {
    org: OrgId,
    name: String,
    tags: Vec<String>,
    cpus: Option<u32>,
    memory_mb: Option<u64>,
    disk_mb: Option<u64>,
    until: Instant,
}

#[derive(Default)]
pub struct Waiting(Mutex<HashMap<BuildId, Reserved>>);

impl Waiting {
    fn add(&self, reserved: Reserved) -> Result<BuildId, Refusal> {
        let mut waiting = self.0.lock();
        let now = Instant::now();
        waiting.retain(|_, other| other.until > now);
        let own = waiting.values().filter(|other| other.org == reserved.org);
        if own.count() >= WAITING_MAX {
            return Err(Refusal {
                retry_after_s: Some(30),
                ..Refusal::new(
                    Kind::Exhausted,
                    format!("{WAITING_MAX} builds wait for their definition; send them, or wait"),
                )
            });
        }
        let id = BuildId::random();
        waiting.insert(id.clone(), reserved);
        Ok(id)
    }

    fn get(&self, org: &OrgId, id: &BuildId) -> Option<Reserved> {
        let waiting = self.0.lock();
        let found = waiting.get(id)?;
        (found.org == *org && found.until > Instant::now()).then(|| found.clone())
    }

    /// Whoever takes it builds it.
    fn take(&self, org: &OrgId, id: &BuildId) -> Option<Reserved> {
        self.get(org, id)?;
        self.0.lock().remove(id)
    }

    /// Unless others have taken its place meanwhile.
    fn put_back(&self, id: BuildId, reserved: Reserved) {
        let mut waiting = self.0.lock();
        let own = waiting.values().filter(|other| other.org == reserved.org);
        if own.count() < WAITING_MAX {
            waiting.insert(id, reserved);
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTemplate {
    #[serde(alias = "alias")]
    name: Option<String>,
    #[serde(default)]
    tags: Option<Vec<String>>,
    #[serde(rename = "cpuCount")]
    cpus: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u64>,
    #[serde(rename = "minFreeDiskMb")]
    disk_mb: Option<u64>,
    /// A key belongs to one organisation.
    #[serde(rename = "teamID")]
    team: Option<String>,
}

fn check(request: NewTemplate, org: &OrgId) -> Result<Reserved, Refusal> {
    let invalid = |text: String| Refusal::invalid(text);
    if request.team.is_some_and(|team| team != org.as_str()) {
        return Err(Refusal::new(Kind::Forbidden, "the key is of another team"));
    }
    let given = request.name.unwrap_or_default().trim().to_lowercase();
    if given.is_empty() {
        return Err(invalid("Name is required".into()));
    }
    let (name, tag) = match given.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (given.as_str(), None),
    };
    if check_name(name).is_err() {
        return Err(invalid(format!(
            "Invalid name: '{given:.128}': Cove's templates have lower-case letters, digits and dashes, and no namespace"
        )));
    }
    if naming::image_of(name) != name {
        return Err(invalid(format!(
            "Invalid name: '{name}' is one of E2B's own templates"
        )));
    }
    let named = tag.map(str::to_owned).into_iter();
    let given = request.tags.unwrap_or_default();
    if given.len() > TEMPLATE_TAGS_MAX {
        return Err(invalid(format!("tags: at most {TEMPLATE_TAGS_MAX}")));
    }
    let mut tags: Vec<String> = Vec::new();
    for tag in named.chain(given) {
        let tag = tag.trim().to_lowercase();
        if ids::is_uuid(&tag) || check_tag(&tag).is_err() {
            return Err(invalid(format!(
                "Invalid tag: '{tag:.80}': letters, digits, dots, dashes and underscores, and not a number or a UUID"
            )));
        }
        let tag = tag_within(&tag).to_owned();
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    let cpus = request.cpus;
    if cpus.is_some_and(|cpus| cpus == 0 || cpus > CPUS_MAX || (cpus > 1 && cpus % 2 == 1)) {
        return Err(invalid("cpuCount must be 1 or an even number".into()));
    }
    let memory_mb = request.memory_mb;
    if memory_mb.is_some_and(|mb| !(MEMORY_MIN_MB..=MB_MAX).contains(&mb) || mb % 2 == 1) {
        return Err(invalid(format!(
            "memoryMB must be an even number, {MEMORY_MIN_MB} or more"
        )));
    }
    if request.disk_mb.is_some_and(|mb| mb > MB_MAX) {
        return Err(invalid("minFreeDiskMb is too large".into()));
    }
    Ok(Reserved {
        org: org.clone(),
        name: name.to_owned(),
        tags,
        cpus,
        memory_mb,
        disk_mb: request.disk_mb,
        until: Instant::now() + WAITING_TIME,
    })
}

pub async fn reserve(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Json(request): Json<NewTemplate>,
) -> Answer {
    let control = &dialect.front.control;
    control.expect(&principal, Scope::Manage, None).await?;
    let reserved = check(request, &principal.org)?;
    let name = reserved.name.clone();
    let tags: Vec<&str> = match reserved.tags.is_empty() {
        true => vec!["default"],
        false => reserved
            .tags
            .iter()
            .map(|tag| super::templates::tag_shown(tag))
            .collect(),
    };
    let mut shown = json!({
        "templateID": name, "public": false, "names": [name], "tags": tags, "aliases": [name],
    });
    let id = dialect.waiting.add(reserved)?;
    shown["buildID"] = ids::of_build(&id).into();
    with_status(StatusCode::ACCEPTED, shown)
}

/// The address of this dialect as its caller sees it, with what comes behind.
fn address(front: &Front, headers: &HeaderMap, uri: &Uri, behind: &str) -> Result<String, Refusal> {
    let host = one(headers, header::HOST.as_str())
        .or_else(|| Some(uri.authority()?.as_str()))
        .ok_or_else(|| Refusal::invalid("the request has no Host header"))?;
    // A proxy in front of the server may be what speaks TLS.
    let secure = front.secure || one(headers, "x-forwarded-proto") == Some("https");
    let scheme = if secure { "https" } else { "http" };
    let path = uri.path();
    let below = path.find("/templates/").map_or("", |at| &path[..at]);
    Ok(format!("{scheme}://{host}{below}{behind}"))
}

/// Whether files are here, and a link to send them by.
pub async fn files(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path((_, hash)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Answer {
    let control = &dialect.front.control;
    let link = control.build_file_link(&principal, &hash).await?;
    let behind = format!("{UPLOAD}?link={}", link.secret);
    let url = address(&dialect.front, &headers, &uri, &behind)?;
    let shown = json!({"present": link.present, "url": url});
    with_status(StatusCode::CREATED, shown)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UploadQuery {
    link: String,
}

/// Whoever has the link sends the archive.
pub async fn upload(
    State(dialect): State<Dialect>,
    Query(query): Query<UploadQuery>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    let most = cove_limits::BUILD_CONTEXT_MAX as u64;
    // Said now, the link is still good for less.
    let length = one(&parts.headers, header::CONTENT_LENGTH.as_str());
    if length.is_some_and(|length| length.parse::<u64>().is_ok_and(|bytes| bytes > most)) {
        let text = format!("an upload has at most {most} bytes");
        return Err(Refusal::new(Kind::TooLarge, text).into());
    }
    let origin = Front::origin(&parts.extensions);
    let front = &dialect.front;
    let found = front.control.build_file_upload(&query.link, origin).await;
    let (principal, mut upload) = found?;
    front.note(&parts.extensions, &principal)?;
    let _slot = front.streams.enter(&principal.org, Held::Transfer)?;
    let mut pieces = front.pieces(body, most);
    while let Some(piece) = pieces.next().await? {
        upload.write(piece).await?;
    }
    upload.finish();
    Ok(StatusCode::OK.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    #[serde(rename = "fromImage")]
    image: Option<String>,
    #[serde(rename = "fromTemplate")]
    template: Option<String>,
    #[serde(rename = "fromImageRegistry")]
    registry: Option<Value>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    steps: Vec<Step>,
    #[serde(rename = "startCmd")]
    start: Option<String>,
    #[serde(rename = "readyCmd")]
    ready: Option<String>,
}

fn build_id(text: &str) -> Result<BuildId, Refusal> {
    match ids::meant(text) {
        Some(ids::Named::Build(id)) => Ok(id),
        _ => Err(no_build(text)),
    }
}

fn no_build(text: &str) -> Refusal {
    Refusal::new(Kind::NotFound, format!("build '{text:.80}' not found"))
}

/// E2B's own images, by the names that its clients send, are Cove's.
fn image_of(name: &str) -> &str {
    let bare = name.strip_prefix("docker.io/").unwrap_or(name);
    let untagged = bare.split(':').next().unwrap_or(bare);
    match untagged {
        "e2bdev/base" => DEFAULT_IMAGE,
        "e2bdev/code-interpreter" => INTERPRETER_IMAGE,
        _ => name,
    }
}

fn from_image(name: &str, shown: &str) -> Ground {
    Ground {
        base: name.to_owned(),
        shown: shown.to_owned(),
        needs_user: !matches!(name, DEFAULT_IMAGE | INTERPRETER_IMAGE),
        user: Some(USER.to_owned()),
        ..Ground::default()
    }
}

/// A template, which may be one that is not there: the build says so.
async fn from_template(
    control: &Control,
    principal: &Principal,
    name: &str,
) -> Result<Ground, Refusal> {
    let image = naming::image_of(name);
    if image != name {
        return Ok(from_image(image, name));
    }
    let shown = name.to_owned();
    match find(control, principal, name).await {
        Ok(Some(found)) => {
            let config = found.config.as_deref().unwrap_or("{}");
            let config: Value = serde_json::from_str(config).unwrap_or_default();
            let label = |name: &str| {
                config["labels"][name]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            let start = (label(START_LABEL), label(READY_LABEL));
            let has_start = !(start.0.is_empty() && start.1.is_empty());
            return Ok(Ground {
                base: found.id.to_string(),
                shown,
                user: found.spec.user,
                workdir: found.spec.workdir,
                start: has_start.then_some(start),
                needs_user: false,
            });
        }
        Ok(None) => {}
        Err(refusal) if refusal.kind == Kind::NotFound => {}
        Err(refusal) => return Err(refusal),
    }
    match control.get_snapshot(principal, name).await {
        Ok(found) => Ok(Ground {
            base: found.id.to_string(),
            shown,
            user: found.spec.user,
            workdir: found.spec.workdir,
            ..Ground::default()
        }),
        Err(error) if error.code == ErrorCode::NotFound => Ok(Ground {
            base: format!("template/{name}"),
            shown,
            ..Ground::default()
        }),
        Err(error) => Err(error.into()),
    }
}

pub async fn start(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path((template, build)): Path<(String, String)>,
    Json(definition): Json<Definition>,
) -> Answer {
    let control = &dialect.front.control;
    control.expect(&principal, Scope::Manage, None).await?;
    if definition.registry.is_some() {
        return Err(Refusal::unsupported(
            "fromImageRegistry: fetch the image with `cove image pull` first; its credentials here",
        )
        .into());
    }
    let ground = match (&definition.image, &definition.template) {
        (Some(_), Some(_)) => {
            return Err(Refusal::invalid("cannot specify both fromImage and fromTemplate").into());
        }
        (None, None) => {
            return Err(Refusal::invalid("must specify either fromImage or fromTemplate").into());
        }
        (Some(image), None) => from_image(image_of(image), image),
        (None, Some(template)) => from_template(control, &principal, template).await?,
    };
    let (start, ready) = (definition.start.as_deref(), definition.ready.as_deref());
    let done = steps::translate(ground, &definition.steps, start, ready)?;
    let id = build_id(&build)?;
    let org = &principal.org;
    let Some(reserved) = dialect.waiting.take(org, &id) else {
        // One that has begun, or none.
        control.get_build(&principal, id.as_str()).await?;
        return Err(Refusal::invalid("build is not in waiting state").into());
    };
    if reserved.name != template {
        dialect.waiting.put_back(id, reserved);
        return Err(no_build(&build).into());
    }
    let begun = begin(control, &principal, &id, &reserved, definition.force, done).await;
    if let Err(refusal) = begun {
        dialect.waiting.put_back(id, reserved);
        return Err(refusal.into());
    }
    Ok(StatusCode::ACCEPTED.into_response())
}

async fn begin(
    control: &Control,
    principal: &Principal,
    id: &BuildId,
    reserved: &Reserved,
    force: bool,
    done: steps::Translated,
) -> Result<BuildRecord, Refusal> {
    let settings = done.settings();
    let (cpus, memory_mb, disk_mb) = (reserved.cpus, reserved.memory_mb, reserved.disk_mb);
    let request = CreateBuild {
        name: reserved.name.clone(),
        tags: reserved.tags.clone(),
        dockerfile: String::new(),
        ignore: String::new(),
        args: Default::default(),
        target: None,
        // As sandboxes of this dialect have it.
        network: network::policy(None, None, None)?,
        no_cache: force,
        pull: false,
        start: done.start,
        over: Arc::new(move |spec| {
            let mut spec: SandboxSpec = settings(spec);
            let limits = &mut spec.resources;
            limits.cpu = cpus.map_or(limits.cpu, f64::from);
            limits.memory_mb = memory_mb.unwrap_or(limits.memory_mb);
            limits.disk_mb = limits.disk_mb.max(disk_mb.unwrap_or(0));
            Ok(spec)
        }),
    };
    let steps = BuildSteps {
        id: id.clone(),
        file: done.file,
        uploads: done.uploads,
        fresh_from: done.fresh_from,
        check_max: steps::CHECK_MAX,
    };
    Ok(control.build_from_steps(principal, request, steps).await?)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StatusQuery {
    #[serde(rename = "logsOffset")]
    offset: Option<u64>,
    limit: Option<usize>,
    level: Option<String>,
}

const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

#[derive(Debug, Clone, Serialize)]
struct Entry {
    timestamp: String,
    message: String,
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
}

fn rank(level: &str) -> Option<usize> {
    LEVELS.iter().position(|known| *known == level)
}

pub async fn status(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path((template, build)): Path<(String, String)>,
    Query(query): Query<StatusQuery>,
) -> Answer {
    let least = match query.level.as_deref() {
        None => 0,
        Some(level) => rank(level)
            .ok_or_else(|| Refusal::invalid("level must be debug, info, warn or error"))?,
    };
    let control = &dialect.front.control;
    control.expect(&principal, Scope::Read, None).await?;
    let id = build_id(&build)?;
    let answer = |status: &str, entries: &[Entry], reason: Option<Value>| {
        let mut shown = json!({
            "templateID": template, "buildID": build, "status": status,
            "logs": [], "logEntries": entries,
        });
        if let Some(reason) = reason {
            shown["reason"] = reason;
        }
        with_status(StatusCode::OK, shown)
    };
    if let Some(reserved) = dialect.waiting.get(&principal.org, &id) {
        return match reserved.name == template {
            true => answer("waiting", &[], None),
            false => Err(no_build(&build).into()),
        };
    }
    // The state first: what is said of a build that is over is all there is.
    let record = control.get_build(&principal, id.as_str()).await;
    let record = record.map_err(|error| match error.code {
        ErrorCode::NotFound => no_build(&build),
        _ => error.into(),
    })?;
    if record.name != template {
        return Err(no_build(&build).into());
    }
    let log = control.build_log(&principal, id.as_str()).await?;
    let from = query.offset.unwrap_or(0);
    let most = query.limit.unwrap_or(LOG_PAGE).clamp(1, LOG_PAGE);
    let (events, count) = log.map_or_else(|| (Vec::new(), 0), |log| log.page(from, most));
    let mut entries: Vec<Entry> = events
        .into_iter()
        .map(|event| entry(event, &record))
        .collect();
    if record.state.is_over() && from + entries.len() as u64 == count && entries.len() < most {
        entries.push(last(&record));
    }
    entries.retain(|entry| rank(entry.level) >= Some(least));
    let reason = match record.state {
        BuildState::Failed | BuildState::Cancelled => {
            let (step, message) = reason(&record);
            Some(json!({"message": message, "step": step}))
        }
        _ => None,
    };
    answer(status_of(record.state), &entries, reason)
}

fn entry(event: Option<(OffsetDateTime, BuildEvent)>, record: &BuildRecord) -> Entry {
    let Some((at, event)) = event else {
        return Entry {
            timestamp: time_text(record.created_at),
            message: "(this entry is no longer kept)".into(),
            level: "debug",
            step: None,
        };
    };
    let (level, message, step) = match event {
        BuildEvent::Step {
            number,
            total,
            line,
            text,
            state,
            ms,
        } => {
            let place = format!("[builder {number}/{total}] {text}");
            let (level, message) = match state {
                StepState::Started => ("info", place),
                StepState::Cached => ("info", format!("CACHED {place}")),
                StepState::Done => ("debug", format!("{place}: done in {ms} ms")),
                StepState::Failed => ("error", format!("{place}: failed")),
            };
            (level, message, Some(step_name(line)))
        }
        BuildEvent::Output { stderr, text } => {
            let stream = if stderr { "stderr" } else { "stdout" };
            (
                "info",
                format!("[{stream}]: {}", text.trim_end_matches('\n')),
                None,
            )
        }
        BuildEvent::Note(text) => ("info", text, None),
        BuildEvent::Dropped(bytes) => ("warn", format!("{bytes} bytes of the log are gone"), None),
    };
    Entry {
        timestamp: time_text(at),
        message,
        level,
        step,
    }
}

fn step_name(line: u32) -> String {
    match line {
        0 => "base".to_owned(),
        line => line.to_string(),
    }
}

fn last(record: &BuildRecord) -> Entry {
    let at = record.finished_at.unwrap_or(record.created_at);
    let (level, message) = match record.state {
        BuildState::Done => {
            let took = (at - record.created_at).whole_seconds();
            ("info", format!("Build finished, took {took}s"))
        }
        _ => ("error", format!("Build failed: {}", reason(record).1)),
    };
    Entry {
        timestamp: time_text(at),
        message,
        level,
        step: None,
    }
}

/// Where a build failed and why, in the words that E2B's users know.
fn reason(record: &BuildRecord) -> (String, String) {
    let error = record.error.as_deref().unwrap_or("the build was cancelled");
    // Nobody here wrote a Dockerfile.
    let error = error.strip_prefix("Dockerfile: ").unwrap_or(error);
    let placed = error
        .strip_prefix("line ")
        .and_then(|rest| rest.split_once(": "))
        .and_then(|(line, rest)| Some((line.parse::<u32>().ok()?, rest)));
    let Some((line, rest)) = placed else {
        return ("finalize".to_owned(), error.to_owned());
    };
    (
        step_name(line),
        failed_run(rest).unwrap_or_else(|| rest.to_owned()),
    )
}

fn failed_run(text: &str) -> Option<String> {
    const EXIT: &str = ": exit code ";
    const NO_USER: &str = ": there is no user \"";
    let rest = text.strip_prefix("RUN ")?;
    if let Some((command, user)) = rest.split_once(NO_USER) {
        let user = user.split('"').next()?;
        return Some(format!(
            "failed to run command '{command}': command failed: unauthenticated: invalid username: '{user}'"
        ));
    }
    let (command, code) = rest.split_once(EXIT)?;
    let (code, output) = code.split_once('\n').unwrap_or((code, ""));
    let text = format!("failed to run command '{command}': exit status {code}\n{output}");
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(json: Value) -> Result<Reserved, Refusal> {
        check(serde_json::from_value(json).unwrap(), &OrgId::random())
    }

    #[test]
    fn names_and_tags_are_taken_apart() {
        let made = checked(json!({"name": " My-T:V1 ", "tags": ["x", "v1", "default"]})).unwrap();
        assert_eq!(made.name, "my-t");
        assert_eq!(made.tags, ["v1", "x", "latest"]);
        for bad in [
            json!({}),
            json!({"name": ""}),
            json!({"name": "a/b"}),
            json!({"name": "a_b"}),
            json!({"name": "base"}),
            json!({"name": "n:"}),
            json!({"name": "n:3"}),
            json!({"name": "n", "tags": ["00000000-0000-4000-8000-000000000000"]}),
            json!({"name": "n", "cpuCount": 3}),
            json!({"name": "n", "cpuCount": 0}),
            json!({"name": "n", "memoryMB": 127}),
            json!({"name": "n", "memoryMB": 513}),
            json!({"name": "n", "teamID": "other"}),
        ] {
            assert!(checked(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_reserved_name_is_its_organisations_own_and_built_once() {
        let waiting = Waiting::default();
        let made = checked(json!({"name": "n"})).unwrap();
        let org = made.org.clone();
        let id = waiting.add(made.clone()).unwrap();
        assert!(waiting.get(&OrgId::random(), &id).is_none());
        assert!(waiting.take(&OrgId::random(), &id).is_none());
        assert!(waiting.take(&org, &id).is_some());
        assert!(waiting.take(&org, &id).is_none());
        for _ in 0..WAITING_MAX {
            waiting.add(made.clone()).unwrap();
        }
        assert_eq!(waiting.add(made).unwrap_err().kind, Kind::Exhausted);
    }

    #[test]
    fn failures_are_told_in_known_words() {
        let record = |error: &str| BuildRecord {
            id: BuildId::random(),
            org: OrgId::random(),
            name: "n".into(),
            state: BuildState::Failed,
            error: Some(error.into()),
            template: None,
            steps: 0,
            cached: 0,
            created_at: OffsetDateTime::UNIX_EPOCH,
            finished_at: None,
        };
        let said = |error| reason(&record(error));
        assert_eq!(
            said("line 2: RUN false: exit code 1\nout"),
            (
                "2".into(),
                "failed to run command 'false': exit status 1\nout".into()
            )
        );
        assert_eq!(
            said("line 1: RUN whoami: there is no user \"root123\" in this sandbox").1,
            "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
        );
        assert_eq!(said("line 0: FROM x: no").0, "base");
        let wrong = said("Dockerfile: line 3: too long");
        assert_eq!(wrong, ("3".into(), "too long".into()));
        assert_eq!(said("start: it ended").0, "finalize");
    }
}
