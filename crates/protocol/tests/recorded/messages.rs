//! One message of each kind that host and guest exchange, with every field set.

use bytes::Bytes;
use cove_protocol::message::*;

const PROCESS: &str = "prc_abcdefghijklmnopqrst";

fn open(request: Request) -> Open {
    Open {
        version: 1,
        request: Some(request),
        ..Open::default()
    }
}

fn process_ref() -> ProcessRef {
    ProcessRef { id: PROCESS.into() }
}

fn size() -> PtySize {
    PtySize {
        cols: 120,
        rows: 40,
    }
}

fn start() -> Start {
    Start {
        id: PROCESS.into(),
        argv: vec!["sh".into(), "-c".into(), "echo hello".into()],
        shell: "echo hello".into(),
        cwd: "/home".into(),
        env: vec!["A=1".into(), "B=two".into()],
        user: "agent:users".into(),
        pty: Some(size()),
        stdin_open: true,
        input: Some(Bytes::from_static(b"input\n")),
        timeout_ms: 30_000,
        follow: true,
        ring_bytes: 65_536,
        kill_on_disconnect: true,
        mark: "cove:exec".into(),
        make_cwd: true,
        kind: ProcessKind::Command as i32,
        owner: "native".into(),
        tag: "build".into(),
        // Newer than the recording.
        report_refusals: false,
    }
}

pub fn opens() -> Vec<(&'static str, Open)> {
    let (path, user) = (String::from("/home/a.txt"), String::from("agent"));
    vec![
        ("open-info", open(Request::Info(Empty {}))),
        ("open-start", open(Request::Start(start()))),
        (
            "open-output",
            open(Request::Output(OutputFrom {
                id: PROCESS.into(),
                stdout_from: 10,
                stderr_from: 20,
                follow: true,
                resume: true,
            })),
        ),
        ("open-stdin", open(Request::Stdin(process_ref()))),
        (
            "open-signal",
            open(Request::Signal(Signal {
                id: PROCESS.into(),
                signal: 15,
                only_leader: true,
            })),
        ),
        (
            "open-resize",
            open(Request::Resize(Resize {
                id: PROCESS.into(),
                size: Some(size()),
            })),
        ),
        ("open-processes", open(Request::Processes(Empty {}))),
        ("open-process", open(Request::Process(process_ref()))),
        (
            "open-read-file",
            open(Request::ReadFile(ReadFile {
                path: path.clone(),
                user: user.clone(),
                offset: 5,
                length: 100,
                ..ReadFile::default()
            })),
        ),
        (
            "open-write-file",
            open(Request::WriteFile(WriteFile {
                path: path.clone(),
                user: user.clone(),
                mode: Some(0o600),
                owner: "agent:users".into(),
                parents: true,
                at: Some(7),
                append: true,
                sync: true,
                ..WriteFile::default()
            })),
        ),
        (
            "open-stat",
            open(Request::Stat(PathRequest {
                path: path.clone(),
                user: user.clone(),
                follow: true,
            })),
        ),
        (
            "open-list",
            open(Request::List(ListDir {
                path: path.clone(),
                user: user.clone(),
                depth: 3,
                limit: 50,
            })),
        ),
        (
            "open-make-dir",
            open(Request::MakeDir(MakeDir {
                path: path.clone(),
                user: user.clone(),
                mode: Some(0o750),
                parents: true,
            })),
        ),
        (
            "open-move",
            open(Request::Move(Move {
                from: path.clone(),
                to: "/home/b.txt".into(),
                user: user.clone(),
                replace: true,
            })),
        ),
        (
            "open-remove",
            open(Request::Remove(Remove {
                path: path.clone(),
                user: user.clone(),
                recursive: true,
            })),
        ),
        (
            "open-set-attributes",
            open(Request::SetAttributes(SetAttributes {
                path: path.clone(),
                user: user.clone(),
                mode: Some(0o640),
                owner: "agent".into(),
            })),
        ),
        (
            "open-archive-out",
            open(Request::ArchiveOut(ArchiveOut {
                path: path.clone(),
                user: user.clone(),
            })),
        ),
        (
            "open-archive-in",
            open(Request::ArchiveIn(ArchiveIn {
                path: path.clone(),
                user: user.clone(),
                keep_owner: true,
            })),
        ),
        (
            "open-watch",
            open(Request::Watch(Watch {
                path,
                user,
                recursive: true,
            })),
        ),
        ("open-ports", open(Request::Ports(Empty {}))),
        ("open-metrics", open(Request::Metrics(Empty {}))),
        (
            "open-connect-port",
            open(Request::ConnectPort(ConnectPort { port: 8080 })),
        ),
        (
            "open-shutdown",
            open(Request::Shutdown(Shutdown { grace_ms: 5000 })),
        ),
        (
            "open-quiesce",
            open(Request::Quiesce(Quiesce { wait_ms: 2000 })),
        ),
        ("open-refresh", open(Request::Refresh(Empty {}))),
    ]
}

pub fn inputs() -> Vec<(&'static str, Input)> {
    let input = |kind| Input { kind: Some(kind) };
    vec![
        (
            "input-data",
            input(InputKind::Data(Bytes::from_static(b"some bytes"))),
        ),
        ("input-end", input(InputKind::End(Empty {}))),
        ("input-flush", input(InputKind::Flush(Empty {}))),
    ]
}

fn exit() -> Exit {
    Exit {
        code: 137,
        signal: 9,
        oom: true,
        timed_out: true,
        duration_ms: 1234,
        memory_limit_bytes: 64 << 20,
        memory_peak_bytes: 63 << 20,
        stdout_bytes: 11,
        stderr_bytes: 22,
    }
}

fn process() -> Process {
    Process {
        id: PROCESS.into(),
        pid: 42,
        argv: vec!["sleep".into(), "9".into()],
        cwd: "/home".into(),
        user: "agent".into(),
        pty: Some(size()),
        started_unix_ms: 1_700_000_000_000,
        exit: Some(exit()),
        stdout_bytes: 11,
        stderr_bytes: 22,
        mark: "cove:exec".into(),
        viewers: 1,
        cpu_ms: 5,
        memory_bytes: 4096,
        stdout_oldest: 1,
        stderr_oldest: 2,
        kind: ProcessKind::Service as i32,
        owner: "e2b".into(),
        tag: "server".into(),
        // Newer than the recording.
        sees_refusals: false,
    }
}

fn file() -> FileInfo {
    FileInfo {
        name: "a.txt".into(),
        path: "/home/a.txt".into(),
        r#type: FileType::Symlink as i32,
        size: 12,
        mode: 0o777,
        uid: 1000,
        gid: 1001,
        owner: "agent".into(),
        group: "users".into(),
        modified_unix_ms: 1_700_000_000_001,
        symlink_target: "b.txt".into(),
    }
}

pub fn replies() -> Vec<(&'static str, Reply)> {
    let reply = |kind| Reply { kind: Some(kind) };
    vec![
        (
            "reply-error",
            reply(ReplyKind::Error(Error {
                code: ErrorCode::Limit as i32,
                message: "too many calls are open".into(),
            })),
        ),
        (
            "reply-done",
            reply(ReplyKind::Done(Done {
                bytes: 12,
                entries: 3,
            })),
        ),
        (
            "reply-info",
            reply(ReplyKind::Info(Info {
                version: 1,
                oldest_supported: 1,
                build: "0.1.0".into(),
                started_unix_ms: 1_700_000_000_002,
                hostname: "box".into(),
                ..Info::default()
            })),
        ),
        ("reply-started", reply(ReplyKind::Started(process()))),
        (
            "reply-output",
            reply(ReplyKind::Output(Output {
                channel: Channel::Stderr as i32,
                offset: 9,
                data: Bytes::from_static(b"words\n"),
                dropped: 4,
                times: Vec::new(),
            })),
        ),
        ("reply-exit", reply(ReplyKind::Exit(exit()))),
        (
            "reply-processes",
            reply(ReplyKind::Processes(Processes {
                processes: vec![process()],
            })),
        ),
        ("reply-process", reply(ReplyKind::Process(process()))),
        ("reply-file", reply(ReplyKind::File(file()))),
        (
            "reply-data",
            reply(ReplyKind::Data(Bytes::from_static(b"payload"))),
        ),
        (
            "reply-listing",
            reply(ReplyKind::Listing(Listing {
                entries: vec![file()],
                truncated: true,
            })),
        ),
        (
            "reply-change",
            reply(ReplyKind::Change(Change {
                kind: ChangeKind::Renamed as i32,
                path: "/home/b".into(),
                from: "/home/a".into(),
                directory: true,
            })),
        ),
        (
            "reply-ports",
            reply(ReplyKind::Ports(Ports {
                ports: vec![Port {
                    port: 8080,
                    address: "127.0.0.1".into(),
                    pid: 42,
                    process: "node".into(),
                }],
            })),
        ),
        (
            "reply-metrics",
            reply(ReplyKind::Metrics(Metrics {
                cpu_usec: 1,
                memory_bytes: 2,
                memory_peak_bytes: 3,
                memory_limit_bytes: 4,
                memory_cache_bytes: 5,
                oom_kills: 6,
                processes: 7,
                threads: 8,
                disk_used_bytes: 9,
                network_received_bytes: 10,
                network_sent_bytes: 11,
                running_commands: 12,
                open_calls: 13,
                cpus: 14,
            })),
        ),
        (
            "reply-quiesce",
            reply(ReplyKind::Quiesce(Quiesced { taken: 77 })),
        ),
    ]
}
