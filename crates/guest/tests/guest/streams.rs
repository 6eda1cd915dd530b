//! Output under load, and standard input.

use std::time::Duration;

use cove_protocol::client::{FollowEvent, GuestError};
use cove_protocol::message::{Channel, ErrorCode, OutputFrom, Start};

use crate::harness::*;

const FLOOD: u64 = 200_000_000;
/// What the guest may grow by while such a flood passes.
const FLAT_KB: u64 = 4 * 1024;

#[tokio::test]
async fn a_flood_reaches_its_foreground_follower_whole_and_memory_stays_flat() {
    let guest = TestGuest::start().await;
    let before = guest.anonymous_kb();
    let start = argv(&["sh", "-c", "yes 0123456789abcde | head -c 200000000"]);
    let mut follow = guest.start_following(start).await.unwrap();
    let mut total = 0;
    let mut most = 0;
    let exit = within("the flood", async {
        loop {
            match follow.next().await.unwrap().unwrap() {
                FollowEvent::Output {
                    data,
                    dropped,
                    offset,
                    ..
                } => {
                    assert_eq!((dropped, offset), (0, total));
                    let line = b"0123456789abcde\n";
                    let phase = (total % 16) as usize;
                    assert!(
                        data.iter()
                            .zip(line.iter().cycle().skip(phase))
                            .all(|(a, b)| a == b)
                    );
                    total += data.len() as u64;
                    if total % 64 == 0 {
                        most = most.max(guest.anonymous_kb());
                    }
                }
                FollowEvent::Exit(exit) => return exit,
                FollowEvent::Started(_) | FollowEvent::Refused(_) => {}
            }
        }
    })
    .await;
    assert_eq!((total, exit.stdout_bytes), (FLOOD, FLOOD));
    assert!(most < before + FLAT_KB, "{before} kB grew to {most} kB");
}

#[tokio::test]
async fn a_flood_that_nobody_watches_does_not_block_and_memory_stays_flat() {
    let guest = TestGuest::start().await;
    let before = guest.anonymous_kb();
    let start = argv(&["sh", "-c", "yes 0123456789abcde | head -c 200000000"]);
    let id = start.id.clone();
    guest.start(start).await.unwrap();
    eventually("the flood is over", async || {
        assert!(guest.anonymous_kb() < before + FLAT_KB);
        guest.process(&id).await.unwrap().exit.is_some()
    })
    .await;
    let process = guest.process(&id).await.unwrap();
    assert_eq!(process.stdout_bytes, FLOOD);
    assert_eq!(process.stdout_oldest, FLOOD - 256 * 1024);
    let mut follow = guest.follow(from_start(&id)).await.unwrap();
    match follow.next().await.unwrap().unwrap() {
        FollowEvent::Output {
            dropped, offset, ..
        } => {
            assert_eq!(
                (dropped, offset),
                (process.stdout_oldest, process.stdout_oldest)
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_foreground_follower_that_does_not_read_holds_the_command_up() {
    let guest = TestGuest::start().await;
    let start = argv(&["sh", "-c", "yes | head -c 20000000; echo over >&2"]);
    let id = start.id.clone();
    let mut follow = guest.start_following(start).await.unwrap();
    within("started", follow.next()).await.unwrap();
    // It comes to a stand: twice the same figure, well below the whole.
    let mut last = 0;
    eventually("the command stands still", async || {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let now = guest.process(&id).await.unwrap().stdout_bytes;
        let stands = now == last && now > 0;
        last = now;
        stands
    })
    .await;
    assert!(last < 2_000_000, "{last} bytes were read ahead");
    // Without the follower it goes on to its end.
    drop(follow);
    eventually("the command ends", async || {
        guest.process(&id).await.unwrap().exit.is_some()
    })
    .await;
    assert_eq!(guest.process(&id).await.unwrap().stdout_bytes, 20_000_000);
}

#[tokio::test]
async fn reconnecting_at_random_offsets_loses_and_doubles_nothing() {
    let guest = TestGuest::start().await;
    let mut random = Random(0x5eed);
    for round in 0..4 {
        // All of it fits the ring, so nothing may be missing however often the viewer is cut off.
        let start = Start {
            ring_bytes: 4 * 1024 * 1024,
            ..argv(&[
                "sh",
                "-c",
                "i=0; while [ $i -lt 400 ]; do seq $i $((i+500)); echo err $i >&2; i=$((i+1)); done",
            ])
        };
        let id = start.id.clone();
        guest.start(start).await.unwrap();
        let mut texts = [Vec::new(), Vec::new()];
        let mut cuts = 0;
        'connections: loop {
            let from = OutputFrom {
                stdout_from: texts[0].len() as u64,
                stderr_from: texts[1].len() as u64,
                ..from_start(&id)
            };
            let mut follow = guest.follow(from).await.unwrap();
            for _ in 0..1 + random.below(6) {
                match within("output", follow.next()).await.unwrap().unwrap() {
                    FollowEvent::Output {
                        channel,
                        offset,
                        data,
                        dropped,
                        ..
                    } => {
                        let text = &mut texts[channel as usize];
                        assert_eq!((offset, dropped), (text.len() as u64, 0));
                        text.extend_from_slice(&data);
                    }
                    FollowEvent::Exit(_) => break 'connections,
                    FollowEvent::Started(_) | FollowEvent::Refused(_) => {
                        panic!("a replay does not start")
                    }
                }
            }
            cuts += 1;
        }
        assert!(cuts > 0, "round {round} was never cut");
        let stdout: String = (0..400)
            .flat_map(|i| (i..=i + 500).map(|n| format!("{n}\n")))
            .collect();
        let stderr: String = (0..400).map(|i| format!("err {i}\n")).collect();
        assert!(texts[0] == stdout.as_bytes(), "round {round}");
        assert!(texts[1] == stderr.as_bytes(), "round {round}");
    }
}

#[tokio::test]
async fn a_replay_without_follow_ends_while_the_command_runs() {
    let guest = TestGuest::start().await;
    let start = argv(&["sh", "-c", "echo here; sleep 1000"]);
    let id = start.id.clone();
    guest.start(start).await.unwrap();
    eventually("the line", async || {
        guest.process(&id).await.unwrap().stdout_bytes == 5
    })
    .await;
    let from = OutputFrom {
        follow: false,
        ..from_start(&id)
    };
    let mut replay = guest.follow(from).await.unwrap();
    let event = within("replay", replay.next()).await.unwrap();
    assert!(matches!(
        event,
        Some(FollowEvent::Output {
            channel: Channel::Stdout,
            ..
        })
    ));
    assert_eq!(within("its end", replay.next()).await.unwrap(), None);
}

#[tokio::test]
async fn input_given_whole_is_read_to_its_end() {
    let guest = TestGuest::start().await;
    let input = vec![b'x'; 900_000];
    let start = Start {
        input: Some(input.clone().into()),
        ..argv(&["cat"])
    };
    let result = within("cat", guest.exec(start)).await.unwrap();
    assert!(result.stdout == input);
    let empty = Start {
        input: Some(bytes("")),
        ..argv(&["wc", "-c"])
    };
    assert_eq!(&guest.exec(empty).await.unwrap().stdout[..], b"0\n");
}

#[tokio::test]
async fn a_command_that_does_not_read_its_input_still_ends() {
    let guest = TestGuest::start().await;
    let start = Start {
        input: Some(vec![b'x'; 900_000].into()),
        ..argv(&["true"])
    };
    assert_eq!(
        within("true", guest.exec(start)).await.unwrap().exit.code,
        0
    );
}

#[tokio::test]
async fn stdin_is_written_by_several_calls_and_closed_by_one() {
    let guest = TestGuest::start().await;
    let start = Start {
        stdin_open: true,
        ..argv(&["cat"])
    };
    let id = start.id.clone();
    let mut follow = guest.start_following(start).await.unwrap();
    let mut first = guest.stdin(&id).await.unwrap();
    first.write(bytes("one ")).await.unwrap();
    assert_eq!(within("flush", first.flush()).await.unwrap(), 4);
    drop(first);
    let mut second = guest.stdin(&id).await.unwrap();
    second.write(bytes("two")).await.unwrap();
    assert_eq!(within("close", second.close()).await.unwrap(), 3);
    let text = read_until(&mut follow, "two").await;
    assert_eq!(text, "one two");
    assert_eq!(read_exit(&mut follow).await.code, 0);
    let mut late = guest.stdin(&id).await.unwrap();
    assert_eq!(code(late.flush().await), ErrorCode::Gone);
}

#[tokio::test]
async fn input_waits_for_a_process_that_reads_late() {
    let guest = TestGuest::start().await;
    let hasty = guest.within(Duration::from_millis(200));
    let input = vec![b'x'; 8 << 20];
    let start = |command: &str| Start {
        stdin_open: true,
        ..shell(command)
    };
    let never = start("exec sleep 1000");
    guest.start(never.clone()).await.unwrap();
    let mut stdin = hasty.stdin(&never.id).await.unwrap();
    let given_up = within("giving up", stdin.write(input.clone().into())).await;
    assert!(
        matches!(given_up, Err(GuestError::TimedOut(_))),
        "{given_up:?}"
    );
    let late = start("sleep 1; wc -c");
    let mut follow = guest.start_following(late.clone()).await.unwrap();
    let mut stdin = hasty.patient().stdin(&late.id).await.unwrap();
    stdin.write(input.into()).await.unwrap();
    within("close", stdin.close()).await.unwrap();
    assert!(read_until(&mut follow, "\n").await.contains("8388608"));
}

#[tokio::test]
async fn a_command_without_open_input_refuses_some() {
    let guest = TestGuest::start().await;
    let start = argv(&["sleep", "1000"]);
    let id = start.id.clone();
    guest.start(start).await.unwrap();
    let mut stdin = guest.stdin(&id).await.unwrap();
    assert_eq!(code(stdin.flush().await), ErrorCode::Gone);
}

#[tokio::test]
async fn an_abandoned_writer_frees_its_call_although_the_command_never_reads() {
    let guest = TestGuest::start().await;
    let start = Start {
        stdin_open: true,
        ..argv(&["sleep", "1000"])
    };
    let id = start.id.clone();
    guest.start(start).await.unwrap();
    let mut stdin = guest.stdin(&id).await.unwrap();
    // More than the pipe and the socket take: the call is stuck with input unread.
    let stuck = tokio::time::timeout(
        std::time::Duration::from_millis(300),
        stdin.write(vec![0; 4_000_000].into()),
    );
    assert!(stuck.await.is_err());
    drop(stdin);
    eventually("no call is left", async || {
        guest.metrics().await.unwrap().open_calls == 0
    })
    .await;
}

#[tokio::test]
async fn output_says_when_it_was_written() {
    let guest = TestGuest::start().await;
    let start = Start {
        stdin_open: true,
        ..argv(&["sh", "-c", "echo one; read line; echo two"])
    };
    let id = start.id.clone();
    let before = unix_ms();
    let mut follow = guest.start_following(start).await.unwrap();
    let first = marked(&mut follow).await;
    let [(0, one)] = first.as_slice() else {
        panic!("{first:?}");
    };
    let now = unix_ms();
    assert!((before..=now).contains(one), "{before} {one} {now}");
    eventually("the clock goes on", async || unix_ms() > now).await;
    let mut input = guest.stdin(&id).await.unwrap();
    input.write("go\n".into()).await.unwrap();
    let second = marked(&mut follow).await;
    let [(4, two)] = second.as_slice() else {
        panic!("{second:?}");
    };
    assert!(two > one, "{one} {two}");
    // Whoever reads it later is told the same, also from the middle of a line.
    let mut later = guest.follow(from_start(&id)).await.unwrap();
    assert_eq!(marked(&mut later).await, [(0, *one), (4, *two)]);
    let from = OutputFrom {
        stdout_from: 2,
        ..from_start(&id)
    };
    let mut later = guest.follow(from).await.unwrap();
    assert_eq!(marked(&mut later).await, [(2, *one), (4, *two)]);
}
