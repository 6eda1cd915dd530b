//! Templates: names that sandboxes begin from, their tags, and what is asked about them.
//!
//! E2B's template is a name with all its versions, so the name is the id here. Its tag `default` is Cove's `latest`.

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use cove_control::{
    BuildRecord, Control, ControlError, ErrorCode, PageRequest, Principal, Scope, TemplateRecord,
};
use cove_model::template::LATEST;
use cove_model::{BuildState, SandboxSpec, SnapshotId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::sandboxes::{ENVD_VERSION, time_text};
use super::{Answer, Caller, Json, Query, ids, nothing, with_status};
use crate::refusal::{Kind, Refusal};
use crate::{Dialect, naming};

/// E2B's word for the tag that a name alone means.
const DEFAULT: &str = "default";
/// Versions that one request reads at once.
const PAGE: u32 = 500;
const TAGS_MAX: usize = 64;

/// A name with a tag, as Cove reads it.
pub fn reference(text: &str) -> String {
    match text.split_once(':') {
        Some((name, DEFAULT)) => name.to_owned(),
        _ => text.to_owned(),
    }
}

pub fn tag_within(tag: &str) -> &str {
    match tag {
        DEFAULT => LATEST,
        tag => tag,
    }
}

pub fn tag_shown(tag: &str) -> &str {
    match tag {
        LATEST => DEFAULT,
        tag => tag,
    }
}

/// The version that a name stands for, with a tag or a build's id behind it or without. `None` where the name is of no
/// template; a tag that the name does not have is refused.
pub async fn find(
    control: &Control,
    principal: &Principal,
    text: &str,
) -> Result<Option<TemplateRecord>, Refusal> {
    let (name, tag) = text.split_once(':').unwrap_or((text, DEFAULT));
    let which = match ids::meant(tag) {
        Some(ids::Named::Version(id)) => id.to_string(),
        Some(ids::Named::Build(id)) => {
            let build = control.get_build(principal, id.as_str()).await?;
            let made = build.template.filter(|_| build.name == name);
            made.ok_or_else(|| no_tag(name, tag))?.to_string()
        }
        None => reference(text),
    };
    match control.get_template(principal, &which).await {
        Ok(found) if found.name == name || found.id.as_str() == text => Ok(Some(found)),
        Ok(_) => Err(no_tag(name, tag)),
        Err(error) if error.code == ErrorCode::NotFound => {
            match versions(control, principal, name).await?.is_empty() {
                true => Ok(None),
                false => Err(no_tag(name, tag)),
            }
        }
        Err(error) => Err(error.into()),
    }
}

fn no_tag(name: &str, tag: &str) -> Refusal {
    let text = format!("tag '{tag:.80}' does not exist for template '{name:.80}'");
    Refusal::new(Kind::NotFound, text)
}

fn no_template(name: &str) -> Refusal {
    Refusal::new(Kind::NotFound, format!("template '{name:.80}' not found"))
}

/// All versions of a name, newest first.
async fn versions(
    control: &Control,
    principal: &Principal,
    name: &str,
) -> Result<Vec<TemplateRecord>, ControlError> {
    pages(control, principal, Some(name)).await
}

async fn pages(
    control: &Control,
    principal: &Principal,
    name: Option<&str>,
) -> Result<Vec<TemplateRecord>, ControlError> {
    let mut all = Vec::new();
    let mut page = PageRequest {
        limit: PAGE,
        cursor: None,
    };
    loop {
        let rows = control.list_templates(principal, name, &page).await?;
        // What nobody is shown is not kept in memory: a row may have hundreds of kilobytes of it.
        all.extend(rows.items.into_iter().map(|row| TemplateRecord {
            spec: SandboxSpec {
                resources: row.spec.resources,
                ..SandboxSpec::default()
            },
            config: None,
            ..row
        }));
        page.cursor = rows.next_cursor;
        if page.cursor.is_none() {
            return Ok(all);
        }
    }
}

/// The build that made a version, while it is remembered; else the version itself.
fn build_of(record: &TemplateRecord, builds: &[BuildRecord]) -> String {
    let made = |build: &&BuildRecord| build.template.as_ref() == Some(&record.id);
    match builds.iter().find(made) {
        Some(build) => ids::of_build(&build.id),
        None => ids::of_version(&record.id),
    }
}

/// Whether a sandbox can be made from this name: a template, an image or a snapshot.
pub async fn alias(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path(alias): Path<String>,
) -> Answer {
    let control = &dialect.front.control;
    let answer = |id: &str| with_status(StatusCode::OK, json!({"templateID": id, "public": false}));
    if let Some(found) = find(control, &principal, &alias).await? {
        return answer(&found.name);
    }
    let image = naming::image_of(&alias);
    let images = control.list_images(&principal).await?;
    let is_image = images
        .iter()
        .any(|one| one.names.iter().any(|name| name == image) || one.id.as_str() == image);
    if !is_image && control.get_snapshot(&principal, &alias).await.is_err() {
        return Err(no_template(&alias).into());
    }
    answer(&alias)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignTags {
    target: String,
    tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveTags {
    name: String,
    tags: Vec<String>,
}

fn check_tags(tags: &[String]) -> Result<(), Refusal> {
    if tags.is_empty() || tags.len() > TAGS_MAX {
        return Err(Refusal::invalid(format!(
            "tags: between 1 and {TAGS_MAX} are needed"
        )));
    }
    match tags.iter().find(|tag| ids::is_uuid(tag)) {
        Some(tag) => Err(Refusal::invalid(format!("tag '{tag}' must not be a UUID"))),
        None => Ok(()),
    }
}

pub async fn assign_tags(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Json(request): Json<AssignTags>,
) -> Answer {
    check_tags(&request.tags)?;
    let control = &dialect.front.control;
    let target = request.target.as_str();
    if target.starts_with(':') || target.ends_with(':') {
        return Err(Refusal::invalid("target must be like name or name:tag").into());
    }
    let found = find(control, &principal, target).await?;
    let found = found.ok_or_else(|| no_template(target))?;
    for tag in &request.tags {
        let tagged = control.tag_template(&principal, found.id.as_str(), tag_within(tag));
        tagged.await?;
    }
    let builds = builds(control, &principal).await?;
    let shown = json!({"tags": request.tags, "buildID": build_of(&found, &builds)});
    with_status(StatusCode::CREATED, shown)
}

pub async fn remove_tags(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Json(request): Json<RemoveTags>,
) -> Answer {
    check_tags(&request.tags)?;
    let control = &dialect.front.control;
    let name = request.name.as_str();
    if name.contains(':') {
        return Err(Refusal::invalid("name must be without a tag").into());
    }
    if request.tags.iter().any(|tag| tag_within(tag) == LATEST) {
        return Err(Refusal::invalid("the tag 'default' cannot be removed").into());
    }
    if versions(control, &principal, name).await?.is_empty() {
        return Err(no_template(name).into());
    }
    for tag in &request.tags {
        match control.untag_template(&principal, name, tag).await {
            Err(error) if error.code != ErrorCode::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    nothing()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tag {
    tag: String,
    #[serde(rename = "buildID")]
    build: String,
    created_at: String,
}

pub async fn tags(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path(name): Path<String>,
) -> Answer {
    let control = &dialect.front.control;
    let all = versions(control, &principal, &name).await?;
    if all.is_empty() {
        return Err(no_template(&name).into());
    }
    let builds = builds(control, &principal).await?;
    let tags = all.iter().flat_map(|version| {
        let (build, at) = (build_of(version, &builds), time_text(version.created_at));
        version.tags.iter().map(move |tag| Tag {
            tag: tag_shown(tag).to_owned(),
            build: build.clone(),
            created_at: at.clone(),
        })
    });
    with_status(StatusCode::OK, tags.collect::<Vec<_>>())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(rename = "buildID")]
    build: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_mb: u64,
    public: bool,
    aliases: Vec<String>,
    names: Vec<String>,
    created_at: String,
    updated_at: String,
    created_by: Option<()>,
    last_spawned_at: Option<()>,
    /// Nobody counts.
    spawn_count: u32,
    build_count: usize,
    envd_version: &'static str,
    build_status: &'static str,
}

/// A template by its versions, of which there is one at least, newest first.
fn shown(all: &[TemplateRecord], builds: &[BuildRecord]) -> Option<Shown> {
    let (newest, oldest) = (all.first()?, all.last()?);
    Some(Shown {
        template: newest.name.clone(),
        build: build_of(newest, builds),
        cpu_count: newest.spec.resources.visible_cpus(),
        memory_mb: newest.spec.resources.memory_mb,
        disk_mb: newest.spec.resources.disk_mb,
        public: false,
        aliases: vec![newest.name.clone()],
        names: vec![newest.name.clone()],
        created_at: time_text(oldest.created_at),
        updated_at: time_text(newest.created_at),
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: all.len(),
        envd_version: ENVD_VERSION,
        build_status: "ready",
    })
}

async fn builds(
    control: &Control,
    principal: &Principal,
) -> Result<Vec<BuildRecord>, ControlError> {
    control.list_builds(principal).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListQuery {
    /// A key belongs to one organisation.
    #[serde(rename = "teamID")]
    team: Option<String>,
    #[serde(rename = "nextToken")]
    next_token: Option<String>,
    limit: Option<u32>,
}

pub async fn list(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Query(query): Query<ListQuery>,
) -> Answer {
    if let Some(team) = &query.team
        && team != principal.org.as_str()
    {
        return Err(Refusal::new(Kind::Forbidden, "the key is of another team").into());
    }
    if query.next_token.is_some() {
        return Err(Refusal::invalid("nextToken: the list has one page").into());
    }
    let control = &dialect.front.control;
    let builds = builds(control, &principal).await?;
    let mut by_name: BTreeMap<String, Vec<TemplateRecord>> = BTreeMap::new();
    for version in pages(control, &principal, None).await? {
        by_name
            .entry(version.name.clone())
            .or_default()
            .push(version);
    }
    let all = by_name.values().filter_map(|all| shown(all, &builds));
    let most = query.limit.map_or(usize::MAX, |limit| limit as usize);
    with_status(StatusCode::OK, all.take(most).collect::<Vec<_>>())
}

pub fn status_of(state: BuildState) -> &'static str {
    match state {
        BuildState::Waiting | BuildState::Running => "building",
        BuildState::Done => "ready",
        BuildState::Failed | BuildState::Cancelled => "error",
    }
}

#[derive(Serialize)]
struct Detail {
    #[serde(flatten)]
    shown: Shown,
    builds: Vec<Build>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Build {
    #[serde(rename = "buildID")]
    id: String,
    status: &'static str,
    created_at: String,
    updated_at: String,
    finished_at: Option<String>,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    envd_version: &'static str,
}

pub async fn get(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path(name): Path<String>,
    Query(_): Query<ListQuery>,
) -> Answer {
    let control = &dialect.front.control;
    let builds = builds(control, &principal).await?;
    let all = versions(control, &principal, &name).await?;
    let shown = shown(&all, &builds).ok_or_else(|| no_template(&name))?;
    let own = builds.iter().filter(|build| build.name == name);
    let own = own.map(|build| Build {
        id: ids::of_build(&build.id),
        status: status_of(build.state),
        created_at: time_text(build.created_at),
        updated_at: time_text(build.finished_at.unwrap_or(build.created_at)),
        finished_at: build.finished_at.map(time_text),
        cpu_count: shown.cpu_count,
        memory_mb: shown.memory_mb,
        envd_version: ENVD_VERSION,
    });
    let builds = own.collect();
    with_status(StatusCode::OK, Detail { shown, builds })
}

/// Snapshots are templates there too. Images are not removed from here.
pub async fn remove(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path(which): Path<String>,
) -> Answer {
    let control = &dialect.front.control;
    control.expect(&principal, Scope::Manage, None).await?;
    let is_template =
        !SnapshotId::matches(&which) && !versions(control, &principal, &which).await?.is_empty();
    match is_template {
        true => control.delete_template(&principal, &which, true).await?,
        false => control.delete_snapshot(&principal, &which).await?,
    }
    nothing()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_tag_is_the_latest_one() {
        assert_eq!(reference("n:default"), "n");
        assert_eq!(reference("n:v1"), "n:v1");
        assert_eq!(
            (tag_within("default"), tag_shown("latest")),
            ("latest", "default")
        );
        assert_eq!((tag_within("v1"), tag_shown("v1")), ("v1", "v1"));
    }
}
