//! Connections to port 80.

use std::io::{Read, Write};
use std::net::TcpStream;

use cove_gateway::dns::wire::REFUSED;
use cove_model::egress::EgressVerdict;

use crate::client::{connect, exchange, get, is_cut};
use crate::world::{EVIL, GOOD, World};

fn read_answer(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}

#[test]
fn an_allowed_host_is_dialled_by_us_whatever_address_was_meant() {
    let world = World::new(&["good.example"]);
    for address in [GOOD, EVIL] {
        let answer = world.inside(|| {
            let mut stream = connect(address, 80).unwrap();
            stream.write_all(&get("good.example")).unwrap();
            read_answer(&mut stream)
        });
        assert!(
            answer.contains(&format!("{GOOD}:80 GET / HTTP/1.1 good.example")),
            "{answer}"
        );
    }
    assert!(!world.seen.connected(EVIL));
}

#[test]
fn a_denied_host_is_told_why_in_words() {
    let world = World::new(&["good.example"]);
    let answer = world.inside(|| {
        let mut stream = connect(EVIL, 80).unwrap();
        stream.write_all(&get("evil.example")).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(
        answer.contains("evil.example: not in the allow list"),
        "{answer}"
    );
    world.logged("evil.example", EgressVerdict::Denied);
    assert!(!world.seen.connected(EVIL) && !world.seen.asked("evil.example"));
}

#[test]
fn tricks_with_requests_reach_nobody() {
    let world = World::new(&["good.example"]);
    for request in [
        "CONNECT evil.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: good.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.example:8080\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 203.0.113.20\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.example@evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.example\0.evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nX: \nHost: evil.example\r\nHost: good.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.example\r\nUpgrade: h2c\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        let answer = world.inside(|| exchange(connect(GOOD, 80), request.as_bytes()));
        let refused = match &answer {
            Ok(text) => text.is_empty() || text.starts_with("HTTP/1.1 4"),
            Err(_) => true,
        };
        assert!(refused, "{request:?}: {answer:?}");
    }
    assert!(world.seen.requests.lock().unwrap().is_empty());
}

#[test]
fn further_requests_must_be_for_the_same_host() {
    let world = World::new(&["good.example", "also.good.example"]);
    for other in ["evil.example", "also.good.example"] {
        world.inside(|| {
            let mut stream = connect(GOOD, 80).unwrap();
            for _ in 0..2 {
                stream.write_all(&get("good.example")).unwrap();
                assert!(read_answer(&mut stream).contains(" 200 OK"));
            }
            stream.write_all(&get(other)).unwrap();
            assert!(is_cut(&stream.read(&mut [0; 8])));
        });
    }
    let requests = world.seen.requests.lock().unwrap();
    assert_eq!(requests.len(), 4);
    assert!(
        requests
            .iter()
            .all(|asked| asked.ends_with(" good.example"))
    );
}

#[test]
fn further_requests_change_neither_port_nor_protocol() {
    let world = World::new(&["good.example"]);
    let further = [
        "GET / HTTP/1.1\r\nHost: good.example:8080\r\n\r\n",
        "GET /socket HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\n\r\n",
    ];
    for request in further {
        world.inside(|| {
            let mut stream = connect(GOOD, 80).unwrap();
            stream.write_all(&get("good.example")).unwrap();
            assert!(read_answer(&mut stream).contains(" 200 OK"));
            stream.write_all(request.as_bytes()).unwrap();
            assert!(is_cut(&stream.read(&mut [0; 8])), "{request:?}");
        });
    }
    let requests = world.seen.requests.lock().unwrap();
    assert_eq!(requests.len(), further.len(), "{requests:?}");
}

#[test]
fn a_request_hidden_behind_another_is_found() {
    let world = World::new(&["good.example"]);
    world.inside(|| {
        let mut stream = connect(GOOD, 80).unwrap();
        let both = [get("good.example"), get("evil.example")].concat();
        stream.write_all(&both).unwrap();
        // What the first was answered with may still arrive before the end.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("evil"));
        let mut stream = connect(GOOD, 80).unwrap();
        let hidden = format!(
            "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
            String::from_utf8(get("evil.example")).unwrap()
        );
        stream.write_all(hidden.as_bytes()).unwrap();
        let _ = stream.read_to_end(&mut rest);
    });
    let requests = world.seen.requests.lock().unwrap();
    assert!(
        requests
            .iter()
            .all(|asked| asked.ends_with(" good.example")),
        "{requests:?}"
    );
}

#[test]
fn bodies_are_carried_by_length_and_in_chunks() {
    const BYTES: usize = 1 << 20;
    let world = World::new(&["good.example"]);
    world.inside(|| {
        let mut stream = connect(GOOD, 80).unwrap();
        for _ in 0..2 {
            let head = format!(
                "POST /a HTTP/1.1\r\nHost: good.example\r\nContent-Length: {BYTES}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&vec![b'x'; BYTES]).unwrap();
            assert!(read_answer(&mut stream).ends_with(&format!(" {BYTES}\n")));
            let head =
                "POST /b HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            for _ in 0..10 {
                stream.write_all(b"5\r\nhello\r\n").unwrap();
            }
            stream.write_all(b"0\r\n\r\n").unwrap();
            assert!(read_answer(&mut stream).contains("POST /b"));
        }
    });
}

#[test]
fn a_websocket_takes_over_only_when_the_server_agrees() {
    let world = World::new(&["good.example"]);
    let ask = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
    };
    world.inside(|| {
        let mut stream = connect(GOOD, 80).unwrap();
        stream.write_all(ask("/socket").as_bytes()).unwrap();
        assert!(read_answer(&mut stream).starts_with("HTTP/1.1 101 "));
        stream.write_all(b"\x81\x05anything").unwrap();
        let mut echoed = [0; 10];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(&echoed, b"\x81\x05anything");
        // A server that does not agree reads on as before, and so do we.
        let mut stream = connect(GOOD, 80).unwrap();
        stream.write_all(ask("/plain").as_bytes()).unwrap();
        assert!(read_answer(&mut stream).contains(" 200 OK"));
        stream.write_all(&get("evil.example")).unwrap();
        assert!(is_cut(&stream.read(&mut [0; 8])));
    });
    let requests = world.seen.requests.lock().unwrap();
    assert!(
        requests
            .iter()
            .all(|asked| asked.ends_with(" good.example")),
        "{requests:?}"
    );
}

#[test]
fn a_name_without_an_address_is_a_bad_gateway() {
    let world = World::new(&["nothing.example"]);
    let answer = world.inside(|| exchange(connect(GOOD, 80), &get("nothing.example")));
    assert!(answer.unwrap().starts_with("HTTP/1.1 502 "));
}

#[test]
fn a_policy_change_cuts_kept_connections() {
    let world = World::new(&["good.example"]);
    let mut stream = world.inside(|| {
        let mut stream = connect(GOOD, 80).unwrap();
        stream.write_all(&get("good.example")).unwrap();
        read_answer(&mut stream);
        stream
    });
    world.allow(&[]);
    assert!(is_cut(&stream.read(&mut [0; 8])));
}

#[test]
fn a_redirect_to_a_forbidden_host_leads_nowhere() {
    let world = World::new(&["good.example"]);
    let request =
        "GET /redirect?to=http://evil.example/loot HTTP/1.1\r\nHost: good.example\r\n\r\n";
    world.inside(|| {
        let mut stream = connect(GOOD, 80).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let head = read_answer(&mut stream);
        assert!(
            head.contains("Location: http://evil.example/loot"),
            "{head}"
        );
        // Followed as clients do: on the connection that stands, on a new one, and by the name.
        stream.write_all(&get("evil.example")).unwrap();
        assert!(is_cut(&stream.read(&mut [0; 8])));
        for address in [GOOD, EVIL] {
            let answer = exchange(connect(address, 80), &get("evil.example")).unwrap();
            assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        }
        assert_eq!(crate::client::ask("evil.example").code, REFUSED);
    });
    assert!(!world.seen.connected(EVIL) && !world.seen.asked("evil.example"));
    assert_eq!(world.seen.requests.lock().unwrap().len(), 1);
}
