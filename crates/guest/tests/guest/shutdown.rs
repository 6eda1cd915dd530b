//! The end of a guest.

use std::time::Duration;

use cove_protocol::message::{ErrorCode, PtySize, Start};

use crate::harness::*;

#[tokio::test]
async fn everything_is_asked_to_end_and_the_guest_exits() {
    let mut guest = TestGuest::start().await;
    let flag = guest.text("flag");
    let start = Start {
        id: "polite".to_owned(),
        ..argv(&[
            "sh",
            "-c",
            &format!(
                "trap 'echo bye > {flag}; exit' TERM; echo ready; while :; do sleep 0.01; done"
            ),
        ])
    };
    let mut follow = guest.start_following(start).await.unwrap();
    read_until(&mut follow, "ready").await;
    guest.shutdown(Duration::from_secs(30)).await.unwrap();
    assert_eq!(std::fs::read_to_string(&flag).unwrap(), "bye\n");
    let mut exited = None;
    let deadline = std::time::Instant::now() + PATIENCE;
    while exited.is_none() && std::time::Instant::now() < deadline {
        exited = guest.exited();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(exited.unwrap().success());
}

#[tokio::test]
async fn what_ignores_the_request_is_killed_and_nothing_new_starts() {
    let guest = TestGuest::start().await;
    let start = argv(&[
        "sh",
        "-c",
        "trap '' TERM HUP; echo ready; while :; do sleep 0.01; done",
    ]);
    let pid = {
        let mut follow = guest.start_following(start).await.unwrap();
        read_until(&mut follow, "ready").await;
        guest.processes().await.unwrap()[0].pid
    };
    let late = {
        let guest = guest.guest.clone();
        tokio::spawn(async move { guest.shutdown(Duration::from_millis(1500)).await })
    };
    eventually("starts are refused", async || {
        match guest.start(argv(&["true"])).await {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::Gone), "{error:?}");
                true
            }
        }
    })
    .await;
    within("shutdown", late).await.unwrap().unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn an_interactive_shell_ends_within_the_grace_time() {
    let guest = TestGuest::start().await;
    let start = Start {
        pty: Some(PtySize { cols: 80, rows: 24 }),
        ..argv(&["bash", "--norc", "-i"])
    };
    let mut follow = guest.start_following(start).await.unwrap();
    read_until(&mut follow, "# ").await;
    let ended = guest.shutdown(PATIENCE * 10);
    within("the shutdown", ended).await.unwrap();
}
