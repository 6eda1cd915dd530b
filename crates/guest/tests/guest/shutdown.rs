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
    // As long as a busy machine may take to make the call below: with its end the guest is gone.
    let grace = Duration::from_secs(10);
    let late = {
        let guest = guest.guest.clone();
        tokio::spawn(async move { guest.shutdown(grace).await })
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

async fn keeping(directory: &std::path::Path) -> TestGuest {
    TestGuest::start_with(|_, command| {
        command.arg("--kept").arg(directory);
    })
    .await
}

async fn stop(guest: TestGuest) {
    guest.shutdown(Duration::from_secs(30)).await.unwrap();
}

#[tokio::test]
async fn output_and_ends_of_commands_are_there_after_the_next_start() {
    let disk = temporary_directory();
    let guest = keeping(disk.path()).await;
    let done = Start {
        id: "done".to_owned(),
        tag: "build".to_owned(),
        ..shell("echo out; echo err >&2; exit 3")
    };
    guest.exec(done).await.unwrap();
    let running = Start {
        id: "running".to_owned(),
        ..shell("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last; exec sleep 1000")
    };
    let mut follow = guest.start_following(running).await.unwrap();
    read_until(&mut follow, "last").await;
    drop(follow);
    stop(guest).await;
    // Twice: what was read once is kept further.
    for round in 0..2 {
        let guest = keeping(disk.path()).await;
        let found = guest.processes().await.unwrap();
        let one = |id: &str| found.iter().find(|one| one.id == id).unwrap().clone();
        assert_eq!(found.len(), 2 + round);
        let done = one("done");
        assert_eq!((done.pid, done.tag.as_str()), (0, "build"));
        assert_eq!(done.exit.unwrap().code, 3);
        let running = one("running");
        assert_eq!(running.exit.unwrap().signal, libc::SIGTERM);
        assert_eq!(running.stdout_bytes, 3_000_006);
        assert!(running.stdout_oldest > 0 && running.stdout_oldest < 3_000_000);
        let mut follow = guest.follow(from_start("done")).await.unwrap();
        read_until(&mut follow, "out\n").await;
        assert_eq!(read_exit(&mut follow).await.code, 3);
        // An id that was used stays used, and a signal reaches nobody.
        let again = Start {
            id: "done".to_owned(),
            ..shell("true")
        };
        let refused = guest.start(again).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::AlreadyExists));
        assert_eq!(guest.shell("echo alive").await.stdout.as_ref(), b"alive\n");
        let more = guest.processes().await.unwrap();
        assert_eq!(more.len(), 3 + round);
        // Its own directory holds nothing else, readable for nobody else.
        let names: Vec<_> = std::fs::read_dir(disk.path()).unwrap().collect();
        assert_eq!(names.len(), 1);
        stop(guest).await;
    }
}

#[tokio::test]
async fn output_has_its_times_after_the_next_start() {
    let disk = temporary_directory();
    let guest = keeping(disk.path()).await;
    let start = Start {
        id: "done".to_owned(),
        ..shell("echo one")
    };
    guest.exec(start).await.unwrap();
    let mut follow = guest.follow(from_start("done")).await.unwrap();
    let told = marked(&mut follow).await;
    assert_eq!(told.len(), 1);
    stop(guest).await;
    let guest = keeping(disk.path()).await;
    let mut follow = guest.follow(from_start("done")).await.unwrap();
    assert_eq!(marked(&mut follow).await, told);
}

#[tokio::test]
async fn a_file_that_somebody_inside_wrote_harms_nothing() {
    let disk = temporary_directory();
    let file = disk.path().join("output");
    let good = {
        let guest = keeping(disk.path()).await;
        guest.shell("echo once").await;
        stop(guest).await;
        std::fs::read(&file).unwrap()
    };
    let mut huge = good.clone();
    huge.resize(9 * 1024 * 1024, 0);
    let mut long = good[..14].to_vec();
    // A length beyond everything, and then one record after the other cut short.
    long.extend([0xff; 9]);
    let mut cases = vec![Vec::new(), b"nonsense".to_vec(), huge, long];
    cases.extend((14..good.len()).map(|end| good[..end].to_vec()).step_by(7));
    for changed in (14..good.len()).step_by(5) {
        let mut bytes = good.clone();
        bytes[changed] ^= 0xff;
        cases.push(bytes);
    }
    for case in cases {
        std::fs::write(&file, &case).unwrap();
        let guest = keeping(disk.path()).await;
        assert!(guest.processes().await.unwrap().len() <= 1);
    }
    // Neither a pipe nor a link is opened.
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    assert!(
        keeping(disk.path())
            .await
            .processes()
            .await
            .unwrap()
            .is_empty()
    );
    std::fs::remove_file(&file).unwrap();
    make_pipe(&file);
    assert!(
        keeping(disk.path())
            .await
            .processes()
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_file_full_of_empty_arguments_takes_little_memory() {
    let disk = temporary_directory();
    // Field 3 of a process, its arguments, and then field 1 of what is kept, the process.
    let arguments = [0x1a, 0].repeat(4_000_000);
    let process = |arguments: &[u8]| {
        let mut kept = vec![0x0a];
        prost::encode_length_delimiter(arguments.len(), &mut kept).unwrap();
        kept.extend(arguments);
        let mut record = Vec::new();
        prost::encode_length_delimiter(kept.len(), &mut record).unwrap();
        record.extend(kept);
        record
    };
    let whole = process(&arguments);
    let many = process(&arguments[..16_000]).repeat(500);
    for records in [whole, many] {
        let file = [b"cove output 1\n".to_vec(), records].concat();
        assert!(file.len() < 8 * 1024 * 1024, "{}", file.len());
        std::fs::write(disk.path().join("output"), file).unwrap();
        let guest = keeping(disk.path()).await;
        assert!(guest.processes().await.unwrap().is_empty());
        let status = std::fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
        let peak = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap();
        let kib: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(kib < 64 * 1024, "{peak}");
    }
}

fn make_pipe(path: &std::path::Path) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is a string with a NUL at its end.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[tokio::test]
async fn a_stop_without_new_commands_writes_nothing() {
    let disk = temporary_directory();
    let guest = keeping(disk.path()).await;
    stop(guest).await;
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
    let guest = keeping(disk.path()).await;
    guest.shell("echo once; head -c 2000000 /dev/zero").await;
    stop(guest).await;
    let written = || {
        let about = std::fs::metadata(disk.path().join("output")).unwrap();
        (about.modified().unwrap(), about.len())
    };
    let before = written();
    stop(keeping(disk.path()).await).await;
    assert_eq!(written(), before);
}
