//! What was logged outlives the process that logged it.

use cove_gateway::dns::wire;
use cove_gateway::host::Gateway;
use cove_model::SandboxId;
use cove_model::egress::{EgressBatch, EgressQuery, EgressVerdict};

use crate::client::{ask, ask_bytes, connect, exchange, hello, query};
use crate::world::{GATEWAY, GOOD, NEIGHBOUR, SANDBOX, World, allowing, wait_for};

fn pid(world: &World) -> u32 {
    world.on_host(async |gateway: Gateway| gateway.hello().await.unwrap().pid)
}

fn kill(world: &World) {
    let before = pid(world);
    let target = rustix::process::Pid::from_raw(before as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::KILL).unwrap();
    wait_for("another process", || {
        let hello = world.on_host(async |gateway: Gateway| gateway.hello().await);
        hello.ok().filter(|hello| hello.pid != before)
    });
}

fn read(world: &World, sandbox: &SandboxId, after: u64) -> EgressBatch {
    let query = EgressQuery {
        sandbox: sandbox.clone(),
        after,
        limit: 1000,
        wait_ms: 0,
        verdict: None,
    };
    world.on_host(async move |gateway: Gateway| gateway.egress(query).await.unwrap())
}

/// Until the journal has it, which takes a moment.
fn written(world: &World, text: &str) {
    wait_for("it is written down", || {
        let file = std::fs::read_to_string(world.config.directory.join("egress.0")).ok()?;
        file.contains(text).then_some(())
    });
}

#[test]
fn a_killed_process_loses_no_log_and_numbers_go_on() {
    let world = World::new(&["good.example"]);
    let stopped = SandboxId::random();
    let gone = SandboxId::random();
    for id in [&stopped, &gone] {
        let placed = id.clone();
        world.on_host(async move |gateway: Gateway| {
            let policy = allowing(&["good.example"]);
            gateway
                .set_policy(NEIGHBOUR, &placed, &policy)
                .await
                .unwrap();
        });
        world.inside(|| ask_bytes(NEIGHBOUR, GATEWAY, &query("evil.example", wire::A)).unwrap());
    }
    let forgotten = gone.clone();
    world.on_host(async move |gateway: Gateway| {
        gateway.remove(NEIGHBOUR).await.unwrap();
        gateway.forget(&forgotten).await.unwrap();
    });
    world.inside(|| {
        ask("evil.example");
        let answer = exchange(connect(GOOD, 443), &hello("good.example"));
        assert!(answer.unwrap().starts_with("from "));
    });
    // The connection is over, and its entry comes again with its bytes.
    let carried = wait_for("the connection's bytes are logged", || {
        let mut log = world.log().into_iter();
        log.find(|entry| entry.received_bytes > 0)
    });
    let seen = read(&world, &world.id, 0);
    written(&world, &format!("\t{}\t", seen.next));
    kill(&world);
    let after = read(&world, &world.id, 0);
    assert_eq!(after.entries, seen.entries);
    assert!(after.entries.contains(&carried));
    assert!(!read(&world, &stopped, 0).entries.is_empty());
    assert_eq!(
        read(&world, &gone, 0).entries,
        [],
        "a deleted log came back"
    );

    // Who follows goes on where it was.
    world.inside(|| ask("later.example"));
    world.logged("later.example", EgressVerdict::Denied);
    let later = read(&world, &world.id, seen.next);
    assert!(!later.lost);
    assert_eq!(later.entries.len(), 1, "{later:?}");
    assert!(later.entries[0].sequence > seen.next);

    // And once more: what was read back is still there for the next.
    kill(&world);
    let again = read(&world, &world.id, 0);
    assert_eq!(again.entries[..seen.entries.len()], seen.entries);
    assert_eq!(again.entries.len(), seen.entries.len() + 1);
}

#[test]
fn a_newer_program_begins_with_the_log_of_the_older() {
    let mut world = World::new(&["good.example"]);
    let before = pid(&world);
    world.inside(|| ask("evil.example"));
    let denied = world.logged("evil.example", EgressVerdict::Denied);
    let newer = [cove_embedded::GATEWAY, b"newer"].concat();
    world.config.program = Box::leak(newer.into_boxed_slice());
    world.start(vec![(
        SANDBOX,
        world.id.clone(),
        allowing(&["good.example"]),
    )]);
    assert_ne!(pid(&world), before);
    assert!(world.log().contains(&denied));
    let shown = std::fs::metadata(world.config.directory.join("egress.0")).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&shown.permissions()) & 0o777,
        0o600
    );
}

#[test]
fn a_journal_that_cannot_be_cleared_up_keeps_no_process_from_serving() {
    let world = World::new(&["good.example"]);
    world.inside(|| ask("evil.example"));
    let denied = world.logged("evil.example", EgressVerdict::Denied);
    written(&world, &format!("\t{}\t", denied.sequence));
    // Where the next text is written first there is something that is no file.
    let fresh = world.config.directory.join("egress.new");
    std::fs::create_dir(&fresh).unwrap();
    kill(&world);
    assert!(world.log().contains(&denied));
    std::fs::remove_dir(fresh).unwrap();
    // Neither does one that cannot be opened; what it held is gone.
    for number in ["egress.0", "egress.1"] {
        let file = world.config.directory.join(number);
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
    }
    kill(&world);
    world.inside(|| {
        let answer = exchange(connect(GOOD, 443), &hello("good.example"));
        assert!(answer.unwrap().starts_with("from "));
    });
    assert!(!world.log().contains(&denied));
}
