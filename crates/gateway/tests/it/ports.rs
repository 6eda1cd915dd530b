//! Connections to other ports.

use cove_model::egress::EgressVerdict;

use crate::client::{ask, connect, exchange, get, hello, is_denied};
use crate::world::{DATABASE, EVIL, GOOD, HOST, PRIVATE, World};

#[test]
fn a_server_that_speaks_first_is_reached_by_its_name_and_port() {
    let world = World::new(&["db.example:5432"]);
    let answer = world.inside(|| {
        assert_eq!(ask("db.example").addresses, vec![DATABASE]);
        exchange(connect(DATABASE, 5432), b"")
    });
    assert_eq!(answer.unwrap(), format!("from {DATABASE}:5432\n"));
    let entry = world.logged("db.example", EgressVerdict::Allowed);
    assert_eq!(entry.rule, "db.example:5432");
}

#[test]
fn an_exact_name_needs_no_question_before() {
    let world = World::new(&["db.example:5432"]);
    let answer = world.inside(|| exchange(connect(DATABASE, 5432), b""));
    assert_eq!(answer.unwrap(), format!("from {DATABASE}:5432\n"));
}

#[test]
fn other_addresses_and_other_ports_are_reset() {
    let world = World::new(&["db.example:5432", "good.example"]);
    world.inside(|| {
        ask("db.example");
        ask("good.example");
        for (address, port) in [(EVIL, 5432), (DATABASE, 5433), (GOOD, 22), (GOOD, 5432)] {
            let answer = exchange(connect(address, port), b"");
            assert!(is_denied(&answer), "{address}:{port}: {answer:?}");
        }
    });
    world.denied_at(EVIL);
    assert!(!world.seen.connected(EVIL) && !world.seen.connected(GOOD));
}

#[test]
fn an_address_shared_with_an_allowed_name_is_only_open_on_that_names_port() {
    let world = World::new(&["*.good.example:22"]);
    world.inside(|| {
        let before = exchange(connect(GOOD, 22), b"");
        assert!(is_denied(&before), "nobody was told that address");
        ask("also.good.example");
        assert_eq!(
            exchange(connect(GOOD, 22), b"").unwrap(),
            format!("from {GOOD}:22\n")
        );
        assert!(is_denied(&exchange(connect(GOOD, 443), b"\x16")));
    });
}

#[test]
fn listed_blocks_open_their_ports_and_the_host_is_never_among_them() {
    let world = World::new(&["10.66.0.0/24:5432", "203.0.113.0/24"]);
    world.inside(|| {
        assert_eq!(
            exchange(connect(PRIVATE, 5432), b"").unwrap(),
            format!("from {PRIVATE}:5432\n")
        );
        assert!(is_denied(&exchange(connect(PRIVATE, 22), b"")));
        assert!(is_denied(&exchange(connect(HOST, 5432), b"")));
    });
    assert!(!world.seen.connected(HOST));
    world.allow(&["203.0.113.2:5432"]);
    let answer = world.inside(|| exchange(connect(HOST, 5432), b""));
    assert!(
        answer.unwrap().starts_with("from "),
        "listed by itself it is"
    );
}

#[test]
fn a_private_address_listed_for_one_port_is_not_reached_on_others_through_a_name() {
    let world = World::new(&["internal.example", "10.66.0.1:5432"]);
    world.inside(|| {
        assert_eq!(ask("internal.example").addresses, vec![PRIVATE]);
        let (tls, web) = (hello("internal.example"), get("internal.example"));
        for (port, said) in [(443, tls), (80, web)] {
            let answer = exchange(connect(PRIVATE, port), &said);
            let reached = answer.as_ref().is_ok_and(|text| text.contains("from "));
            assert!(!reached, "port {port}: {answer:?}");
        }
    });
    let connections = world.seen.connections.lock().unwrap().clone();
    assert!(connections.is_empty(), "{connections:?}");
    let answer = world.inside(|| exchange(connect(PRIVATE, 5432), b""));
    assert_eq!(answer.unwrap(), format!("from {PRIVATE}:5432\n"));
}

#[test]
fn a_port_that_nobody_listens_on_fails_at_once() {
    let world = World::new(&["203.0.113.10:1"]);
    let answer = world.inside(|| exchange(connect(GOOD, 1), b""));
    assert!(is_denied(&answer), "{answer:?}");
}
