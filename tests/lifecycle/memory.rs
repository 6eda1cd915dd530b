//! Memory that grows, and the kernel's killer when it may not.

use cove_model::{EventKind, Resources, ResourcesPatch};
use cove_runner_api::RunnerApi;
use cove_tests::engine_host::{World, eventually, exec, succeed};

use crate::PROGRAM;

/// Touches about `mb` megabytes from user space and holds them until whoever watches has seen it.
fn touch(mb: u64) -> String {
    format!(
        "awk 'BEGIN{{s=sprintf(\"%1000000s\",\"\"); for(i=0;i<{mb};i++) a[i]=s i; system(\"sleep 2\")}}'"
    )
}

fn elastic(memory_mb: u64, max_mb: u64) -> Resources {
    Resources {
        memory_mb,
        memory_max_mb: Some(max_mb),
        disk_mb: 256,
        pids: 64,
        ..Resources::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn elastic_memory_grows_up_to_its_maximum_and_then_kills() {
    let mut world = World::start(PROGRAM).await;
    let client = world.client();
    let id = world
        .create_with(|spec| spec.resources = elastic(64, 512))
        .await
        .id;
    let guest = world.guest(&id);
    let cursor = world.cursor().await;
    succeed(&guest, &touch(300)).await;
    world
        .event(cursor, "memory grew", |event| {
            matches!(event.kind, EventKind::MemoryGrown { from_mb: 64, to_mb } if to_mb > 64)
        })
        .await;
    // In force at once; what is shown follows the record.
    let grown = eventually("the growth is shown, and promised", || async {
        let grown = client.get(&id).await.unwrap().limits.memory_mb;
        let promised = client.host().await.unwrap().promised_memory_bytes;
        ((300..=512).contains(&grown) && promised == grown << 20).then_some(grown)
    })
    .await;

    // Growth belongs to the running machine, not to the engine that watched it.
    world.restart();
    assert_eq!(client.get(&id).await.unwrap().limits.memory_mb, grown);

    // Another limit can change without giving up what has grown.
    let patch = ResourcesPatch {
        cpu: Some(0.7),
        ..ResourcesPatch::default()
    };
    let view = client.resize(&id, patch).await.unwrap();
    assert_eq!((view.limits.cpu, view.limits.memory_mb), (0.7, grown));

    let cursor = world.cursor().await;
    let killed = exec(&guest, &touch(1000)).await;
    assert!(killed.exit.oom, "{:?}", killed.exit);
    let event = world
        .event(cursor, "the kernel killed", |event| {
            matches!(event.kind, EventKind::Oom { .. })
        })
        .await;
    let EventKind::Oom {
        kills, limit_mb, ..
    } = event.kind
    else {
        unreachable!("it was just matched")
    };
    assert!(kills >= 1);
    assert_eq!(limit_mb, 512);
    eventually("the maximum is shown", || async {
        (client.get(&id).await.unwrap().limits.memory_mb == 512).then_some(())
    })
    .await;
    assert!(client.sample(&id).await.unwrap().oom_kills >= 1);

    // A fresh boot starts small again.
    client.stop(&id, 0).await.unwrap();
    assert_eq!(client.start(&id).await.unwrap().limits.memory_mb, 64);
    assert!(client.sample(&id).await.unwrap().oom_kills >= 1);
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_maximum_the_limit_kills_the_command_and_spares_the_sandbox() {
    let world = World::start(PROGRAM).await;
    let id = world
        .create_with(|spec| spec.resources.memory_mb = 64)
        .await
        .id;
    let guest = world.guest(&id);
    let killed = exec(&guest, &touch(200)).await;
    assert!(killed.exit.oom, "{:?}", killed.exit);
    assert_eq!(killed.exit.memory_limit_bytes, 64 << 20);
    succeed(&guest, "echo still here").await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_with_no_more_to_promise_kills_instead_of_hanging() {
    let world = World::with(PROGRAM, |setup| setup.memory_overcommit = Some(1.0)).await;
    let client = world.client();
    let host_mb = client.host().await.unwrap().memory_bytes >> 20;
    // All but a little is promised to a sandbox that does not use it.
    world
        .create_with(|spec| spec.resources.memory_mb = host_mb - 200)
        .await;
    let id = world
        .create_with(|spec| spec.resources = elastic(64, 1024))
        .await
        .id;
    let guest = world.guest(&id);
    // Much at once, then more and more: how quick the engine is decides where it ends, not whether.
    let hungry = "(i=0; while [ $i -lt 400 ]; do echo; sleep 0.02; i=$((i+1)); done) | \
        awk 'BEGIN{s=sprintf(\"%1000000s\",\"\"); for(i=0;i<600;i++) a[i]=s i} {a[i++]=s NR}'";
    let killed = exec(&guest, hungry).await;
    assert!(killed.exit.oom, "{:?}", killed.exit);
    succeed(&guest, "echo still here").await;
    let promised = client.host().await.unwrap().promised_memory_bytes;
    assert!(promised <= host_mb << 20, "{promised}");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_read_into_new_memory_comes_back_whole_while_memory_grows() {
    let world = World::start(PROGRAM).await;
    let id = world
        .create_with(|spec| spec.resources = elastic(64, 512))
        .await
        .id;
    let guest = world.guest(&id);
    let cursor = world.cursor().await;
    // One system call that touches three times the memory it begins with.
    let read = succeed(&guest, "dd if=/dev/zero of=/dev/null bs=200M count=1").await;
    let said = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(said.contains("1+0 records in"), "{said}");
    world
        .event(cursor, "memory grew", |event| {
            matches!(event.kind, EventKind::MemoryGrown { .. })
        })
        .await;
    let sample = world.client().sample(&id).await.unwrap();
    assert_eq!(sample.oom_kills, 0);
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_does_not_make_memory_grow() {
    let world = World::start(PROGRAM).await;
    let id = world
        .create_with(|spec| spec.resources = elastic(64, 512))
        .await
        .id;
    let guest = world.guest(&id);
    succeed(
        &guest,
        "dd if=/dev/zero of=/root/big bs=1M count=150 && sync && cat /root/big > /dev/null",
    )
    .await;
    let view = world.client().get(&id).await.unwrap();
    assert_eq!(view.limits.memory_mb, 64);
    // What is needed is found also behind the cache.
    succeed(&guest, &touch(200)).await;
    eventually("the growth is shown", || async {
        let view = world.client().get(&id).await.unwrap();
        (view.limits.memory_mb >= 200).then_some(())
    })
    .await;
    world.finish();
}
