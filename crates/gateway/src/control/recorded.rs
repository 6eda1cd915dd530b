//! One message of each kind that the engine and the gateway exchange, against what was recorded of version 0
//! (`VERSION` 2 of this wire).

use cove_model::egress::{EgressBatch, EgressEntry, EgressProtocol, EgressQuery, EgressVerdict};
use cove_model::{NetworkMode, SandboxId};
use time::OffsetDateTime;

use super::*;
use crate::policy::Allowed;

pub fn sandbox() -> SandboxId {
    "sbx_abcdefghijklmnopqrst".parse().expect("an id")
}

fn entry() -> EgressEntry {
    EgressEntry {
        sequence: 4,
        at: OffsetDateTime::from_unix_timestamp(1_700_000_000).expect("a date"),
        protocol: EgressProtocol::Dns,
        name: Some("example.com".into()),
        address: Some("192.0.2.1".parse().expect("an address")),
        port: Some(53),
        verdict: EgressVerdict::Denied,
        rule: "not in the allow list".into(),
        sent_bytes: 10,
        received_bytes: 20,
    }
}

fn policy() -> Policy {
    let allowed = |text: &str, preset: Option<&str>| Allowed {
        rule: text.parse().expect("a rule"),
        preset: preset.map(str::to_owned),
    };
    Policy {
        mode: NetworkMode::Allowlist,
        allowed: vec![
            allowed("example.com", None),
            allowed("*.example.org:8443", Some("packages")),
            allowed("10.1.0.0/16:22-25", None),
        ],
    }
}

pub fn placed() -> Placed {
    Placed {
        termination: None,
        address: Ipv4Addr::new(10, 9, 0, 1),
        sandbox: sandbox(),
        owner: "org_abcdefghijklmnopqrst".into(),
        policy: policy(),
    }
}

fn address(text: &str) -> SocketAddrV4 {
    text.parse().expect("an address")
}

pub fn start() -> Start {
    Start {
        version: OLDEST,
        needs: Vec::new(),
        instance: "main".into(),
        build: "0011223344556677".into(),
        uid: 65_533,
        gid: 65_532,
        owner: 0,
        upstreams: vec!["192.0.2.53:53".parse().expect("an address")],
        reserved: vec!["10.9.0.0/16".parse().expect("a block")],
        limits: Limits {
            connections: 1,
            connections_in_all: 2,
            half_open: 3,
            half_open_in_all: 4,
            queries_per_second: 5,
            queries_burst: 6,
            queries_outstanding: 7,
            tunnel_bytes_per_second: 8,
            tunnel_bytes_burst: 9,
            hello_ms: 10,
            dial_ms: 11,
            // Newer than the recording.
            ..Limits::default()
        },
        table: vec![placed()],
        logs: vec![Kept {
            sandbox: sandbox(),
            entries: vec![entry()],
            complete_from: 2,
        }],
        dns: address("127.0.0.1:1053"),
        proxy: address("127.0.0.1:1080"),
    }
}

pub fn calls() -> Vec<(&'static str, Call)> {
    vec![
        ("call-hello", Call::Hello),
        ("call-watch", Call::Watch),
        ("call-place", Call::Place(placed())),
        (
            "call-remove",
            Call::Remove {
                address: Ipv4Addr::new(10, 9, 0, 1),
            },
        ),
        ("call-replace", Call::Replace(vec![placed()])),
        ("call-forget", Call::Forget { sandbox: sandbox() }),
        (
            "call-append",
            Call::Append(vec![(Ipv4Addr::new(10, 9, 0, 1), entry())]),
        ),
        (
            "call-egress",
            Call::Egress(EgressQuery {
                sandbox: sandbox(),
                after: 1,
                limit: 2,
                wait_ms: 3,
                verdict: Some(EgressVerdict::Allowed),
            }),
        ),
        (
            "call-upstreams",
            Call::Upstreams(vec!["192.0.2.53:53".parse().expect("an address")]),
        ),
        ("call-stop", Call::Stop),
    ]
}

pub fn request(call: Call) -> Request {
    Request {
        version: OLDEST,
        instance: "main".into(),
        needs: Vec::new(),
        call,
    }
}

pub fn replies() -> Vec<(&'static str, Reply)> {
    vec![
        ("reply-done", Reply::Done),
        (
            "reply-hello",
            Reply::Hello(Hello {
                version: OLDEST,
                features: Vec::new(),
                instance: "main".into(),
                build: "0011223344556677".into(),
                pid: 77,
                sandboxes: 3,
                connections: 4,
                dns: address("127.0.0.1:1053"),
                proxy: address("127.0.0.1:1080"),
            }),
        ),
        (
            "reply-egress",
            Reply::Egress(EgressBatch {
                entries: vec![entry()],
                next: 5,
                lost: true,
            }),
        ),
        ("reply-unknown", Reply::Unknown),
        (
            "reply-refused",
            Reply::Refused {
                message: "why".into(),
            },
        ),
    ]
}

#[cfg(test)]
mod tests {
    use cove_wire::recorded;

    use super::*;

    const VERSION_0: &str = include_str!("../../../wire/fixtures/v0/gateway.txt");

    fn bytes_of(name: &str) -> Vec<u8> {
        let recorded = recorded::read(VERSION_0);
        let found = recorded.into_iter().find(|(it, _)| *it == name);
        found.expect(name).1
    }

    #[test]
    fn calls_of_version_2_mean_what_they_meant() {
        let read: Start = read_blocking(&mut &bytes_of("start")[..]).expect("a start");
        assert_eq!(read, start());
        for (name, call) in calls() {
            let read: Request = read_blocking(&mut &bytes_of(name)[..]).expect(name);
            assert_eq!(read, request(call), "{name}");
        }
    }

    #[test]
    fn replies_of_version_2_mean_what_they_meant_and_are_written_alike() {
        for (name, reply) in replies() {
            let bytes = bytes_of(name);
            let read = read_reply_blocking(&mut &bytes[..]).expect(name);
            assert_eq!(read, reply, "{name}");
            let mut written = Vec::new();
            write_reply_blocking(&mut written, &reply).expect("there is room");
            assert_eq!(written, bytes, "{name}");
        }
        let compared = 1 + calls().len() + replies().len();
        assert_eq!(recorded::read(VERSION_0).len(), compared);
    }

    #[test]
    fn what_every_process_can_do_is_asked_in_the_form_of_version_2() {
        for (name, call) in calls() {
            let hello = matches!(call, Call::Hello);
            let version = if hello { VERSION } else { OLDEST };
            assert_eq!(Request::new("main", call).version, version, "{name}");
        }
    }

    #[test]
    fn a_start_names_all_that_it_restricts() {
        let mut start = start();
        start.table[0].termination = Some(Termination {
            socket: "cove-terminator".into(),
            hosts: Vec::new(),
        });
        let needs = start.needs();
        assert_eq!(needs.names().len(), needs::FEATURES.len());
    }
}
