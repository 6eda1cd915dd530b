//! Frames of version 0 (`VERSION` 1 of this wire), as its code wrote them, mean what they meant.
#![allow(clippy::unwrap_used)]

mod messages;

use std::fmt::Debug;

use bytes::BytesMut;
use cove_protocol::frame::{self, FrameReader};
use cove_wire::recorded;
use prost::Message;

const VERSION_0: &str = include_str!("../../../wire/fixtures/v0/guest.txt");

async fn compare<M: Message + Default + PartialEq + Debug>(messages: Vec<(&str, M)>) -> usize {
    let recorded = recorded::read(VERSION_0);
    for (name, expected) in &messages {
        let (_, bytes) = recorded.iter().find(|(it, _)| it == name).expect(name);
        let mut reader = FrameReader::default();
        let read: M = reader.next(&mut &bytes[..]).await.expect(name);
        assert_eq!(&read, expected, "{name}");
        assert!(reader.into_remainder().is_empty(), "{name}");
        let mut written = BytesMut::new();
        frame::encode(expected, &mut written).unwrap();
        assert_eq!(&written[..], bytes, "{name}");
    }
    messages.len()
}

#[tokio::test]
async fn frames_of_version_0_mean_what_they_meant_and_are_written_alike() {
    let compared = compare(messages::opens()).await
        + compare(messages::inputs()).await
        + compare(messages::replies()).await;
    assert_eq!(recorded::read(VERSION_0).len(), compared);
}

/// A guest of version 0 skips what it does not know and reads the request of this version's host.
#[tokio::test]
async fn requests_that_older_guests_can_do_are_still_in_their_form() {
    for (name, recorded) in messages::opens() {
        let open = cove_protocol::message::Open::new(recorded.request.clone().unwrap());
        assert_eq!(open.version, recorded.version, "{name}");
        assert_eq!(open.request, recorded.request, "{name}");
    }
}
