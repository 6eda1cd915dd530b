//! Packets of version 0, as its code wrote them, mean what they meant.
#![allow(clippy::unwrap_used)]

mod messages;

use std::fmt::Debug;
use std::os::unix::net::UnixDatagram;

use cove_spawner::side::{self, SIDE};
use cove_wire::{Feature, Refusal, Side, packet, recorded};
use serde::Serialize;
use serde::de::DeserializeOwned;

const VERSION_0: &str = include_str!("../../../wire/fixtures/v0/spawner.txt");

/// Compares by what is shown, and by the bytes that this version writes.
fn compare<T: Serialize + DeserializeOwned + Debug>(messages: Vec<(&str, T)>) -> usize {
    let recorded = recorded::read(VERSION_0);
    // Packets as on the real socket, but of a kind that the standard library makes.
    let (near, far) = UnixDatagram::pair().unwrap();
    for (name, expected) in &messages {
        let (_, bytes) = recorded.iter().find(|(it, _)| it == name).expect(name);
        near.send(bytes).unwrap();
        let (read, fds) = packet::receive::<T>(&far).unwrap().expect("a packet");
        assert!(fds.is_empty());
        assert_eq!(format!("{read:?}"), format!("{expected:?}"), "{name}");
        packet::send(&near, expected, &[]).unwrap();
        let mut written = vec![0; bytes.len() + 1];
        let length = far.recv(&mut written).unwrap();
        assert_eq!(&written[..length], bytes, "{name}");
    }
    messages.len()
}

#[test]
fn packets_of_version_0_mean_what_they_meant_and_are_written_alike() {
    let compared = compare(messages::requests())
        + compare(messages::prepare_replies())
        + compare(messages::starts())
        + compare(messages::child_replies());
    assert_eq!(recorded::read(VERSION_0).len(), compared);
}

#[test]
fn a_spawner_without_one_feature_refuses_the_engine() {
    for missing in SIDE.features {
        let rest: Vec<Feature> = SIDE
            .features
            .iter()
            .copied()
            .filter(|it| it != missing)
            .collect();
        let lacking = Side {
            features: rest.leak(),
            ..SIDE
        };
        match lacking.accept(&SIDE.hello(&side::needs())) {
            Err(Refusal::Missing(refused)) => assert_eq!(refused.features, [missing.name()]),
            other => panic!("{other:?}"),
        }
    }
    SIDE.accept(&SIDE.hello(&side::needs())).unwrap();
}

#[test]
fn a_packet_over_the_limit_is_neither_sent_nor_taken() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let long = "x".repeat(cove_wire::limits::SPAWNER_PACKET_MAX + 1);
    packet::send(&near, &long, &[]).unwrap_err();
    rustix::net::sockopt::set_socket_send_buffer_size(&near, 4 << 20).unwrap();
    near.send(long.as_bytes()).unwrap();
    packet::receive::<String>(&far).unwrap_err();
}
