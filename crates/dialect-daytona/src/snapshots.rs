//! Snapshots and forks. What Daytona calls a snapshot is anything a sandbox can begin from, so templates and images
//! are listed among them. Making one from an image is a build of a template.
//!
//! Daytona's names may have characters that Cove's do not. A template of such a name is called by a hash of it, and
//! has the name itself in a label of its configuration.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cove_control::{
    BuildRecord, ControlError, CreateTemplate, ErrorCode, ForkRequest, ImageView, PageRequest,
    Principal, SnapshotRecord, TakeSnapshot, TemplateRecord,
};
use cove_dialect::Front;
use cove_model::spec::check_name;
use cove_model::template::LATEST;
use cove_model::{BuildId, BuildState, Resources, TemplateId};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::asking::{Caller, Json, Names, Query};
use crate::build_logs;
use crate::convert::{self, TARGET, time_text};
use crate::entrypoint;
use crate::images::{self, Images};
use crate::refusal::{Answer, Refusal};
use crate::sandboxes::Sizes;
use crate::server_address::ServerAddress;
use crate::wire::BuildInfo;

/// Snapshots read at once, and in all: Daytona counts them, and pages by number.
const READ_AT_ONCE: u32 = 200;
const ALL_MAX: usize = 10_000;
const PAGE_MAX: usize = 200;
const PAGE_DEFAULT: usize = 100;
const BYTES_PER_GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// Characters of a snapshot's name.
const NAME_MAX: usize = 200;
/// What names begin with that stand for others.
const HASHED: &str = "daytona-";
/// Where a template has the name that its own stands for.
const NAME_LABEL: &str = "cove.daytona.snapshot";

fn check_snapshot_name(name: &str) -> Result<(), Refusal> {
    let good = (1..=NAME_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-:/".contains(&b));
    if good {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "a snapshot's name has 1 to {NAME_MAX} letters, digits and the characters . _ - : /"
    )))
}

/// What a template or snapshot of this name is called.
fn stored(name: &str) -> String {
    if check_name(name).is_ok() && !name.starts_with(HASHED) {
        return name.to_owned();
    }
    let hash = Sha256::digest(name);
    let hex: String = hash[..12]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{HASHED}{hex}")
}

/// The part of a template's configuration that is read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    labels: BTreeMap<String, String>,
}

impl Config {
    pub fn of(record: &TemplateRecord) -> Self {
        let text = record.config.as_deref();
        let read = text.map(serde_json::from_str).and_then(Result::ok);
        read.unwrap_or_default()
    }
}

/// The template that a name or an id means, if it is one.
pub async fn template(
    front: &Front,
    caller: &Principal,
    which: &str,
) -> Result<Option<TemplateRecord>, Refusal> {
    let by_name = stored(which);
    for reference in [by_name.as_str(), which] {
        match front.control.get_template(caller, reference).await {
            Ok(found) => return Ok(Some(found)),
            Err(error) if error.code == ErrorCode::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fork {
    name: Option<String>,
}

/// The child boots from the parent's disk as it is, as Daytona's do.
pub async fn fork(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
    Json(body): Json<Fork>,
) -> Answer {
    let mut request = ForkRequest::default();
    request.children.name = body.name;
    let made = front.control.fork_sandbox(&caller, &id, request).await?;
    let child = made
        .into_iter()
        .next()
        .ok_or_else(|| Refusal::new(500, "INTERNAL", "the fork made no sandbox"))??;
    entrypoint::start(&front, &caller, &child).await;
    Ok(axum::Json(convert::sandbox(child, place.toolbox())).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Take {
    name: String,
    #[serde(default)]
    include_memory: Option<bool>,
}

pub async fn take(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
    Json(body): Json<Take>,
) -> Answer {
    check_snapshot_name(&body.name)?;
    let name = stored(&body.name);
    let request = TakeSnapshot {
        name: Some(name.clone()),
        memory: body.include_memory.unwrap_or(false),
        durable: false,
        idempotency_key: None,
    };
    let taken = front.control.take_snapshot(&caller, &id, request).await?;
    if name != body.name {
        let labels = [(NAME_LABEL.to_owned(), body.name)];
        let request = CreateTemplate {
            name,
            snapshot: taken.snapshot.id.to_string(),
            memory: false,
            tags: Vec::new(),
            idempotency_key: None,
            config: Some(cove_control::TemplateConfig {
                labels: labels.into(),
                ..Default::default()
            }),
        };
        let made = front.control.create_template(&caller, request, Ok).await;
        if let Err(error) = made {
            let id = taken.snapshot.id.as_str();
            front.control.delete_snapshot(&caller, id).await.ok();
            return Err(error.into());
        }
    }
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    Ok(axum::Json(convert::sandbox(sandbox, place.toolbox())).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Create {
    name: String,
    #[serde(default)]
    image_name: Option<String>,
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    cpu: Option<u32>,
    #[serde(default)]
    memory: Option<u32>,
    #[serde(default)]
    disk: Option<u32>,
    #[serde(default)]
    gpu: Option<u32>,
    #[serde(default)]
    gpu_type: Option<Value>,
    #[serde(default)]
    build_info: Option<BuildInfo>,
    #[serde(default)]
    region_id: Option<String>,
    #[serde(default)]
    sandbox_class: Option<String>,
}

impl Create {
    fn refuse_unsupported(&self) -> Result<(), Refusal> {
        let region = self
            .region_id
            .as_ref()
            .is_some_and(|region| region != TARGET);
        let class = self
            .sandbox_class
            .as_ref()
            .is_some_and(|class| class != "container");
        let refused = [
            (
                region,
                "regionId: the only region is 'local'; leave DAYTONA_TARGET out",
            ),
            (
                class,
                "sandboxClass: sandboxes of this interface are containers",
            ),
            (
                self.gpu.is_some_and(|gpu| gpu > 0) || self.gpu_type.is_some(),
                "gpu: sandboxes have no GPUs here",
            ),
        ];
        match refused.into_iter().find(|(asked, _)| *asked) {
            Some((_, message)) => Err(Refusal::unsupported(message)),
            None => Ok(()),
        }
    }

    fn dockerfile(&self) -> Result<String, Refusal> {
        let one_of = "give either imageName or buildInfo";
        let mut text = match (&self.image_name, &self.build_info) {
            (Some(image), None) => {
                let odd = |c: char| c.is_whitespace() || c.is_control() || c == '$';
                if image.is_empty() || image.contains(odd) {
                    return Err(Refusal::invalid("imageName is not the name of an image"));
                }
                format!("FROM {image}\n")
            }
            (None, Some(build)) => images::dockerfile(build)?,
            _ => return Err(Refusal::invalid(one_of)),
        };
        if let Some(entrypoint) = self.entrypoint.as_ref().filter(|words| !words.is_empty()) {
            text.push_str(&format!("\nENTRYPOINT {}\n", json!(entrypoint)));
        }
        if stored(&self.name) != self.name {
            // The name has no character that means anything between quotes.
            text.push_str(&format!("\nLABEL {NAME_LABEL}=\"{}\"\n", self.name));
        }
        Ok(text)
    }
}

/// A build under way, or one that failed, as a snapshot.
fn building(record: &BuildRecord, name: &str) -> Value {
    let resources = Resources::default();
    let created = time_text(record.created_at);
    json!({
        "id": record.id.as_str(),
        "organizationId": record.org.as_str(),
        "general": false,
        "name": name,
        "state": images::state(record),
        "size": null,
        "entrypoint": null,
        "cpu": resources.cpu,
        "gpu": 0,
        "mem": resources.memory_mb as f64 / 1024.0,
        "disk": resources.disk_mb as f64 / 1024.0,
        "errorReason": record.error,
        "createdAt": created,
        "updatedAt": record.finished_at.map_or(created.clone(), time_text),
        "lastUsedAt": null,
    })
}

fn templated(record: &TemplateRecord) -> Value {
    let resources = &record.spec.resources;
    let created = time_text(record.created_at);
    let config = Config::of(record);
    // A Dockerfile may have written the label itself: then it is a label and nothing more.
    let named = config
        .labels
        .get(NAME_LABEL)
        .filter(|name| stored(name) == record.name);
    let entrypoint = (!config.entrypoint.is_empty()).then_some(config.entrypoint);
    let lost = record.lost.then_some("the host has lost it; make it again");
    json!({
        "id": record.id.as_str(),
        "organizationId": record.org.as_str(),
        "general": false,
        "name": named.unwrap_or(&record.name),
        "state": if record.lost { "error" } else { "active" },
        "size": null,
        "entrypoint": entrypoint,
        "cpu": resources.cpu,
        "gpu": 0,
        "mem": resources.memory_mb as f64 / 1024.0,
        "disk": resources.disk_mb as f64 / 1024.0,
        "errorReason": lost,
        "createdAt": created,
        "updatedAt": created,
        "lastUsedAt": null,
    })
}

/// Answers as soon as the build has begun.
pub async fn create(
    State(front): State<Front>,
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    Json(body): Json<Create>,
) -> Answer {
    body.refuse_unsupported()?;
    check_snapshot_name(&body.name)?;
    let dockerfile = body.dockerfile()?;
    let name = stored(&body.name);
    // Two creates of one name come one after the other.
    let key = Sha256::digest(format!("snapshot {name}")).into();
    let turn = images.turn(&caller.org, key);
    let _turn = turn.lock().await;
    let there = find(&front, &caller, &body.name).await?;
    let is_there = match &there {
        Some(Found::Build(build)) => !build.state.is_over(),
        found => found.is_some(),
    };
    if is_there {
        let message = format!("a snapshot named '{}' exists already", body.name);
        return Err(Refusal::new(409, "CONFLICT", message));
    }
    let sizes = Sizes {
        cpu: body.cpu,
        memory: body.memory,
        disk: body.disk,
    };
    let over = move |spec: &mut cove_model::SandboxSpec| sizes.put(spec);
    let build = images::begin(&front.control, &caller, &name, &dockerfile, over).await?;
    images.call(build.id.clone(), body.name.clone());
    Ok(axum::Json(building(&build, &body.name)).into_response())
}

fn shown(record: &SnapshotRecord) -> Value {
    let resources = &record.spec.resources;
    let facts = &record.facts;
    let bytes = facts.exclusive_bytes + facts.shared_bytes + facts.memory_bytes;
    let created = time_text(record.created_at);
    let id = record.id.to_string();
    json!({
        "id": id,
        "organizationId": record.org.to_string(),
        "general": false,
        "name": record.name.as_deref().unwrap_or(&id),
        "imageName": record.spec.image,
        "state": "active",
        "size": bytes as f64 / BYTES_PER_GIB,
        "entrypoint": null,
        "cpu": resources.cpu,
        "gpu": 0,
        "mem": resources.memory_mb as f64 / 1024.0,
        "disk": resources.disk_mb as f64 / 1024.0,
        "errorReason": null,
        "createdAt": created,
        "updatedAt": created,
        "lastUsedAt": null,
    })
}

fn image(view: &ImageView) -> Value {
    let resources = cove_model::Resources::default();
    let created = time_text(view.created_at);
    let id = view.id.to_string();
    json!({
        "id": id,
        "general": true,
        "name": view.names.first().unwrap_or(&id),
        "imageName": view.source,
        "state": "active",
        "size": view.size_bytes as f64 / BYTES_PER_GIB,
        "entrypoint": null,
        "cpu": resources.cpu,
        "gpu": 0,
        "mem": resources.memory_mb as f64 / 1024.0,
        "disk": resources.disk_mb as f64 / 1024.0,
        "errorReason": null,
        "createdAt": created,
        "updatedAt": created,
        "lastUsedAt": null,
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Listing {
    page: Option<usize>,
    limit: Option<usize>,
    name: Option<String>,
    source_sandbox_id: Option<String>,
}

/// A larger one is listed without its entrypoint.
const CONFIG_SHOWN_MAX: usize = 16 * 1024;

/// The templates that names stand for, and every build of one.
async fn made(
    front: &Front,
    caller: &Principal,
) -> Result<(Vec<TemplateRecord>, Vec<BuildRecord>), Refusal> {
    let mut templates: Vec<TemplateRecord> = Vec::new();
    let mut cursor = None;
    while templates.len() < ALL_MAX {
        let page = PageRequest {
            limit: READ_AT_ONCE,
            cursor,
        };
        let found = front.control.list_templates(caller, None, &page).await?;
        let current = |one: &TemplateRecord| {
            one.name != images::TEMPLATE && one.tags.iter().any(|tag| tag == LATEST)
        };
        // What nobody is shown is not kept in memory: a row may have hundreds of kilobytes of it.
        let slim = |mut one: TemplateRecord| {
            one.spec.env.clear();
            one.spec.labels.clear();
            one.config = one.config.filter(|text| text.len() <= CONFIG_SHOWN_MAX);
            one
        };
        templates.extend(found.items.into_iter().filter(current).map(slim));
        cursor = found.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let mut builds = front.control.list_builds(caller).await?;
    builds.retain(|build| build.name != images::TEMPLATE);
    Ok((templates, builds))
}

pub async fn list(
    State(front): State<Front>,
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    Query(query): Query<Listing>,
) -> Answer {
    let (page, limit) = (query.page.unwrap_or(1), query.limit.unwrap_or(PAGE_DEFAULT));
    if page == 0 || !(1..=PAGE_MAX).contains(&limit) {
        let message = format!("page begins at 1, and limit is between 1 and {PAGE_MAX}");
        return Err(Refusal::invalid(message));
    }
    let source = query.source_sandbox_id.as_deref();
    let mut all: Vec<Value> = Vec::new();
    let mut cursor = None;
    while all.len() < ALL_MAX {
        let request = PageRequest {
            limit: READ_AT_ONCE,
            cursor,
        };
        let found = front
            .control
            .list_snapshots(&caller, source, &request)
            .await?;
        // What was taken without being asked for by name is no template.
        let named = found.items.iter().filter(|record| {
            let name = record.name.as_deref();
            name.is_some_and(|name| !name.starts_with(HASHED))
        });
        all.extend(named.map(shown));
        cursor = found.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if source.is_none() {
        let (built, builds) = made(&front, &caller).await?;
        let unfinished = builds.iter().filter(|build| {
            !build.state.is_over() && built.iter().all(|one| one.name != build.name)
        });
        let unfinished = unfinished.map(|build| building(build, &images.name_of(build)));
        all.extend(unfinished.chain(built.iter().map(templated)));
        all.extend(front.control.list_images(&caller).await?.iter().map(image));
    }
    if let Some(part) = &query.name {
        all.retain(|item| {
            item["name"]
                .as_str()
                .is_some_and(|name| name.contains(part.as_str()))
        });
    }
    let total = all.len();
    let items: Vec<Value> = all
        .into_iter()
        .skip((page - 1).saturating_mul(limit))
        .take(limit)
        .collect();
    let answer = json!({
        "items": items,
        "total": total,
        "page": page,
        "totalPages": total.div_ceil(limit),
    });
    Ok(axum::Json(answer).into_response())
}

/// What a name or an id means.
enum Found {
    Template(TemplateRecord),
    Build(BuildRecord),
    Snapshot(SnapshotRecord),
    Image(ImageView),
}

async fn find(front: &Front, caller: &Principal, which: &str) -> Result<Option<Found>, Refusal> {
    let control = &front.control;
    let absent = |error: ControlError| match error.code {
        ErrorCode::NotFound => Ok(None),
        _ => Err(Refusal::from(error)),
    };
    if BuildId::matches(which) {
        let build = match control.get_build(caller, which).await {
            Ok(build) => build,
            Err(error) => return absent(error),
        };
        let Some(id) = &build.template else {
            return Ok(Some(Found::Build(build)));
        };
        let made = control.get_template(caller, id.as_str()).await;
        return made.map(Found::Template).map(Some).or_else(absent);
    }
    if let Some(template) = template(front, caller, which).await? {
        return Ok(Some(Found::Template(template)));
    }
    match control.get_snapshot(caller, which).await {
        Ok(record) => return Ok(Some(Found::Snapshot(record))),
        Err(error) => absent(error)?,
    };
    let images = control.list_images(caller).await?;
    let is_it =
        |view: &ImageView| view.id.as_str() == which || view.names.iter().any(|name| name == which);
    if let Some(view) = images.into_iter().find(is_it) {
        return Ok(Some(Found::Image(view)));
    }
    // The newest: what came of an earlier one is of no interest.
    let name = stored(which);
    let builds = control.list_builds(caller).await?;
    let newest = builds.into_iter().find(|build| build.name == name);
    let unmade = newest.filter(|build| build.state != BuildState::Done);
    Ok(unmade.map(Found::Build))
}

async fn found(
    front: &Front,
    images: &Images,
    caller: &Principal,
    which: &str,
) -> Result<Value, Refusal> {
    Ok(match find(front, caller, which).await? {
        Some(Found::Template(record)) => templated(&record),
        Some(Found::Build(record)) => building(&record, &images.name_of(&record)),
        Some(Found::Snapshot(record)) => shown(&record),
        Some(Found::Image(view)) => image(&view),
        None => return Err(ControlError::not_found("snapshot", which).into()),
    })
}

pub async fn get(
    State(front): State<Front>,
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    Names(which): Names<String>,
) -> Answer {
    let found = found(&front, &images, &caller, &which).await?;
    Ok(axum::Json(found).into_response())
}

/// All that are there are active.
pub async fn activate(
    State(front): State<Front>,
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    Names(which): Names<String>,
) -> Answer {
    let found = found(&front, &images, &caller, &which).await?;
    if found["state"] != json!("active") {
        return Err(Refusal::invalid("only an existing snapshot can be active"));
    }
    Ok(axum::Json(found).into_response())
}

pub async fn delete(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(which): Names<String>,
) -> Answer {
    let control = &front.control;
    match find(&front, &caller, &which).await? {
        Some(Found::Template(record)) => {
            let id = record.id.as_str();
            control.delete_template(&caller, id, false).await?;
            if record.name.starts_with(HASHED) {
                // The snapshot of a sandbox that the template stood for.
                let deleted = control.delete_snapshot(&caller, &record.name).await;
                if let Err(error) = deleted
                    && error.code != ErrorCode::NotFound
                {
                    return Err(error.into());
                }
            }
        }
        Some(Found::Build(record)) => {
            control.cancel_build(&caller, record.id.as_str()).await?;
        }
        Some(Found::Snapshot(record)) => {
            control.delete_snapshot(&caller, record.id.as_str()).await?;
        }
        Some(Found::Image(_)) => {
            let message = "this is an image of the server; `cove image rm` removes it";
            return Err(Refusal::new(403, "FORBIDDEN", message));
        }
        None => return Err(ControlError::not_found("snapshot", &which).into()),
    }
    Ok(StatusCode::OK.into_response())
}

/// The build of a snapshot, by the id it had while it was built or has now, or by its name.
async fn build_of(front: &Front, caller: &Principal, which: &str) -> Result<BuildId, Refusal> {
    let name = stored(which);
    let template: Option<TemplateId> = which.parse().ok();
    let is_it = |build: &BuildRecord| {
        build.id.as_str() == which
            || (template.is_some() && build.template == template)
            || build.name == name
    };
    let builds = front.control.list_builds(caller).await?;
    let found = builds.into_iter().find(is_it).map(|build| build.id);
    found.ok_or_else(|| ControlError::not_found("build of the snapshot", which).into())
}

pub async fn logs_url(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(which): Names<String>,
    place: ServerAddress,
) -> Answer {
    let build = build_of(&front, &caller, &which).await?;
    build_logs::url(&place, &format!("/snapshots/{build}"))
}

pub async fn logs(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(which): Names<String>,
    Query(query): Query<build_logs::Follow>,
) -> Answer {
    let build = build_of(&front, &caller, &which).await?;
    build_logs::stream(&front, caller, async { Some(build) }, query).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cove_does_not_have_stand_in_for_themselves() {
        assert_eq!(stored("tools-1"), "tools-1");
        for name in ["Tools", "a/b:1.0", "daytona-image", "x_y"] {
            let stored = stored(name);
            assert!(stored.starts_with(HASHED) && stored != name, "{name}");
            assert!(check_name(&stored).is_ok(), "{stored}");
            assert!(check_snapshot_name(name).is_ok(), "{name}");
        }
        assert_ne!(stored("A"), stored("B"));
        for bad in ["", "a b", "a\"b", "a\nRUN x", "$x"] {
            assert!(check_snapshot_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_snapshot_comes_from_an_image_or_a_dockerfile() {
        let read = |text: &str| serde_json::from_str::<Create>(text).unwrap().dockerfile();
        let made = read(r#"{"name":"a","imageName":"x:1","entrypoint":["a","b c"]}"#).unwrap();
        assert_eq!(made, "FROM x:1\n\nENTRYPOINT [\"a\",\"b c\"]\n");
        for bad in [
            r#"{"name":"a"}"#,
            r#"{"name":"a","imageName":"x\nRUN y"}"#,
            r#"{"name":"a","imageName":"x","buildInfo":{"dockerfileContent":"FROM x"}}"#,
            r#"{"name":"a","buildInfo":{"dockerfileContent":"FROM x","contextHashes":["h"]}}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
