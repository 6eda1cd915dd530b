//! PostgreSQL inside, under writes, is whole in whatever was snapshotted of it.
//!
//! The image is built once per host, like the default one; the first run takes minutes.
#![forbid(unsafe_code)]

use cove_image::Recipe;
use cove_model::{Resources, SandboxId, SandboxSpec, SnapshotId};
use cove_protocol::message::Start;
use cove_runner_api::{CreateRequest, FromSnapshot, RunnerApi, SnapshotRequest};
use cove_tests::{Host, Sandbox, eventually, start_as};

const SNAPSHOTS: usize = 100;
/// Of these, every tenth is restored and looked at closely.
const LOOK_AT_EVERY: usize = 10;

const SERVE: &str = r#"
set -e
bin=$(echo /usr/lib/postgresql/*/bin)
data=/var/lib/postgresql/data
test -e $data/PG_VERSION || $bin/initdb --auth=trust --no-instructions -D $data > /dev/null
rm -f $data/postmaster.pid
$bin/pg_ctl -D $data -w -t 600 -l /tmp/postgres.log start \
  -o "-c listen_addresses= -c unix_socket_directories=/tmp -c shared_buffers=16MB -c checkpoint_timeout=30s" > /dev/null \
  || { cat /tmp/postgres.log; exit 1; }
"#;

/// Commits one row after the other; the count of the committed ones goes to a file afterwards.
const WRITE: &str = r#"
import os, psycopg2
c = psycopg2.connect(host='/tmp', dbname='postgres')
q = c.cursor()
q.execute('create table t(x bigint primary key, y text)')
c.commit()
n = 0
while True:
    n += 1
    q.execute('insert into t values(%s, %s)', (n, 'x' * 500))
    q.execute('update t set y = %s where x = %s', ('z' * 300, max(1, n // 2)))
    c.commit()
    f = os.open('/var/lib/postgresql/committed.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(f, str(n).encode()); os.fsync(f); os.close(f)
    os.rename('/var/lib/postgresql/committed.new', '/var/lib/postgresql/committed')
"#;

/// Prints the rows when table and index are whole, and nothing that was said to be committed is lost.
const CHECK: &str = r#"
import psycopg2
said = int(open('/var/lib/postgresql/committed').read() or 0)
c = psycopg2.connect(host='/tmp', dbname='postgres')
q = c.cursor()
q.execute('create extension if not exists amcheck')
q.execute("select bt_index_check('t_pkey', true)")
q.execute("select * from verify_heapam('t')")
assert q.fetchall() == []
q.execute('select count(*), max(x) from t')
count, last = q.fetchone()
assert count == last and last >= said, (count, last, said)
print(count)
"#;

async fn take(host: &Host, sandbox: &SandboxId, memory: bool) -> SnapshotId {
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: sandbox.clone(),
        memory,
        unless_unchanged: false,
    };
    let taken = host.engine.snapshot(request).await;
    taken.expect("a snapshot is taken").id
}

async fn rows(sandbox: &Sandbox) -> u64 {
    let said = sandbox.python("postgres", CHECK).await.ok();
    said.trim().parse().expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_under_load_is_whole_in_every_snapshot() {
    let host = Host::open(|_| {}).await;
    let recipe = Recipe::with("postgres", &["postgresql", "python3-psycopg2"]);
    let recipe = recipe.expect("plain words");
    let images = host.engine.images().clone();
    images
        .bootstrap(&recipe, |_| {})
        .await
        .expect("the image is built from the host's mirror");
    let spec = SandboxSpec {
        image: recipe.name().into(),
        resources: Resources {
            memory_mb: 512,
            disk_mb: 2048,
            ..Resources::default()
        },
        ..SandboxSpec::default()
    };
    let busy = host.sandbox(spec.clone()).await;
    busy.sh("postgres", SERVE).await.ok();
    busy.spawn(Start {
        argv: vec!["python3".into(), "-".into()],
        input: Some(WRITE.to_owned().into()),
        ..start_as("postgres")
    })
    .await;
    eventually("the database is being written", || async {
        let said = busy
            .sh("postgres", "cat /var/lib/postgresql/committed || true")
            .await;
        (!said.ok().is_empty()).then_some(())
    })
    .await;
    let mut taken = Vec::new();
    for _ in 0..SNAPSHOTS {
        taken.push(take(&host, &busy.id, false).await);
    }
    let mut last = 0;
    for snapshot in taken.iter().skip(LOOK_AT_EVERY - 1).step_by(LOOK_AT_EVERY) {
        let copy = fork(&host, &spec, snapshot, false).await;
        copy.sh("postgres", SERVE).await.ok();
        let rows = rows(&copy).await;
        assert!(rows >= last, "{rows} rows after {last}");
        last = rows;
        drop(copy);
        host.settle().await;
    }
    let tiers = host.engine.host().await.expect("a report").tiers;
    let captures = tiers[0].capabilities.iter().any(|can| can == "memory");
    if cove_tests::needs::has("criu", captures) {
        // With memory it is not even restarted: the writer writes on.
        let hot = take(&host, &busy.id, true).await;
        let copy = fork(&host, &spec, &hot, true).await;
        let before = rows(&copy).await;
        assert!(before >= last);
        eventually("the copy writes on", || async {
            (rows(&copy).await > before).then_some(())
        })
        .await;
        drop(copy);
    }
    drop((busy, images));
    host.destroy().await;
}

async fn fork(
    host: &std::sync::Arc<Host>,
    spec: &SandboxSpec,
    snapshot: &SnapshotId,
    memory: bool,
) -> Sandbox {
    host.sandbox_from(CreateRequest {
        owner: None,
        id: SandboxId::random(),
        spec: spec.clone(),
        from: Some(FromSnapshot {
            snapshot: snapshot.clone(),
            memory,
        }),
    })
    .await
}
