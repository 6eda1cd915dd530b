//! The resolver.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::time::Instant;

use cove_gateway::dns::wire::{self, NO_ERROR, NO_SUCH_NAME, REFUSED};
use cove_gateway::limits::Limits;
use cove_model::egress::EgressVerdict;
use cove_model::{NetworkMode, NetworkPolicy, SandboxId};

use crate::client::{
    ask, ask_bytes, connect, connect_from, exchange, hello, is_cut, is_denied, odd_query, query,
    read_answer,
};
use crate::world::{
    EVIL, GATEWAY, GOOD, NEIGHBOUR, PRIVATE, RESOLVER, SANDBOX, STRANGER, World, allowing,
};

#[test]
fn allowed_names_are_answered_and_logged() {
    let world = World::new(&["good.example", "*.good.example"]);
    let (exact, below) = world.inside(|| (ask("good.example"), ask("also.good.example")));
    assert_eq!(
        (exact.code, &exact.addresses),
        (NO_ERROR, &vec![GOOD]),
        "{}",
        String::from_utf8_lossy(&exact.bytes)
    );
    assert_eq!(below.addresses, vec![GOOD]);
    let entry = world.logged("also.good.example", EgressVerdict::Allowed);
    assert_eq!(entry.rule, "*.good.example");
    assert_eq!(entry.address, Some(GOOD.into()));
}

#[test]
fn refused_names_never_leave_the_host() {
    let world = World::new(&["good.example"]);
    let names = [
        "evil.example",
        "c2vjcmv0.evil.example",
        "also.good.example",
        "good.example.evil.example",
        "notgood.example",
    ];
    for name in names {
        let said = world.inside(|| ask(name));
        assert_eq!(said.code, REFUSED, "{name}");
        let text = String::from_utf8_lossy(&said.bytes).into_owned();
        assert!(text.contains("not in the allow list"), "{text:?}");
        world.logged(name, EgressVerdict::Denied);
    }
    assert_eq!(world.seen.questions.lock().unwrap().len(), 0);
}

#[test]
fn other_resolvers_are_ours_as_well() {
    let world = World::new(&["good.example"]);
    for server in [RESOLVER, EVIL] {
        let question = query("evil.example", wire::A);
        let said = world.inside(|| ask_bytes(SANDBOX, server, &question).unwrap());
        assert_eq!(said.code, REFUSED);
    }
    assert!(!world.seen.asked("evil.example"));
}

#[test]
fn questions_over_tcp_get_the_same_answers() {
    let world = World::new(&["good.example"]);
    world.inside(|| {
        let mut stream = connect_from(SANDBOX, RESOLVER, 53).unwrap();
        for (name, code) in [("good.example", NO_ERROR), ("evil.example", REFUSED)] {
            let question = query(name, wire::A);
            let length = (question.len() as u16).to_be_bytes();
            stream
                .write_all(&[&length[..], &question].concat())
                .unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(read_answer(&answer).code, code, "{name}");
        }
        // A length that no question has ends the stream.
        stream.write_all(&[0xff, 0xff]).unwrap();
        assert!(is_cut(&stream.read(&mut [0; 16])));
    });
    assert!(!world.seen.asked("evil.example"));
}

#[test]
fn names_with_tricks_in_them_are_refused() {
    let world = World::new(&["good.example", "*.good.example"]);
    for labels in [
        &[&b"evil\0"[..], b"good", b"example"][..],
        &[b"good.example"],
        &[b"evil", b"example\0good", b"example"],
        &[b"evil.example.", b"good", b"example"],
        &[b"a b", b"good", b"example"],
        &[b"\xc3\xbc", b"good", b"example"],
        &[],
    ] {
        let question = odd_query(labels);
        let said = world.inside(|| ask_bytes(SANDBOX, GATEWAY, &question).unwrap());
        assert_eq!(said.code, REFUSED, "{labels:?}");
    }
    // Case is no trick.
    let question = odd_query(&[b"GooD", b"eXample"]);
    let said = world.inside(|| ask_bytes(SANDBOX, GATEWAY, &question).unwrap());
    assert_eq!(said.addresses, vec![GOOD]);
    assert_eq!(
        &said.bytes[13..17],
        b"GooD",
        "the question comes back as it was"
    );
}

#[test]
fn answers_that_lead_inwards_are_kept_back() {
    let world = World::new(&[
        "internal.example",
        "rebind.example",
        "metadata.example",
        "sandbox.example",
        "mixed.example",
    ]);
    world.name("mixed.example", &[GOOD, Ipv4Addr::new(192, 168, 1, 1)]);
    for name in [
        "internal.example",
        "rebind.example",
        "metadata.example",
        "sandbox.example",
    ] {
        let said = world.inside(|| ask(name));
        assert_eq!((said.code, said.records), (REFUSED, 0), "{name}");
        let entry = world.logged(name, EgressVerdict::Denied);
        assert!(entry.rule.contains("address"), "{}", entry.rule);
    }
    let said = world.inside(|| ask("mixed.example"));
    assert_eq!(said.addresses, vec![GOOD]);
}

#[test]
fn a_listed_block_opens_private_answers_but_never_loopback() {
    let world = World::new(&[
        "internal.example",
        "rebind.example",
        "10.66.0.0/16",
        "0.0.0.0/0",
    ]);
    let (private, loopback) = world.inside(|| (ask("internal.example"), ask("rebind.example")));
    assert_eq!(private.addresses, vec![PRIVATE]);
    assert_eq!(loopback.code, REFUSED);
}

#[test]
fn there_is_no_ipv6_and_no_key_for_encrypted_hellos() {
    const HTTPS: u16 = 65;
    const SVCB: u16 = 64;
    const ANY: u16 = 255;
    let world = World::new(&["good.example"]);
    for kind in [wire::AAAA, HTTPS, SVCB, ANY] {
        let question = query("good.example", kind);
        let said = world.inside(|| ask_bytes(SANDBOX, GATEWAY, &question).unwrap());
        assert_eq!((said.code, said.records), (NO_ERROR, 0), "{kind}");
    }
    assert!(!world.seen.asked("good.example"));
    let question = query("good.example", wire::TXT);
    let said = world.inside(|| ask_bytes(SANDBOX, GATEWAY, &question).unwrap());
    assert_eq!((said.code, said.records), (NO_ERROR, 1));
}

#[test]
fn names_that_do_not_exist_say_so() {
    let world = World::new(&["*.example"]);
    assert_eq!(world.inside(|| ask("nothing.example")).code, NO_SUCH_NAME);
}

#[test]
fn a_stranger_is_refused_and_a_neighbour_has_its_own_policy() {
    let world = World::new(&["good.example"]);
    let neighbour = SandboxId::random();
    let id = neighbour.clone();
    world.on_host(async move |gateway: cove_gateway::host::Gateway| {
        let policy = allowing(&["evil.example"]);
        gateway.set_policy(NEIGHBOUR, &id, &policy).await.unwrap();
    });
    let code = |from, name| {
        let question = query(name, wire::A);
        world.inside(|| ask_bytes(from, GATEWAY, &question).unwrap().code)
    };
    assert_eq!(code(STRANGER, "good.example"), REFUSED);
    assert_eq!(code(NEIGHBOUR, "good.example"), REFUSED);
    assert_eq!(code(NEIGHBOUR, "evil.example"), NO_ERROR);
    assert_eq!(code(SANDBOX, "good.example"), NO_ERROR);
    assert_eq!(code(SANDBOX, "evil.example"), REFUSED);
    let names: Vec<_> = world.log().into_iter().filter_map(|it| it.name).collect();
    assert_eq!(names, ["good.example", "evil.example"]);
}

#[test]
fn open_answers_everything_but_what_leads_inwards() {
    let world = World::new(&[]);
    let set = |mode| {
        let (id, policy) = (
            world.id.clone(),
            NetworkPolicy {
                mode,
                ..NetworkPolicy::default()
            },
        );
        world.on_host(async move |gateway: cove_gateway::host::Gateway| {
            gateway.set_policy(SANDBOX, &id, &policy).await.unwrap();
        });
    };
    set(NetworkMode::Open);
    let (evil, private) = world.inside(|| (ask("evil.example"), ask("internal.example")));
    assert_eq!(evil.addresses, vec![EVIL]);
    assert_eq!(private.code, REFUSED);
    set(NetworkMode::None);
    assert_eq!(world.inside(|| ask("evil.example")).code, REFUSED);
}

#[test]
fn open_asks_for_addresses_alone_and_tells_of_no_private_one() {
    let world = World::new(&[]);
    let (id, policy) = (
        world.id.clone(),
        NetworkPolicy {
            mode: NetworkMode::Open,
            ..NetworkPolicy::default()
        },
    );
    world.on_host(async move |gateway: cove_gateway::host::Gateway| {
        gateway.set_policy(SANDBOX, &id, &policy).await.unwrap();
    });
    // Records of names that only the host's resolvers know tell of its network as addresses do.
    let forwarded = [
        wire::NS,
        wire::CNAME,
        wire::SOA,
        wire::PTR,
        wire::MX,
        wire::TXT,
        wire::SRV,
        wire::CAA,
    ];
    for kind in forwarded {
        let question = query("good.example", kind);
        let said = world.inside(|| ask_bytes(SANDBOX, GATEWAY, &question).unwrap());
        let got = (said.code, said.records);
        assert_eq!(got, (wire::NOT_IMPLEMENTED, 0), "{kind}");
    }
    // NULL, AAAA, HTTPS, ANY: as ever, nothing, which is not an error.
    for kind in [10, wire::AAAA, 65, 255] {
        let question = query("good.example", kind);
        let said = world.inside(|| ask_bytes(SANDBOX, GATEWAY, &question).unwrap());
        assert_eq!((said.code, said.records), (NO_ERROR, 0), "{kind}");
    }
    assert!(!world.seen.asked("good.example"));
    assert_eq!(world.inside(|| ask("good.example")).addresses, vec![GOOD]);

    let private = world.inside(|| ask("internal.example"));
    assert_eq!((private.code, private.records), (REFUSED, 0));
    let said = String::from_utf8_lossy(&private.bytes).into_owned();
    assert!(!said.contains(&PRIVATE.to_string()), "{said}");
    let entry = world.logged("internal.example", EgressVerdict::Denied);
    assert_eq!(entry.address, None);
    let log = format!("{:?}", world.log());
    assert!(!log.contains(&PRIVATE.to_string()), "{log}");
}

#[test]
fn a_tunnel_through_an_allowed_suffix_is_throttled_and_logged() {
    let limits = Limits {
        tunnel_bytes_burst: 200,
        tunnel_bytes_per_second: 1,
        ..Limits::default()
    };
    let world = World::with(&["*.evil.example", "good.example"], limits);
    let refused = world.inside(|| {
        (0..20)
            .filter(|number| {
                ask(&format!("{}{number:02}.evil.example", "x".repeat(48))).code == REFUSED
            })
            .count()
    });
    assert!(refused >= 14, "{refused}");
    // A question that had no answer in time is asked again, with the same name.
    let carried: BTreeSet<String> = world.seen.questions.lock().unwrap().drain(..).collect();
    assert!(carried.len() <= 6, "{carried:?}");
    let told = world
        .log()
        .into_iter()
        .any(|it| it.rule.contains("too many new names"));
    assert!(told);
    // Names of its own, and known ones, are not held back by it.
    assert_eq!(world.inside(|| ask("good.example")).code, NO_ERROR);
}

#[test]
fn a_flood_of_questions_is_bounded() {
    let limits = Limits {
        queries_burst: 10,
        queries_per_second: 1,
        ..Limits::default()
    };
    let world = World::with(&["good.example"], limits);
    let begun = Instant::now();
    let answered = world.inside(|| {
        (0..40)
            .filter(|_| ask("good.example").code == NO_ERROR)
            .count()
    });
    // One more for every second that the questions took.
    let refilled = begun.elapsed().as_secs() as usize + 1;
    assert!((10..=10 + refilled).contains(&answered), "{answered}");
}

#[test]
fn broken_questions_do_not_stop_the_resolver() {
    let world = World::new(&["good.example"]);
    world.inside(|| {
        let socket = std::net::UdpSocket::bind((SANDBOX, 0)).unwrap();
        socket.connect((GATEWAY, 53)).unwrap();
        for length in 0..200 {
            socket.send(&vec![0xff; length]).unwrap();
            socket.send(&vec![0; length * 20]).unwrap();
        }
    });
    assert_eq!(world.inside(|| ask("good.example")).code, NO_ERROR);
}

#[test]
fn encrypted_questions_to_other_resolvers_are_refused() {
    let world = World::new(&["good.example", "*.good.example"]);
    world.inside(|| {
        ask("good.example");
        for address in [GOOD, EVIL, RESOLVER] {
            // Over TLS, also with a name that is allowed on its own ports.
            for name in ["dns.evil.example", "good.example"] {
                let answer = exchange(connect(address, 853), &hello(name));
                assert!(is_denied(&answer), "{address} {name}: {answer:?}");
            }
            // Over HTTPS and HTTP, to servers that are resolvers by name or by address.
            for name in ["dns.evil.example", "evil.example", ""] {
                let answer = exchange(connect(address, 443), &hello(name));
                assert!(is_denied(&answer), "{address} {name}: {answer:?}");
            }
            let question = "GET /dns-query?dns=AAAB HTTP/1.1\r\nHost: dns.evil.example\r\n\r\n";
            let answer = exchange(connect(address, 80), question.as_bytes()).unwrap();
            assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        }
    });
    assert!(!world.seen.connected(EVIL) && !world.seen.connected(GOOD));
    assert!(!world.seen.asked("dns.evil.example"));
}
