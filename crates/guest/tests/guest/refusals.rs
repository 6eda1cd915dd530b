//! Names and addresses that are refused in a network namespace with nothing but a loopback.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cove_protocol::client::{Follow, FollowEvent};
use cove_protocol::message::{Exit, Refusals, Start};

use crate::harness::*;

/// Where the guest is told that the host's resolver is.
const RESOLVER: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// A look-up as the C library makes it: who is asked stands in a file that this machine's own must not be.
const LOOK_UP: &str = "from socket import *\nimport sys\n\
    def query(name):\n\
    \x20   labels = b''.join(bytes([len(it)]) + it for it in name.split(b'.'))\n\
    \x20   return b'\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0' + labels + b'\\0\\0\\1\\0\\1'\n\
    def look_up(name):\n\
    \x20   asking = socket(AF_INET, SOCK_DGRAM)\n\
    \x20   asking.settimeout(30)\n\
    \x20   asking.connect(('198.19.0.1', 53))\n\
    \x20   asking.send(query(name))\n\
    \x20   return asking.recv(512)\n";

/// A guest in a network namespace of its own, where the resolver's address is the loopback's.
async fn closed() -> TestGuest {
    let program = env!("CARGO_BIN_EXE_cove-guest");
    let script = format!(
        "ip link set lo up && ip route add local {RESOLVER}/32 dev lo table local && exec {program} \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.args(["sh", "-c", &script, "sh"]);
    TestGuest::start_by(command, |_: &Path, command| {
        command.env("COVE_RESOLVER", RESOLVER.to_string());
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    })
    .await
}

fn python(code: &str) -> Start {
    Start {
        report_refusals: true,
        ..argv(&["python3", "-c", &format!("{LOOK_UP}{code}")])
    }
}

/// What was reported before the exit, and the exit.
async fn followed(mut follow: Follow) -> (Vec<Refusals>, String, Exit) {
    let (mut reported, mut text) = (Vec::new(), String::new());
    loop {
        match within("the command", follow.next()).await.unwrap() {
            Some(FollowEvent::Started(_)) => {}
            Some(FollowEvent::Output { data, .. }) => text += &String::from_utf8_lossy(&data),
            Some(FollowEvent::Refused(refusals)) => reported.push(refusals),
            Some(FollowEvent::Exit(exit)) => return (reported, text, exit),
            None => panic!("no exit"),
        }
    }
}

async fn run(guest: &TestGuest, start: Start) -> (Vec<Refusals>, String, Exit) {
    followed(guest.start_following(start).await.unwrap()).await
}

fn names(refusals: &Refusals) -> Vec<(&str, u64)> {
    let named = refusals.names.iter();
    named.map(|it| (&it.name[..], it.queries)).collect()
}

#[tokio::test]
async fn a_name_is_refused_at_once_and_reported_once() {
    let guest = closed().await;
    let code = "for name in (b'pypi.org', b'files.example', b'PyPI.org'):\n\
        \x20   print(look_up(name)[2:4].hex())\n";
    let (reported, text, exit) = run(&guest, python(code)).await;
    assert_eq!((exit.code, &text[..]), (0, "8105\n8105\n8105\n"));
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(reported[0].names.len(), 1);
    let taken = guest.take_refusals().await.unwrap();
    assert_eq!(names(&taken), [("files.example", 1), ("pypi.org", 2)]);
    assert_eq!((taken.more, taken.addresses), (0, 0));
    let again = guest.take_refusals().await.unwrap();
    assert_eq!(again, Refusals::default());
    // What was refused to another command is not reported to this one.
    let (reported, _, exit) = run(&guest, python("sys.exit(3)")).await;
    assert_eq!((reported, exit.code), (Vec::new(), 3));
}

#[tokio::test]
async fn the_report_comes_while_the_command_goes_on() {
    let guest = closed().await;
    let code = "look_up(b'pypi.org')\nsys.stdin.read()\n";
    let start = Start {
        stdin_open: true,
        ..python(code)
    };
    let id = start.id.clone();
    let mut follow = guest.start_following(start).await.unwrap();
    loop {
        match within("the report", follow.next()).await.unwrap() {
            Some(FollowEvent::Refused(refusals)) => {
                assert_eq!(names(&refusals), [("pypi.org", 1)]);
                break;
            }
            Some(FollowEvent::Started(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    let stdin = guest.stdin(id).await.unwrap();
    stdin.close().await.unwrap();
    let (reported, _, exit) = followed(follow).await;
    assert_eq!((reported, exit.code), (Vec::new(), 0));
}

#[tokio::test]
async fn attempts_by_address_are_counted_and_reported_with_a_failure() {
    let guest = closed().await;
    let connect = "failed = 0\n\
        for address in ('192.0.2.1', '192.0.2.2', '192.0.2.3'):\n\
        \x20   failed += socket().connect_ex((address, 443)) != 0\n";
    let (reported, _, exit) = run(&guest, python(&format!("{connect}sys.exit(failed)"))).await;
    assert_eq!(exit.code, 3);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!((reported[0].addresses, reported[0].names.len()), (3, 0));
    let (reported, _, exit) = run(&guest, python(connect)).await;
    assert_eq!((reported, exit.code), (Vec::new(), 0), "it did not fail");
    let taken = guest.take_refusals().await.unwrap();
    assert_eq!((taken.addresses, taken.names.len()), (6, 0));
    assert_eq!(guest.take_refusals().await.unwrap().addresses, 0);
}

#[tokio::test]
async fn a_caller_that_does_not_ask_hears_nothing() {
    let guest = closed().await;
    let start = Start {
        report_refusals: false,
        ..python("look_up(b'pypi.org')\nsys.exit(1)")
    };
    let (reported, _, exit) = run(&guest, start).await;
    assert_eq!((reported, exit.code), (Vec::new(), 1));
}

#[tokio::test]
async fn a_flood_of_hostile_queries_is_bounded_and_calls_go_on() {
    let guest = closed().await;
    let flood = "import os\n\
        asking = socket(AF_INET, SOCK_DGRAM)\n\
        asking.connect(('198.19.0.1', 53))\n\
        asking.setblocking(False)\n\
        print('ready', flush=True)\n\
        number = 0\n\
        while True:\n\
        \x20   number += 1\n\
        \x20   try:\n\
        \x20       asking.send(query(b'n%d.\\x1b[2J\\n.example' % number))\n\
        \x20       asking.send(os.urandom(number % 600))\n\
        \x20   except OSError: pass\n";
    let start = Start {
        report_refusals: false,
        ..python(flood)
    };
    let mut flooding = guest.start_following(start).await.unwrap();
    loop {
        let event = within("the flood", flooding.next()).await.unwrap();
        if matches!(event, Some(FollowEvent::Output { .. })) {
            break;
        }
    }
    let before = guest.anonymous_kb_of_pid_1();
    // Every other call still has its answer.
    for _ in 0..20 {
        let (_, text, exit) = run(&guest, python("print('here')")).await;
        assert_eq!((exit.code, &text[..]), (0, "here\n"));
    }
    let mut more = 0;
    eventually("more names than are kept", async || {
        let taken = guest.take_refusals().await.unwrap();
        assert!(taken.names.len() <= cove_limits::REFUSED_NAMES_MAX);
        for refused in &taken.names {
            assert!(refused.name.len() <= cove_limits::DOMAIN_NAME_MAX);
            assert!(refused.name.bytes().all(|byte| byte.is_ascii_graphic()));
        }
        more += taken.more;
        more > 0
    })
    .await;
    let grown = guest.anonymous_kb_of_pid_1().saturating_sub(before);
    assert!(grown < 4 * 1024, "it grew by {grown} KiB");
}

/// Whether the guest says that it sees what is refused.
async fn sees(guest: &TestGuest) -> bool {
    let mut follow = guest.start_following(python("pass")).await.unwrap();
    let first = within("the start", follow.next()).await.unwrap();
    let Some(FollowEvent::Started(process)) = first else {
        panic!("{first:?}");
    };
    followed(follow).await;
    process.sees_refusals
}

/// Gives the loopback the resolver's address, or takes it away.
async fn route(guest: &TestGuest, what: &str) {
    let command = format!("ip route {what} local {RESOLVER}/32 dev lo table local");
    assert_eq!(guest.shell(&command).await.exit.code, 0);
}

const SERVE: &str =
    "s = socket(AF_INET, SOCK_DGRAM)\ns.bind(('', 53))\nprint('ready', flush=True)\n";

#[tokio::test]
async fn a_program_that_serves_names_itself_keeps_its_port() {
    let guest = closed().await;
    route(&guest, "del").await;
    eventually("the port is free", async || !sees(&guest).await).await;
    let serve = python(&format!(
        "{SERVE}query, asker = s.recvfrom(512)\ns.sendto(b'mine', asker)\n"
    ));
    let mut serving = guest.start_following(serve).await.unwrap();
    while !matches!(
        within("the server", serving.next()).await.unwrap(),
        Some(FollowEvent::Output { .. })
    ) {}
    route(&guest, "add").await;
    assert!(!sees(&guest).await);
    let (reported, text, exit) = run(&guest, python("print(look_up(b'own.example'))")).await;
    assert_eq!((exit.code, &text[..]), (0, "b'mine'\n"));
    assert_eq!(reported, []);
    assert_eq!(followed(serving).await.2.code, 0);
    eventually("it listens again", async || sees(&guest).await).await;
}

#[tokio::test]
async fn names_go_where_the_address_goes() {
    let guest = closed().await;
    assert!(sees(&guest).await);
    let (_, _, exit) = run(&guest, python(SERVE)).await;
    assert_eq!(exit.code, 1, "the port is taken");
    route(&guest, "del").await;
    eventually("it stops listening", async || !sees(&guest).await).await;
    assert_eq!(run(&guest, python(SERVE)).await.2.code, 0);
    route(&guest, "add").await;
    assert!(sees(&guest).await);
}

#[tokio::test]
async fn the_socket_is_closed_for_a_capture_and_comes_back() {
    let guest = closed().await;
    let look_up = || run(&guest, python("look_up(b'pypi.org')"));
    assert_eq!(look_up().await.0.len(), 1);
    guest.quiesce(Duration::from_secs(30)).await.unwrap();
    let sockets =
        std::fs::read_to_string(format!("/proc/{}/net/udp", guest.pid_outside())).unwrap();
    assert_eq!(sockets.lines().count(), 1, "{sockets}");
    // SAFETY: a signal to the guest that this test started.
    unsafe { libc::kill(guest.pid_outside() as i32, libc::SIGUSR1) };
    eventually("it listens again", async || {
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/udp", guest.pid_outside()));
        sockets.unwrap().lines().count() == 2
    })
    .await;
    assert_eq!(look_up().await.0.len(), 1);
}

#[tokio::test]
async fn only_the_host_takes_the_report() {
    let guest = TestGuest::start_as_pid_1().await;
    let socket = guest.socket().display().to_string();
    // Version 1, and the request as an empty message: tag 29.
    let code = format!(
        "from socket import *\ns = socket(AF_UNIX)\ns.connect({socket:?})\n\
         body = b'\\x08\\x01\\xea\\x01\\x00'\n\
         s.sendall(len(body).to_bytes(4, 'little') + body)\nprint(s.recv(4096))\n"
    );
    let asked = guest.exec(argv(&["python3", "-c", &code])).await.unwrap();
    let text = String::from_utf8_lossy(&asked.stdout).into_owned();
    assert!(text.contains("only the host may ask for that"), "{text}");
}
