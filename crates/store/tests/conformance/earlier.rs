//! Databases that the program before hosts made are brought up to date in place, by the program and in either
//! database.

use std::sync::Arc;

use cove_model::{HostId, ImageId, OrgId, SandboxId, SandboxSpec, SnapshotId};
use cove_store::{
    HostFacts, HostPosition, PageRequest, SandboxRef, SnapshotFacts, SnapshotRef, Store, StoreError,
};

use crate::cluster::Cluster;
use crate::rows::{at, host, open, open_sqlite};

/// The tables as that program made them.
const TABLES: &str = include_str!("before_hosts.sql");
/// How far it had read the events of its host: `sequence life`.
const POSITION: (u64, &str) = (41_002_337, "0f3a9c5512d0e7b4");

struct Earlier {
    org: OrgId,
    alive: SandboxId,
    gone: SandboxId,
    snapshot: SnapshotId,
    granted: ImageId,
    held: ImageId,
}

impl Earlier {
    fn new() -> Self {
        Self {
            org: OrgId::random(),
            alive: SandboxId::random(),
            gone: SandboxId::random(),
            snapshot: SnapshotId::random(),
            granted: ImageId::random(),
            held: ImageId::random(),
        }
    }

    /// Rows as that program wrote them.
    fn sql(&self) -> String {
        let spec = serde_json::to_string(&SandboxSpec::default()).unwrap();
        let facts = serde_json::to_string(&HostFacts::default()).unwrap();
        let kept = serde_json::to_string(&SnapshotFacts::default()).unwrap();
        let Self {
            org,
            alive,
            gone,
            snapshot,
            granted,
            held,
        } = self;
        let (sequence, life) = POSITION;
        let sandbox = |id: &SandboxId, state: &str, deleted: &str| {
            format!(
                "INSERT INTO sandboxes (id, org, name, spec, desired, state, reason, generation, facts, \
                 held_sandboxes, held_cpu_milli, held_memory_mb, held_disk_mb, created_at, updated_at, \
                 started_at, last_active_at, deleted_at, origin, head, stopped_at, created_steady, \
                 active_steady) VALUES ('{id}', '{org}', NULL, '{spec}', 'running', '{state}', NULL, 3, \
                 '{facts}', 1, 1000, 512, 1024, 10, 20, 15, 20, {deleted}, NULL, NULL, NULL, 10, 20);"
            )
        };
        format!(
            "INSERT INTO organisations VALUES ('{org}', 'default', 10, 10, 10, 10, 1, 1, 1, 1, 1); {} {} \
             INSERT INTO snapshots (id, org, name, sandbox, parent, kind, state, memory, spec, \
             rolled_back_to, facts, held_disk_mb, created_at, deleted_at, created_steady) VALUES \
             ('{snapshot}', '{org}', 'clean', '{alive}', NULL, 'manual', 'ready', 0, '{spec}', NULL, \
             '{kept}', 5, 12, NULL, 12); \
             INSERT INTO image_jobs VALUES ('job_1', '{org}', 'app', 0, 5, NULL); \
             INSERT INTO image_grants VALUES ('', 'debian', '{granted}'); \
             INSERT INTO image_grants VALUES ('{org}', 'base', '{granted}'); \
             INSERT INTO image_holds VALUES ('{org}', '{held}', 3); \
             INSERT INTO settings VALUES ('host_event_position', '{sequence} {life}'); \
             INSERT INTO settings VALUES ('other', 'kept');",
            sandbox(alive, "running", "NULL"),
            sandbox(gone, "gone", "30"),
        )
    }

    async fn is_brought_up_to_date(&self, store: Arc<dyn Store>, reopened: Arc<dyn Store>) {
        // Nobody can say whose the rows are when there are two hosts.
        let two = [host(), HostId::random()];
        let refused = store.register_hosts(&two, at(1)).await.unwrap_err();
        assert!(matches!(refused, StoreError::NoHost), "{refused}");
        store.register_hosts(&[host()], at(1)).await.unwrap();
        self.is_on(&store).await;
        // Once and for all: the next start finds it done.
        reopened.register_hosts(&[host()], at(2)).await.unwrap();
        self.is_on(&reopened).await;
        let refused = reopened.register_hosts(&two[1..], at(3)).await.unwrap_err();
        assert!(matches!(refused, StoreError::OtherHost { known } if known == host()));
    }

    async fn is_on(&self, store: &Arc<dyn Store>) {
        let (here, page) = (host(), PageRequest::default());
        let row = store.sandbox(&self.org, SandboxRef::Id(&self.alive)).await;
        let row = row.unwrap().unwrap();
        assert_eq!((&row.host, row.generation), (&here, 3));
        let gone = store.any_sandbox(&self.gone).await.unwrap().unwrap();
        assert_eq!(gone.host, here);
        let listed = store.sandboxes_on(&here, &page).await.unwrap().items;
        assert_eq!(listed, [row]);
        let buried = store.buried_sandboxes(&here, 10).await.unwrap();
        assert_eq!(buried, [gone]);
        let row = store.snapshot(&self.org, SnapshotRef::Name("clean")).await;
        let row = row.unwrap().unwrap();
        assert_eq!((&row.id, &row.host), (&self.snapshot, &here));
        assert_eq!(store.snapshots_on(&here, &page).await.unwrap().items, [row]);
        let jobs = store.unfinished_image_jobs().await.unwrap();
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].host, here);
        for image in [&self.granted, &self.held] {
            assert_eq!(
                store.image_hosts(image).await.unwrap(),
                std::slice::from_ref(&here)
            );
        }
        let (sequence, life) = POSITION;
        let life = life.to_owned();
        assert_eq!(
            store.host_position(&here).await.unwrap(),
            Some(HostPosition { sequence, life })
        );
        assert_eq!(store.setting("host_event_position").await.unwrap(), None);
        assert_eq!(
            store.setting("other").await.unwrap().as_deref(),
            Some("kept")
        );
    }
}

#[tokio::test]
async fn an_sqlite_file_from_before_hosts_is_given_to_the_one_host() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("store.db");
    let earlier = Earlier::new();
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch(TABLES).unwrap();
    raw.execute_batch(&earlier.sql()).unwrap();
    drop(raw);
    let store = open_sqlite(&path).await;
    let reopened = open_sqlite(&path).await;
    earlier.is_brought_up_to_date(store, reopened).await;
}

#[tokio::test]
async fn a_postgres_database_from_before_hosts_is_given_to_the_one_host() {
    let cluster = Cluster::start();
    let address = cluster.database("earlier").await;
    let earlier = Earlier::new();
    cluster.run_sql("earlier", TABLES).await;
    cluster.run_sql("earlier", &earlier.sql()).await;
    let store = open(&address).await;
    let reopened = open(&address).await;
    earlier.is_brought_up_to_date(store, reopened).await;
}
