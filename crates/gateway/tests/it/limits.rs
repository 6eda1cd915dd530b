//! Those who take too much.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use cove_gateway::host::Gateway;
use cove_gateway::limits::Limits;
use cove_model::SandboxId;
use cove_model::egress::{EgressEntry, EgressQuery};

use crate::client::{connect, connect_from, exchange, hello, is_cut, query};
use crate::world::{GATEWAY, GOOD, IDLE, NEIGHBOUR, SANDBOX, STRANGER, World, allowing, wait_for};

#[test]
fn half_open_connections_are_few_and_short() {
    let limits = Limits {
        half_open: 8,
        hello_ms: 5_000,
        ..Limits::default()
    };
    let world = World::with(&["good.example"], limits);
    let is_logged = |rule: &str| world.log().iter().any(|it| it.rule.contains(rule));
    // Again when the machine was so slow that the first ones were given up meanwhile.
    let mut silent = wait_for("one beyond the limit is refused", || {
        let silent = world.inside(|| {
            let silent: Vec<_> = (0..8).filter_map(|_| connect(GOOD, 443).ok()).collect();
            let one_more = connect(GOOD, 443).and_then(|mut stream| stream.read(&mut [0; 8]));
            assert!(is_cut(&one_more));
            silent
        });
        is_logged("too many connections").then_some(silent)
    });
    world.inside(|| {
        // A hello that drips is as slow as none.
        let _ = silent[0].write_all(&hello("good.example")[..10]);
        for stream in &mut silent {
            assert!(is_cut(&stream.read(&mut [0; 8])));
        }
        let answer = exchange(connect(GOOD, 443), &hello("good.example"));
        assert!(answer.unwrap().starts_with("from "));
    });
    assert!(is_logged("sent nothing in time"));
}

#[test]
fn streams_of_questions_are_few_and_come_back_when_they_end() {
    let streams_max = Limits::default().dns_streams;
    let world = World::new(&["good.example"]);
    world.inside(|| {
        // Again when the machine was so slow that the first ones were given up meanwhile.
        let mut open = wait_for("one beyond the limit is refused", || {
            let mut open = Vec::new();
            for _ in 0..streams_max {
                let mut stream = connect(GATEWAY, 53).ok()?;
                if !is_answered(&mut stream) {
                    return None;
                }
                open.push(stream);
            }
            let beyond = connect(GATEWAY, 53).is_ok_and(|mut stream| is_answered(&mut stream));
            (!beyond).then_some(open)
        });
        open.pop();
        wait_for("there is room again", || {
            let mut stream = connect(GATEWAY, 53).ok()?;
            is_answered(&mut stream).then_some(())
        });
    });
}

/// Whether a question on this DNS connection gets an answer.
fn is_answered(stream: &mut TcpStream) -> bool {
    let question = query("good.example", cove_gateway::dns::wire::A);
    let length = u16::try_from(question.len()).unwrap().to_be_bytes();
    let mut answer = [0; 2];
    stream.write_all(&[&length[..], &question].concat()).is_ok()
        && stream.read_exact(&mut answer).is_ok()
}

/// Shorter than the time after which the gateway closes a DNS connection that says nothing.
const IDLE_STREAM: Duration = Duration::from_secs(8);

#[test]
fn an_organisation_leaves_dns_connections_to_others() {
    let limits = Limits {
        dns_streams_in_all: 24,
        ..Limits::default()
    };
    let world = World::with(&["good.example"], limits);
    place(&world, SANDBOX, Some("org_greedy"));
    place(&world, NEIGHBOUR, Some("org_greedy"));
    place(&world, STRANGER, Some("org_other"));
    let opened = |from: Ipv4Addr| {
        let open = || {
            let mut stream = connect_from(from, GATEWAY, 53).ok()?;
            is_answered(&mut stream).then_some(stream)
        };
        std::iter::from_fn(open).take(30).collect::<Vec<_>>()
    };
    world.inside(|| {
        // Again when the machine was so slow that the first ones were closed meanwhile.
        wait_for("one organisation takes its share and no more", || {
            let begun = Instant::now();
            let mut held = opened(SANDBOX);
            held.extend(opened(NEIGHBOUR));
            if begun.elapsed() >= IDLE_STREAM {
                return None;
            }
            assert!(held.len() <= 12, "{} of 24", held.len());
            let others = opened(STRANGER);
            assert!(others.len() >= 4, "{} were left to another", others.len());
            (held.len() == 12).then_some(())
        });
    });
}

#[test]
fn slow_requests_are_ended() {
    let limits = Limits {
        hello_ms: 5_000,
        ..Limits::default()
    };
    let world = World::with(&["good.example"], limits);
    world.inside(|| {
        let mut stream = connect(GOOD, 80).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: good").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        // The second request on a connection has no more time than the first.
        let mut stream = connect(GOOD, 80).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\nGET")
            .unwrap();
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(ended.is_ok() || is_cut(&ended), "{ended:?}");
    });
}

#[test]
fn endless_heads_and_hellos_are_ended() {
    let world = World::new(&["good.example"]);
    for (port, start) in [
        (80, &b"GET / HTTP/1.1\r\nHost: good.example\r\nX: "[..]),
        (443, &[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xff]),
    ] {
        world.inside(|| {
            let mut stream = connect(GOOD, port).unwrap();
            stream.write_all(start).unwrap();
            let block = [b'a'; 4096];
            let mut sent = 0;
            while sent < (1 << 20) && stream.write_all(&block).is_ok() {
                sent += block.len();
            }
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest);
            assert!(ended.is_ok() || is_cut(&ended), "{port}: {ended:?}");
            assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
        });
    }
    assert!(!world.seen.connected(GOOD));
}

#[test]
fn connections_are_bounded_and_come_back_when_they_end() {
    let limits = Limits {
        connections: 4,
        ..Limits::default()
    };
    let world = World::with(&["203.0.113.10:22"], limits);
    world.inside(|| {
        let greet = |stream: &mut std::net::TcpStream| {
            let mut line = vec![0; format!("from {GOOD}:22\n").len()];
            stream.read_exact(&mut line)
        };
        let mut held: Vec<_> = (0..4).map(|_| connect(GOOD, 22).unwrap()).collect();
        for stream in &mut held {
            greet(stream).unwrap();
        }
        assert!(
            connect(GOOD, 22)
                .and_then(|mut stream| greet(&mut stream))
                .is_err()
        );
        drop(held.pop());
        crate::world::wait_for("a free place", || {
            let mut stream = connect_from(SANDBOX, GOOD, 22).ok()?;
            greet(&mut stream).ok()
        });
    });
}

#[test]
fn all_sandboxes_together_have_so_many_connections_and_one_that_ends_makes_room_for_any() {
    let limits = Limits {
        connections_in_all: 6,
        ..Limits::default()
    };
    let world = World::with(&[AT_PORT_22], limits);
    let neighbour = place(&world, NEIGHBOUR, None);
    world.inside(|| {
        // One alone may have half, and two together leave a part of what is free.
        let mut first = greeted_from(SANDBOX, 10);
        assert_eq!(first.len(), 3);
        let second = greeted_from(NEIGHBOUR, 10);
        assert_eq!(second.len(), 2);
        assert!(greeted_from(SANDBOX, 1).is_empty(), "one more");
        // What one lets go is the other's as well.
        first.clear();
        wait_for("a free place", || greeted_from(NEIGHBOUR, 1).pop());
        drop(second);
    });
    for sandbox in [world.id.clone(), neighbour] {
        let log = log_of(&world, sandbox);
        assert!(log.iter().any(is_over_its_share), "{log:?}");
    }
}

const AT_PORT_22: &str = "203.0.113.10:22";

fn is_over_its_share(entry: &EgressEntry) -> bool {
    entry.rule.contains("too many connections")
}

fn log_of(world: &World, sandbox: SandboxId) -> Vec<EgressEntry> {
    let query = EgressQuery {
        sandbox,
        after: 0,
        limit: 1000,
        wait_ms: 0,
        verdict: None,
    };
    let batch = world.on_host(async move |gateway: Gateway| gateway.egress(query).await.unwrap());
    batch.entries
}

/// A new sandbox at an address, of an organisation.
fn place(world: &World, at: Ipv4Addr, owner: Option<&str>) -> SandboxId {
    let id = SandboxId::random();
    if let Some(owner) = owner {
        world
            .config
            .owners
            .note(&id, owner, cove_gateway::host::Audience::Tenants);
    }
    let placed = id.clone();
    world.on_host(async move |gateway: Gateway| {
        let policy = allowing(&[AT_PORT_22, "good.example"]);
        gateway.set_policy(at, &placed, &policy).await.unwrap();
    });
    id
}

/// Connections that were carried, until one was not, or so many.
fn greeted_from(from: Ipv4Addr, most: usize) -> Vec<TcpStream> {
    let greeted = || {
        let mut stream = connect_from(from, GOOD, 22).ok()?;
        let mut line = vec![0; format!("from {GOOD}:22\n").len()];
        stream.read_exact(&mut line).ok()?;
        Some(stream)
    };
    std::iter::from_fn(greeted).take(most).collect()
}

#[test]
fn an_organisation_with_many_sandboxes_leaves_connections_to_others() {
    let limits = Limits {
        connections_in_all: 24,
        ..Limits::default()
    };
    let world = World::with(&[AT_PORT_22], limits);
    let greedy = place(&world, SANDBOX, Some("org_greedy"));
    place(&world, NEIGHBOUR, Some("org_greedy"));
    place(&world, STRANGER, Some("org_other"));
    world.inside(|| {
        let mut held = greeted_from(SANDBOX, 100);
        held.extend(greeted_from(NEIGHBOUR, 100));
        held.extend(greeted_from(SANDBOX, 100));
        assert!(held.len() <= 12, "{} of 24", held.len());
        let others = greeted_from(STRANGER, 100);
        assert!(others.len() >= 4, "{} were left to another", others.len());
    });
    assert!(log_of(&world, greedy).iter().any(is_over_its_share));
}

#[test]
fn connections_that_say_nothing_leave_room_for_other_organisations() {
    let limits = Limits {
        half_open_in_all: 24,
        ..Limits::default()
    };
    let world = World::with(&["good.example"], limits);
    place(&world, SANDBOX, Some("org_greedy"));
    place(&world, NEIGHBOUR, Some("org_greedy"));
    place(&world, STRANGER, Some("org_other"));
    world.inside(|| {
        let mut silent = Vec::new();
        for from in [SANDBOX, NEIGHBOUR] {
            silent.extend((0..40).filter_map(|_| connect_from(from, GOOD, 443).ok()));
        }
        let answer = exchange(connect_from(STRANGER, GOOD, 443), &hello("good.example"));
        assert!(answer.unwrap().starts_with("from "));
        drop(silent);
    });
}

#[test]
fn three_thousand_idle_connections_fit_into_a_hundred_megabytes() {
    const CONNECTIONS: usize = 3000;
    const MEGABYTES: u64 = 100;
    let world = World::new(&["good.example:7000"]);
    let held: Vec<_> = world.inside(|| {
        (0..CONNECTIONS)
            .map(|_| {
                let mut stream = connect(GOOD, IDLE).unwrap();
                // One byte through it, so that it is known to be carried.
                stream.read_exact(&mut [0]).unwrap();
                stream
            })
            .collect()
    });
    let hello =
        world.on_host(async |gateway: cove_gateway::host::Gateway| gateway.hello().await.unwrap());
    assert_eq!(hello.connections, CONNECTIONS as u64);
    let status = std::fs::read_to_string(format!("/proc/{}/status", hello.pid)).unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    println!("{} connections: {kilobytes} kB", held.len());
    assert!(kilobytes < MEGABYTES * 1024, "{kilobytes} kB");
}
