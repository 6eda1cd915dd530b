//! What an SQLite store acknowledged is there after SIGKILL, and quotas add up after it.
//!
//! The test starts itself as a writer, kills it at some moment, and compares what was acknowledged with
//! what the file holds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cove_model::{HostId, OrgId, SandboxId, SandboxSpec, State};
use cove_store::{
    Desired, Holding, HostFacts, Organisation, PageRequest, Quota, SandboxFilter, SandboxRecord,
    Store,
};
use time::OffsetDateTime;

const NAME: &str = "acknowledged_rows_survive_sigkill";
const ROUNDS: usize = 12;
const WRITERS: usize = 8;
const ORG: &str = "org_aaaaaaaaaaaaaaaaaaaa";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(position) = arguments
        .iter()
        .position(|argument| argument == "--write-into")
    {
        return write(Path::new(&arguments[position + 1]));
    }
    // The test runners' own questions.
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("{NAME}: test");
        }
        return;
    }
    check();
    println!("test {NAME} ... ok");
}

/// A slow disk refuses nobody here.
async fn open(path: &Path) -> Arc<dyn Store> {
    let opened = cove_store::open_sqlite_within(path, Duration::from_secs(120)).await;
    opened.unwrap()
}

fn org() -> OrgId {
    ORG.parse().unwrap()
}

fn record() -> SandboxRecord {
    let now = OffsetDateTime::now_utc();
    let spec = SandboxSpec::default();
    SandboxRecord {
        id: SandboxId::random(),
        org: org(),
        host: HostId::random(),
        holds: Holding::running(&spec.resources),
        spec,
        desired: Desired::Running,
        state: State::Creating,
        reason: None,
        generation: 1,
        facts: HostFacts::default(),
        created_at: now,
        created_steady: Default::default(),
        active_steady: Default::default(),
        updated_at: now,
        started_at: None,
        stopped_at: None,
        last_active_at: now,
        deleted_at: None,
        origin: None,
        head: None,
    }
}

/// Creates rows as fast as it can and says each one's id only after the store said it is kept.
#[tokio::main]
async fn write(path: &Path) {
    let store = open(path).await;
    let writers = (0..WRITERS).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            loop {
                let record = record();
                store.create_sandbox(&record, None).await.unwrap();
                let line = format!("{}\n", record.id);
                // One write per line, so that no line is torn.
                if std::io::stdout().lock().write_all(line.as_bytes()).is_err() {
                    return;
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

#[tokio::main]
async fn check() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path).await;
    let organisation = Organisation {
        id: org(),
        name: "default".into(),
        quota: Quota {
            sandboxes: 1 << 40,
            cpu_milli: 1 << 40,
            memory_mb: 1 << 40,
            disk_mb: 1 << 40,
        },
        used: Holding::default(),
        tolerations: Default::default(),
        created_at: OffsetDateTime::now_utc(),
    };
    store.create_organisation(&organisation).await.unwrap();
    drop(store);
    let mut acknowledged: Vec<SandboxId> = Vec::new();
    for round in 0..ROUNDS {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .arg("--write-into")
            .arg(&path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        // Killed after a different number of rows each time.
        for _ in 0..=(round * 37) % 101 {
            let line = lines.next().expect("the writer writes until it is killed");
            acknowledged.push(line.unwrap().parse().unwrap());
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        acknowledged.extend(
            lines
                .map_while(Result::ok)
                .filter_map(|line| line.parse().ok()),
        );
        let store = open(&path).await;
        for id in &acknowledged {
            let found = store.any_sandbox(id).await.unwrap();
            assert!(
                found.is_some(),
                "round {round}: {id} was acknowledged and is gone"
            );
        }
        assert_quota_adds_up(&store).await;
    }
}

async fn assert_quota_adds_up(store: &Arc<dyn Store>) {
    let mut page = PageRequest {
        limit: 1000,
        cursor: None,
    };
    let mut rows = 0;
    loop {
        let found = store
            .sandboxes(&org(), &SandboxFilter::default(), &page)
            .await
            .unwrap();
        rows += found.items.len() as u64;
        match found.next_cursor {
            Some(cursor) => page.cursor = Some(cursor),
            None => break,
        }
    }
    let used = store.organisation(&org()).await.unwrap().unwrap().used;
    assert_eq!(used.sandboxes, rows);
}
