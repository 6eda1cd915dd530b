//! Commands, output and files through a real guest: live, resumable, streamed.

use bytes::Bytes;
use cove_api::Timestamp;
use cove_api::file::{
    ChangeKind, ChangeMode, ListFiles, MakeDirectory, MoveFile, ReadArchive, ReadFile, RemoveFile,
    StatFile, WatchFiles, WriteArchive, WriteFile,
};
use cove_api::process::{Encoding, Exec, OutputChunk, OutputEvent, OutputQuery, StartProcess};
use cove_client::{ByteStream, Client, Outgoing, Upload};
use tokio::time::timeout;

use super::harness::{DEADLINE, Server, refused, shell};

async fn all(mut stream: ByteStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await.unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

fn path_in(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).to_str().unwrap().to_owned()
}

fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("cove-http-files-")
        .tempdir_in("/var/tmp")
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_in_one_piece_tells_how_it_ended() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let result = server
        .client
        .exec("box", &shell("echo out; echo err >&2; exit 7"))
        .await
        .unwrap();
    assert_eq!(
        (result.stdout.as_str(), result.stderr.as_str()),
        ("out\n", "err\n")
    );
    assert_eq!(result.exit.exit_code, 7);
    let killed = server
        .client
        .exec("box", &shell("kill -9 $$"))
        .await
        .unwrap();
    assert_eq!((killed.exit.exit_code, killed.exit.signal), (137, Some(9)));
    let late = Exec {
        timeout_ms: Some(50),
        ..shell("sleep 100")
    };
    assert!(
        server
            .client
            .exec("box", &late)
            .await
            .unwrap()
            .exit
            .timed_out
    );
    let binary = Exec {
        encoding: Some(Encoding::Base64),
        stdin_base64: Some("/wD+".into()),
        ..shell("cat")
    };
    assert_eq!(
        server.client.exec("box", &binary).await.unwrap().stdout,
        "/wD+"
    );
    let missing = Exec {
        argv: Some(vec!["no-such-program".into()]),
        ..Exec::default()
    };
    let (status, error) = refused(server.client.exec("box", &missing).await);
    assert_eq!((status, error.code.as_str()), (422, "command_not_found"));
    for neither in [
        Exec::default(),
        Exec {
            argv: Some(vec!["a".into()]),
            ..shell("b")
        },
    ] {
        assert_eq!(refused(server.client.exec("box", &neither).await).0, 422);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_beyond_an_answer_is_counted_and_left_out() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let result = server
        .client
        .exec(
            "box",
            &shell("head -c 20000000 /dev/zero | tr '\\0' x; echo end >&2"),
        )
        .await
        .unwrap();
    assert!(result.truncated);
    assert_eq!(result.stdout.len(), cove_limits::EXEC_OUTPUT_MAX);
    assert_eq!(result.exit.stdout_bytes, 20_000_000);
    assert_eq!(result.stderr, "end\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_takes_as_much_input_and_as_many_arguments_as_documented() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    // As much as fits into a body beside the rest of the request.
    let fed = |command: &str, bytes: usize| Exec {
        stdin: Some("x".repeat(bytes)),
        ..shell(command)
    };
    for bytes in [
        512 * 1024,
        512 * 1024 + 1,
        cove_limits::EXEC_STDIN_MAX - 4096,
    ] {
        let counted = server
            .client
            .exec("box", &fed("wc -c", bytes))
            .await
            .unwrap();
        assert_eq!(counted.stdout.trim(), bytes.to_string());
        // One that does not read its input is not held up by it, and its input is not a failure.
        let unread = server
            .client
            .exec("box", &fed("exit 3", bytes))
            .await
            .unwrap();
        assert_eq!(unread.exit.exit_code, 3);
    }
    let long = |bytes: usize| "x".repeat(bytes);
    let argv = |arguments: &[String]| Exec {
        argv: Some([&["printf".to_owned(), "%s".to_owned()], arguments].concat()),
        ..Exec::default()
    };
    let one = cove_limits::ARGUMENT_BYTES_MAX;
    let rest = cove_limits::COMMAND_BYTES_MAX - "printf %s ".len() - (one + 1);
    let most = argv(&[long(one), long(rest - 1)]);
    let said = server.client.exec("box", &most).await.unwrap();
    assert_eq!(said.stdout.len(), one + rest - 1);
    for beyond in [
        argv(&[long(one), long(rest)]),
        argv(&[long(one + 1)]),
        argv(&vec![String::new(); cove_limits::ARGV_MAX]),
        shell(&long(one + 1)),
    ] {
        let (status, error) = refused(server.client.exec("box", &beyond).await);
        assert_eq!((status, error.code.as_str()), (422, "invalid_request"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_input_reaches_a_command_whose_caller_left() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let dir = scratch();
    let go = path_in(&dir, "go");
    let bytes = 4_000_000;
    let exec = Exec {
        stdin: Some("x".repeat(bytes)),
        // Most of the input is still to come when the caller leaves.
        ..shell(&format!("while [ ! -e {go} ]; do sleep 0.05; done; wc -c"))
    };
    let mut lines = server.client.exec_live("box", &exec).await.unwrap();
    let Some(OutputEvent::Started { process }) = lines.next().await.unwrap() else {
        panic!("the first line is not the start");
    };
    drop(lines);
    std::fs::write(&go, "").unwrap();
    let followed = OutputQuery {
        follow: true,
        ..OutputQuery::default()
    };
    let mut lines = server
        .client
        .output("box", &process.id, &followed)
        .await
        .unwrap();
    let mut counted = String::new();
    while let Some(event) = timeout(DEADLINE, lines.next()).await.unwrap().unwrap() {
        if let OutputEvent::Stdout(chunk) = event {
            counted.push_str(&chunk.text.unwrap());
        }
    }
    assert_eq!(counted.trim(), bytes.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn live_exec_tells_output_while_the_command_still_runs() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let exec = Exec {
        stdin_open: true,
        ..shell("echo first; read line; echo got $line")
    };
    let mut lines = server.client.exec_live("box", &exec).await.unwrap();
    let Some(OutputEvent::Started { process }) = lines.next().await.unwrap() else {
        panic!("the first line is not the start");
    };
    let Some(OutputEvent::Stdout(chunk)) = lines.next().await.unwrap() else {
        panic!("no output came");
    };
    assert_eq!((chunk.offset, chunk.text.as_deref()), (0, Some("first\n")));
    // It waits for this: what was reported above came before its end.
    server
        .client
        .write_stdin("box", &process.id, Bytes::from_static(b"word\n"), true)
        .await
        .unwrap();
    let mut rest = String::new();
    let exit = loop {
        match lines.next().await.unwrap().expect("an exit comes") {
            OutputEvent::Stdout(chunk) => rest.push_str(&chunk.text.unwrap()),
            OutputEvent::Exit(exit) => break exit,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(rest, "got word\n");
    assert_eq!((exit.exit_code, exit.stdout_bytes), (0, 15));
    assert!(lines.next().await.unwrap().is_none());
}

/// Reads at most `limit` bytes of output from an offset, and leaves.
async fn some(client: &Client, process: &str, from: u64, limit: usize) -> (Vec<u8>, bool) {
    let query = OutputQuery {
        stdout_from: from,
        follow: true,
        ..OutputQuery::default()
    };
    let mut lines = client.output("box", process, &query).await.unwrap();
    let mut bytes = Vec::new();
    while bytes.len() < limit {
        match timeout(DEADLINE, lines.next())
            .await
            .expect("output comes")
            .unwrap()
        {
            Some(OutputEvent::Stdout(chunk)) => {
                assert_eq!(chunk.offset, from + bytes.len() as u64);
                assert_eq!(chunk.dropped, 0);
                bytes.extend(chunk.into_bytes().unwrap());
            }
            Some(OutputEvent::Exit(_)) => return (bytes, true),
            Some(_) => {}
            None => panic!("the stream ended without an exit"),
        }
    }
    (bytes, false)
}

#[tokio::test(flavor = "multi_thread")]
async fn output_read_in_cuts_is_whole_and_undoubled() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let start = StartProcess {
        command: Some("for i in $(seq 1 20000); do echo line $i; done".into()),
        ring_bytes: Some(1024 * 1024),
        ..StartProcess::default()
    };
    let process = server.client.start_process("box", &start).await.unwrap();
    let mut bytes = Vec::new();
    for limit in [1, 10, 777, 4096, 50_000].into_iter().cycle() {
        let (more, over) = some(&server.client, &process.id, bytes.len() as u64, limit).await;
        bytes.extend(more);
        if over {
            break;
        }
    }
    let expected: String = (1..=20_000).map(|i| format!("line {i}\n")).collect();
    assert!(
        bytes == expected.as_bytes(),
        "{} bytes of {}",
        bytes.len(),
        expected.len()
    );
    assert_eq!(
        refused(
            server
                .client
                .output("box", "prc_aaaaaaaaaaaaaaaaaaaa", &OutputQuery::default())
                .await
        )
        .0,
        404
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_ring_no_longer_has_is_told_as_dropped() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let start = StartProcess {
        argv: Some(
            ["sh", "-c", "head -c 100000 /dev/zero"]
                .map(String::from)
                .to_vec(),
        ),
        ring_bytes: Some(4096),
        ..StartProcess::default()
    };
    let process = server.client.start_process("box", &start).await.unwrap();
    loop {
        let process = server.client.process("box", &process.id).await.unwrap();
        if process.exit.is_some() && process.stdout_bytes == 100_000 {
            break;
        }
    }
    let mut lines = server
        .client
        .output("box", &process.id, &OutputQuery::default())
        .await
        .unwrap();
    let (mut kept, mut dropped) = (0, 0);
    while let Some(event) = lines.next().await.unwrap() {
        if let OutputEvent::Stdout(chunk) = event {
            dropped += chunk.dropped;
            kept += chunk.into_bytes().unwrap().len() as u64;
        }
    }
    assert!(dropped > 0);
    assert_eq!(kept + dropped, 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_client_leaves_its_command_running() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let mut lines = server
        .client
        .exec_live("box", &shell("echo here; sleep 1000"))
        .await
        .unwrap();
    let Some(OutputEvent::Started { process }) = lines.next().await.unwrap() else {
        panic!("no start")
    };
    drop(lines);
    let found = server.client.process("box", &process.id).await.unwrap();
    assert!(found.exit.is_none());
    server
        .client
        .signal("box", &process.id, "KILL")
        .await
        .unwrap();
    let exec = Exec {
        kill_on_disconnect: true,
        ..shell("sleep 1000")
    };
    let mut lines = server.client.exec_live("box", &exec).await.unwrap();
    let Some(OutputEvent::Started { process }) = lines.next().await.unwrap() else {
        panic!("no start")
    };
    drop(lines);
    let killed = async {
        while server
            .client
            .process("box", &process.id)
            .await
            .unwrap()
            .exit
            .is_none()
        {}
    };
    timeout(DEADLINE, killed)
        .await
        .expect("it is killed with its connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_in_and_come_out_as_they_are() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let dir = scratch();
    let path = path_in(&dir, "file");
    let content: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    let write = WriteFile {
        path: path.clone(),
        mode: Some("0640".into()),
        ..WriteFile::default()
    };
    let source = std::io::Cursor::new(content.clone());
    let body = Outgoing::Upload(Upload::new(source, None));
    let written = server.client.write_file("box", &write, body).await.unwrap();
    assert_eq!(written.bytes, content.len() as u64);
    let read = ReadFile {
        path: path.clone(),
        user: None,
    };
    let stream = server.client.read_file("box", &read, None).await.unwrap();
    assert_eq!(stream.length(), Some(content.len() as u64));
    assert!(all(stream).await == content);
    for (range, expected) in [
        ("bytes=0-9", &content[..10]),
        ("bytes=5-", &content[5..]),
        ("bytes=-7", &content[content.len() - 7..]),
        ("bytes=11999990-99999999999", &content[11_999_990..]),
    ] {
        let stream = server
            .client
            .read_file("box", &read, Some(range))
            .await
            .unwrap();
        assert_eq!(stream.length(), Some(expected.len() as u64), "{range}");
        assert!(all(stream).await == expected, "{range}");
    }
    let beyond = server
        .client
        .read_file("box", &read, Some("bytes=99999999-"))
        .await;
    assert_eq!(
        refused(beyond.map(drop)).1.code.as_str(),
        "range_not_satisfiable"
    );
    let stat = StatFile {
        path: path.clone(),
        user: None,
        follow: false,
    };
    let info = server.client.stat_file("box", &stat).await.unwrap();
    assert_eq!(
        (info.mode.as_str(), info.size),
        ("0640", content.len() as u64)
    );
    let append = WriteFile {
        path: path.clone(),
        append: true,
        ..WriteFile::default()
    };
    server
        .client
        .write_file("box", &append, Outgoing::bytes("end"))
        .await
        .unwrap();
    let stream = server
        .client
        .read_file("box", &read, Some("bytes=-3"))
        .await
        .unwrap();
    assert_eq!(all(stream).await, b"end");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_unknown_length_are_read_to_their_end() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let read = ReadFile {
        path: "/proc/self/status".into(),
        user: None,
    };
    let text = all(server.client.read_file("box", &read, None).await.unwrap()).await;
    assert!(String::from_utf8(text).unwrap().starts_with("Name:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_changes_nothing() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let dir = scratch();
    let path = path_in(&dir, "kept");
    std::fs::write(&path, "old").unwrap();
    let write = WriteFile {
        path: path.clone(),
        ..WriteFile::default()
    };
    let short = Outgoing::Upload(Upload::new(std::io::Cursor::new(vec![1; 10]), Some(1000)));
    assert!(
        server
            .client
            .write_file("box", &write, short)
            .await
            .is_err()
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tree_can_be_worked_on() {
    let server = Server::with_guest().await;
    let client = &server.client;
    server.sandbox("box").await;
    let dir = scratch();
    let deep = path_in(&dir, "a/b");
    let make = MakeDirectory {
        path: deep.clone(),
        user: None,
        mode: Some("0700".into()),
        parents: true,
    };
    client.make_directory("box", &make).await.unwrap();
    let again = MakeDirectory {
        parents: false,
        ..make
    };
    assert_eq!(
        refused(client.make_directory("box", &again).await)
            .1
            .code
            .as_str(),
        "path_exists"
    );
    let file = format!("{deep}/f");
    let write = WriteFile {
        path: file.clone(),
        ..WriteFile::default()
    };
    client
        .write_file("box", &write, Outgoing::bytes("x"))
        .await
        .unwrap();
    let change = ChangeMode {
        path: file.clone(),
        user: None,
        mode: Some("0600".into()),
        owner: None,
    };
    client.change_mode("box", &change).await.unwrap();
    let list = ListFiles {
        path: path_in(&dir, "a"),
        user: None,
        depth: Some(2),
        limit: None,
    };
    let listing = client.list_files("box", &list).await.unwrap();
    let names: Vec<_> = listing
        .items
        .iter()
        .map(|item| (item.name.as_str(), item.mode.as_str()))
        .collect();
    assert!(
        names.contains(&("f", "0600")) && names.iter().any(|(name, _)| name.contains('b')),
        "{names:?}"
    );
    let moved = MoveFile {
        from: file.clone(),
        to: format!("{deep}/g"),
        user: None,
        replace: false,
    };
    client.move_file("box", &moved).await.unwrap();
    let stat = StatFile {
        path: file,
        user: None,
        follow: false,
    };
    assert_eq!(
        refused(client.stat_file("box", &stat).await)
            .1
            .code
            .as_str(),
        "path_not_found"
    );
    let remove = RemoveFile {
        path: path_in(&dir, "a"),
        user: None,
        recursive: false,
    };
    assert_eq!(
        refused(client.remove_file("box", &remove).await)
            .1
            .code
            .as_str(),
        "directory_not_empty"
    );
    client
        .remove_file(
            "box",
            &RemoveFile {
                recursive: true,
                ..remove
            },
        )
        .await
        .unwrap();
    assert!(!dir.path().join("a").exists());
    for path in ["relative", "/nul\0byte", ""] {
        let stat = StatFile {
            path: path.into(),
            user: None,
            follow: false,
        };
        assert_eq!(
            refused(client.stat_file("box", &stat).await).0,
            422,
            "{path:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_travels_as_tar_both_ways() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let dir = scratch();
    std::fs::create_dir_all(dir.path().join("from/sub")).unwrap();
    std::fs::write(dir.path().join("from/sub/file"), "content").unwrap();
    std::fs::create_dir(dir.path().join("to")).unwrap();
    let read = ReadArchive {
        path: path_in(&dir, "from"),
        user: None,
    };
    let tar = all(server.client.read_archive("box", &read).await.unwrap()).await;
    let write = WriteArchive {
        path: path_in(&dir, "to"),
        user: None,
        keep_owner: false,
    };
    let written = server
        .client
        .write_archive("box", &write, Outgoing::bytes(tar))
        .await
        .unwrap();
    assert!(written.entries >= 2);
    assert_eq!(
        std::fs::read_to_string(dir.path().join("to/sub/file")).unwrap(),
        "content"
    );
    let garbage = server
        .client
        .write_archive("box", &write, Outgoing::bytes(vec![7u8; 2048]))
        .await;
    let (status, error) = refused(garbage);
    assert!((400..500).contains(&status), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_below_a_watched_path_are_told_as_they_happen() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let dir = scratch();
    let watch = WatchFiles {
        path: path_in(&dir, "."),
        user: None,
        recursive: true,
    };
    let mut changes = server.client.watch_files("box", &watch).await.unwrap();
    assert_eq!(
        changes.next().await.unwrap().unwrap().kind,
        ChangeKind::Ready
    );
    std::fs::write(dir.path().join("new"), "x").unwrap();
    let told = async {
        loop {
            let change = changes.next().await.unwrap().expect("the watch goes on");
            if change.path.ends_with("/new") {
                return change.kind;
            }
        }
    };
    let kind = timeout(DEADLINE, told).await.expect("the change is told");
    assert!(
        matches!(kind, ChangeKind::Created | ChangeKind::Written),
        "{kind:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn events_stream_and_resume_after_the_last_one_seen() {
    let server = Server::bare().await;
    let first = server.sandbox("one").await;
    let mut stream = server.client.follow_events(None, Some(0)).await.unwrap();
    let event = timeout(DEADLINE, stream.next())
        .await
        .expect("an event comes")
        .unwrap()
        .unwrap();
    assert_eq!(event.sandbox, first.id);
    drop(stream);
    let second = server.sandbox("two").await;
    let mut stream = server
        .client
        .follow_events(Some("two"), Some(event.id))
        .await
        .unwrap();
    let later = timeout(DEADLINE, stream.next())
        .await
        .expect("an event comes")
        .unwrap()
        .unwrap();
    assert_eq!(later.sandbox, second.id);
    assert!(later.id > event.id);
}

/// The chunks of standard output that there are now.
async fn chunks(client: &Client, process: &str, query: OutputQuery) -> Vec<OutputChunk> {
    let mut lines = client.output("box", process, &query).await.unwrap();
    let mut chunks = Vec::new();
    while let Some(event) = timeout(DEADLINE, lines.next()).await.unwrap().unwrap() {
        if let OutputEvent::Stdout(chunk) = event {
            chunks.push(chunk);
        }
    }
    chunks
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_told_with_its_times_and_from_a_time_on() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let client = &server.client;
    // The second line comes when its clock has moved on.
    let script = "echo one; s=$(date +%s%N); while [ $(($(date +%s%N) - s)) -lt 50000000 ]; do :; done; echo two";
    let process = client.exec("box", &shell(script)).await.unwrap().process;
    let asked = |since, timestamps| OutputQuery {
        since,
        timestamps,
        ..OutputQuery::default()
    };
    let plain = chunks(client, &process, asked(None, false)).await;
    let text: String = plain
        .iter()
        .filter_map(|chunk| chunk.text.clone())
        .collect();
    assert_eq!(text, "one\ntwo\n");
    assert!(plain.iter().all(|chunk| chunk.at.is_none()));
    let dated = chunks(client, &process, asked(None, true)).await;
    let told: Vec<_> = dated
        .iter()
        .map(|chunk| (chunk.offset, chunk.text.as_deref()))
        .collect();
    assert_eq!(told, [(0, Some("one\n")), (4, Some("two\n"))]);
    let (one, two) = (dated[0].at.unwrap(), dated[1].at.unwrap());
    assert!(one < two, "{one} {two}");
    let later = chunks(client, &process, asked(Some(two), true)).await;
    assert_eq!(later, dated[1..]);
    let all = chunks(client, &process, asked(Some(one), true)).await;
    assert_eq!(all, dated);
    let after = Timestamp(two.0 + time::Duration::milliseconds(1));
    assert_eq!(
        chunks(client, &process, asked(Some(after), false)).await,
        []
    );
}
