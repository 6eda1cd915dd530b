//! Counts that the kernel keeps for the whole host, and output without end: one sandbox must not be
//! able to use them up for its neighbours.

use std::sync::Arc;

use cove_protocol::client::FollowEvent;
use cove_protocol::message::Start;
use cove_runner_api::RunnerApi;
use cove_tests::{Sandbox, eventually, start_as};

use crate::world::{Case, World, cases};

/// What the host's own memory may grow by while a flood goes on.
const GROWTH_MAX_KB: u64 = 96 * 1024;
const FLOOD_BYTES: u64 = 512 << 20;

pub fn cases() -> Vec<Case> {
    cases![
        an_inotify_bomb_leaves_the_neighbours_theirs,
        a_terminal_bomb_leaves_the_neighbours_theirs,
        a_pipe_bomb_leaves_the_neighbours_theirs,
        socket_buffers_count_as_memory,
        output_without_end_stays_within_bounds,
        a_reader_that_stops_holds_up_its_own_command_only,
    ]
}

/// Runs `greed` in one sandbox, keeps it there, and sees that `modest` still works in another.
async fn beside(world: &World, greed: &str, modest: &str) {
    let greedy = world.sandbox().await;
    let start = Start {
        argv: vec!["python3".into(), "-".into()],
        input: Some(
            format!("{greed}\nprint('full', flush=True)\nimport time; time.sleep(1000)").into(),
        ),
        ..start_as("")
    };
    let id = greedy.spawn(start).await;
    eventually("the greedy one has all it can get", || async {
        let process = greedy.guest.process(id.clone()).await.ok()?;
        assert!(process.exit.is_none(), "the greedy one ended: {process:?}");
        (process.stdout_bytes > 0).then_some(())
    })
    .await;
    let other: Sandbox = world.sandbox().await;
    for sandbox in [&other, &world.neighbour] {
        assert_eq!(sandbox.python("user", modest).await.ok(), "fine\n");
    }
    assert_eq!(greedy.sh("", "echo alive").await.ok(), "alive\n");
}

async fn an_inotify_bomb_leaves_the_neighbours_theirs(world: Arc<World>) {
    let greed = r#"
import ctypes, os, resource
libc = ctypes.CDLL(None)
kept = []
while (fd := libc.inotify_init1(0)) >= 0: kept.append(fd)
os.makedirs("/tmp/w")
for i in range(20000):
    os.mkdir(f"/tmp/w/{i}")
    if libc.inotify_add_watch(kept[0], f"/tmp/w/{i}".encode(), 0xfff) < 0: break
"#;
    let modest = r#"
import ctypes
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0)
assert fd >= 0 and libc.inotify_add_watch(fd, b"/tmp", 0xfff) >= 0
print("fine")
"#;
    beside(&world, greed, modest).await;
}

async fn a_terminal_bomb_leaves_the_neighbours_theirs(world: Arc<World>) {
    let greed = r#"
import os
kept = []
try:
    while len(kept) < 8000: kept.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError: pass
"#;
    let modest = "import pty\nheld = [pty.openpty() for _ in range(20)]\nprint('fine')";
    beside(&world, greed, modest).await;
    let cheeky = world.sandbox().await;
    let count = cheeky
        .python("", &format!("{greed}\nprint(len(kept))"))
        .await
        .ok();
    let count: u32 = count.trim().parse().expect("a number");
    assert!(
        (20..1024).contains(&count),
        "one sandbox got {count} terminals of the host's few thousand"
    );
}

async fn a_pipe_bomb_leaves_the_neighbours_theirs(world: Arc<World>) {
    let greed = r#"
import fcntl, os
kept = []
try:
    while len(kept) < 4000:
        r, w = os.pipe(); kept.append((r, w))
        try: fcntl.fcntl(w, 1031, 1 << 20)
        except OSError: pass
        os.set_blocking(w, False)
        try:
            while True: os.write(w, b"x" * 65536)
        except BlockingIOError: pass
except (OSError, MemoryError): pass
"#;
    let modest = "import os, fcntl\nr, w = os.pipe()\nfcntl.fcntl(w, 1031, 262144)\nassert os.write(w, b'x' * 200000) == 200000\nprint('fine')";
    beside(&world, greed, modest).await;
}

async fn socket_buffers_count_as_memory(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.memory_mb = 128).await;
    // Connections to itself that nobody reads from, each stuffed until it blocks.
    let bomb = r#"
import socket
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
kept, stuffed = [], 0
try:
    while stuffed < 600 << 20:
        a = socket.create_connection(listener.getsockname())
        b, _ = listener.accept()
        a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        a.settimeout(0.2)
        kept += [a, b]
        before = stuffed
        try:
            while True: stuffed += a.send(b"x" * 65536)
        except (BlockingIOError, TimeoutError): pass
        if stuffed - before < 65536 and len(kept) > 400: break
except OSError: pass
print(stuffed >> 20)
"#;
    let ran = sandbox.python("user", bomb).await;
    if !ran.exit.oom {
        let stuffed: u64 = ran.ok().trim().parse().expect("a number");
        assert!(
            stuffed <= 160,
            "{stuffed} MB sit in sockets of a sandbox of 128 MB"
        );
    }
    assert_eq!(sandbox.sh("", "echo alive").await.ok(), "alive\n");
}

fn own_memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process has a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .expect("memory is a number")
}

async fn output_without_end_stays_within_bounds(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.memory_mb = 128).await;
    let flood = format!("head -c {FLOOD_BYTES} /dev/zero; head -c 1000000 /dev/zero >&2");
    let before = own_memory_kb();
    // Nobody reads: the guest keeps the end.
    let unread = sandbox
        .spawn(Start {
            shell: flood.clone(),
            ..start_as("user")
        })
        .await;
    // Somebody reads and keeps little.
    let mut follow = sandbox
        .guest
        .start_following(Start {
            shell: flood,
            ..start_as("")
        })
        .await
        .expect("the guest starts a command");
    let mut read = 0;
    while let Some(event) = follow.next().await.expect("the output goes on") {
        match event {
            FollowEvent::Output { data, dropped, .. } => {
                assert_eq!(dropped, 0, "a follower that reads loses nothing");
                read += data.len() as u64;
            }
            FollowEvent::Exit(exit) => assert_eq!(exit.code, 0),
            FollowEvent::Started(_) | FollowEvent::Refused(_) => {}
        }
    }
    assert_eq!(read, FLOOD_BYTES + 1_000_000);
    let exit = eventually("the unread flood ends", || async {
        sandbox.guest.process(unread.clone()).await.ok()?.exit
    })
    .await;
    assert_eq!((exit.code, exit.stdout_bytes), (0, FLOOD_BYTES));
    let grown = own_memory_kb().saturating_sub(before);
    assert!(grown < GROWTH_MAX_KB, "this process grew by {grown} kB");
    let sample = world
        .host
        .engine
        .sample(&sandbox.id)
        .await
        .expect("a sample");
    assert_eq!(sample.oom_kills, 0);
}

async fn a_reader_that_stops_holds_up_its_own_command_only(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let yes = Start {
        argv: vec!["yes".into()],
        ..start_as("user")
    };
    let mut stalled = sandbox
        .guest
        .start_following(yes)
        .await
        .expect("the guest starts a command");
    let first = stalled.next().await.expect("it is started");
    assert!(matches!(first, Some(FollowEvent::Started(_))));
    for _ in 0..5 {
        assert_eq!(sandbox.sh("", "echo alive").await.ok(), "alive\n");
    }
}
