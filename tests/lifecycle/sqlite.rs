//! A database inside is consistent in every snapshot that is taken under its writes.

use cove_model::{SandboxId, SnapshotId};
use cove_runner_api::{
    CreateRequest, FromSnapshot, ImageOwner, ImageSource, JobState, RunnerApi, SnapshotRequest,
};
use cove_tests::engine_host::{World, eventually, output, shell, small_spec};

use crate::PROGRAM;

const SNAPSHOTS: usize = 100;

/// Commits one row after the other; the count of the committed ones goes to a file afterwards.
const WRITER: &str = r#"exec python3 -c "
import sqlite3, os
c = sqlite3.connect('/root/d.db')
c.execute('pragma journal_mode=wal')
c.execute('create table t(x integer primary key, y text)')
n = 0
while True:
    n += 1
    c.execute('insert into t values(?, ?)', (n, 'x' * 500)); c.commit()
    f = os.open('/root/committed.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(f, str(n).encode()); os.fsync(f); os.close(f)
    os.rename('/root/committed.new', '/root/committed')
""#;

/// Prints `ok` when the database is whole and holds every row up to its last, and at least what was
/// said to be committed.
const CHECK: &str = r#"python3 -c "
import sqlite3
said = int(open('/root/committed').read() or 0)
c = sqlite3.connect('/root/d.db')
assert c.execute('pragma integrity_check').fetchone() == ('ok',)
count, last = c.execute('select count(*), max(x) from t').fetchone()
assert count == last and last >= said, (count, last, said)
print('ok')
""#;

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_under_load_is_whole_in_each_of_a_hundred_snapshots() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let job = client
        .add_image(ImageSource::Debian, ImageOwner::Operator)
        .await
        .unwrap();
    let job = world.job_end(&job.id).await;
    assert_eq!(job.state, JobState::Done, "{job:?}");
    let mut spec = small_spec();
    spec.image = "debian".into();
    spec.resources.disk_mb = 2048;
    let writer = SandboxId::random();
    let request = CreateRequest {
        owner: None,
        id: writer.clone(),
        spec: spec.clone(),
        from: None,
    };
    client.create(request).await.unwrap();
    let guest = world.guest(&writer);
    guest.start(shell(WRITER)).await.unwrap();
    eventually("the database is being written", || async {
        let said = output(&guest, "cat /root/committed 2>/dev/null || true").await;
        (!said.is_empty()).then_some(())
    })
    .await;
    let mut taken = Vec::new();
    for _ in 0..SNAPSHOTS {
        let request = SnapshotRequest {
            id: SnapshotId::random(),
            sandbox: writer.clone(),
            memory: false,
            unless_unchanged: false,
        };
        taken.push(client.snapshot(request).await.unwrap().id);
    }
    for snapshot in taken {
        let id = SandboxId::random();
        let from = FromSnapshot {
            snapshot: snapshot.clone(),
            memory: false,
        };
        let request = CreateRequest {
            owner: None,
            id: id.clone(),
            spec: spec.clone(),
            from: Some(from),
        };
        client.create(request).await.unwrap();
        assert_eq!(output(&world.guest(&id), CHECK).await, "ok", "{snapshot}");
        client.delete(&id).await.unwrap();
    }
    world.finish();
}
