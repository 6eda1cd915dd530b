//! Policies that change under open connections, rules that are made again or taken away.

use std::io::{Read, Write};

use cove_model::{NetworkMode, NetworkPolicy};

use crate::bare::Bare;
use crate::world::*;

#[test]
fn connections_that_a_new_policy_forbids_are_cut_both_ways() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    sandbox.set(NetworkMode::Open, &["10.9.8.7"]);
    let mut public = sandbox.inside.connect(PUBLIC, ECHO).expect("it is open");
    let mut private = sandbox.inside.connect(PRIVATE, ECHO).expect("it is listed");
    exchange(&mut public, "before").unwrap();
    exchange(&mut private, "before").unwrap();
    let talker = Talker::serve(&bare.world.internet, PRIVATE, 901);
    let mut listening = sandbox
        .inside
        .connect(PRIVATE, talker.port)
        .expect("it is listed");
    let mut byte = [0];
    listening.read_exact(&mut byte).expect("it talks");

    sandbox.set(NetworkMode::Open, &[]);
    assert!(exchange(&mut private, "after").is_err());
    // What allowed ones carry goes on.
    assert_eq!(
        exchange(&mut public, "after").unwrap(),
        format!("{HOST} after")
    );
    // What the other side still says does not come in: at most what was on its way before.
    listening
        .set_read_timeout(Some(SILENCE))
        .expect("a timeout can be set");
    let mut rest = [0; 65_536];
    let mut quiet = false;
    for _ in 0..1000 {
        match listening.read(&mut rest) {
            Ok(read) if read > 0 => {}
            _ => {
                quiet = true;
                break;
            }
        }
    }
    assert!(quiet, "a forbidden connection still brings bytes");

    sandbox.set(NetworkMode::None, &[]);
    assert!(exchange(&mut public, "after").is_err());
}

#[test]
fn a_change_is_in_force_when_it_returns() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    for _ in 0..20 {
        sandbox.set(NetworkMode::None, &[]);
        assert!(sandbox.inside.connect(PUBLIC, ECHO).is_err());
        sandbox.set(NetworkMode::Open, &[]);
        sandbox.inside.connect(PUBLIC, ECHO).expect("it is open");
    }
}

#[test]
fn an_interface_that_was_left_half_made_counts_for_none_and_is_made_anew() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    assert!(cove_network::is_attached(sandbox.inside.fd()).unwrap());
    // As an engine leaves it that dies before its last step.
    sandbox.inside.ip("route del default");
    assert!(!cove_network::is_attached(sandbox.inside.fd()).unwrap());
    let network = &bare.network;
    bare.world
        .host
        .enter(|| network.attach(sandbox.index, sandbox.inside.fd()))
        .expect("it is attached again");
    assert!(cove_network::is_attached(sandbox.inside.fd()).unwrap());
    assert!(sandbox.inside.connect(PUBLIC, ECHO).is_err());
    sandbox.set(NetworkMode::Open, &[]);
    sandbox.inside.connect(PUBLIC, ECHO).expect("it is open");
}

#[test]
fn the_resolvers_address_is_inside_only_while_the_network_is_off() {
    let bare = Bare::new();
    let sandbox = bare.sandbox();
    let network = &bare.network;
    let is_inside = || {
        let (_, routes) = sandbox.inside.program("ip route show table local");
        routes.contains(&format!("local {} ", sandbox.gateway()))
    };
    let keep = |inside| {
        bare.world
            .host
            .enter(|| network.keep_names_inside(sandbox.index, sandbox.inside.fd(), inside))
            .expect("it moves");
    };
    for inside in [true, true, false, false, true] {
        keep(inside);
        assert_eq!(is_inside(), inside);
    }
    // As a guest without an interface has it when its first network comes.
    sandbox.inside.ip("link del eth0");
    assert!(is_inside());
    bare.world
        .host
        .enter(|| network.attach(sandbox.index, sandbox.inside.fd()))
        .expect("it is attached");
    assert!(!is_inside());
    sandbox.set(NetworkMode::Open, &[]);
    sandbox.inside.connect(PUBLIC, ECHO).expect("it is open");
}

#[test]
fn nothing_is_attached_where_no_rules_are() {
    let world = World::new();
    let inside = Namespace::new("box");
    world.host.enter(|| {
        let network = Bare::open();
        let refused = network.attach(28_000, inside.fd()).unwrap_err();
        assert!(refused.to_string().contains("rules"), "{refused}");
        network.build().expect("the rules are made");
        network.attach(28_000, inside.fd()).expect("it is attached");
        network.release(28_000).expect("it is released");
        network.close();
        network.attach(28_000, inside.fd()).unwrap_err();
    });
}

#[test]
fn making_all_rules_again_neither_cuts_nor_opens_anything() {
    let bare = Bare::new();
    let (open, closed) = (bare.open_sandbox(), bare.sandbox());
    let mut stream = open.inside.connect(PUBLIC, ECHO).expect("it is open");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bare.world.host.enter(|| {
                for _ in 0..100 {
                    bare.network.build().expect("the rules are made again");
                }
            });
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            assert!(
                closed.inside.connect(PUBLIC, ECHO).is_err(),
                "open for a moment"
            );
            exchange(&mut stream, "x").expect("it goes on");
        }
    });
}

#[test]
fn flushing_the_hosts_rules_does_not_open_sandboxes() {
    let bare = Bare::new();
    let (open, closed) = (bare.open_sandbox(), bare.sandbox());
    let (flushed, said) = bare.world.host.program("nft flush ruleset");
    assert!(flushed, "{said}");
    assert!(closed.inside.connect(PUBLIC, ECHO).is_err());
    let mut stream = open
        .inside
        .connect(PUBLIC, ECHO)
        .expect("our table was spared");
    exchange(&mut stream, "x").unwrap();
}

#[test]
fn sandboxes_whose_rules_are_gone_reach_nothing() {
    let Bare { network, world } = Bare::new();
    let table = cove_network::table_name("0badcafe");
    let inside = Namespace::new("box");
    let id = cove_model::SandboxId::random();
    let open = NetworkPolicy {
        mode: NetworkMode::Open,
        ..NetworkPolicy::default()
    };
    world.host.enter(|| {
        network
            .attach(60_000, inside.fd())
            .expect("a sandbox is attached");
        network
            .set(60_000, inside.fd(), &id, &open)
            .expect("the policy is set");
    });
    let mut stream = inside.connect(PUBLIC, ECHO).expect("it is open");
    let host = world.host.connect(HOST, ECHO);
    host.expect("the host's own service runs");
    // The engine dies; while nobody owns the table, somebody deletes it.
    drop(network);
    exchange(&mut stream, "x").expect("sandboxes live on without the engine");
    let (deleted, said) = world
        .host
        .program(&format!("nft delete table inet {table}"));
    assert!(deleted, "{said}");
    stream
        .set_read_timeout(Some(SILENCE))
        .expect("a timeout can be set");
    let _ = stream.write_all(b"y\n");
    assert!(
        stream.read(&mut [0; 64]).is_err(),
        "bytes still come through"
    );
    for address in [PUBLIC, PRIVATE, HOST] {
        let reached = inside.enter(|| {
            std::net::TcpStream::connect_timeout(&(address, ECHO).into(), SILENCE).is_ok()
        });
        assert!(!reached, "{address} can be reached without rules");
    }
    // The next engine puts everything back.
    world.host.enter(|| {
        let network = Bare::open();
        network.adopt(60_000, &id, &open);
        network.build().expect("the rules are made");
        let mut stream = inside.connect(PUBLIC, ECHO).expect("it is open again");
        exchange(&mut stream, "x").unwrap();
    });
}

#[test]
fn a_removed_sandbox_leaves_no_rules_and_its_index_can_be_used_again() {
    let bare = Bare::new();
    for _ in 0..10 {
        let inside = Namespace::new("box");
        bare.world.host.enter(|| {
            bare.network
                .attach(61_000, inside.fd())
                .expect("a sandbox is attached");
        });
        assert!(inside.connect(PUBLIC, ECHO).is_err());
        bare.world
            .host
            .enter(|| bare.network.release(61_000).expect("its rules go"));
        // Without rules it reaches nothing either, as long as its interface lives.
        let reached = inside.enter(|| {
            std::net::TcpStream::connect_timeout(&(PUBLIC, ECHO).into(), SILENCE).is_ok()
        });
        assert!(!reached);
    }
    let (listed, rules) = bare.world.host.program("nft list table inet cove-0badcafe");
    assert!(listed, "{rules}");
    assert!(!rules.contains("cv61000"), "{rules}");
}

#[test]
fn what_an_earlier_sandbox_left_open_does_not_reach_the_next_one() {
    const INDEX: u32 = 62_000;
    const PORT: u16 = 5555;
    let Bare { network, world } = Bare::new();
    let open = NetworkPolicy {
        mode: NetworkMode::Open,
        ..NetworkPolicy::default()
    };
    let place = |network: &cove_network::Network, inside: &Namespace| {
        let id = cove_model::SandboxId::random();
        world.host.enter(|| {
            network
                .attach(INDEX, inside.fd())
                .expect("a sandbox is attached");
            network
                .set(INDEX, inside.fd(), &id, &open)
                .expect("the policy is set");
        });
    };
    let server = world
        .internet
        .enter(|| std::net::UdpSocket::bind((PUBLIC, 0)).expect("a port is free"));
    server
        .set_read_timeout(Some(SILENCE))
        .expect("a timeout can be set");
    let earlier = Namespace::new("box");
    place(&network, &earlier);
    let caller = heard(&server, &earlier.udp_from(PORT), b"earlier");
    // The engine dies, and then the sandbox, which nobody takes away any more.
    drop(network);
    drop(earlier);
    let network = world.host.enter(|| {
        let network = Bare::open();
        network.build().expect("the rules are made");
        network
    });
    let next = Namespace::new("box");
    place(&network, &next);
    let socket = next.udp_from(PORT);
    for _ in 0..3 {
        server.send_to(b"stale", caller).expect("it leaves");
    }
    let caller = heard(&server, &socket, b"next");
    let mut buffer = [0; 64];
    let deadline = std::time::Instant::now() + PATIENCE;
    socket
        .set_read_timeout(Some(SILENCE))
        .expect("a timeout can be set");
    let first = loop {
        server.send_to(b"honest", caller).expect("it leaves");
        match socket.recv(&mut buffer) {
            Ok(read) => break &buffer[..read],
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
    };
    assert_eq!(String::from_utf8_lossy(first), "honest");
}

/// Whom a server hears when a socket calls it; again, since a busy machine loses datagrams. Each caller has
/// a word of its own, since one that called twice may still be in the server's queue.
fn heard(
    server: &std::net::UdpSocket,
    socket: &std::net::UdpSocket,
    word: &[u8],
) -> std::net::SocketAddr {
    let to = server.local_addr().expect("it is bound");
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut buffer = [0; 64];
    loop {
        socket.send_to(word, to).expect("it leaves");
        match server.recv_from(&mut buffer) {
            Ok((read, caller)) if &buffer[..read] == word => return caller,
            Ok(_) => {}
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
    }
}
