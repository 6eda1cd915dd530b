//! Records that cannot be read: each costs its own sandbox or snapshot its place, and nobody else anything.

use std::fs;
use std::path::PathBuf;

use cove_model::{SandboxId, SnapshotId, State};
use cove_runner_api::{Level, Reinstate, RunnerApi, RunnerError, SnapshotRequest};
use cove_tests::engine_host::{World, output, succeed};

use crate::PROGRAM;

/// Every way a record was seen to be broken.
const DAMAGES: [&str; 5] = ["truncated", "garbage", "empty", "version", "foreign"];

fn record(world: &World, id: &SandboxId) -> PathBuf {
    world
        .setup
        .data_dir()
        .join("records")
        .join(format!("{id}.json"))
}

/// Breaks the record of a sandbox for good: no older content is left beside it.
fn damage(world: &World, id: &SandboxId, how: &str) {
    let path = record(world, id);
    let text = fs::read(&path).unwrap();
    let broken: Vec<u8> = match how {
        "truncated" => text[..text.len() / 2].to_vec(),
        "garbage" => vec![0xff, 0x00, 0x7f, 0x80],
        "empty" => Vec::new(),
        _ => {
            let mut record: serde_json::Value = serde_json::from_slice(&text).unwrap();
            match how {
                "version" => record["version"] = 99.into(),
                _ => record["id"] = SandboxId::random().as_str().into(),
            }
            record.to_string().into_bytes()
        }
    };
    fs::write(&path, broken).unwrap();
    let _ = fs::remove_file(path.with_extension("flushed"));
}

async fn finding(world: &World) -> (Level, String) {
    let report = world.client().host().await.unwrap();
    let mut found = report.findings.into_iter();
    let found = found.find(|finding| finding.name == "records").unwrap();
    (found.level, found.message)
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_records_set_their_sandboxes_aside_and_nobody_else() {
    let mut world = World::start(PROGRAM).await;
    let client = world.client();
    assert_eq!(finding(&world).await.0, Level::Ok);
    let healthy = world.create().await.id;
    succeed(&world.guest(&healthy), "echo kept > /root/file").await;
    let mut broken = Vec::new();
    for how in DAMAGES {
        let made = world.create().await;
        succeed(
            &world.guest(&made.id),
            &format!("echo {how} > /root/file; sync"),
        )
        .await;
        broken.push((made, how));
    }
    let snapshot = SnapshotId::random();
    let request = SnapshotRequest {
        id: snapshot.clone(),
        sandbox: healthy.clone(),
        memory: false,
        unless_unchanged: false,
    };
    client.snapshot(request).await.unwrap();
    world.kill();
    for (made, how) in &broken {
        damage(&world, &made.id, how);
    }
    let snapshots = world.setup.data_dir().join("snapshots");
    fs::write(snapshots.join(format!("{snapshot}.json")), "{").unwrap();
    // Twice: what is set aside stays so.
    world.launch();
    world.restart();

    assert_eq!(
        output(&world.guest(&healthy), "cat /root/file").await,
        "kept"
    );
    let (level, message) = finding(&world).await;
    assert_eq!(level, Level::Warning);
    assert!(message.contains("damaged"), "{message}");
    assert_eq!(client.list().await.unwrap().len(), 1 + DAMAGES.len());
    for (made, how) in &broken {
        let view = client.get(&made.id).await.unwrap();
        assert_eq!(view.state, State::Failed, "{how}");
        assert!(view.set_aside, "{how}");
        assert!(view.reason.unwrap().contains("damaged"), "{how}");
        let refused = client.start(&made.id).await.unwrap_err();
        assert!(refused.to_string().contains("set aside"), "{refused}");
        let file = world
            .setup
            .data_dir()
            .join("pool/sandboxes")
            .join(made.id.as_str())
            .join("upper/root/file");
        assert_eq!(fs::read_to_string(file).unwrap().trim(), *how);
    }
    // An image that one of them may need stays.
    let image = &broken[0].0.image;
    let refused = client.remove_image(image.as_str()).await.unwrap_err();
    assert!(matches!(refused, RunnerError::InUse { .. }), "{refused}");
    let kept = client.get_snapshot(&snapshot).await.unwrap();
    assert!(kept.set_aside.is_some());
    assert_eq!(client.snapshots().await.unwrap().len(), 1);

    // What the control plane knows of one puts it back into service, with its disk.
    let (made, how) = &broken[1];
    let request = Reinstate {
        id: made.id.clone(),
        owner: None,
        spec: made.spec.clone(),
        image: made.image.clone(),
        parent: None,
        created_at: made.created_at,
    };
    let back = client.reinstate(request).await.unwrap();
    assert_eq!((back.state, back.set_aside), (State::Stopped, false));
    client.start(&made.id).await.unwrap();
    assert_eq!(output(&world.guest(&made.id), "cat /root/file").await, *how);
    world.restart();
    assert_eq!(output(&world.guest(&made.id), "cat /root/file").await, *how);

    // Only a delete gives the others up.
    for (made, _) in &broken {
        client.delete(&made.id).await.unwrap();
    }
    client.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(finding(&world).await.0, Level::Ok);
    let traces = world.traces();
    assert_eq!(
        (traces.volumes.len(), traces.records.len()),
        (1, 1),
        "{traces:#?}"
    );
    world.finish();
}

/// The content flushed at the create lies beside a record until the next flush.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_record_is_no_reason_to_take_a_sandbox_for_half_made() {
    let mut world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world.create().await.id;
    succeed(&world.guest(&id), "echo kept > /root/file; sync").await;
    world.kill();
    let path = record(&world, &id);
    assert!(path.with_extension("flushed").exists());
    fs::write(&path, "{").unwrap();
    world.launch();
    let view = client.get(&id).await.unwrap();
    assert_eq!(view.state, State::Failed);
    assert!(view.reason.unwrap().contains("damaged"));
    assert_eq!(finding(&world).await.0, Level::Warning);
    client.start(&id).await.unwrap();
    assert_eq!(output(&world.guest(&id), "cat /root/file").await, "kept");
    assert_eq!(finding(&world).await.0, Level::Ok);
    world.finish();
}
