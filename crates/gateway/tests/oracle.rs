//! The parsers that read guests' bytes, held against the libraries that servers are built with.
//!
//! What matters is that a parser of ours never takes bytes for something else than the server behind it
//! does: whatever it accepts, the library reads the same way. What it refuses may well be fine for the
//! library; being stricter is the point.
// A test says what it expects by failing.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Arc;

use cove_gateway::dns::wire;
use cove_gateway::{http, tls};
use cove_model::network::Name;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME};
use hickory_proto::rr::{Name as DnsName, RData, Record, RecordType};
use proptest::prelude::*;
use proptest::sample::Index;

fn host() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9-]{0,20}[a-z0-9](\\.[a-z][a-z0-9]{1,10}){1,3}"
}

/// A few bytes replaced, removed or put in.
fn damage() -> impl Strategy<Value = Vec<(Index, u8, u8)>> {
    prop::collection::vec((any::<Index>(), any::<u8>(), 0..3u8), 0..6)
}

fn damaged(mut bytes: Vec<u8>, damage: &[(Index, u8, u8)]) -> Vec<u8> {
    for (index, byte, how) in damage {
        if bytes.is_empty() {
            break;
        }
        let at = index.index(bytes.len());
        match how {
            0 => bytes[at] = *byte,
            1 => {
                bytes.remove(at);
            }
            _ => bytes.insert(at, *byte),
        }
    }
    bytes
}

fn fully_qualified(name: &str) -> DnsName {
    DnsName::from_ascii(format!("{name}.")).unwrap()
}

fn dns_query(name: &str, kind: RecordType, edns: bool) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(fully_qualified(name), kind));
    if edns {
        let mut options = Edns::new();
        options.set_max_payload(1232);
        message.set_edns(options);
    }
    message
}

fn ascii(name: &DnsName) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

/// As our names are: in lower case, and without the dot that ends a full name.
fn plain(name: &str) -> String {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.to_ascii_lowercase()
}

fn kinds() -> impl Strategy<Value = RecordType> {
    prop::sample::select(vec![
        RecordType::A,
        RecordType::AAAA,
        RecordType::TXT,
        RecordType::MX,
        RecordType::SRV,
    ])
}

fn client_hello(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = name.to_owned().try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// The name that a server built on rustls sees; nothing when it refuses the hello or wants more of it.
fn name_for_rustls(bytes: &[u8]) -> Option<Option<String>> {
    let mut acceptor = rustls::server::Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        acceptor.read_tls(&mut rest).ok()?;
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                return Some(name);
            }
            Err(_) => return None,
        }
    }
    None
}

proptest! {
    // A failing input is printed in full; nothing is written next to the sources.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn questions_of_a_library_are_understood(name in host(), kind in kinds(), edns: bool) {
        let message = dns_query(&name, kind, edns);
        let query = wire::parse_query(&message.to_vec().unwrap()).unwrap();
        prop_assert_eq!(query.id, message.metadata.id);
        let read = query.name.unwrap();
        prop_assert_eq!(read.as_str(), name.as_str());
        prop_assert_eq!(query.kind, u16::from(kind));
        prop_assert_eq!(query.edns.is_some(), edns);
    }

    #[test]
    fn a_question_that_is_accepted_is_the_librarys_question(
        name in host(), kind in kinds(), edns: bool, damage in damage(),
    ) {
        let bytes = damaged(dns_query(&name, kind, edns).to_vec().unwrap(), &damage);
        if let Ok(query) = wire::parse_query(&bytes)
            && let Ok(name) = query.name
        {
            // Options that the library does not know may be malformed for it; the question is what counts.
            let mut question = bytes.clone();
            question.truncate(12 + name.as_str().len() + 2 + 4);
            question[10..12].fill(0);
            let message = Message::from_vec(&question).unwrap();
            prop_assert_eq!(message.queries.len(), 1);
            prop_assert_eq!(ascii(message.queries[0].name()), name.as_str());
            prop_assert_eq!(u16::from(message.queries[0].query_type()), query.kind);
            prop_assert_eq!(message.metadata.id, query.id);
        }
    }

    #[test]
    fn answers_are_what_a_library_reads(
        name in host(), edns: bool, ttl in 0..100_000u32, addresses in prop::collection::vec(any::<[u8; 4]>(), 0..8),
    ) {
        let asked = dns_query(&name, RecordType::A, edns);
        let query = wire::parse_query(&asked.to_vec().unwrap()).unwrap();
        let addresses: Vec<Ipv4Addr> = addresses.into_iter().map(Ipv4Addr::from).collect();
        let answer = wire::Answer {
            records: addresses.iter().map(|address| wire::Record::address(*address, ttl)).collect(),
            because: Some((wire::EDE_BLOCKED, "why".into())),
            ..wire::Answer::default()
        };
        let message = Message::from_vec(&wire::encode_answer(&query, &answer, 1232)).unwrap();
        prop_assert_eq!(message.metadata.id, asked.metadata.id);
        prop_assert_eq!(message.metadata.message_type, MessageType::Response);
        prop_assert_eq!(&message.queries, &asked.queries);
        let read: Vec<_> = message.answers.iter().map(|record| {
            let RData::A(A(address)) = record.data else { panic!("{record:?}") };
            (ascii(&record.name), record.ttl, address)
        }).collect();
        let sent: Vec<_> = addresses.iter().map(|address| (name.clone(), ttl, *address)).collect();
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn answers_of_a_library_are_understood(
        name in host(), alias in host(), address: [u8; 4], ttl in 1..100_000u32, id: u16,
    ) {
        prop_assume!(name != alias);
        let (from, to) = (fully_qualified(&name), fully_qualified(&alias));
        let mut message = Message::new(id, MessageType::Response, OpCode::Query);
        message.metadata.response_code = ResponseCode::NoError;
        message.add_query(Query::query(from.clone(), RecordType::A));
        message.add_answer(Record::from_rdata(from, ttl, RData::CNAME(CNAME(to.clone()))));
        message.add_answer(Record::from_rdata(to, ttl, RData::A(A(address.into()))));
        let asked = wire::WireName::from_name(&Name::from_ascii(name.as_bytes()).unwrap());
        let bytes = message.to_vec().unwrap();
        let upstream = wire::parse_upstream(&bytes, id, &asked, wire::A).unwrap().unwrap();
        prop_assert_eq!(upstream.records, vec![wire::Record::address(address.into(), ttl)]);
    }

    #[test]
    fn a_hello_that_is_accepted_names_the_librarys_host(name in host(), damage in damage()) {
        let hello = client_hello(&name);
        let whole = tls::hello(&hello).unwrap().unwrap();
        prop_assert_eq!(whole.name.as_str(), name.as_str());
        prop_assert_eq!(name_for_rustls(&hello), Some(Some(name)));
        let bytes = damaged(hello, &damage);
        if let Ok(Some(hello)) = tls::hello(&bytes)
            && let Some(seen) = name_for_rustls(&bytes)
        {
            prop_assert_eq!(seen.map(|name| plain(&name)), Some(hello.name.as_str().to_owned()));
        }
    }

    #[test]
    fn a_head_that_is_accepted_is_the_librarys_head(
        name in host(), port in prop::option::of(1..=u16::MAX), length in prop::option::of(0..1000u32),
        extra in prop::collection::vec(("[A-Za-z-]{1,12}", "[ -~]{0,20}"), 0..4), damage in damage(),
    ) {
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let mut text = format!("POST /path?query HTTP/1.1\r\nHost: {name}{port}\r\n");
        if let Some(length) = length {
            text.push_str(&format!("Content-Length: {length}\r\n"));
        }
        for (field, value) in extra {
            text.push_str(&format!("{field}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let bytes = damaged(text.into_bytes(), &damage);
        if let Ok(Some(head)) = http::head(&bytes) {
            let mut fields = [httparse::EMPTY_HEADER; http::FIELDS_MAX];
            let mut request = httparse::Request::new(&mut fields);
            prop_assert_eq!(request.parse(&bytes), Ok(httparse::Status::Complete(head.length)));
            let values = |wanted: &str| -> Vec<String> {
                let found = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(wanted));
                found.map(|field| String::from_utf8_lossy(field.value).trim().to_owned()).collect()
            };
            let hosts = values("host");
            prop_assert_eq!(hosts.len(), 1);
            let (host, port) = match hosts[0].rsplit_once(':') {
                Some((host, port)) => (host, port.parse().ok()),
                None => (hosts[0].as_str(), None),
            };
            let host = plain(host);
            prop_assert_eq!(host.as_str(), head.host.as_str());
            prop_assert_eq!(port, head.port);
            let lengths = values("content-length");
            match head.body {
                http::Body::Length(length) => {
                    prop_assert!(lengths.iter().all(|value| value.parse() == Ok(length)), "{:?}", lengths);
                    prop_assert!(!lengths.is_empty());
                }
                http::Body::None => prop_assert!(lengths.is_empty() || lengths == ["0"], "{:?}", lengths),
                http::Body::Chunked => prop_assert!(lengths.is_empty()),
            }
        }
    }
}
