//! How much of the past is kept, and for how long.

use std::os::unix::process::CommandExt;
use std::path::Path;

use cove_protocol::client::FollowEvent;
use cove_protocol::message::{ErrorCode, Start};

use crate::harness::*;

/// A sandbox so small that all rings together get the least there is: 1 MiB.
fn small_sandbox(root: &Path) {
    let group = root.join("cgroup/memory");
    std::fs::create_dir_all(&group).unwrap();
    std::fs::write(group.join("memory.usage_in_bytes"), "1000\n").unwrap();
    std::fs::write(group.join("memory.limit_in_bytes"), "4000000\n").unwrap();
}

fn print(bytes: u32, then: &str) -> Start {
    argv(&["sh", "-c", &format!("head -c {bytes} /dev/zero; {then}")])
}

#[tokio::test]
async fn the_oldest_finished_commands_make_room_for_new_output() {
    let guest = TestGuest::start_with(|root, _| small_sandbox(root)).await;
    guest.exec(argv(&["true"])).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..8 {
        let start = print(300_000, "true");
        ids.push(start.id.clone());
        guest.exec(start).await.unwrap();
    }
    assert_eq!(code(guest.process(&ids[0]).await), ErrorCode::NotFound);
    let last = guest.process(&ids[7]).await.unwrap();
    assert_eq!(last.stdout_bytes - last.stdout_oldest, 256 * 1024);
}

#[tokio::test]
async fn a_foreground_follower_loses_nothing_when_memory_for_rings_is_gone() {
    let guest = TestGuest::start_with(|root, _| small_sandbox(root)).await;
    guest.exec(argv(&["true"])).await.unwrap();
    // Running commands are not forgotten: they take all the rings may have.
    for _ in 0..4 {
        let start = print(300_000, "exec sleep 1000");
        let id = start.id.clone();
        guest.start(start).await.unwrap();
        eventually("its output", async || {
            guest.process(&id).await.unwrap().stdout_bytes == 300_000
        })
        .await;
    }
    let script = "i=0; while [ $i -lt 40 ]; do seq 1 10000; i=$((i+1)); done";
    let mut follow = guest
        .start_following(argv(&["sh", "-c", script]))
        .await
        .unwrap();
    let one: String = (1..=10_000).map(|n| format!("{n}\n")).collect();
    let mut got = Vec::new();
    within("the output", async {
        while let Some(event) = follow.next().await.unwrap() {
            if let FollowEvent::Output { data, dropped, .. } = event {
                assert_eq!(dropped, 0);
                got.extend_from_slice(&data);
            }
        }
    })
    .await;
    assert!(got == one.repeat(40).as_bytes());
}

#[tokio::test]
async fn finished_commands_are_forgotten_beyond_a_thousand() {
    let guest = TestGuest::start().await;
    let first = argv(&["true"]);
    guest.exec(first.clone()).await.unwrap();
    for _ in 0..1024 {
        guest.exec(argv(&["true"])).await.unwrap();
    }
    assert_eq!(code(guest.process(&first.id).await), ErrorCode::NotFound);
    assert_eq!(guest.processes().await.unwrap().len(), 1024);
    // What is forgotten may be started anew.
    guest.exec(first).await.unwrap();
}

#[tokio::test]
async fn commands_get_the_limit_of_open_files_that_the_guest_was_given() {
    let guest = TestGuest::start_with(|_, command| {
        // SAFETY: only sets a limit of the child.
        unsafe {
            command.pre_exec(|| {
                let limit = libc::rlimit {
                    rlim_cur: 512,
                    rlim_max: 2048,
                };
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                Ok(())
            });
        }
    })
    .await;
    let limits = guest
        .exec(argv(&["sh", "-c", "ulimit -Sn; ulimit -Hn"]))
        .await;
    assert_eq!(limits.unwrap().stdout, "512\n2048\n");
}
