//! Connections to port 443.

use std::io::{Read, Write};

use cove_model::egress::EgressVerdict;

use crate::client::{
    connect, connect_from, exchange, extension, hello, hello_of, is_cut, is_denied, server_name,
};
use crate::world::{
    EVIL, GATEWAY, GOOD, HOST, NEIGHBOUR, PRIVATE, SINK, STRANGER, World, wait_for,
};

#[test]
fn an_allowed_name_is_dialled_by_us_and_carried_both_ways() {
    let world = World::new(&["good.example"]);
    let sent = hello("good.example");
    let length = sent.len() as u64;
    world.inside(|| {
        let mut stream = connect(GOOD, 443).unwrap();
        stream.write_all(&sent).unwrap();
        let mut line = vec![0; format!("from {GOOD}:443\n").len()];
        stream.read_exact(&mut line).unwrap();
        assert_eq!(
            String::from_utf8(line).unwrap(),
            format!("from {GOOD}:443\n")
        );
        let mut echoed = vec![0; sent.len()];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, sent, "the hello arrives as it was");
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "ends are passed on");
    });
    let entry = wait_for("the end of the connection", || {
        let entry = world.logged("good.example", EgressVerdict::Allowed);
        (entry.sent_bytes > 0).then_some(entry)
    });
    assert_eq!((entry.address, entry.port), (Some(GOOD.into()), Some(443)));
    assert_eq!(entry.sent_bytes, length);
    assert_eq!(
        entry.received_bytes,
        length + format!("from {GOOD}:443\n").len() as u64
    );
}

#[test]
fn an_allowed_name_sent_to_another_address_reaches_only_its_own() {
    let world = World::new(&["good.example"]);
    let answer = world.inside(|| exchange(connect(EVIL, 443), &hello("good.example")));
    assert!(answer.unwrap().contains(&format!("from {GOOD}:443")));
    assert!(!world.seen.connected(EVIL));
}

#[test]
fn names_that_are_not_listed_are_denied_at_once() {
    let world = World::new(&["good.example"]);
    for name in [
        "evil.example",
        "also.good.example",
        "good.example.evil.example",
        "good.example\0.evil.example",
        "good.example..",
        "203.0.113.20",
        "0xcb007114",
        "3405803796",
        "[::ffff:203.0.113.20]",
        "",
    ] {
        let answer = world.inside(|| exchange(connect(EVIL, 443), &hello(name)));
        assert!(is_denied(&answer), "{name:?}: {answer:?}");
        world.denied_at(EVIL);
    }
    // Case and one trailing dot are the same name.
    for name in ["GOOD.example", "good.example."] {
        let answer = world.inside(|| exchange(connect(EVIL, 443), &hello(name)));
        assert!(answer.unwrap().contains(&GOOD.to_string()), "{name:?}");
    }
    assert!(!world.seen.connected(EVIL));
}

#[test]
fn hellos_without_a_name_and_what_is_no_hello_are_denied() {
    let world = World::new(&["good.example"]);
    let two = [
        &server_name(b"good.example")[..],
        &server_name(b"evil.example"),
    ]
    .concat();
    for bytes in [
        hello_of(&[], 16_000),
        hello_of(&[two], 16_000),
        b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH\r\n".to_vec(),
        vec![0; 100],
    ] {
        let answer = world.inside(|| exchange(connect(GOOD, 443), &bytes));
        assert!(is_denied(&answer), "{bytes:?}: {answer:?}");
    }
    assert!(!world.seen.connected(GOOD));
}

#[test]
fn a_hello_cut_into_pieces_is_put_together() {
    let world = World::new(&["good.example"]);
    for (name, expected) in [("good.example", true), ("evil.example", false)] {
        let bytes = hello_of(&[server_name(name.as_bytes())], 3);
        let answer = world.inside(|| {
            let mut stream = connect(EVIL, 443).unwrap();
            stream.set_nodelay(true).unwrap();
            for byte in &bytes[..bytes.len() - 1] {
                if stream.write_all(&[*byte]).is_err() {
                    break;
                }
            }
            exchange(Ok(stream), &bytes[bytes.len() - 1..])
        });
        let carried = answer
            .as_ref()
            .is_ok_and(|text| text.contains(&GOOD.to_string()));
        assert_eq!(carried, expected, "{name}: {answer:?}");
    }
}

#[test]
fn the_outer_name_decides_over_an_encrypted_hello() {
    const ENCRYPTED: u16 = 0xfe0d;
    let world = World::new(&["good.example"]);
    let noise = extension(ENCRYPTED, &[0; 150]);
    let with = |name: &str| hello_of(&[noise.clone(), server_name(name.as_bytes())], 16_000);
    let answer = world.inside(|| exchange(connect(GOOD, 443), &with("good.example")));
    assert!(answer.unwrap().contains(&GOOD.to_string()));
    let answer = world.inside(|| exchange(connect(EVIL, 443), &with("evil.example")));
    assert!(is_denied(&answer));
}

#[test]
fn a_name_that_leads_inwards_is_not_dialled() {
    let world = World::new(&[
        "internal.example",
        "rebind.example",
        "host.example",
        "sandbox.example",
    ]);
    for name in [
        "internal.example",
        "rebind.example",
        "host.example",
        "sandbox.example",
    ] {
        let answer = world.inside(|| exchange(connect(GOOD, 443), &hello(name)));
        assert!(is_denied(&answer), "{name}: {answer:?}");
        world.logged(name, EgressVerdict::Denied);
    }
    assert!(!world.seen.connected(PRIVATE) && !world.seen.connected(HOST));
}

#[test]
fn no_list_opens_where_sandboxes_and_the_gateway_live() {
    let world = World::new(&["sandbox.example", "gateway.example", "10.200.0.0/16"]);
    world.name("gateway.example", &[GATEWAY]);
    for name in ["sandbox.example", "gateway.example"] {
        let answer = world.inside(|| exchange(connect(GOOD, 443), &hello(name)));
        assert!(is_denied(&answer), "{name}: {answer:?}");
        // Not tried and failed: refused.
        let entry = wait_for("the refusal is logged", || {
            let mut log = world.log().into_iter();
            log.find(|entry| entry.name.as_deref() == Some(name) && entry.port == Some(443))
        });
        assert_eq!(entry.verdict, EgressVerdict::Denied, "{entry:?}");
        let said = world.inside(|| crate::client::ask(name));
        assert!(said.addresses.is_empty(), "{name} is told");
    }
}

#[test]
fn a_name_that_is_rebound_after_its_answer_is_not_followed_inwards() {
    let world = World::new(&["turncoat.example"]);
    world.name("turncoat.example", &[GOOD]);
    let said = world.inside(|| crate::client::ask("turncoat.example"));
    assert_eq!(said.addresses, vec![GOOD]);
    world.name("turncoat.example", &[PRIVATE]);
    let answer = world.inside(|| exchange(connect(PRIVATE, 443), &hello("turncoat.example")));
    assert!(!answer.is_ok_and(|text| text.contains(&PRIVATE.to_string())));
    assert!(!world.seen.connected(PRIVATE));
}

#[test]
fn a_listed_address_needs_no_name() {
    let world = World::new(&["203.0.113.10", "10.66.0.0/24:443"]);
    for (address, expected) in [(GOOD, true), (PRIVATE, true), (EVIL, false)] {
        let answer = world.inside(|| exchange(connect(address, 443), b"anything\n"));
        let carried = answer.is_ok_and(|text| text.contains(&format!("from {address}")));
        assert_eq!(carried, expected, "{address}");
    }
}

#[test]
fn strangers_and_those_who_dial_the_gateway_itself_are_reset() {
    let world = World::new(&["good.example"]);
    for (from, to, port) in [
        (STRANGER, GOOD, 443),
        (NEIGHBOUR, GOOD, 443),
        (crate::world::SANDBOX, GATEWAY, 4443),
    ] {
        let answer =
            world.inside(|| exchange(connect_from(from, to, port), &hello("good.example")));
        assert!(is_denied(&answer), "{from} {to}: {answer:?}");
    }
    assert!(!world.seen.connected(GOOD));
}

#[test]
fn a_policy_change_cuts_what_it_forbids_and_leaves_the_rest() {
    let world = World::new(&["good.example", "also.good.example"]);
    let (mut kept, mut ended) = world.inside(|| {
        let open = |name: &str| {
            let mut stream = connect(GOOD, 443).unwrap();
            stream.write_all(&hello(name)).unwrap();
            let mut line = vec![0; format!("from {GOOD}:443\n").len()];
            stream.read_exact(&mut line).unwrap();
            let mut echoed = vec![0; hello(name).len()];
            stream.read_exact(&mut echoed).unwrap();
            stream
        };
        (open("good.example"), open("also.good.example"))
    });
    world.allow(&["good.example"]);
    assert!(is_cut(&ended.read(&mut [0; 8])));
    kept.write_all(b"still here").unwrap();
    let mut echoed = [0; 10];
    kept.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"still here");
    let answer = world.inside(|| exchange(connect(GOOD, 443), &hello("also.good.example")));
    assert!(is_denied(&answer));
}

#[test]
fn a_connection_by_name_to_a_private_address_ends_when_that_address_is_listed_no_more() {
    let world = World::new(&["internal.example", "10.66.0.0/24:443"]);
    let mut stream = world.inside(|| {
        // To another address, so that the name alone decides.
        let mut stream = connect(GOOD, 443).unwrap();
        stream.write_all(&hello("internal.example")).unwrap();
        let mut line = vec![0; format!("from {PRIVATE}:443\n").len()];
        stream.read_exact(&mut line).unwrap();
        assert!(line.starts_with(format!("from {PRIVATE}").as_bytes()));
        stream
    });
    world.allow(&["internal.example"]);
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    assert!(is_cut(&ended.map(|_| 0)), "it is carried on");
}

#[test]
fn many_bytes_arrive_as_they_were() {
    const BYTES: usize = 8 << 20;
    let world = World::new(&["good.example"]);
    let sum = world.inside(|| {
        let mut stream = connect(GOOD, 443).unwrap();
        stream.write_all(&hello("good.example")).unwrap();
        let mut skipped = vec![0; format!("from {GOOD}:443\n").len() + hello("good.example").len()];
        stream.read_exact(&mut skipped).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            let block: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
            writer.write_all(&block).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        sender.join().unwrap();
        assert_eq!(received.len(), BYTES);
        received
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == (at % 251) as u8)
    });
    assert!(sum);
}

#[test]
fn an_end_of_sending_is_passed_on_and_the_answer_still_comes() {
    let world = World::new(&["sink.example"]);
    let answer = world.inside(|| {
        let mut stream = connect(SINK, 443).unwrap();
        stream.write_all(&hello("sink.example")).unwrap();
        stream.write_all(&[7; 100_000]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    });
    assert_eq!(answer.unwrap(), "done\n");
}
