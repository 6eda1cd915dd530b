//! Making, finding, listing and deleting sandboxes.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use cove_control::{PageRequest, SandboxFilter, Source};
use cove_dialect::Front;
use cove_model::spec::INTERPRETER_IMAGE;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::asking::{Caller, Json, Names};
use crate::convert::{self, Intervals, SandboxDto, TARGET};
use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;
use crate::wire::{BuildInfo, CreateSandbox};

/// How the SDKs say which language `code_run` is in.
const LANGUAGE_LABEL: &str = "code-toolbox-language";
/// The SDKs ask for 200 at most.
const PAGE_MAX: u32 = 200;
const PAGE_DEFAULT: u32 = 100;

pub async fn create(
    State(front): State<Front>,
    Caller(caller): Caller,
    place: ServerAddress,
    Json(body): Json<CreateSandbox>,
) -> Answer {
    refuse_unsupported(&body)?;
    let intervals = Intervals {
        stop: body.auto_stop_interval,
        pause: body.auto_pause_interval,
        archive: body.auto_archive_interval,
        delete: body.auto_delete_interval,
        ttl: body.ttl_minutes,
    }
    .check()?;
    let base = front.control.base(&caller, source(&body)?).await?;
    let mut spec = base.spec;
    spec.name = body.name;
    spec.add_env(body.env.unwrap_or_default());
    spec.user = body.user.or(spec.user);
    spec.network = convert::network(
        &spec.network,
        body.network_block_all,
        body.network_allow_list.as_deref(),
        body.domain_allow_list.as_deref(),
    )?;
    spec.lifecycle = intervals.policy(&spec.lifecycle, None);
    spec.labels = convert::relabelled(&BTreeMap::new(), body.labels.unwrap_or_default())?;
    intervals.label(&mut spec.labels);
    if body.public == Some(true) {
        spec.labels.insert(convert::PUBLIC.into(), "1".into());
    }
    if let Some(cpu) = body.cpu {
        spec.resources.cpu = cpu.into();
    }
    if let Some(gib) = body.memory {
        spec.resources.memory_mb = convert::gib_to_mb(gib);
        spec.resources.memory_max_mb = None;
    }
    if let Some(gib) = body.disk {
        spec.resources.disk_mb = convert::gib_to_mb(gib);
    }
    let request = cove_control::CreateSandbox {
        spec,
        idempotency_key: None,
        asked: None,
        from: base.from,
    };
    let created = front.control.create_sandbox(&caller, request).await?;
    let dto = convert::sandbox(created.sandbox, place.toolbox());
    Ok((StatusCode::OK, axum::Json(dto)).into_response())
}

/// What the SDKs can ask for and this server cannot give.
fn refuse_unsupported(body: &CreateSandbox) -> Result<(), Refusal> {
    let asked =
        |list: &Option<Vec<serde_json::Value>>| list.as_ref().is_some_and(|l| !l.is_empty());
    let refused = [
        (
            body.target.as_ref().is_some_and(|target| target != TARGET),
            "target: there is one place to run in here, 'local'; leave DAYTONA_TARGET out",
        ),
        (
            body.gpu.is_some_and(|gpu| gpu > 0) || body.gpu_type.is_some(),
            "gpu: sandboxes have no GPUs here",
        ),
        (
            body.kvm == Some(true),
            "kvm: sandboxes have no /dev/kvm here",
        ),
        (body.spot == Some(true), "spot: nothing is evicted here"),
        (
            asked(&body.volumes),
            "volumes: cannot be named here; make the sandbox with Cove's own API, or from a snapshot whose volumes it is to mount",
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
            "class: there are no classes of size here; say cpu, memory and disk",
        ),
    ];
    match refused.into_iter().find(|(asked, _)| *asked) {
        Some((_, message)) => Err(Refusal::unsupported(message)),
        None => Ok(()),
    }
}

/// A snapshot's name may be one of ours, or an image's. It boots from its disk.
fn source(body: &CreateSandbox) -> Result<Source, Refusal> {
    if let Some(build) = &body.build_info {
        if body.snapshot.is_some() {
            return Err(Refusal::invalid("give either a snapshot or an image"));
        }
        return base_image(build).map(|image| Source::Image(Some(image)));
    }
    if let Some(name) = body.snapshot.clone().filter(|name| !name.is_empty()) {
        let memory = false;
        return Ok(Source::SnapshotOrImage { name, memory });
    }
    let language = body.labels.as_ref().and_then(|l| l.get(LANGUAGE_LABEL));
    let node = language.is_some_and(|l| l == "typescript" || l == "javascript");
    Ok(Source::Image(node.then(|| INTERPRETER_IMAGE.to_owned())))
}

/// The image of a Dockerfile that does nothing but name it. Anything more would be a build.
pub fn base_image(build: &BuildInfo) -> Result<String, Refusal> {
    let text = build.dockerfile_content.as_deref().unwrap_or("");
    let mut lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines
        .next()
        .and_then(|line| line.split_once(char::is_whitespace));
    let context = build.context_hashes.as_ref().is_some_and(|h| !h.is_empty());
    match (first, lines.next()) {
        (Some((from, image)), None)
            if from.eq_ignore_ascii_case("from")
                && !context
                && !image.trim().contains(char::is_whitespace) =>
        {
            Ok(image.trim().to_owned())
        }
        _ => Err(Refusal::unsupported(
            "images are not built here: name an existing image, run the commands in a sandbox and take a snapshot of it",
        )),
    }
}

pub async fn get(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
) -> Answer {
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    Ok(axum::Json(convert::sandbox(sandbox, place.toolbox())).into_response())
}

pub async fn delete(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
) -> Answer {
    let before = front.control.get_sandbox(&caller, &id).await?;
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
    let found = front
        .control
        .list_sandboxes(&caller, &asked.filter, &page)
        .await?;
    let toolbox = place.toolbox();
    let items: Vec<SandboxDto> = found
        .items
        .into_iter()
        .filter(|sandbox| asked.wants_times(sandbox))
        .map(|sandbox| convert::sandbox(sandbox, toolbox.clone()))
        .filter(|sandbox| asked.wants(sandbox))
        .collect();
    let body = json!({ "items": items, "nextCursor": found.next_cursor });
    Ok(axum::Json(body).into_response())
}

/// What a list is narrowed by. Newest first is the one order there is.
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
                "the query is not understood: {}",
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
        let wrong = || Refusal::invalid(format!("{key}: not understood"));
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
            "order" if value == "desc" => {}
            "sort" | "order" => {
                return Err(Refusal::unsupported(
                    "sandboxes are listed newest first; sort what you get otherwise",
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

    fn build(text: &str) -> Result<String, Refusal> {
        base_image(&BuildInfo {
            dockerfile_content: Some(text.to_owned()),
            context_hashes: None,
        })
    }

    #[test]
    fn only_a_dockerfile_that_names_an_image_is_one() {
        assert_eq!(build("FROM debian\n").unwrap(), "debian");
        assert_eq!(build("# hello\n\nfrom a.b/c:1\n").unwrap(), "a.b/c:1");
        for bad in ["", "RUN x", "FROM debian\nRUN true", "FROM a AS b", "FROM"] {
            assert!(build(bad).is_err(), "{bad:?} was taken");
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
