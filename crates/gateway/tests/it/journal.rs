//! What was logged outlives the process that logged it.

use cove_gateway::dns::wire;
use cove_gateway::host::{Audience, Gateway};
use cove_gateway::limits::Limits;
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

#[test]
fn an_organisation_that_logs_much_leaves_the_journal_to_others() {
    /// Of one organisation at once, and a second; of one sandbox at once.
    const AT_ONCE: usize = 2000;
    const PER_SECOND: usize = 100;
    const OF_ONE: usize = 500;
    let limits = Limits {
        queries_per_second: 10_000,
        queries_burst: 10_000,
        ..Limits::default()
    };
    let world = World::with(&["good.example"], limits);
    let place = |owner: &str| {
        let id = SandboxId::random();
        world.config.owners.note(&id, owner, Audience::Tenants);
        let placed = id.clone();
        world.on_host(async move |gateway: Gateway| {
            let policy = allowing(&["good.example"]);
            gateway
                .set_policy(NEIGHBOUR, &placed, &policy)
                .await
                .unwrap();
        });
        id
    };
    let deny = |count: usize, tag: &str| {
        world.inside(|| {
            for number in 0..count {
                let question = query(&format!("{tag}{number}.example"), wire::A);
                ask_bytes(NEIGHBOUR, GATEWAY, &question).unwrap();
            }
        });
    };
    let begun = std::time::Instant::now();
    for _ in 0..6 {
        place("org_greedy");
        deny(OF_ONE, "greedy");
    }
    let other = place("org_other");
    deny(OF_ONE / 5, "other");
    written(&world, &format!("other{}.example", OF_ONE / 5 - 1));
    let journal = std::fs::read_to_string(world.config.directory.join("egress.0")).unwrap();
    let lines = |tag: &str| journal.lines().filter(|line| line.contains(tag)).count();
    let refilled = PER_SECOND * (begun.elapsed().as_secs() as usize + 1);
    assert!(
        lines("greedy") <= AT_ONCE + refilled,
        "{} lines",
        lines("greedy")
    );
    assert!(lines("greedy") >= AT_ONCE, "{} lines", lines("greedy"));
    assert_eq!(lines("other"), OF_ONE / 5);
    kill(&world);
    let kept = read(&world, &other, 0);
    assert_eq!(kept.entries.len(), OF_ONE / 5);
    assert!(!kept.lost);
}
