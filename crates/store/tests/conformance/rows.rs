//! Rows the cases start from.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_model::{HostId, KeyId, OrgId, Resources, SandboxId, SandboxSpec, State, Steady};
use cove_store::{
    AuditJournal, AuditRecord, Desired, Holding, HostFacts, JournalEntry, Key, Moment,
    Organisation, Quota, SandboxRecord, Scope, Store, StoreError,
};
use time::OffsetDateTime;

/// After which a test gives up. Far longer than anything here takes, also on a machine that is busy.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// An SQLite file that a slow disk keeps nobody from.
pub async fn open_sqlite(path: &Path) -> Arc<dyn Store> {
    let opened = cove_store::open_sqlite_within(path, DEADLINE).await;
    opened.unwrap()
}

/// A database that may be busy with others: who finds it so tries again, as a server does.
pub async fn try_open(address: &str) -> Result<Arc<dyn Store>, StoreError> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match cove_store::open(address).await {
            Err(StoreError::Unavailable(_)) if Instant::now() < deadline => {}
            opened => return opened,
        }
    }
}

pub async fn open(address: &str) -> Arc<dyn Store> {
    try_open(address).await.unwrap()
}

/// Second `s` of the cases' own time.
pub fn at(s: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000 + s).unwrap()
}

/// The same as a point of time that passed.
pub fn steady(s: i64) -> Steady {
    Steady::from_micros((1_800_000_000 + s) * 1_000_000)
}

pub fn moment(s: i64) -> Moment {
    Moment {
        at: at(s),
        steady: steady(s),
    }
}

pub async fn org(store: &Arc<dyn Store>, name: &str) -> OrgId {
    org_with(store, name, Quota::default()).await
}

pub async fn org_with(store: &Arc<dyn Store>, name: &str, quota: Quota) -> OrgId {
    let org = Organisation {
        id: OrgId::random(),
        name: name.into(),
        quota,
        used: Holding::default(),
        tolerations: Default::default(),
        created_at: at(0),
    };
    store.create_organisation(&org).await.unwrap();
    org.id
}

pub fn journal(name: &str) -> AuditJournal {
    AuditJournal {
        host: "host".into(),
        journal: name.into(),
    }
}

/// Records at the next positions of a journal that holds nothing else.
pub async fn append(store: &Arc<dyn Store>, name: &str, records: Vec<AuditRecord>) {
    let entries: Vec<_> = (1..)
        .zip(records)
        .map(|(position, record)| JournalEntry { position, record })
        .collect();
    store.append_audit(&journal(name), &entries).await.unwrap();
}

pub fn audit(org: &OrgId, number: i64) -> AuditRecord {
    AuditRecord {
        sequence: 0,
        at: at(number),
        org: org.clone(),
        key: (number % 2 == 0).then(KeyId::random),
        action: "sandbox.create".into(),
        target: Some(format!("agent-{number}")),
        source: Some("192.0.2.7".into()),
        request_id: None,
        result: "ok".into(),
        detail: Some("näme 'quoted' \"twice\"".into()),
        hash: String::new(),
    }
}

pub fn key(org: &OrgId) -> Key {
    Key {
        id: KeyId::random(),
        org: org.clone(),
        name: "agent".into(),
        scopes: vec![Scope::Read, Scope::Use],
        created_at: at(1),
        expires_at: Some(at(1000)),
        revoked_at: None,
        last_used_at: None,
        root: false,
        sandbox: Some(SandboxId::random()),
    }
}

/// The host that rows are on unless a case says otherwise.
pub fn host() -> HostId {
    "host_aaaaaaaaaaaaaaaaaaaa".parse().unwrap()
}

pub fn sandbox(org: &OrgId, name: Option<&str>) -> SandboxRecord {
    let spec = SandboxSpec {
        name: name.map(Into::into),
        ..SandboxSpec::default()
    };
    sandbox_of(org, spec, at(10))
}

pub fn sandbox_of(org: &OrgId, spec: SandboxSpec, created_at: OffsetDateTime) -> SandboxRecord {
    SandboxRecord {
        id: SandboxId::random(),
        org: org.clone(),
        host: host(),
        holds: Holding::running(&spec.resources),
        spec,
        desired: Desired::Running,
        state: State::Creating,
        reason: None,
        generation: 1,
        facts: HostFacts::default(),
        created_at,
        created_steady: steady_of(created_at),
        active_steady: steady_of(created_at),
        updated_at: created_at,
        started_at: None,
        stopped_at: None,
        last_active_at: created_at,
        deleted_at: None,
        origin: None,
        head: None,
    }
}

fn steady_of(at: OffsetDateTime) -> Steady {
    Steady::from_micros(i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap())
}

pub fn small() -> Resources {
    Resources {
        cpu: 0.5,
        memory_mb: 100,
        disk_mb: 200,
        ..Resources::default()
    }
}
