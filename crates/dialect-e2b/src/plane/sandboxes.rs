//! Sandboxes themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::IntoResponse;
use cove_control::{
    Base, Control, ControlError, CreateSandbox, ErrorCode, PageRequest, Principal, Sandbox,
    SandboxFilter, SandboxPatch, Source,
};
use cove_model::{SandboxId, SandboxSpec, State as Life};
use percent_encoding::percent_decode_str;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::shapes::{
    Connect, Detail, Lifecycle, ListQuery, Listed, Metric, MetricsQuery, Network, NewSandbox,
    Opened, Pause, Timeout,
};
use super::steps::{HOME, USER};
use super::volumes::{Mount, Names};
use super::{
    Answer, Caller, Json, Query, Which, network, nothing, one, settings, templates, volumes,
    with_status,
};
use crate::envd::{ACCESS, TRAFFIC};
use crate::refusal::{Api, Kind, Refusal};
use crate::{Dialect, naming};

/// The oldest version of envd that has everything its clients know to ask for.
pub const ENVD_VERSION: &str = "0.6.4";
const CLIENT: &str = "cove";
/// Where ports are looked for when the server shows none: nowhere, and not at somebody else's.
const NO_PREVIEWS: &str = "previews-are-off.invalid";
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Between the two looks that tell how busy the CPU is.
const CPU_WINDOW: Duration = Duration::from_millis(50);
const NEXT_TOKEN: &str = "x-next-token";

const RUNNING: [Life; 6] = [
    Life::Creating,
    Life::Running,
    Life::Frozen,
    Life::Pausing,
    Life::Resuming,
    Life::Restoring,
];
const PAUSED: [Life; 3] = [Life::Paused, Life::Stopping, Life::Stopped];

impl Dialect {
    pub fn domain(&self) -> String {
        let place = self.front.previews.as_ref();
        place.map_or_else(|| NO_PREVIEWS.to_owned(), |place| place.authority.clone())
    }

    /// The sandbox with the tokens that open it.
    pub fn opened(&self, principal: &Principal, sandbox: &Sandbox) -> Result<Opened, ControlError> {
        let control = &self.front.control;
        Ok(Opened {
            template: naming::template_of(&sandbox.spec, sandbox.origin.as_ref()),
            id: naming::shown(&sandbox.id),
            client: CLIENT,
            envd_version: ENVD_VERSION,
            access_token: control.access_token(principal, &sandbox.id, ACCESS)?,
            traffic_token: control.access_token(principal, &sandbox.id, TRAFFIC)?,
            domain: self.domain(),
        })
    }
}

pub async fn create(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    headers: HeaderMap,
    Json(request): Json<NewSandbox>,
) -> Answer {
    let refused = [
        (request.iam.is_some(), "iam"),
        (request.secure == Some(false), "secure: false"),
    ];
    if let Some((_, what)) = refused.iter().find(|(asked, _)| *asked) {
        return Err(Refusal::unsupported(what).into());
    }
    let control = &dialect.front.control;
    let lifecycle = settings::lifecycle(&request)?;
    let policy = network::policy(
        request.network.as_ref(),
        request.allow_internet_access,
        None,
    )?;
    let base = base(control, &principal, &request.template).await?;
    let mut spec = SandboxSpec {
        network: policy,
        lifecycle,
        labels: request.metadata.unwrap_or_default(),
        ..base.spec
    };
    spec.add_env(request.env.unwrap_or_default());
    if let Some(asked) = request.volume_mounts.filter(|asked| !asked.is_empty()) {
        spec.volumes = volumes::mounts(control, &principal, &asked).await?;
    }
    let request = CreateSandbox {
        spec,
        from: base.from,
        idempotency_key: one(&headers, IDEMPOTENCY_KEY).map(str::to_owned),
        asked: None,
    };
    let created = control.create_sandbox(&principal, request).await?;
    let opened = dialect.opened(&principal, &created.sandbox)?;
    with_status(StatusCode::CREATED, opened)
}

/// What a template's name stands for: one of E2B's own, a template, a snapshot, or an image. What has memory goes on
/// with its processes.
async fn base(control: &Control, principal: &Principal, template: &str) -> Result<Base, Refusal> {
    let image = naming::image_of(template);
    if image != template {
        let source = Source::Image(Some(image.to_owned()));
        let mut base = control.base(principal, source).await?;
        base.spec.user = Some(USER.to_owned());
        base.spec.workdir = Some(HOME.to_owned());
        return Ok(base);
    }
    let source = match templates::find(control, principal, template).await? {
        Some(found) => Source::Template(found.id.to_string()),
        None => Source::SnapshotOrImage {
            name: snapshot_or_image(control, principal, template).await?,
            memory: true,
        },
    };
    Ok(control.base(principal, source).await?)
}

/// What a snapshot of this name is called here, where there is one.
async fn snapshot_or_image(
    control: &Control,
    principal: &Principal,
    name: &str,
) -> Result<String, ControlError> {
    let kept = naming::snapshot_kept(name);
    if kept == name {
        return Ok(kept);
    }
    match control.get_snapshot(principal, &kept).await {
        Ok(_) => Ok(kept),
        Err(error) if error.code == ErrorCode::NotFound => Ok(name.to_owned()),
        Err(error) => Err(error),
    }
}

pub async fn get(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
) -> Answer {
    let control = &dialect.front.control;
    let sandbox = control.get_sandbox(&principal, id.as_str()).await?;
    let policy = &sandbox.spec.lifecycle;
    let shown = network::shown(&sandbox.spec.network);
    let volumes = &sandbox.spec.volumes;
    let mounted = Names::default().of(control, &principal, volumes).await?;
    with_status(
        StatusCode::OK,
        Detail {
            access_token: control.access_token(&principal, &id, ACCESS)?,
            domain: dialect.domain(),
            allow_internet_access: shown.deny_out.is_empty(),
            network: shown,
            lifecycle: Lifecycle {
                auto_resume: policy.auto_resume,
                on_timeout: match settings::rests(policy) {
                    true => "pause",
                    false => "kill",
                },
            },
            listed: listed(&sandbox, mounted),
        },
    )
}

fn listed(sandbox: &Sandbox, volume_mounts: Vec<Mount>) -> Listed {
    let limits = &sandbox.limits;
    Listed {
        template: naming::template_of(&sandbox.spec, sandbox.origin.as_ref()),
        alias: sandbox.spec.name.clone(),
        id: naming::shown(&sandbox.id),
        client: CLIENT,
        started_at: time_text(sandbox.started_at.unwrap_or(sandbox.created_at)),
        end_at: time_text(settings::end(sandbox)),
        envd_version: ENVD_VERSION,
        cpus: limits.visible_cpus(),
        memory_mb: limits.memory_mb,
        disk_mb: limits.disk_mb,
        state: match PAUSED.contains(&sandbox.state) {
            true => "paused",
            false => "running",
        },
        metadata: sandbox.spec.labels.clone(),
        volume_mounts,
    }
}

pub fn time_text(at: OffsetDateTime) -> String {
    at.format(&Rfc3339)
        .expect("times of this millennium have a text")
}

/// As older clients ask: those that run, all of them.
pub async fn list_running(
    state: State<Dialect>,
    caller: Caller,
    Query(mut query): Query<ListQuery>,
) -> Answer {
    query.state.get_or_insert_with(|| "running".to_owned());
    list(state, caller, Query(query)).await
}

pub async fn list(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Query(query): Query<ListQuery>,
) -> Answer {
    let oldest_first = match query.order.as_deref() {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(Refusal::invalid("order must be asc or desc").into()),
    };
    let filter = SandboxFilter {
        states: states(query.state.as_deref())?,
        name: None,
        labels: labels(query.metadata.as_deref())?,
        oldest_first,
    };
    let after = query.started_after.as_deref().map(|text| {
        OffsetDateTime::parse(text, &Rfc3339)
            .map_err(|_| Refusal::invalid("startedAfter is not a time"))
    });
    let after = after.transpose()?;
    let page = PageRequest {
        limit: query.limit.unwrap_or(0),
        cursor: query.next_token,
    };
    let control = &dialect.front.control;
    let wanted = |sandbox: &Sandbox| {
        let started = sandbox.started_at.unwrap_or(sandbox.created_at);
        let template = naming::template_of(&sandbox.spec, sandbox.origin.as_ref());
        after.is_none_or(|after| started >= after)
            && query.template.as_ref().is_none_or(|one| *one == template)
    };
    let page = control.pick_sandboxes(&principal, &filter, &page, wanted);
    let page = page.await?;
    let mut names = Names::default();
    let mut shown: Vec<Listed> = Vec::with_capacity(page.items.len());
    for sandbox in &page.items {
        let mounted = names.of(control, &principal, &sandbox.spec.volumes).await?;
        shown.push(listed(sandbox, mounted));
    }
    let mut response = axum::Json(shown).into_response();
    if let Some(cursor) = page.next_cursor {
        let value = HeaderValue::from_str(&cursor)
            .map_err(|_| Refusal::new(Kind::Internal, "cannot write the token of the next page"))?;
        response.headers_mut().insert(NEXT_TOKEN, value);
    }
    Ok(response)
}

fn states(text: Option<&str>) -> Result<Vec<Life>, Refusal> {
    let mut states = Vec::new();
    for word in text.unwrap_or("running,paused").split(',') {
        match word {
            "running" => states.extend(RUNNING),
            "paused" => states.extend(PAUSED),
            _ => return Err(Refusal::invalid("state must be running or paused")),
        }
    }
    Ok(states)
}

/// A query string within the query string, each part of it encoded once more.
fn labels(text: Option<&str>) -> Result<BTreeMap<String, String>, Refusal> {
    let wrong = || Refusal::invalid("metadata must be like key=value&other=value");
    let pairs: Vec<(String, String)> =
        serde_urlencoded::from_str(text.unwrap_or("")).map_err(|_| wrong())?;
    let plain = |text: String| {
        let decoded = percent_decode_str(&text).decode_utf8();
        decoded.map(|text| text.into_owned()).map_err(|_| wrong())
    };
    pairs
        .into_iter()
        .map(|(key, value)| Ok((plain(key)?, plain(value)?)))
        .collect()
}

pub async fn kill(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
) -> Answer {
    let control = &dialect.front.control;
    control.delete_sandbox(&principal, id.as_str()).await?;
    nothing()
}

pub async fn connect(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
    Json(request): Json<Connect>,
) -> Answer {
    let control = &dialect.front.control;
    let timeout = settings::seconds(request.timeout)?;
    let before = control.get_sandbox(&principal, id.as_str()).await?;
    let rested = PAUSED.contains(&before.state);
    let cold = request.memory == Some(false);
    let now = OffsetDateTime::now_utc();
    if rested && before.state == Life::Paused && !cold {
        control.resume_sandbox(&principal, id.as_str()).await?;
    } else if rested {
        if before.state == Life::Paused {
            control.stop_sandbox(&principal, id.as_str(), None).await?;
        }
        control.start_sandbox(&principal, id.as_str()).await?;
    }
    // One that runs keeps its end unless this is asked for and later.
    let later = now + time::Duration::seconds(i64::try_from(timeout).unwrap_or(i64::MAX));
    let extends = request.timeout.is_some() && later > settings::end(&before);
    let sandbox = if extends || (rested && !settings::rests(&before.spec.lifecycle)) {
        let patch = SandboxPatch {
            lifecycle: Some(settings::prolonged(&before, timeout, control.age(&before))),
            ..SandboxPatch::default()
        };
        control
            .update_sandbox(&principal, id.as_str(), patch)
            .await?
    } else {
        control.get_sandbox(&principal, id.as_str()).await?
    };
    let status = match rested {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    with_status(status, dialect.opened(&principal, &sandbox)?)
}

pub async fn set_timeout(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
    Json(request): Json<Timeout>,
) -> Answer {
    let control = &dialect.front.control;
    let timeout = settings::seconds(Some(request.timeout))?;
    let sandbox = control.get_sandbox(&principal, id.as_str()).await?;
    let patch = SandboxPatch {
        lifecycle: Some(settings::prolonged(
            &sandbox,
            timeout,
            control.age(&sandbox),
        )),
        ..SandboxPatch::default()
    };
    control
        .update_sandbox(&principal, id.as_str(), patch)
        .await?;
    nothing()
}

pub async fn pause(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
    Json(request): Json<Pause>,
) -> Answer {
    let control = &dialect.front.control;
    let sandbox = control.get_sandbox(&principal, id.as_str()).await?;
    if PAUSED.contains(&sandbox.state) {
        return Err(Refusal::new(Kind::Exists, "the sandbox is paused already").into());
    }
    keep(control, &principal, &sandbox).await?;
    let rested = match request.memory.unwrap_or(true) {
        true => control.pause_sandbox(&principal, id.as_str()).await,
        false => control.stop_sandbox(&principal, id.as_str(), None).await,
    };
    if let Err(error) = rested {
        // It goes on as before, its end included.
        let patch = SandboxPatch {
            lifecycle: Some(sandbox.spec.lifecycle),
            ..SandboxPatch::default()
        };
        control
            .update_sandbox(&principal, id.as_str(), patch)
            .await?;
        return Err(error.into());
    }
    nothing()
}

/// A paused sandbox has no end, however old it gets.
async fn keep(
    control: &Control,
    principal: &Principal,
    sandbox: &Sandbox,
) -> Result<(), ControlError> {
    let mut policy = sandbox.spec.lifecycle.clone();
    if policy.max_lifetime_s.take().is_none() {
        return Ok(());
    }
    let patch = SandboxPatch {
        lifecycle: Some(policy),
        ..SandboxPatch::default()
    };
    let kept = control.update_sandbox(principal, sandbox.id.as_str(), patch);
    kept.await.map(drop)
}

pub async fn update_network(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
    Json(request): Json<Network>,
) -> Answer {
    let control = &dialect.front.control;
    let sandbox = control.get_sandbox(&principal, id.as_str()).await?;
    let policy = network::policy(Some(&request), None, Some(&sandbox.spec.network))?;
    let patch = SandboxPatch {
        network: Some(policy),
        ..SandboxPatch::default()
    };
    control
        .update_sandbox(&principal, id.as_str(), patch)
        .await?;
    nothing()
}

/// How it is now; how it was is not kept.
pub async fn metrics(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
    Query(query): Query<MetricsQuery>,
) -> Answer {
    let sample = metric(&dialect.front.control, &principal, &id).await?;
    let within = query
        .start
        .is_none_or(|start| start <= sample.timestamp_unix)
        && query.end.is_none_or(|end| end >= sample.timestamp_unix);
    let samples: Vec<Metric> = within.then_some(sample).into_iter().collect();
    with_status(StatusCode::OK, samples)
}

async fn metric(control: &Control, principal: &Principal, id: &SandboxId) -> Result<Metric, Api> {
    let sandbox = control.get_sandbox(principal, id.as_str()).await?;
    let first = control.sample_sandbox(principal, id.as_str()).await?;
    tokio::time::sleep(CPU_WINDOW).await;
    let second = control.sample_sandbox(principal, id.as_str()).await?;
    let cpus = sandbox.limits.visible_cpus();
    let wall = (second.at - first.at).as_seconds_f64() * f64::from(cpus.max(1));
    let busy = Duration::from_micros(second.cpu_usec.saturating_sub(first.cpu_usec)).as_secs_f64();
    let share = match wall > 0.0 {
        true => (100.0 * busy / wall).clamp(0.0, 100.0),
        false => 0.0,
    };
    Ok(Metric {
        timestamp: time_text(second.at),
        timestamp_unix: second.at.unix_timestamp(),
        cpu_count: cpus,
        cpu_used_pct: share,
        mem_used: second.memory_bytes,
        mem_total: second.memory_limit_bytes,
        // Counted in what is used.
        mem_cache: 0,
        disk_used: second.disk_bytes,
        disk_total: second.disk_limit_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_encoded_twice() {
        let found = labels(Some("a%2520b=c%253Dd&e=f")).unwrap();
        assert_eq!(found.get("a b").map(String::as_str), Some("c=d"));
        assert_eq!(found.get("e").map(String::as_str), Some("f"));
        assert!(labels(Some("a=%25ff")).is_err());
    }

    #[test]
    fn every_state_that_can_be_seen_is_in_one_of_two() {
        for state in RUNNING {
            assert!(!PAUSED.contains(&state), "{state}");
        }
        assert!(states(Some("running,paused")).unwrap().len() == RUNNING.len() + PAUSED.len());
        assert!(states(Some("broken")).is_err());
    }
}
