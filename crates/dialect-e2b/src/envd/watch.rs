//! Watching directories, as a stream or by asking now and then.
//!
//! Those who ask have a watcher kept for them: a task that collects changes until they come for them. A
//! watcher nobody asks for is let go, and so is the presence that keeps its sandbox from resting.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use axum::extract::{Request, State};
use axum::response::Response;
use cove_control::{Account, Charge, GuestAccess, GuestAction};
use cove_dialect::Slot;
use cove_model::SandboxId;
use cove_protocol::client::Watcher;
use cove_protocol::message::{Change, ChangeKind, FileType, PathRequest, Watch};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::filesystem::{entry, look};
use super::paths::resolve;
use super::wire::{self, Next, Streamed};
use super::{Door, Service};
use crate::Dialect;
use crate::refusal::{Kind, Refusal, Unary};

/// Watchers kept for one sandbox, and for all together.
const PER_SANDBOX_MAX: usize = 32;
const ALL_MAX: usize = 4096;
/// Changes kept until they are asked for; a watcher with more says so when it is asked.
const CHANGES_MAX: usize = 8192;
/// How long a watcher nobody asks for is kept.
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);
/// How long changes may take from the sandbox to here, and how often is looked whether one came.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Wish {
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    include_entry: bool,
    /// There are none inside, so nothing of one is watched either way.
    #[serde(default, rename = "allowNetworkMounts")]
    _allow_network_mounts: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Kept {
    watcher_id: String,
}

/// A watch that stands.
struct Standing {
    watcher: Watcher,
    access: GuestAccess,
    user: String,
    root: String,
    include_entry: bool,
}

impl Standing {
    async fn begin(door: &Door, wish: Wish) -> Result<Self, Refusal> {
        let access = door.inside(GuestAction::FileWatch).await?;
        let user = door.user(&access)?;
        let root = resolve(&access, &user, &wish.path).await?;
        let at = PathRequest {
            path: root.clone(),
            user: user.clone(),
            follow: true,
        };
        if access.guest().stat(at).await?.r#type != FileType::Directory as i32 {
            return Err(Refusal::invalid("the path is not a directory"));
        }
        let request = Watch {
            path: root.clone(),
            user: user.clone(),
            recursive: wish.recursive,
        };
        let watcher = access.listener().watch(request).await?;
        Ok(Self {
            watcher,
            access,
            user,
            root,
            include_entry: wish.include_entry,
        })
    }

    /// A change in E2B's words, of which it may take two or none.
    async fn told(&mut self, change: Change) -> Vec<Value> {
        let mut told = Vec::new();
        for (name, kind) in words(&change) {
            told.push(self.event(name, kind).await);
        }
        told
    }

    async fn event(&mut self, path: &str, kind: &'static str) -> Value {
        let below = path.strip_prefix(self.root.trim_end_matches('/'));
        let name = below.unwrap_or(path).trim_start_matches('/');
        let mut told = json!({"name": name, "type": kind});
        if self.include_entry
            && let Ok(info) = look(&self.access, &self.user, path).await
        {
            told["entry"] = entry(&info);
        }
        told
    }
}

/// A rename is reported as its clients know it: the old name goes, the new one comes.
fn words(change: &Change) -> Vec<(&str, &'static str)> {
    let path = change.path.as_str();
    let told = match ChangeKind::try_from(change.kind) {
        Ok(ChangeKind::Created) => vec![(path, "EVENT_TYPE_CREATE")],
        Ok(ChangeKind::Written) => vec![(path, "EVENT_TYPE_WRITE")],
        Ok(ChangeKind::Removed) => vec![(path, "EVENT_TYPE_REMOVE")],
        Ok(ChangeKind::Attributes) => vec![(path, "EVENT_TYPE_CHMOD")],
        Ok(ChangeKind::Renamed) => match change.from.as_str() {
            "" => vec![(path, "EVENT_TYPE_CREATE")],
            from => vec![(from, "EVENT_TYPE_RENAME"), (path, "EVENT_TYPE_CREATE")],
        },
        Ok(ChangeKind::Ready | ChangeKind::Overflow) | Err(_) => Vec::new(),
    };
    let of_somebody = told.into_iter().filter(|(path, _)| !is_temporary(path));
    of_somebody.collect()
}

/// What a write through Cove makes beside its file, and renames to it.
fn is_temporary(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with(".cove-") && name.ends_with(".tmp")
}

pub async fn watch_dir(
    State(dialect): State<Dialect>,
    request: Request,
) -> Result<Response, Streamed> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let wish = wire::first(&door, body).await?;
    let patience = wire::timeout_ms(&door.headers)?.map(Duration::from_millis);
    let slot = door.slot()?;
    let state = Live {
        standing: Standing::begin(&door, wish).await?,
        ready: VecDeque::from([json!({"start": {}})]),
        keepalive: wire::keepalive(&door.headers),
        deadline: patience.map(|patience| Instant::now() + patience),
        draining: dialect.front.draining.clone(),
    };
    let messages = futures_util::stream::unfold(state, |mut live| async move {
        let next = live.next().await;
        Some((next, live))
    });
    Ok(wire::stream(slot.hold(messages)))
}

struct Live {
    standing: Standing,
    ready: VecDeque<Value>,
    keepalive: Duration,
    deadline: Option<Instant>,
    draining: CancellationToken,
}

impl Live {
    async fn next(&mut self) -> Next {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Next::Message(message);
            }
            let quiet = Instant::now() + self.keepalive;
            let patience = self.deadline.unwrap_or(quiet).min(quiet);
            let told = tokio::select! {
                biased;
                told = self.standing.watcher.next() => told,
                () = tokio::time::sleep_until(patience) => {
                    if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        let message = "the time limit of the watch was reached";
                        return Next::End(Err(Refusal::new(Kind::TimedOut, message)));
                    }
                    return Next::Message(json!({"keepalive": {}}));
                }
                () = self.draining.cancelled() => {
                    let message = "the server is restarting";
                    return Next::End(Err(Refusal::new(Kind::Unavailable, message)));
                }
            };
            match told {
                Ok(Some(change)) => {
                    let events = self.standing.told(change).await.into_iter();
                    self.ready
                        .extend(events.map(|event| json!({"filesystem": event})));
                }
                Ok(None) => return Next::End(Ok(())),
                Err(error) => return Next::End(Err(error.into())),
            }
        }
    }
}

/// Watchers that are asked now and then, by their id.
#[derive(Default)]
pub struct Watchers(Mutex<HashMap<String, Asked>>);

struct Asked {
    sandbox: SandboxId,
    changes: Arc<Mutex<Changes>>,
    asked: Instant,
    _running: DropGuard,
    /// One of its organisation's live streams.
    _slot: Slot,
}

struct Changes {
    events: Vec<Value>,
    /// Pays for them until they are asked for.
    charge: Charge,
    /// More came than are kept.
    lost: bool,
    ended: Option<Refusal>,
}

impl Changes {
    fn new(account: &Account) -> Self {
        Self {
            events: Vec::new(),
            charge: account.charge(),
            lost: false,
            ended: None,
        }
    }

    /// Keeps it if there is room; whoever asks gets an error if there was none.
    fn keep(&mut self, event: Value) {
        let bytes = event.to_string().len() + size_of::<Value>();
        if self.events.len() < CHANGES_MAX && self.charge.grow(bytes) {
            self.events.push(event);
        } else {
            self.lost = true;
        }
    }

    fn take(&mut self) -> Vec<Value> {
        self.charge.shrink(self.charge.bytes());
        std::mem::take(&mut self.events)
    }
}

impl Watchers {
    fn table(&self) -> parking_lot::MutexGuard<'_, HashMap<String, Asked>> {
        let mut table = self.0.lock();
        table.retain(|_, asked| asked.asked.elapsed() < FORGOTTEN);
        table
    }

    fn keep(&self, id: &SandboxId, asked: Asked) -> Result<String, Refusal> {
        let mut table = self.table();
        let here = table.values().filter(|other| other.sandbox == *id).count();
        if here >= PER_SANDBOX_MAX || table.len() >= ALL_MAX {
            let message = format!("a sandbox has at most {PER_SANDBOX_MAX} watchers; stop one");
            return Err(Refusal::new(Kind::Exhausted, message));
        }
        let name = format!("watch_{:032x}", rand::random::<u128>());
        table.insert(name.clone(), asked);
        Ok(name)
    }
}

fn locked(changes: &Mutex<Changes>) -> parking_lot::MutexGuard<'_, Changes> {
    changes.lock()
}

fn no_watcher() -> Refusal {
    Refusal::new(Kind::NotFound, "there is no such watcher")
}

pub async fn create(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let wish = wire::unary(&door, body).await?;
    let slot = door.slot()?;
    let standing = Standing::begin(&door, wish).await?;
    let changes = Changes::new(standing.access.account());
    let changes = Arc::new(Mutex::new(changes));
    let running = dialect.front.closing.child_token();
    let asked = Asked {
        sandbox: door.id.clone(),
        changes: Arc::clone(&changes),
        asked: Instant::now(),
        _running: running.clone().drop_guard(),
        _slot: slot,
    };
    let name = dialect.watchers.keep(&door.id, asked)?;
    let watchers = Arc::clone(&dialect.watchers);
    tokio::spawn(collect(standing, changes, running, watchers));
    Ok(wire::answer(json!({"watcherId": name})))
}

/// Collects until the watcher is let go, which its own table does when nobody asks.
async fn collect(
    mut standing: Standing,
    changes: Arc<Mutex<Changes>>,
    running: CancellationToken,
    watchers: Arc<Watchers>,
) {
    loop {
        let told = tokio::select! {
            told = standing.watcher.next() => told,
            () = running.cancelled() => return,
            () = tokio::time::sleep(FORGOTTEN) => {
                drop(watchers.table());
                continue;
            }
        };
        match told {
            Ok(Some(change)) => {
                let events = standing.told(change).await;
                let mut changes = locked(&changes);
                for event in events {
                    changes.keep(event);
                }
            }
            Ok(None) => return,
            Err(error) => {
                locked(&changes).ended = Some(error.into());
                return;
            }
        }
    }
}

pub async fn events(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let Kept { watcher_id } = wire::unary(&door, body).await?;
    let changes = {
        let mut table = dialect.watchers.table();
        let asked = table
            .get_mut(&watcher_id)
            .filter(|asked| asked.sandbox == door.id)
            .ok_or_else(no_watcher)?;
        asked.asked = Instant::now();
        Arc::clone(&asked.changes)
    };
    arrive(&changes).await;
    let mut changes = locked(&changes);
    if std::mem::take(&mut changes.lost) {
        drop(changes.take());
        let message = "too many changes; list the directory again";
        return Err(Refusal::new(Kind::Exhausted, message).into());
    }
    if changes.events.is_empty()
        && let Some(refusal) = &changes.ended
    {
        return Err(refusal.clone().into());
    }
    let events = changes.take();
    Ok(wire::answer(json!({"events": events})))
}

/// What happened before this call may still be on its way from the sandbox: it is waited for, where nothing is here yet.
async fn arrive(changes: &Mutex<Changes>) {
    let until = Instant::now() + ON_ITS_WAY;
    while Instant::now() < until {
        {
            let changes = locked(changes);
            if changes.lost || changes.ended.is_some() || !changes.events.is_empty() {
                return;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

pub async fn remove(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let Kept { watcher_id } = wire::unary(&door, body).await?;
    let mut table = dialect.watchers.table();
    match table.get(&watcher_id) {
        Some(asked) if asked.sandbox == door.id => {
            table.remove(&watcher_id);
            Ok(wire::answer(json!({})))
        }
        _ => Err(no_watcher().into()),
    }
}
