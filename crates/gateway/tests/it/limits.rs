//! Those who take too much.

use std::io::{Read, Write};

use cove_gateway::host::Gateway;
use cove_gateway::limits::Limits;
use cove_model::SandboxId;
use cove_runner::{EgressEntry, EgressQuery};

use crate::client::{connect, connect_from, exchange, hello, is_cut, query};
use crate::world::{GATEWAY, GOOD, IDLE, NEIGHBOUR, SANDBOX, World, allowing, wait_for};

#[test]
fn half_open_connections_are_few_and_short() {
    let limits = Limits {
        half_open: 8,
        hello_ms: 300,
        ..Limits::default()
    };
    let world = World::with(&["good.example"], limits);
    world.inside(|| {
        let mut silent: Vec<_> = (0..8).map(|_| connect(GOOD, 443).unwrap()).collect();
        let one_more = connect(GOOD, 443).and_then(|mut stream| stream.read(&mut [0; 8]));
        assert!(is_cut(&one_more));
        // A hello that drips is as slow as none.
        let _ = silent[0].write_all(&hello("good.example")[..10]);
        for stream in &mut silent {
            assert!(is_cut(&stream.read(&mut [0; 8])));
        }
        let answer = exchange(connect(GOOD, 443), &hello("good.example"));
        assert!(answer.unwrap().starts_with("from "));
    });
    let log = world.log();
    assert!(
        log.iter()
            .any(|it| it.rule.contains("too many connections"))
    );
    assert!(log.iter().any(|it| it.rule.contains("nothing was said")));
}

#[test]
fn streams_of_questions_are_few_and_come_back_when_they_end() {
    const STREAMS_MAX: usize = 16;
    let world = World::new(&["good.example"]);
    let answered = |stream: &mut std::net::TcpStream| {
        let question = query("good.example", cove_gateway::dns::wire::A);
        let length = u16::try_from(question.len()).unwrap().to_be_bytes();
        let mut answer = [0; 2];
        stream.write_all(&[&length[..], &question].concat()).is_ok()
            && stream.read_exact(&mut answer).is_ok()
    };
    world.inside(|| {
        // Again when the machine was so slow that the first ones were given up meanwhile.
        let mut open = wait_for("one beyond the limit is refused", || {
            let mut open = Vec::new();
            for _ in 0..STREAMS_MAX {
                let mut stream = connect(GATEWAY, 53).ok()?;
                if !answered(&mut stream) {
                    return None;
                }
                open.push(stream);
            }
            let beyond = connect(GATEWAY, 53).is_ok_and(|mut stream| answered(&mut stream));
            (!beyond).then_some(open)
        });
        open.pop();
        wait_for("there is room again", || {
            let mut stream = connect(GATEWAY, 53).ok()?;
            answered(&mut stream).then_some(())
        });
    });
}

#[test]
fn slow_requests_are_ended() {
    let limits = Limits {
        hello_ms: 300,
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
        connections_in_all: 4,
        ..Limits::default()
    };
    let world = World::with(&["203.0.113.10:22"], limits);
    let neighbour = SandboxId::random();
    let placed = neighbour.clone();
    world.on_host(async move |gateway: Gateway| {
        let policy = allowing(&["203.0.113.10:22"]);
        let place = gateway.set_policy(NEIGHBOUR, &placed, &policy);
        place.await.unwrap();
    });
    let greeted = |from| {
        let mut stream = connect_from(from, GOOD, 22).ok()?;
        let mut line = vec![0; format!("from {GOOD}:22\n").len()];
        stream.read_exact(&mut line).ok()?;
        Some(stream)
    };
    world.inside(|| {
        let places = [SANDBOX, NEIGHBOUR, SANDBOX, SANDBOX];
        let mut held = places.map(greeted);
        assert!(held.iter().all(Option::is_some));
        for from in [SANDBOX, NEIGHBOUR] {
            assert!(greeted(from).is_none(), "{from} has one more");
        }
        // What one lets go is the other's as well.
        held[0].take();
        let taken = wait_for("a free place", || greeted(NEIGHBOUR));
        assert!(greeted(SANDBOX).is_none());
        drop(taken);
    });
    for sandbox in [world.id.clone(), neighbour] {
        let query = EgressQuery {
            sandbox,
            after: 0,
            limit: 1000,
            wait_ms: 0,
            verdict: None,
        };
        let log = world.on_host(async move |gateway: Gateway| gateway.egress(query).await.unwrap());
        let refused = |entry: &EgressEntry| entry.rule.contains("too many connections");
        assert!(log.entries.iter().any(refused), "{log:?}");
    }
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
    assert_eq!(hello.connections, CONNECTIONS);
    let status = std::fs::read_to_string(format!("/proc/{}/status", hello.pid)).unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    println!("{} connections: {kilobytes} kB", held.len());
    assert!(kilobytes < MEGABYTES * 1024, "{kilobytes} kB");
}
