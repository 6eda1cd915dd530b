//! The guest as PID 1 of a pid namespace.

use std::time::Duration;

use crate::harness::*;

#[tokio::test]
async fn no_signal_from_inside_ends_pid_1() {
    let guest = TestGuest::start_as_pid_1().await;
    let all = "for s in 1 2 3 4 6 7 8 9 10 11 12 13 14 15 17 18 19 20 24 31 34 64; do kill -$s 1; done; echo sent";
    assert_eq!(
        guest.exec(argv(&["sh", "-c", all])).await.unwrap().stdout,
        "sent\n"
    );
    assert_eq!(guest.shell("echo $PPID").await.stdout, "1\n");
}

#[tokio::test]
async fn orphans_of_every_kind_fall_to_pid_1_and_are_reaped() {
    let guest = TestGuest::start_as_pid_1().await;
    guest
        .exec(argv(&[
            "sh",
            "-c",
            "for i in 1 2 3 4 5; do (setsid sh -c 'exit 3' &); done",
        ]))
        .await
        .unwrap();
    eventually("only the guest is left", async || {
        // The shell that looks and the guest itself.
        let seen = guest
            .exec(argv(&["sh", "-c", "ls -d /proc/[0-9]* | wc -l"]))
            .await;
        matches!(&seen.unwrap().stdout[..], b"2\n" | b"3\n" | b"4\n")
    })
    .await;
    let zombies = "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l";
    eventually("no zombie is left", async || {
        guest
            .exec(argv(&["sh", "-c", zombies]))
            .await
            .unwrap()
            .stdout
            == "0\n"
    })
    .await;
}

#[tokio::test]
async fn shutdown_ends_also_what_left_its_session() {
    let mut guest = TestGuest::start_as_pid_1().await;
    let flag = guest.text("flag");
    let daemon = format!(
        "setsid sh -c 'trap \"echo bye > {flag}; exit\" TERM; echo > {flag}.ready; while :; do sleep 0.01; done' > /dev/null 2>&1 &"
    );
    guest.exec(argv(&["sh", "-c", &daemon])).await.unwrap();
    let ready = guest.path("flag.ready");
    eventually("the daemon is ready", async || ready.exists()).await;
    guest.shutdown(Duration::from_secs(30)).await.unwrap();
    assert_eq!(std::fs::read_to_string(flag).unwrap(), "bye\n");
    eventually("the guest is gone", async || guest.exited().is_some()).await;
}

#[tokio::test]
async fn root_inside_cannot_trace_pid_1_without_the_right_to() {
    let guest = TestGuest::start_as_pid_1().await;
    let open = "exec 3</proc/1/mem && echo opened";
    // As root without CAP_SYS_PTRACE, as every command in a sandbox.
    let without = [
        "setpriv",
        "--bounding-set",
        "-sys_ptrace",
        "--inh-caps",
        "-sys_ptrace",
    ];
    let bare = guest.exec(argv(&["sh", "-c", open])).await.unwrap();
    assert_eq!(bare.stdout, "opened\n");
    let words = [&without[..], &["sh", "-c", open]].concat();
    let result = guest.exec(argv(&words)).await.unwrap();
    assert_eq!(result.stdout, "");
    let text = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(text.contains("Permission denied"), "{text}");
}
