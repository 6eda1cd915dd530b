use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}

fn query_for(text: &str, kind: u16) -> Vec<u8> {
    encode_query(7, &WireName::from_name(&name(text)), kind)
}

#[test]
fn a_question_is_read_and_answered() {
    let query = parse_query(&query_for("www.example.com", A)).unwrap();
    assert_eq!(query.name, Ok(name("www.example.com")));
    assert_eq!((query.id, query.kind, query.edns), (7, A, Some(UDP_BYTES)));
    let answer = Answer {
        records: vec![Record::address(Ipv4Addr::new(1, 2, 3, 4), 60)],
        ..Answer::default()
    };
    let bytes = encode_answer(&query, &answer, 512);
    let back = parse_upstream(&bytes, 7, &WireName::from_name(&name("www.example.com")), A)
        .unwrap()
        .unwrap();
    assert_eq!(back.records, answer.records);
}

#[test]
fn what_does_not_fit_is_marked() {
    let query = parse_query(&query_for("www.example.com", A)).unwrap();
    let answer = Answer {
        records: vec![Record::address(Ipv4Addr::new(1, 2, 3, 4), 60); 100],
        ..Answer::default()
    };
    let bytes = encode_answer(&query, &answer, 512);
    assert!(bytes.len() <= 512);
    assert_ne!(u16::from_be_bytes([bytes[2], bytes[3]]) & FLAG_TRUNCATED, 0);
}

#[test]
fn odd_names_are_not_taken_for_other_names() {
    for label in [&b"a\0b"[..], b"a.b", b"a b", b"\xff"] {
        let mut message = query_for("x.example", A);
        let question: Vec<u8> = [&[label.len() as u8][..], label, &[7], b"example", &[0]].concat();
        message.splice(12..23, question);
        let query = parse_query(&message).unwrap();
        assert!(query.name.is_err(), "{label:?}");
        assert!(query.shown.is_ascii() && !query.shown.contains('\0'));
    }
}

#[test]
fn broken_questions_get_an_error_or_nothing() {
    let good = query_for("example.com", A);
    assert_eq!(parse_query(&[]), Err(Malformed::Silence));
    let mut response = good.clone();
    response[2] |= 0x80;
    assert_eq!(parse_query(&response), Err(Malformed::Silence));
    let mut two = good.clone();
    two[5] = 2;
    assert!(matches!(
        parse_query(&two),
        Err(Malformed::Reply {
            code: FORMAT_ERROR,
            ..
        })
    ));
    let mut pointer = good.clone();
    pointer[12] = 0xc0;
    assert!(parse_query(&pointer).is_err());
    let mut update = good;
    update[2] |= 5 << 3;
    assert!(matches!(
        parse_query(&update),
        Err(Malformed::Reply {
            code: NOT_IMPLEMENTED,
            ..
        })
    ));
}

#[test]
fn a_pointer_to_itself_is_refused() {
    let asked = WireName::from_name(&name("a.example"));
    let mut message = encode_query(7, &asked, A);
    message.truncate(message.len() - 11);
    message[2] |= 0x80;
    message[7] = 1;
    message[11] = 0;
    let at = message.len();
    message.extend([
        0xc0 | (at >> 8) as u8,
        at as u8,
        0,
        1,
        0,
        1,
        0,
        0,
        0,
        1,
        0,
        4,
        1,
        2,
        3,
        4,
    ]);
    assert_eq!(parse_upstream(&message, 7, &asked, A), Err(BadAnswer));
}

#[test]
fn another_question_or_number_is_not_our_answer() {
    let asked = WireName::from_name(&name("a.example"));
    let mut message = encode_query(7, &asked, A);
    message[2] |= 0x80;
    assert!(parse_upstream(&message, 7, &asked, A).unwrap().is_some());
    assert_eq!(parse_upstream(&message, 8, &asked, A), Ok(None));
    let other = WireName::from_name(&name("b.example"));
    assert_eq!(parse_upstream(&message, 7, &other, A), Ok(None));
    assert_eq!(parse_upstream(&message, 7, &asked, TXT), Ok(None));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
        let _ = parse_query(&bytes);
        let asked = WireName::from_name(&name("a.example"));
        let _ = parse_upstream(&bytes, 7, &asked, A);
        let mut message = encode_query(7, &asked, A);
        message.truncate(message.len() - 11);
        message[2] |= 0x80;
        message[7] = 9;
        message.extend(&bytes);
        let _ = parse_upstream(&message, 7, &asked, A);
    }

    #[test]
    fn damaged_questions_are_survived(at in 0usize..60, to in any::<u8>()) {
        let mut message = query_for("www.example.com", A);
        let at = at % message.len();
        message[at] = to;
        if let Ok(query) = parse_query(&message) {
            let bytes = encode_answer(&query, &Answer::default(), 512);
            prop_assert!(bytes.len() <= 512);
        }
    }

    #[test]
    fn names_survive_the_wire(text in "[a-z0-9]{1,10}(\\.[a-z0-9]{1,10}){0,5}\\.example") {
        let name = name(&text);
        prop_assert_eq!(WireName::from_name(&name).to_name(), Ok(name));
    }
}
