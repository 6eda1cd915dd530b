//! Making, finding, listing and deleting sandboxes.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use cove_control::{ErrorCode, PageRequest, Principal, SandboxFilter, Source};
use cove_dialect::Front;
use cove_model::spec::INTERPRETER_IMAGE;
use cove_model::{SandboxSpec, VolumeMount};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::asking::{Caller, Json, Names};
use crate::convert::{self, Intervals, SandboxDto, TARGET};
use crate::images::{self, Images};
use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;
use crate::wire::{BuildInfo, CreateSandbox};
use crate::{entrypoint, home, snapshots, volumes};

/// How the SDKs say which language `code_run` is in.
const LANGUAGE_LABEL: &str = "code-toolbox-language";
/// The SDKs ask for 200 at most.
const PAGE_MAX: u32 = 200;
const PAGE_DEFAULT: u32 = 100;

pub async fn create(
    State(front): State<Front>,
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    place: ServerAddress,
    Json(body): Json<CreateSandbox>,
) -> Answer {
    refuse_unsupported(&body)?;
    let wanted = Wanted::read(&front, &caller, body).await?;
    let source = match &wanted.body.build_info {
        Some(_) if wanted.body.snapshot.is_some() => {
            return Err(Refusal::invalid("give either a snapshot or an image"));
        }
        Some(build) => match base_image(build) {
            Some(image) => Source::Image(Some(image)),
            None => {
                let dockerfile = images::dockerfile(build)?;
                return images::create(front, &images, caller, &place, wanted, dockerfile).await;
            }
        },
        None => source(&front, &caller, &wanted.body).await?,
    };
    // The default images have a user whom programs written for Daytona expect.
    let at_home = wanted.body.build_info.is_none()
        && wanted.body.user.is_none()
        && matches!(source, Source::Image(_));
    let template = match &source {
        Source::Template(id) => Some(front.control.get_template(&caller, id).await?),
        _ => None,
    };
    let base = front.control.base(&caller, source).await?;
    let mut request = cove_control::CreateSandbox {
        spec: wanted.over(base.spec)?,
        idempotency_key: None,
        asked: None,
        from: base.from,
    };
    if let Some(template) = &template {
        entrypoint::note(&mut request.spec, template)?;
    }
    let created = match at_home {
        false => front.control.create_sandbox(&caller, request).await?,
        true => {
            request.spec.user = Some(home::USER.into());
            let created = front
                .control
                .create_sandbox(&caller, request.clone())
                .await?;
            match home::prepare(&front, &caller, &created.sandbox).await {
                Ok(true) => created,
                // An image that its owner put in the place of ours, or a failure: nothing of it stays.
                outcome => {
                    let id = created.sandbox.id.as_str();
                    front.control.delete_sandbox(&caller, id).await?;
                    outcome?;
                    request.spec.user = None;
                    front.control.create_sandbox(&caller, request).await?
                }
            }
        }
    };
    entrypoint::start(&front, &caller, &created.sandbox).await;
    let dto = convert::sandbox(created.sandbox, place.toolbox());
    Ok((StatusCode::OK, axum::Json(dto)).into_response())
}

/// What a create asks for, understood as far as it can be without knowing what it begins from.
pub struct Wanted {
    body: CreateSandbox,
    intervals: Intervals,
    volumes: Vec<VolumeMount>,
}

impl Wanted {
    async fn read(front: &Front, caller: &Principal, body: CreateSandbox) -> Result<Self, Refusal> {
        let intervals = Intervals {
            stop: body.auto_stop_interval,
            pause: body.auto_pause_interval,
            archive: body.auto_archive_interval,
            delete: body.auto_delete_interval,
            ttl: body.ttl_minutes,
        }
        .check()?;
        let asked = body.volumes.as_deref().unwrap_or_default();
        Ok(Self {
            intervals,
            volumes: volumes::mounts(front, caller, asked).await?,
            body,
        })
    }

    pub fn resources(&self) -> Sizes {
        Sizes {
            cpu: self.body.cpu,
            memory: self.body.memory,
            disk: self.body.disk,
        }
    }

    /// These wishes over the settings of what the sandbox begins from.
    pub fn over(&self, mut spec: SandboxSpec) -> Result<SandboxSpec, Refusal> {
        let body = &self.body;
        spec.name.clone_from(&body.name);
        spec.add_env(body.env.clone().unwrap_or_default());
        spec.user = body.user.clone().or(spec.user);
        spec.network = convert::network(
            &spec.network,
            body.network_block_all,
            body.network_allow_list.as_deref(),
            body.domain_allow_list.as_deref(),
        )?;
        spec.lifecycle = self.intervals.policy(&spec.lifecycle, None);
        let labels = body.labels.clone().unwrap_or_default();
        spec.labels = convert::relabelled(&BTreeMap::new(), labels)?;
        self.intervals.label(&mut spec.labels);
        if body.public == Some(true) {
            spec.labels.insert(convert::PUBLIC.into(), "1".into());
        }
        self.resources().put(&mut spec);
        if !self.volumes.is_empty() {
            spec.volumes.clone_from(&self.volumes);
        }
        Ok(spec)
    }
}

/// Sizes as they are asked for, in GiB.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub cpu: Option<u32>,
    pub memory: Option<u32>,
    pub disk: Option<u32>,
}

impl Sizes {
    pub fn put(self, spec: &mut SandboxSpec) {
        if let Some(cpu) = self.cpu {
            spec.resources.cpu = cpu.into();
        }
        if let Some(gib) = self.memory {
            spec.resources.memory_mb = convert::gib_to_mb(gib);
            spec.resources.memory_max_mb = None;
        }
        if let Some(gib) = self.disk {
            spec.resources.disk_mb = convert::gib_to_mb(gib);
        }
    }
}

/// What the SDKs can ask for and this server cannot give.
fn refuse_unsupported(body: &CreateSandbox) -> Result<(), Refusal> {
    let asked =
        |list: &Option<Vec<serde_json::Value>>| list.as_ref().is_some_and(|l| !l.is_empty());
    let refused = [
        (
            body.target.as_ref().is_some_and(|target| target != TARGET),
            "target: the only target is 'local'; leave DAYTONA_TARGET out",
        ),
        (
            body.gpu.is_some_and(|gpu| gpu > 0) || body.gpu_type.is_some(),
            "gpu: sandboxes have no GPUs here",
        ),
        (
            body.kvm == Some(true),
            "kvm: sandboxes have no /dev/kvm here",
        ),
        (
            body.spot == Some(true),
            "spot: sandboxes are never evicted here",
        ),
        (
            asked(&body.secrets),
            "secrets: manage them with Cove's own API (cove secret) and create the sandbox there, or pass values as env_vars",
        ),
        (
            body.linked_sandbox.is_some(),
            "linked_sandbox: sandboxes do not reach each other here",
        ),
        (
            body.outbound_proxy_url.is_some(),
            "outbound_proxy_url: use domain_allow_list, which is enforced outside the sandbox",
        ),
        (
            body.otel_endpoint_override.is_some(),
            "otel_endpoint_override: this server exports no telemetry of sandboxes",
        ),
        (
            body.class.is_some(),
            "class: there are no size classes here; give cpu, memory and disk",
        ),
    ];
    match refused.into_iter().find(|(asked, _)| *asked) {
        Some((_, message)) => Err(Refusal::unsupported(message)),
        None => Ok(()),
    }
}

/// A snapshot's name may be one of ours, or an image's. It boots from its disk.
async fn source(
    front: &Front,
    caller: &Principal,
    body: &CreateSandbox,
) -> Result<Source, Refusal> {
    if let Some(name) = body.snapshot.clone().filter(|name| !name.is_empty()) {
        if let Some(template) = snapshots::template(front, caller, &name).await? {
            return Ok(Source::Template(template.id.to_string()));
        }
        let memory = false;
        return Ok(Source::SnapshotOrImage { name, memory });
    }
    let language = body.labels.as_ref().and_then(|l| l.get(LANGUAGE_LABEL));
    let node = language.is_some_and(|l| l == "typescript" || l == "javascript");
    Ok(Source::Image(node.then(|| INTERPRETER_IMAGE.to_owned())))
}

/// The image of a Dockerfile that does nothing but name it: nothing has to be built then.
fn base_image(build: &BuildInfo) -> Option<String> {
    let text = build.dockerfile_content.as_deref().unwrap_or("");
    let mut lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (from, image) = lines.next()?.split_once(char::is_whitespace)?;
    let image = image.trim();
    let context = build.context_hashes.as_ref().is_some_and(|h| !h.is_empty());
    let alone = lines.next().is_none() && !context && !image.contains(char::is_whitespace);
    // What only a build knows: `template/…`, `snapshot/…`, variables.
    let named = !image.starts_with("template/") && !image.starts_with("snapshot/");
    let names_it = named && image != "scratch" && !image.contains('$');
    (from.eq_ignore_ascii_case("from") && alone && names_it).then(|| image.to_owned())
}

pub async fn get(
    State(front): State<Front>,
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
) -> Answer {
    let dto = match front.control.get_sandbox(&caller, &id).await {
        Ok(sandbox) => convert::sandbox(sandbox, place.toolbox()),
        Err(error) if error.code == ErrorCode::NotFound => {
            images.shown(&caller, &id, &place).ok_or(error)?
        }
        Err(error) => return Err(error.into()),
    };
    Ok(axum::Json(dto).into_response())
}

pub async fn delete(
    State(front): State<Front>,
    Extension(images): Extension<Images>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
) -> Answer {
    let before = match front.control.get_sandbox(&caller, &id).await {
        Err(error) if error.code == ErrorCode::NotFound => {
            let gone = images.delete(&caller, &id, &place).ok_or(error)?;
            return Ok(axum::Json(gone).into_response());
        }
        found => found?,
    };
    front
        .control
        .delete_sandbox(&caller, before.id.as_str())
        .await?;
    let gone = cove_control::Sandbox {
        state: cove_model::State::Gone,
        ..before
    };
    Ok(axum::Json(convert::sandbox(gone, place.toolbox())).into_response())
}

pub async fn list(
    State(front): State<Front>,
    Caller(caller): Caller,
    place: ServerAddress,
    uri: Uri,
) -> Answer {
    let asked = Listing::read(uri.query().unwrap_or(""))?;
    let page = PageRequest {
        limit: asked.limit,
        cursor: asked.cursor.clone(),
    };
    if asked.nothing {
        return Ok(axum::Json(json!({ "items": [], "nextCursor": null })).into_response());
    }
    let toolbox = place.toolbox();
    let wanted = |sandbox: &cove_control::Sandbox| {
        asked.wants_times(sandbox)
            && asked.wants(&convert::sandbox(sandbox.clone(), toolbox.clone()))
    };
    let found = front
        .control
        .pick_sandboxes(&caller, &asked.filter, &page, wanted)
        .await?;
    let items: Vec<SandboxDto> = found
        .items
        .into_iter()
        .map(|sandbox| convert::sandbox(sandbox, toolbox.clone()))
        .collect();
    let body = json!({ "items": items, "nextCursor": found.next_cursor });
    Ok(axum::Json(body).into_response())
}

/// What a list is narrowed by. It is in the order of creation, the newest first unless asked for otherwise.
#[derive(Default)]
struct Listing {
    limit: u32,
    cursor: Option<String>,
    filter: SandboxFilter,
    /// Only states were asked for that no sandbox here is ever in.
    nothing: bool,
    states: Vec<String>,
    id: Option<String>,
    name: Option<String>,
    sizes: Vec<(Size, Ordering, u64)>,
    times: Vec<(Time, Ordering, OffsetDateTime)>,
}

#[derive(Clone, Copy)]
enum Size {
    Cpu,
    Memory,
    Disk,
}

#[derive(Clone, Copy)]
enum Time {
    Created,
    Active,
}

#[derive(Clone, Copy)]
enum Ordering {
    AtLeast,
    AtMost,
}

impl Ordering {
    fn holds<T: PartialOrd>(self, value: T, bound: T) -> bool {
        match self {
            Self::AtLeast => value >= bound,
            Self::AtMost => value <= bound,
        }
    }
}

impl Listing {
    fn read(query: &str) -> Result<Self, Refusal> {
        let pairs: Vec<(String, String)> = serde_urlencoded::from_str(query).map_err(|error| {
            Refusal::invalid(format!(
                "the query is invalid: {}",
                cove_dialect::wording::plain("", &error)
            ))
        })?;
        let mut listing = Self {
            limit: PAGE_DEFAULT,
            ..Self::default()
        };
        for (key, value) in pairs {
            listing.take(&key, value)?;
        }
        listing.nothing = !listing.states.is_empty() && listing.filter.states.is_empty();
        Ok(listing)
    }

    fn take(&mut self, key: &str, value: String) -> Result<(), Refusal> {
        let wrong = || Refusal::invalid(format!("{key}: invalid value"));
        let number = || {
            value
                .parse::<f64>()
                .ok()
                .filter(|n| *n >= 0.0)
                .ok_or_else(wrong)
        };
        let mut size = |size, ordering| {
            self.sizes.push((size, ordering, number()?.round() as u64));
            Ok(())
        };
        match key {
            "minCpu" => return size(Size::Cpu, Ordering::AtLeast),
            "maxCpu" => return size(Size::Cpu, Ordering::AtMost),
            "minMemoryGiB" => return size(Size::Memory, Ordering::AtLeast),
            "maxMemoryGiB" => return size(Size::Memory, Ordering::AtMost),
            "minDiskGiB" => return size(Size::Disk, Ordering::AtLeast),
            "maxDiskGiB" => return size(Size::Disk, Ordering::AtMost),
            _ => {}
        }
        let mut time = |time, ordering| {
            let at = OffsetDateTime::parse(&value.replace(' ', "+"), &Rfc3339);
            self.times.push((time, ordering, at.map_err(|_| wrong())?));
            Ok(())
        };
        match key {
            "createdAtAfter" => return time(Time::Created, Ordering::AtLeast),
            "createdAtBefore" => return time(Time::Created, Ordering::AtMost),
            "lastEventAfter" => return time(Time::Active, Ordering::AtLeast),
            "lastEventBefore" => return time(Time::Active, Ordering::AtMost),
            _ => {}
        }
        match key {
            "cursor" => self.cursor = Some(value),
            "limit" => {
                let limit = value.parse().ok().filter(|n| (1..=PAGE_MAX).contains(n));
                self.limit = limit.ok_or_else(wrong)?;
            }
            "labels" => {
                self.filter.labels = serde_json::from_str(&value).map_err(|_| wrong())?;
            }
            "states" => {
                for state in value.split(',') {
                    let ours = convert::states(state).ok_or_else(wrong)?;
                    self.filter.states.extend(ours);
                    self.states.push(state.to_owned());
                }
            }
            "id" => self.id = Some(value.to_ascii_lowercase()),
            "name" => self.name = Some(value.to_ascii_lowercase()),
            "sort" if value == "createdAt" => {}
            "order" if value == "desc" || value == "asc" => {
                self.filter.oldest_first = value == "asc";
            }
            "order" => return Err(wrong()),
            "sort" => {
                return Err(Refusal::unsupported(
                    "sandboxes are listed by the time of their creation; sort what you get otherwise",
                ));
            }
            "includeErroredDeleted" | "includeWarm" if value.eq_ignore_ascii_case("false") => {}
            "regionIds" if value == TARGET => {}
            _ => {
                return Err(Refusal::unsupported(format!(
                    "lists of sandboxes cannot be narrowed by '{}' here",
                    key.escape_debug()
                )));
            }
        }
        Ok(())
    }

    fn wants_times(&self, sandbox: &cove_control::Sandbox) -> bool {
        self.times.iter().all(|(time, ordering, bound)| {
            let at = match time {
                Time::Created => sandbox.created_at,
                Time::Active => sandbox.last_active_at,
            };
            ordering.holds(at, *bound)
        })
    }

    fn wants(&self, sandbox: &SandboxDto) -> bool {
        let sizes = self.sizes.iter().all(|(size, ordering, bound)| {
            let value = match size {
                Size::Cpu => sandbox.cpu,
                Size::Memory => sandbox.memory,
                Size::Disk => sandbox.disk,
            };
            ordering.holds(value, *bound)
        });
        let begins = |text: &str, start: &Option<String>| {
            start
                .as_ref()
                .is_none_or(|start| text.to_ascii_lowercase().starts_with(start))
        };
        // "starting" and "creating" are one state here.
        let state = self.states.is_empty()
            || self.states.iter().any(|state| {
                state == sandbox.state || (state == "starting" && sandbox.state == "creating")
            });
        sizes && state && begins(&sandbox.id, &self.id) && begins(&sandbox.name, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(text: &str) -> Option<String> {
        base_image(&BuildInfo {
            dockerfile_content: Some(text.to_owned()),
            context_hashes: None,
        })
    }

    #[test]
    fn only_a_dockerfile_that_names_an_image_is_one() {
        assert_eq!(build("FROM debian\n").as_deref(), Some("debian"));
        assert_eq!(
            build("# hello\n\nfrom a.b/c:1\n").as_deref(),
            Some("a.b/c:1")
        );
        for built in [
            "",
            "RUN x",
            "FROM debian\nRUN true",
            "FROM a AS b",
            "FROM",
            "FROM $X",
            "FROM template/a",
        ] {
            assert!(build(built).is_none(), "{built:?} was taken");
        }
    }

    #[test]
    fn lists_know_what_they_are_narrowed_by() {
        let listing = Listing::read("limit=2&states=started&states=archived&minCpu=1.0").unwrap();
        assert_eq!((listing.limit, listing.filter.states.len()), (2, 3));
        assert!(Listing::read("states=resizing").unwrap().nothing);
        for bad in [
            "limit=0",
            "limit=x",
            "states=nice",
            "labels=1",
            "other=1",
            "sort=name",
            "minCpu=-1",
        ] {
            assert!(Listing::read(bad).is_err(), "{bad} was taken");
        }
    }
}
