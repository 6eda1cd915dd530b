//! Starting, following, ending.

use cove_protocol::message::{ErrorCode, OutputFrom, ProcessKind, Signal, Start};

use crate::harness::*;

#[tokio::test]
async fn stdout_and_stderr_come_apart_with_the_exit_code() {
    let guest = TestGuest::start().await;
    let result = guest.shell("echo out; echo err >&2; exit 3").await;
    assert_eq!(&result.stdout[..], b"out\n");
    assert_eq!(&result.stderr[..], b"err\n");
    assert_eq!((result.exit.code, result.exit.signal), (3, 0));
    assert_eq!((result.exit.stdout_bytes, result.exit.stderr_bytes), (4, 4));
    assert!(!result.truncated());
}

#[tokio::test]
async fn users_can_open_their_own_streams_again() {
    let guest = TestGuest::start().await;
    let start = Start {
        user: "daemon".to_owned(),
        stdin_open: false,
        input: Some("in\n".into()),
        ..argv(&[
            "sh",
            "-c",
            "cat </dev/stdin >/dev/stdout; echo err >/dev/stderr",
        ])
    };
    let result = guest.exec(start).await.unwrap();
    assert_eq!(&result.stdout[..], b"in\n");
    assert_eq!(&result.stderr[..], b"err\n");
}

#[tokio::test]
async fn a_killed_command_tells_its_signal_as_shells_do() {
    let guest = TestGuest::start().await;
    let result = guest
        .exec(argv(&["sh", "-c", "kill -TERM $$"]))
        .await
        .unwrap();
    assert_eq!((result.exit.code, result.exit.signal), (143, 15));
    assert!(!result.exit.oom && !result.exit.timed_out);
}

#[tokio::test]
async fn failures_to_start_say_what_was_wrong() {
    let guest = TestGuest::start().await;
    std::fs::write(guest.path("plain"), "text").unwrap();
    write_program(&guest.path("noshebang"), "text");
    let plain = guest.text("plain");
    let cases = [
        (argv(&["no-such-program-here"]), ErrorCode::CommandNotFound),
        (argv(&["/no/such/program"]), ErrorCode::CommandNotFound),
        (argv(&[&plain]), ErrorCode::PermissionDenied),
        (argv(&[&guest.text("noshebang")]), ErrorCode::Invalid),
        (
            Start {
                cwd: "/no/such/directory".to_owned(),
                ..argv(&["true"])
            },
            ErrorCode::NotFound,
        ),
        (
            Start {
                cwd: plain.clone(),
                ..argv(&["true"])
            },
            ErrorCode::NotADirectory,
        ),
        (
            Start {
                user: "nobody-by-this-name".to_owned(),
                ..argv(&["true"])
            },
            ErrorCode::NoSuchUser,
        ),
        (Start::default(), ErrorCode::Invalid),
        (
            Start {
                kill_on_disconnect: true,
                ..argv(&["true"])
            },
            ErrorCode::Invalid,
        ),
        (
            Start {
                ring_bytes: 1 << 40,
                ..argv(&["true"])
            },
            ErrorCode::Limit,
        ),
    ];
    for (start, wanted) in cases {
        let shown = format!("{start:?}");
        assert_eq!(code(guest.start(start).await), wanted, "{shown}");
    }
}

#[tokio::test]
async fn the_sandboxs_working_directory_is_made_where_it_is_missing_and_for_its_user() {
    let guest = TestGuest::start().await;
    set_mode(guest.directory.path(), 0o755);
    let there = |script: &str| Start {
        cwd: guest.text("srv/app"),
        make_cwd: true,
        user: "nobody".to_owned(),
        ..argv(&["sh", "-c", script])
    };
    let first = there("pwd; stat -c '%U %a' . ..; echo kept > note");
    let first = guest.exec(first).await.unwrap();
    let place = guest.text("srv/app");
    assert_eq!(
        String::from_utf8_lossy(&first.stdout),
        format!("{place}\nnobody 755\nroot 755\n")
    );
    // One that is there is left as it is.
    set_mode(&guest.path("srv/app"), 0o700);
    let second = guest.exec(there("stat -c %a .; cat note")).await.unwrap();
    assert_eq!(second.stdout.as_ref(), b"700\nkept\n");
    // What is in the way is reported.
    std::fs::write(guest.path("file"), "").unwrap();
    for path in ["file", "file/below"] {
        let start = Start {
            cwd: guest.text(path),
            make_cwd: true,
            ..argv(&["true"])
        };
        assert_eq!(
            code(guest.start(start).await),
            ErrorCode::NotADirectory,
            "{path}"
        );
    }
}

#[tokio::test]
async fn an_id_is_used_once() {
    let guest = TestGuest::start().await;
    let start = argv(&["true"]);
    guest.exec(start.clone()).await.unwrap();
    assert_eq!(code(guest.start(start).await), ErrorCode::AlreadyExists);
}

#[tokio::test]
async fn output_is_replayed_after_the_exit() {
    let guest = TestGuest::start().await;
    let start = shell("echo one; echo two");
    let id = start.id.clone();
    guest.start(start).await.unwrap();
    let all = guest.follow(from_start(&id)).await.unwrap();
    let all = within("replay", all.collect()).await.unwrap();
    assert_eq!(&all.stdout[..], b"one\ntwo\n");
    let rest = OutputFrom {
        stdout_from: 4,
        ..from_start(&id)
    };
    let rest = guest.follow(rest).await.unwrap().collect().await;
    // The client counts from where it asked.
    assert_eq!(&rest.unwrap().stdout[..], b"two\n");
    let beyond = OutputFrom {
        stdout_from: 9,
        ..from_start(&id)
    };
    let refused = guest.follow(beyond).await.unwrap().next().await;
    assert_eq!(code(refused), ErrorCode::Invalid);
}

#[tokio::test]
async fn twenty_commands_at_once_keep_their_output_apart() {
    let guest = TestGuest::start().await;
    let calls: Vec<_> = (0..20)
        .map(|number| {
            let guest = guest.guest.clone();
            tokio::spawn(async move {
                let command =
                    format!("for i in 1 2 3 4 5; do echo {number}:$i; done; exit {number}");
                guest.exec(shell(&command)).await.unwrap()
            })
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let result = call.await.unwrap();
        let wanted: String = (1..=5).map(|i| format!("{number}:{i}\n")).collect();
        assert_eq!(result.stdout, wanted.as_bytes());
        assert_eq!(result.exit.code as usize, number);
    }
}

#[tokio::test]
async fn a_background_child_holding_the_pipe_does_not_hold_up_the_exit() {
    let guest = TestGuest::start().await;
    let fifo = guest.text("go");
    let start = argv(&[
        "sh",
        "-c",
        &format!("mkfifo {fifo}; (cat {fifo} >/dev/null; echo late) & echo early"),
    ]);
    let id = start.id.clone();
    let result = within("the exit", guest.exec(start)).await.unwrap();
    assert_eq!(&result.stdout[..], b"early\n");
    assert_eq!(result.exit.code, 0);
    // What the survivor prints later is still kept.
    tokio::task::spawn_blocking(move || std::fs::write(fifo, "x"))
        .await
        .unwrap()
        .unwrap();
    eventually("the late line", async || {
        guest.process(&id).await.unwrap().stdout_bytes == 11
    })
    .await;
}

#[tokio::test]
async fn a_survivor_that_floods_does_not_hold_up_the_exit() {
    let guest = TestGuest::start().await;
    let start = argv(&["sh", "-c", "yes & echo $! >&2"]);
    let result = within("the exit", guest.exec(start)).await.unwrap();
    assert_eq!(result.exit.code, 0);
}

#[tokio::test]
async fn a_timeout_ends_the_whole_group_even_if_it_ignores_sigterm() {
    let guest = TestGuest::start().await;
    let marker = guest.text("pids");
    let start = Start {
        // Long enough for both shells to have set their traps on a machine with much else to do.
        timeout_ms: 10_000,
        ..argv(&[
            "sh",
            "-c",
            &format!(
                "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {marker}; while :; do sleep 1; done' & while :; do sleep 1; done"
            ),
        ])
    };
    let result = within("the timeout", guest.exec(start)).await.unwrap();
    assert!(result.exit.timed_out);
    assert_eq!((result.exit.signal, result.exit.code), (9, 137));
    assert!(!result.exit.oom);
    let child = std::fs::read_to_string(&marker).unwrap();
    eventually("the child of the group is gone", async || {
        !std::path::Path::new(&format!("/proc/{}", child.trim())).exists()
    })
    .await;
}

#[tokio::test]
async fn a_command_that_ends_in_time_did_not_time_out() {
    let guest = TestGuest::start().await;
    let start = Start {
        timeout_ms: 60_000,
        ..argv(&["true"])
    };
    assert!(!guest.exec(start).await.unwrap().exit.timed_out);
}

#[tokio::test]
async fn a_signal_reaches_the_group_or_only_the_leader() {
    let guest = TestGuest::start().await;
    let start = argv(&[
        "sh",
        "-c",
        "trap 'echo leader; exit 5' USR1; (trap 'echo child' USR1; echo ready; while :; do sleep 0.01; done) & while :; do wait; done",
    ]);
    let id = start.id.clone();
    let mut follow = guest.start_following(start).await.unwrap();
    read_until(&mut follow, "ready").await;
    let signal = |signal, only_leader| Signal {
        id: id.clone(),
        signal,
        only_leader,
    };
    guest.signal(signal(libc::SIGUSR1, false)).await.unwrap();
    let exit = read_exit(&mut follow).await;
    assert_eq!(exit.code, 5);
    eventually("the child had it too", async || {
        let out = guest
            .follow(OutputFrom {
                follow: false,
                ..from_start(&id)
            })
            .await
            .unwrap();
        let out = out.collect().await.unwrap();
        String::from_utf8_lossy(&out.stdout).contains("child")
    })
    .await;
    assert_eq!(
        code(guest.signal(signal(libc::SIGTERM, true)).await),
        ErrorCode::Gone
    );
    assert_eq!(
        code(guest.signal(signal(9999, true)).await),
        ErrorCode::Invalid
    );
}

#[tokio::test]
async fn a_foreground_command_ends_with_its_connection_when_asked_to() {
    let guest = TestGuest::start().await;
    let start = Start {
        kill_on_disconnect: true,
        ..argv(&["sleep", "1000"])
    };
    let id = start.id.clone();
    let mut follow = guest.start_following(start).await.unwrap();
    within("started", follow.next()).await.unwrap();
    drop(follow);
    eventually("the command is gone", async || {
        guest.process(&id).await.unwrap().exit.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_command_outlives_its_connection_otherwise() {
    let guest = TestGuest::start().await;
    let fifo = guest.text("go");
    let start = argv(&[
        "sh",
        "-c",
        &format!("mkfifo {fifo}; cat {fifo} > /dev/null; echo done"),
    ]);
    let id = start.id.clone();
    let mut follow = guest.start_following(start).await.unwrap();
    within("started", follow.next()).await.unwrap();
    drop(follow);
    eventually("nobody watches", async || {
        guest.process(&id).await.unwrap().viewers == 0
    })
    .await;
    let path = guest.path("go");
    eventually("the fifo", async || path.exists()).await;
    tokio::task::spawn_blocking(move || std::fs::write(fifo, "x"))
        .await
        .unwrap()
        .unwrap();
    let all = guest.follow(from_start(&id)).await.unwrap();
    let all = within("the end", all.collect()).await.unwrap();
    assert_eq!(&all.stdout[..], b"done\n");
}

#[tokio::test]
async fn orphans_are_reaped() {
    let guest = TestGuest::start().await;
    guest
        .shell("(setsid sh -c 'exit 0' &) ; (sleep 0.01 &)")
        .await;
    let pid = guest.pid();
    eventually("no child is left", async || descendants(pid).is_empty()).await;
}

#[tokio::test]
async fn children_start_with_clean_signals_descriptors_and_score() {
    let guest = TestGuest::start().await;
    let result = guest
        .exec(argv(&[
            "sh",
            "-c",
            "grep -E 'SigBlk|SigIgn' /proc/self/status; ls /proc/self/fd | wc -l; cat /proc/self/oom_score_adj; ps -o pid=,sid=,pgid= -p $$",
        ]))
        .await
        .unwrap();
    let text = String::from_utf8(result.stdout.to_vec()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("0000000000000000"), "{text}");
    assert!(lines[1].ends_with("0000000000000000"), "{text}");
    // Its own three and the directory it lists.
    assert_eq!((lines[2], lines[3]), ("4", "800"));
    let ids: Vec<&str> = lines[4].split_whitespace().collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "{text}");
}

#[tokio::test]
async fn a_user_gets_its_groups_home_and_environment() {
    let guest = TestGuest::start().await;
    let start = Start {
        user: "daemon".to_owned(),
        env: vec!["EXTRA=yes".to_owned()],
        ..argv(&["sh", "-c", "id -u; id -g; echo $HOME $USER $LANG $EXTRA"])
    };
    let result = guest.exec(start).await.unwrap();
    let text = String::from_utf8(result.stdout.to_vec()).unwrap();
    assert_eq!(text, "1\n1\n/usr/sbin daemon C.UTF-8 yes\n");
    let numbers = Start {
        user: "12345:54321".to_owned(),
        ..argv(&["sh", "-c", "id -u; id -g; id -G"])
    };
    let result = guest.exec(numbers).await.unwrap();
    assert_eq!(&result.stdout[..], b"12345\n54321\n54321\n");
}

#[tokio::test]
async fn listings_tell_what_runs_and_what_it_uses() {
    let guest = TestGuest::start().await;
    let start = Start {
        kind: ProcessKind::Terminal as i32,
        owner: "owner".to_owned(),
        tag: "label".to_owned(),
        mark: "mark".to_owned(),
        ..argv(&["sleep", "1000"])
    };
    let id = start.id.clone();
    guest.start(start).await.unwrap();
    let finished = argv(&["true"]);
    guest.exec(finished.clone()).await.unwrap();
    let all = guest.processes().await.unwrap();
    assert_eq!(all.len(), 2);
    let sleeping = all.iter().find(|process| process.id == id).unwrap();
    assert_eq!(sleeping.argv, ["sleep", "1000"]);
    assert_eq!(
        (
            sleeping.kind(),
            sleeping.owner.as_str(),
            sleeping.mark.as_str()
        ),
        (ProcessKind::Terminal, "owner", "mark")
    );
    assert_eq!(
        (sleeping.tag.as_str(), sleeping.user.as_str()),
        ("label", "root")
    );
    assert!(sleeping.exit.is_none() && sleeping.memory_bytes > 0);
    let ended = guest.process(&finished.id).await.unwrap();
    assert_eq!(ended.exit.unwrap().code, 0);
    assert_eq!(
        code(guest.process("prc_unknown").await),
        ErrorCode::NotFound
    );
}
