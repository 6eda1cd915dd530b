//! Callers that do not keep to the protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use cove_protocol::frame::FRAME_MAX;
use cove_protocol::message::{Empty, ErrorCode, Open, Reply, ReplyKind, Request};
use prost::Message;

use crate::harness::*;

fn frame(body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

/// Everything the guest says until it hangs up.
fn rest(stream: &mut UnixStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => all,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => all,
        Err(error) => panic!("the guest did not hang up: {error}"),
    }
}

fn error_of(frames: &[u8]) -> (i32, String) {
    match Reply::decode(&frames[4..]).unwrap().kind.unwrap() {
        ReplyKind::Error(error) => (error.code, error.message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_oversized_frames_only_cost_the_connection() {
    let guest = TestGuest::start().await;
    let mut random = Random(0xbad);
    for round in 0..300 {
        let mut stream = UnixStream::connect(guest.socket()).unwrap();
        let mut bytes: Vec<u8> = (0..random.below(400))
            .map(|_| random.next() as u8)
            .collect();
        if round % 2 == 0 {
            bytes = frame(&bytes);
        }
        // It may hang up before all is written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        rest(&mut stream);
    }
    let mut stream = UnixStream::connect(guest.socket()).unwrap();
    stream
        .write_all(&(FRAME_MAX as u32 + 1).to_le_bytes())
        .unwrap();
    assert!(rest(&mut stream).is_empty());
    guest.info().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_frame_and_silence_is_cut_off() {
    let guest = TestGuest::start().await;
    let mut stream = UnixStream::connect(guest.socket()).unwrap();
    stream.write_all(&[200, 0, 0, 0, 8]).unwrap();
    let mut silent = UnixStream::connect(guest.socket()).unwrap();
    assert!(rest(&mut stream).is_empty());
    assert!(rest(&mut silent).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_versions_and_unknown_requests_are_told_so() {
    let guest = TestGuest::start().await;
    for (version, request, wanted) in [
        (
            99,
            Some(Request::Info(Empty {})),
            ErrorCode::VersionMismatch,
        ),
        (0, Some(Request::Info(Empty {})), ErrorCode::VersionMismatch),
        (1, None, ErrorCode::Unsupported),
    ] {
        let mut stream = UnixStream::connect(guest.socket()).unwrap();
        let open = Open {
            version,
            request,
            ..Open::default()
        };
        stream.write_all(&frame(&open.encode_to_vec())).unwrap();
        let (code, message) = error_of(&rest(&mut stream));
        assert_eq!(code, wanted as i32);
        if wanted == ErrorCode::VersionMismatch {
            assert!(
                message.contains(&version.to_string()) && message.contains('1'),
                "{message}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_connections_neither_grow_nor_stop_the_guest() {
    let guest = TestGuest::start().await;
    guest.shell("true").await;
    let before = guest.anonymous_kb();
    let mut held = Vec::new();
    for _ in 0..2000 {
        let stream = UnixStream::connect(guest.socket()).unwrap();
        held.push(stream);
    }
    // The last was refused at once, with a reason. Where so many took long, the first were given up meanwhile
    // and left their places to the last, so that it is one before that was refused.
    let mut said = held.iter_mut().rev().map(rest);
    let refusal = said.find(|said| !said.is_empty());
    let (code, _) = error_of(&refusal.expect("one was refused"));
    assert_eq!(code, ErrorCode::Limit as i32);
    assert!(guest.anonymous_kb() < before + 2048);
    drop(held);
    eventually("calls are taken again", async || guest.info().await.is_ok()).await;
    assert_eq!(guest.shell("echo fine").await.stdout, "fine\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn running_out_of_descriptors_passes() {
    let guest = TestGuest::start_with(|_, command| {
        // SAFETY: only lowers a limit of the child.
        unsafe {
            command.pre_exec(|| {
                let limit = libc::rlimit {
                    rlim_cur: 30,
                    rlim_max: 30,
                };
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                Ok(())
            });
        }
    })
    .await;
    let held: Vec<_> = (0..60)
        .map(|_| UnixStream::connect(guest.socket()).unwrap())
        .collect();
    // Waiting, not spinning: its processor time stands (nearly) still.
    let spent = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", guest.pid())).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<&str> = rest.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let (before, since) = (spent(), std::time::Instant::now());
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Ticks are hundredths of a second.
    let passed = since.elapsed().as_millis() as u64 / 10;
    assert!(spent() - before < passed / 5, "the accept loop spins");
    drop(held);
    eventually("calls are taken again", async || guest.info().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_inside_may_not_talk_to_the_guest() {
    let guest = TestGuest::start().await;
    set_mode(&guest.socket(), 0o777);
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nsys.stdout.buffer.write(s.recv(4096))";
    let output = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(guest.socket())
        .uid(1)
        .output()
        .unwrap();
    let (code, _) = error_of(&output.stdout);
    assert_eq!(code, ErrorCode::PermissionDenied as i32);
}
