//! Sandboxes that look exactly alike inside get their own bytes only.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};

use crate::bare::{Bare, Sandbox};
use crate::packets::{self, Header, MORE, datagram, packet};
use crate::world::*;

const SANDBOXES: usize = 50;
const SAME_PORT: u16 = 5555;
const ROUNDS: usize = 3;

#[test]
fn fifty_sandboxes_with_one_address_and_port_keep_their_conversations_apart() {
    let bare = Bare::new();
    let sandboxes: Vec<Sandbox<'_>> = (0..SANDBOXES).map(|_| bare.open_sandbox()).collect();
    let sockets: Vec<UdpSocket> = sandboxes
        .iter()
        .map(|sandbox| sandbox.inside.udp_from(SAME_PORT))
        .collect();
    let mut streams: Vec<TcpStream> = sandboxes
        .iter()
        .map(|sandbox| {
            sandbox
                .inside
                .connect_from(SAME_PORT, PUBLIC, ECHO)
                .expect("it is open")
        })
        .collect();
    for socket in &sockets {
        socket
            .set_read_timeout(Some(AGAIN))
            .expect("a timeout can be set");
    }
    for round in 0..ROUNDS {
        for (number, socket) in sockets.iter().enumerate() {
            socket.connect((PUBLIC, ECHO)).expect("it is open");
            socket
                .send(format!("{round} datagram {number}").as_bytes())
                .expect("it leaves");
        }
        for (number, socket) in sockets.iter().enumerate() {
            let datagram = format!("{round} datagram {number}");
            let deadline = std::time::Instant::now() + PATIENCE;
            // Sent again when it is lost, as happens on a busy machine; the answers of both may come.
            let heard = loop {
                match hear(socket) {
                    Some(text) if older(&text, round, number) => {}
                    Some(text) => break text,
                    None => {
                        assert!(std::time::Instant::now() < deadline, "no answer comes");
                        socket.send(datagram.as_bytes()).expect("it leaves");
                    }
                }
            };
            assert_eq!(heard, format!("{HOST} {datagram}"));
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let line = format!("{round} line {number}");
            assert_eq!(exchange(stream, &line).unwrap(), format!("{HOST} {line}"));
        }
    }
    for (number, socket) in sockets.iter().enumerate() {
        socket.set_nonblocking(true).expect("sockets can be");
        while let Some(text) = hear(socket) {
            assert!(
                older(&text, ROUNDS, number),
                "somebody got the answer of another: {text}"
            );
        }
    }
}

/// A datagram, or nothing when none comes in time.
fn hear(socket: &UdpSocket) -> Option<String> {
    let mut buffer = [0; 256];
    match socket.recv(&mut buffer) {
        Ok(read) => Some(String::from_utf8_lossy(&buffer[..read]).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

/// Whether this is the answer to something that the socket of this number sent before this round.
fn older(text: &str, round: usize, number: usize) -> bool {
    (0..round).any(|round| text == format!("{HOST} {round} datagram {number}"))
}

#[test]
fn fragments_of_two_sandboxes_are_never_put_together() {
    let bare = Bare::new();
    let (first, second) = (bare.open_sandbox(), bare.open_sandbox());
    let receiver = bare
        .world
        .internet
        .enter(|| UdpSocket::bind((PUBLIC, 0)).expect("a port is free"));
    receiver
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    let port = receiver.local_addr().expect("it is bound").port();
    let whole = datagram(4444, port, &[b'a'; 16 + 8]);
    let other = [b'b'; 16];
    let header = |fragment| Header {
        from: first.inner(),
        to: PUBLIC,
        id: 77,
        fragment,
    };
    // The beginning from one, the end from the other; alone, neither is a datagram.
    packets::send(&first.inside, PUBLIC, &packet(&header(MORE), &whole[..16]));
    packets::send(&second.inside, PUBLIC, &packet(&header(2), &other));
    // A complete one, from the second: the beginning that is its own, and the end it already sent.
    let own = datagram(4445, port, &[b'c'; 16 + 8]);
    packets::send(&second.inside, PUBLIC, &packet(&header(MORE), &own[..16]));
    let mut buffer = [0; 256];
    let (read, _) = receiver
        .recv_from(&mut buffer)
        .expect("the honest one comes");
    assert_eq!(&buffer[..read], b"ccccccccbbbbbbbbbbbbbbbb");
}

#[test]
fn large_datagrams_go_both_ways_in_pieces() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    let text: String = ('a'..='z').cycle().take(8000).collect();
    // Pieces are lost more easily than whole ones, and one is enough.
    let mut answers = (0..3).map(|_| echo(&sandbox.inside.udp(), PUBLIC, ECHO, &text));
    let answer = answers.find_map(Result::ok).expect("it comes back");
    assert_eq!(answer, format!("{HOST} {text}"));
}

#[test]
fn every_refusal_is_told_with_the_sandbox_it_was_refused_to() {
    let denials = std::sync::OnceLock::new();
    let bare = Bare::with(|network| {
        let opened = cove_network::Denials::open("0badcafe").expect("a group is free");
        network
            .set_listeners(None, Some(opened.group()))
            .expect("nothing is built yet");
        denials.set(opened).expect("once");
    });
    let denials = denials.get().expect("set above");
    let sandboxes: Vec<Sandbox<'_>> = (0..3).map(|_| bare.sandbox()).collect();
    let mut expected = BTreeSet::new();
    for sandbox in &sandboxes {
        assert!(sandbox.inside.connect(PUBLIC, 443).is_err());
        expected.insert((sandbox.index, PUBLIC, 6, Some(443)));
        assert!(echo(&sandbox.inside.udp(), PRIVATE, 7, "x").is_err());
        expected.insert((sandbox.index, PRIVATE, 17, Some(7)));
    }
    let forger = &sandboxes[0];
    let header = Header {
        from: Ipv4Addr::new(9, 9, 9, 9),
        to: PUBLIC,
        id: 1,
        fragment: 0,
    };
    packets::send(
        &forger.inside,
        PUBLIC,
        &packet(&header, &datagram(1, 2, b"x")),
    );
    expected.insert((forger.index, PUBLIC, 17, Some(2)));
    let mut told = BTreeSet::new();
    let deadline = std::time::Instant::now() + PATIENCE;
    while told != expected && std::time::Instant::now() < deadline {
        let read = bare
            .world
            .host
            .enter(|| denials.wait(SILENCE))
            .expect("it can be read");
        told.extend(
            read.iter()
                .map(|denial| (denial.index, denial.to, denial.protocol, denial.port)),
        );
    }
    assert_eq!(told, expected);
    // The host's administrators can look at it all.
    let (listed, said) = bare.world.host.program("nft list ruleset");
    assert!(listed && said.contains("chain entry"), "{said}");
}
