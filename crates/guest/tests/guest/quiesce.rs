//! Letting go of the host for a capture, and being taken up again.

use std::time::Duration;

use bytes::Bytes;
use cove_protocol::client::FollowEvent;
use cove_protocol::message::{ChangeKind, ErrorCode, OutputFrom, Start, Watch, WriteFile};

use crate::harness::*;

/// As long as the guest waits at most.
const WAIT: Duration = Duration::from_secs(60);

fn wake(guest: &TestGuest) {
    let pid = guest.pid_outside() as i32;
    // SAFETY: the guest this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGUSR1) }, 0);
}

#[tokio::test]
async fn a_follower_loses_and_repeats_nothing_over_many_captures() {
    let guest = TestGuest::start_as_pid_1().await;
    let start = shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo $i; done");
    let mut follow = guest
        .start_following(Start {
            kill_on_disconnect: true,
            ..start
        })
        .await
        .unwrap();
    let reader = tokio::spawn(async move {
        let mut text = Vec::new();
        loop {
            match follow.next().await.unwrap().unwrap() {
                FollowEvent::Output { data, dropped, .. } => {
                    assert_eq!(dropped, 0);
                    text.extend_from_slice(&data);
                }
                FollowEvent::Exit(exit) => return (text, exit),
                FollowEvent::Started(_) | FollowEvent::Refused(_) => {}
            }
        }
    });
    for _ in 0..10 {
        guest.quiesce(WAIT).await.unwrap();
        wake(&guest);
        guest.info().await.unwrap();
    }
    let (text, exit) = within("the counting", reader).await.unwrap();
    assert_eq!(exit.code, 0, "it was ended with its connection");
    let wanted: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(text, wanted.as_bytes());
}

#[tokio::test]
async fn input_reaches_its_process_whole_over_many_captures() {
    let guest = TestGuest::start_as_pid_1().await;
    let start = Start {
        stdin_open: true,
        ..argv(&["cat"])
    };
    let id = start.id.clone();
    let follow = guest.start_following(start).await.unwrap();
    let collected = tokio::spawn(follow.collect());
    let mut stdin = guest.stdin(&id).await.unwrap();
    let piece: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    let writing = tokio::spawn(async move {
        for _ in 0..40 {
            stdin.write(Bytes::from(piece.clone())).await.unwrap();
        }
        assert_eq!(stdin.flush().await.unwrap(), 4_000_000);
        stdin.close().await.unwrap()
    });
    for _ in 0..10 {
        guest.quiesce(WAIT).await.unwrap();
        wake(&guest);
        guest.info().await.unwrap();
    }
    assert_eq!(within("the writing", writing).await.unwrap(), 4_000_000);
    let result = within("the reading", collected).await.unwrap().unwrap();
    assert_eq!(result.stdout.len(), 4_000_000);
    let whole = result
        .stdout
        .chunks(100_000)
        .all(|chunk| chunk.iter().enumerate().all(|(n, &byte)| byte == n as u8));
    assert!(whole, "bytes were lost or repeated");
}

#[tokio::test]
async fn input_that_a_process_does_not_read_holds_nothing_up() {
    let guest = TestGuest::start_as_pid_1().await;
    let start = Start {
        stdin_open: true,
        ..shell("read first; head -c 300000 | wc -c")
    };
    let id = start.id.clone();
    let follow = guest.start_following(start).await.unwrap();
    let collected = tokio::spawn(follow.collect());
    let mut stdin = guest.stdin(&id).await.unwrap();
    let mut stuck = b"go\n".to_vec();
    stuck.resize(300_003, b'x');
    // A stopped process reads nothing.
    guest
        .signal(cove_protocol::message::Signal {
            id: id.clone(),
            signal: libc::SIGSTOP,
            only_leader: false,
        })
        .await
        .unwrap();
    stdin.write(Bytes::from(stuck)).await.unwrap();
    guest.quiesce(WAIT).await.unwrap();
    wake(&guest);
    guest
        .signal(cove_protocol::message::Signal {
            id,
            signal: libc::SIGCONT,
            only_leader: false,
        })
        .await
        .unwrap();
    let result = within("the counting", collected).await.unwrap().unwrap();
    assert_eq!(result.stdout.trim_ascii(), b"300000");
}

#[tokio::test]
async fn a_transfer_under_way_is_named_and_nothing_changes() {
    let guest = TestGuest::start_as_pid_1().await;
    let path = guest.text("upload");
    let mut upload = guest
        .write_file(WriteFile {
            path: path.clone(),
            ..WriteFile::default()
        })
        .await
        .unwrap();
    upload.write(Bytes::from_static(b"one ")).await.unwrap();
    let refused = guest.quiesce(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Limit));
    assert!(refused.to_string().contains(&path), "{refused}");
    // It takes calls as before, and the transfer ends well.
    guest.info().await.unwrap();
    upload.write(Bytes::from_static(b"two")).await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"one two");
}

#[tokio::test]
async fn a_watch_stands_again_and_says_that_it_was_away() {
    let guest = TestGuest::start_as_pid_1().await;
    let mut watcher = guest
        .watch(Watch {
            path: guest.text(""),
            ..Watch::default()
        })
        .await
        .unwrap();
    guest.quiesce(WAIT).await.unwrap();
    wake(&guest);
    let change = within("the word of it", watcher.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(change.kind, ChangeKind::Overflow as i32);
    std::fs::write(guest.path("later"), "x").unwrap();
    let change = within("the change", watcher.next()).await.unwrap().unwrap();
    assert!(change.path.ends_with("later"), "{change:?}");
}

#[tokio::test]
async fn calls_wait_while_the_guest_is_quiet_and_are_answered_after() {
    let guest = TestGuest::start_as_pid_1().await;
    guest.quiesce(WAIT).await.unwrap();
    let waiting = tokio::spawn({
        let guest = guest.guest.clone();
        async move { guest.info().await }
    });
    let soon = guest.guest.within(Duration::from_millis(200)).info().await;
    assert!(soon.is_err(), "it answered while quiet");
    wake(&guest);
    within("the answer", waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn nobody_inside_can_quieten_the_guest() {
    // This guest shares the test's pid namespace, so the test counts as somebody inside.
    let guest = TestGuest::start().await;
    let refused = guest.quiesce(WAIT).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::PermissionDenied));
    guest.info().await.unwrap();
}

#[tokio::test]
async fn output_from_an_offset_can_be_asked_for_as_a_return_without_having_left() {
    let guest = TestGuest::start_as_pid_1().await;
    let start = shell("echo hello");
    let id = start.id.clone();
    guest.exec(start).await.unwrap();
    let follow = guest
        .follow(OutputFrom {
            id,
            stdout_from: 2,
            follow: true,
            resume: true,
            ..OutputFrom::default()
        })
        .await
        .unwrap();
    let result = follow.collect().await.unwrap();
    assert_eq!(result.stdout, &b"llo\n"[..]);
}
