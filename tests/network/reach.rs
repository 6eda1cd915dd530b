//! What each mode lets through, and how refusals look from inside.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use cove_model::{NetworkMode, NetworkPolicy};

use crate::bare::Bare;
use crate::world::*;

#[test]
fn an_open_sandbox_reaches_the_internet_with_the_hosts_address() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    let mut stream = sandbox
        .inside
        .connect(PUBLIC, ECHO)
        .expect("the internet is open");
    assert_eq!(exchange(&mut stream, "hi").unwrap(), format!("{HOST} hi"));
    let text = echo(&sandbox.inside.udp(), PUBLIC, 443, "quic").unwrap();
    assert_eq!(text, format!("{HOST} quic"));
    ping(&sandbox.inside, PUBLIC).expect("an answer comes");
}

#[test]
fn a_sandbox_without_a_network_is_told_no_at_once() {
    let bare = Bare::new();
    let sandbox = bare.sandbox();
    for (address, port) in [(PUBLIC, ECHO), (PRIVATE, ECHO), (HOST, ECHO)] {
        let refused = sandbox.inside.connect(address, port).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{address}");
        let refused = echo(&sandbox.inside.udp(), address, port, "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "{address}");
        assert_eq!(
            ping(&sandbox.inside, address).unwrap_err().kind(),
            ErrorKind::HostUnreachable
        );
    }
}

#[test]
fn an_open_sandbox_reaches_no_private_network_unless_it_is_listed() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    for address in [PRIVATE, METADATA, SHARED] {
        assert!(sandbox.inside.connect(address, ECHO).is_err(), "{address}");
        assert!(
            echo(&sandbox.inside.udp(), address, ECHO, "x").is_err(),
            "{address}"
        );
    }
    sandbox.set(NetworkMode::Open, &["10.9.8.0/24:7"]);
    let mut stream = sandbox.inside.connect(PRIVATE, ECHO).expect("it is listed");
    exchange(&mut stream, "x").unwrap();
    echo(&sandbox.inside.udp(), PRIVATE, ECHO, "x").expect("it is listed");
    assert!(
        sandbox.inside.connect(PRIVATE, 443).is_err(),
        "another port"
    );
    assert!(
        sandbox.inside.connect(METADATA, ECHO).is_err(),
        "another network"
    );
    sandbox
        .inside
        .connect(PUBLIC, 443)
        .expect("the internet is open as before");
}

#[test]
fn a_listed_sandbox_sends_datagrams_only_where_its_entries_say() {
    let bare = Bare::new();
    let sandbox = bare.sandbox();
    sandbox.set(NetworkMode::Allowlist, &["1.2.3.4:7", "10.9.8.7"]);
    echo(&sandbox.inside.udp(), PUBLIC, ECHO, "x").expect("it is listed");
    echo(&sandbox.inside.udp(), PRIVATE, 443, "x").expect("every port is listed");
    for (address, port) in [
        (PUBLIC, 443),
        (OTHER_PUBLIC, ECHO),
        (METADATA, ECHO),
        (HOST, ECHO),
    ] {
        let refused = echo(&sandbox.inside.udp(), address, port, "x").unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::HostUnreachable,
            "{address}:{port}"
        );
    }
    assert!(ping(&sandbox.inside, PUBLIC).is_err());
}

#[test]
fn with_the_gateway_dead_a_listed_sandbox_reaches_nothing_over_tcp() {
    let bare = Bare::new();
    let sandbox = bare.sandbox();
    sandbox.set(NetworkMode::Allowlist, &["1.2.3.4", "example.com"]);
    for (address, port) in [
        (PUBLIC, ECHO),
        (PUBLIC, 443),
        (OTHER_PUBLIC, ECHO),
        (HOST, ECHO),
    ] {
        let refused = sandbox.inside.connect(address, port).unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::ConnectionRefused,
            "{address}:{port}"
        );
    }
    // Nor does a question get anywhere.
    let unanswered = echo(&sandbox.inside.udp(), sandbox.gateway(), 53, "x").unwrap_err();
    assert_eq!(unanswered.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn bandwidth_is_limited_both_ways_and_can_be_lifted() {
    const BYTES: usize = 2_000_000;
    // Eight megabits are a megabyte a second; the burst is far below the rest.
    const AT_LEAST: Duration = Duration::from_millis(1200);
    let bare = Bare::new();
    let sandbox = bare.sandbox();
    let limited = |up, down| NetworkPolicy {
        mode: NetworkMode::Open,
        allow: None,
        bandwidth_up_mbit: up,
        bandwidth_down_mbit: down,
    };
    let sink = Transfers::serve(&bare.world.internet, PUBLIC, 900);
    let took = |upload: bool| {
        let stream = sandbox
            .inside
            .connect(PUBLIC, sink.port)
            .expect("it is open");
        let begin = Instant::now();
        transfer(stream, upload, BYTES);
        begin.elapsed()
    };
    sandbox.apply(&limited(Some(8), None));
    assert!(took(true) >= AT_LEAST, "sending is not limited");
    sandbox.apply(&limited(None, Some(8)));
    assert!(took(false) >= AT_LEAST, "receiving is not limited");
    sandbox.apply(&limited(None, None));
    let (_, shown) = sandbox.inside.program("tc qdisc show dev eth0");
    assert!(!shown.contains("tbf"), "{shown}");
    took(true);
    took(false);
}
