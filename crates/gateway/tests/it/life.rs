//! Adoption, death and replacement of the process.

use std::io::{Read, Write};
use std::net::TcpStream;

use cove_gateway::dns::wire::{self, NO_ERROR, REFUSED};
use cove_gateway::host::Gateway;
use cove_model::SandboxId;
use cove_model::egress::{EgressEntry, EgressProtocol, EgressQuery, EgressVerdict};

use crate::client::{ask, ask_bytes, connect, exchange, hello, is_cut, query};
use crate::world::{GATEWAY, GOOD, NEIGHBOUR, PATIENCE, SANDBOX, World, allowing, wait_for};

fn pid(world: &World) -> u32 {
    world.on_host(async |gateway: Gateway| gateway.hello().await.unwrap().pid)
}

fn open(world: &World) -> TcpStream {
    world.inside(|| {
        let mut stream = connect(GOOD, 443).unwrap();
        stream.write_all(&hello("good.example")).unwrap();
        let mut skipped = vec![0; format!("from {GOOD}:443\n").len() + hello("good.example").len()];
        stream.read_exact(&mut skipped).unwrap();
        stream
    })
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut echoed = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut echoed).is_ok()
}

#[test]
fn another_engine_adopts_the_process_and_cuts_no_stream() {
    let mut world = World::new(&["good.example"]);
    let before = pid(&world);
    let mut stream = open(&world);
    let placed = vec![(SANDBOX, world.id.clone(), allowing(&["good.example"]))];
    world.start(placed);
    assert_eq!(pid(&world), before);
    assert!(echoes(&mut stream));
    let names: Vec<_> = world.log().into_iter().filter_map(|it| it.name).collect();
    assert!(
        names.contains(&"good.example".into()),
        "the log is still there"
    );
}

#[test]
fn what_the_new_engine_does_not_know_is_gone() {
    let mut world = World::new(&["good.example"]);
    let id = SandboxId::random();
    world.on_host(async move |gateway: Gateway| {
        let policy = allowing(&["good.example"]);
        gateway.set_policy(NEIGHBOUR, &id, &policy).await.unwrap();
    });
    let mut stream = open(&world);
    world.start(vec![(
        NEIGHBOUR,
        SandboxId::random(),
        allowing(&["good.example"]),
    )]);
    assert!(is_cut(&stream.read(&mut [0; 8])));
    assert_eq!(world.inside(|| ask("good.example")).code, REFUSED);
}

#[test]
fn a_killed_process_is_replaced_by_one_that_knows_every_policy() {
    let world = World::new(&["good.example"]);
    let before = pid(&world);
    let mut stream = open(&world);
    let target = rustix::process::Pid::from_raw(before as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::KILL).unwrap();
    assert!(is_cut(&stream.read(&mut [0; 8])), "its streams end with it");
    wait_for("another process", || {
        let hello = world.on_host(async |gateway: Gateway| gateway.hello().await);
        hello.ok().filter(|hello| hello.pid != before)
    });
    world.inside(|| {
        assert_eq!(ask("good.example").code, NO_ERROR);
        assert_eq!(ask("evil.example").code, REFUSED);
        let answer = exchange(connect(GOOD, 443), &hello("good.example"));
        assert!(answer.unwrap().starts_with("from "));
    });
}

#[test]
fn without_a_process_nothing_is_reached() {
    let world = World::new(&["good.example", "203.0.113.10"]);
    world.on_host(async |gateway: Gateway| gateway.stop().await.unwrap());
    world.inside(|| {
        for port in [22, 80, 443] {
            // A child that another test forks may hold the listening socket until it runs its program.
            wait_for("nobody listens", || {
                let refused = crate::client::connect_from(SANDBOX, GOOD, port).is_err();
                refused.then_some(())
            });
        }
        let question = query("good.example", wire::A);
        assert!(ask_bytes(SANDBOX, GATEWAY, &question).is_err());
    });
    assert!(!world.seen.connected(GOOD));
}

#[test]
fn a_removed_sandbox_reaches_nothing_and_keeps_its_log_until_it_is_forgotten() {
    let world = World::new(&["good.example"]);
    let mut stream = open(&world);
    world.on_host(async |gateway: Gateway| gateway.remove(SANDBOX).await.unwrap());
    assert!(is_cut(&stream.read(&mut [0; 8])));
    assert_eq!(world.inside(|| ask("good.example")).code, REFUSED);
    assert!(!world.log().is_empty());
    let id = world.id.clone();
    world.on_host(async move |gateway: Gateway| gateway.forget(&id).await.unwrap());
    assert!(world.log().is_empty());
}

#[test]
fn denials_of_the_packet_filter_join_the_log_and_wake_its_readers() {
    let world = World::new(&[]);
    let query = EgressQuery {
        sandbox: world.id.clone(),
        after: 0,
        limit: 10,
        wait_ms: 60_000,
        verdict: Some(EgressVerdict::Denied),
    };
    let batch = world.on_host(async move |gateway: Gateway| {
        let reader = {
            let gateway = gateway.clone();
            tokio::spawn(async move { gateway.egress(query).await.unwrap() })
        };
        let entry = EgressEntry {
            sequence: 0,
            at: time::OffsetDateTime::now_utc(),
            protocol: EgressProtocol::Udp,
            name: None,
            address: Some(GOOD.into()),
            port: Some(443),
            verdict: EgressVerdict::Denied,
            rule: "UDP is not carried".into(),
            sent_bytes: 0,
            received_bytes: 0,
        };
        gateway.append(vec![(SANDBOX, entry)]).await.unwrap();
        reader.await.unwrap()
    });
    assert_eq!(batch.entries.len(), 1);
    assert_eq!(batch.entries[0].rule, "UDP is not carried");
    assert!(batch.entries[0].sequence > 0);
}

#[test]
fn the_process_is_nobody_with_nothing() {
    let world = World::new(&[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid(&world))).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(field("Uid:"), "65533 65533 65533 65533");
    assert_eq!(field("Gid:"), "65533 65533 65533 65533");
    assert_eq!(field("Groups:"), "");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(
        (field("NoNewPrivs:"), field("Seccomp:")),
        ("1".into(), "2".into())
    );
}

#[test]
fn a_policy_set_while_the_process_is_being_replaced_is_in_force_when_that_returns() {
    let world = World::new(&["good.example"]);
    let target = rustix::process::Pid::from_raw(pid(&world) as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::KILL).unwrap();
    let (gateway, id) = (world.gateway().clone(), world.id.clone());
    world.host.run(move || {
        let policy = allowing(&["evil.example"]);
        // It gives up where the next process takes longer than a call may; then it is asked again.
        wait_for("the policy is taken", || {
            gateway.set_policy_blocking(SANDBOX, &id, &policy).ok()
        });
    });
    world.inside(|| {
        assert_eq!(ask("evil.example").code, NO_ERROR);
        assert_eq!(ask("good.example").code, REFUSED);
    });
}

#[test]
fn a_bad_policy_changes_nothing() {
    let world = World::new(&["good.example"]);
    let id = world.id.clone();
    let refused = world.on_host(async move |gateway: Gateway| {
        let policy = allowing(&["evil.example", "preset:nope"]);
        gateway.set_policy(SANDBOX, &id, &policy).await
    });
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("no preset 'nope'")
    );
    world.inside(|| {
        assert_eq!(ask("good.example").code, NO_ERROR);
        assert_eq!(ask("evil.example").code, REFUSED);
    });
}

#[test]
fn followers_of_logs_keep_no_policy_out_and_cost_nobody_their_streams() {
    const FOLLOWERS: usize = 600;
    let world = World::new(&["good.example"]);
    let before = pid(&world);
    let mut stream = open(&world);
    let id = world.id.clone();
    let after = world.log().last().unwrap().sequence;
    let pids = world.on_host(async move |gateway: Gateway| {
        let followers: Vec<_> = (0..FOLLOWERS)
            .map(|_| {
                let query = EgressQuery {
                    sandbox: id.clone(),
                    after,
                    limit: 10,
                    wait_ms: 60_000,
                    verdict: Some(EgressVerdict::Denied),
                };
                let gateway = gateway.clone();
                tokio::spawn(async move { gateway.egress(query).await })
            })
            .collect();
        // Some are answered at once with nothing, so that no slot is left only to followers.
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !followers.iter().any(tokio::task::JoinHandle::is_finished) {
            assert!(tokio::time::Instant::now() < deadline, "all of them wait");
            tokio::task::yield_now().await;
        }
        let policy = allowing(&["good.example", "evil.example"]);
        gateway.set_policy(SANDBOX, &id, &policy).await.unwrap();
        let pid = gateway.hello().await.unwrap().pid;
        for follower in followers {
            follower.abort();
        }
        pid
    });
    assert_eq!(pids, before, "the process was replaced");
    assert!(echoes(&mut stream));
    assert_eq!(world.inside(|| ask("evil.example")).code, NO_ERROR);
}

#[test]
fn an_older_program_serves_on_for_its_connections_but_not_for_ever() {
    let mut world = World::new(&["good.example"]);
    let before = pid(&world);
    let mut stream = open(&world);
    // Another program that does the same: what follows its last section is not looked at.
    let newer = [cove_embedded::GATEWAY, b"newer"].concat();
    world.config.program = Box::leak(newer.into_boxed_slice());
    let placed = vec![(SANDBOX, world.id.clone(), allowing(&["good.example"]))];
    world.start(placed.clone());
    assert_eq!(pid(&world), before);
    assert!(echoes(&mut stream));
    let noted = std::fs::File::options()
        .write(true)
        .open(world.config.directory.join("outdated"))
        .unwrap();
    let days = std::time::Duration::from_secs(2 * 24 * 3600);
    let long_ago = std::time::SystemTime::now() - days;
    noted.set_modified(long_ago).unwrap();
    world.start(placed);
    assert_ne!(pid(&world), before);
    assert!(is_cut(&stream.read(&mut [0; 8])));
    assert!(!world.config.directory.join("outdated").exists());
}
