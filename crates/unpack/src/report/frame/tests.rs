#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = String> {
    "[ -~äöü€]{0,60}"
}

fn limit() -> impl Strategy<Value = Limit> {
    prop::sample::select(LIMITS.to_vec())
}

fn warning() -> impl Strategy<Value = Warning> {
    prop_oneof![
        text().prop_map(|path| Warning::SpecialFileSkipped { path }),
        (text(), any::<u8>())
            .prop_map(|(path, type_flag)| Warning::UnknownEntrySkipped { path, type_flag }),
        (text(), text()).prop_map(|(path, name)| Warning::XattrSkipped { path, name }),
        (text(), any::<u64>()).prop_map(|(path, id)| Warning::OwnerReplaced { path, id }),
        text().prop_map(|path| Warning::WhiteoutIgnored { path }),
        Just(Warning::NoEndOfArchive),
        Just(Warning::TrailingData),
    ]
}

fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        text().prop_map(|reason| Failure::Corrupt { reason }),
        Just(Failure::Truncated),
        text().prop_map(|packing| Failure::UnknownPacking { packing }),
        text().prop_map(|reason| Failure::BadHeader { reason }),
        text().prop_map(|path| Failure::UnsafePath { path }),
        (text(), text()).prop_map(|(path, target)| Failure::UnsafeLink { path, target }),
        (text(), text()).prop_map(|(path, target)| Failure::LinkTargetMissing { path, target }),
        (limit(), any::<u64>()).prop_map(|(what, limit)| Failure::LimitExceeded { what, limit }),
        text().prop_map(|path| Failure::NotADirectory { path }),
        Just(Failure::DiskFull),
        (text(), text(), text()).prop_map(|(operation, path, reason)| Failure::Io {
            operation,
            path,
            reason
        }),
        (text(), text()).prop_map(|(step, reason)| Failure::Confine { step, reason }),
        text().prop_map(|reason| Failure::Usage { reason }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<u64>(), any::<u64>())
            .prop_map(|(bytes, entries)| Message::Progress { bytes, entries }),
        warning().prop_map(|warning| Message::Warning { warning }),
        (
            any::<u64>(),
            any::<u64>(),
            any::<u64>(),
            any::<Option<[u8; 32]>>()
        )
            .prop_map(|(bytes, entries, warnings, digest)| Message::Done {
                bytes,
                entries,
                digest,
                warnings
            }),
        failure().prop_map(|failure| Message::Failed { failure }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_as_it_was_sent(message in message(), after in any::<Vec<u8>>()) {
        let mut bytes = message.encode();
        let length = bytes.len();
        prop_assert!(length <= FRAME_BYTES_MAX);
        for end in 0..length {
            prop_assert_eq!(Message::decode(&bytes[..end]), Ok(None));
        }
        bytes.extend(after);
        prop_assert_eq!(Message::decode(&bytes), Ok(Some((message, length))));
    }

    #[test]
    fn damaged_frames_are_refused_or_mean_exactly_one_message(
        message in message(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = message.encode();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(Some((message, length))) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), &bytes[..length]);
        }
    }

    #[test]
    fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some((message, length))) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), &bytes[..length]);
        }
    }
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let path = "€".repeat(TEXT_BYTES_MAX);
    let failure = Failure::UnsafePath { path: path.clone() };
    let (message, _) = Message::decode(&Message::Failed { failure }.encode())
        .unwrap()
        .unwrap();
    let Message::Failed {
        failure: Failure::UnsafePath { path: shown },
    } = message
    else {
        panic!("{message:?}");
    };
    assert!(path.starts_with(&shown) && shown.len() > TEXT_BYTES_MAX - 4);
}

#[test]
fn control_characters_and_longer_texts_than_there_can_be_are_refused() {
    let warning = Warning::WhiteoutIgnored {
        path: "a\u{1b}[2Jb".to_owned(),
    };
    // The program replaces them; one that does not has been taken over.
    let mut frame = Message::Warning { warning }.encode();
    let at = HEADER_BYTES + 1;
    assert_eq!(frame[at], b'?');
    assert!(matches!(Message::decode(&frame), Ok(Some(_))));
    frame[at] = 0x1b;
    assert_eq!(Message::decode(&frame), Err(BadFrame));
    frame.truncate(HEADER_BYTES);
    frame[2..4].copy_from_slice(&u16::MAX.to_le_bytes());
    assert_eq!(Message::decode(&frame), Err(BadFrame));
}
