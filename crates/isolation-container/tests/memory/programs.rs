//! Programs that hold what is hard to hold: they must go on in a copy as if nothing had happened.
//!
//! Each says `ready` on its output, waits for a line on its input, and then checks everything it holds
//! and says `ok`. The original and the copy are both asked, one after the other.

use bytes::Bytes;
use cove_protocol::client::{FollowEvent, Guest};
use cove_protocol::message::{OutputFrom, Start};

use crate::fixture::{Host, PATIENCE, Sandbox, shell};

const PREAMBLE: &str = r#"
import sys, os, time, threading, socket, select, struct, fcntl, signal, mmap, tempfile, errno, ctypes
libc = ctypes.CDLL(None, use_errno=True)
def ready(): print("ready", flush=True); return sys.stdin.readline()
"#;

fn python(source: &str) -> Start {
    Start {
        argv: vec![
            "/usr/bin/python3".into(),
            "-c".into(),
            format!("{PREAMBLE}\n{source}\nprint('ok', flush=True)\n"),
        ],
        stdin_open: true,
        ..shell("")
    }
}

pub async fn output_until(guest: &Guest, id: &str, wanted: &str) -> String {
    let mut follow = guest
        .follow(OutputFrom {
            id: id.into(),
            follow: true,
            ..OutputFrom::default()
        })
        .await
        .unwrap();
    let mut text = String::new();
    let seen = tokio::time::timeout(PATIENCE, async {
        while !text.contains(wanted) {
            match follow.next().await.unwrap() {
                Some(FollowEvent::Output { data, .. }) => {
                    text.push_str(&String::from_utf8_lossy(&data));
                }
                Some(FollowEvent::Exit(exit)) => {
                    text.push_str(&format!("[exit {}]", exit.code));
                    return;
                }
                Some(FollowEvent::Started(_) | FollowEvent::Refused(_)) => {}
                None => return,
            }
        }
    })
    .await;
    assert!(
        seen.is_ok() && text.contains(wanted),
        "wanted {wanted:?} of {id}: {text}"
    );
    text
}

async fn go(sandbox: &Sandbox, id: &str) {
    let mut stdin = sandbox.guest.stdin(id).await.unwrap();
    stdin.write(Bytes::from_static(b"go\n")).await.unwrap();
    stdin.flush().await.unwrap();
    output_until(&sandbox.guest, id, "ok\n").await;
}

/// Captures a sandbox in which the programs wait, and asks them all in the original and in a copy.
pub async fn survive(sources: &[(&str, &str)]) {
    let host = Host::open();
    let one = host.boot("one").await;
    let mut ids = Vec::new();
    for (name, source) in sources {
        let mut start = python(source);
        start.id.push_str(name);
        let id = start.id.clone();
        one.guest.start(start).await.unwrap();
        output_until(&one.guest, &id, "ready\n").await;
        ids.push((*name, id));
    }
    let snapshot = host.capture(&one).await;
    host.prove(&snapshot).await.unwrap();
    let two = host.restore(&snapshot, "two").await;
    for sandbox in [&two, &one] {
        for (_, id) in &ids {
            go(sandbox, id).await;
        }
    }
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_pipes_timers_and_memory_survive() {
    survive(&[
        (
            "threads",
            r#"
lock, total = threading.Lock(), [0]
def work():
    while True:
        with lock: total[0] += 1
        time.sleep(0.001)
threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
[t.start() for t in threads]
ready()
before = total[0]
while total[0] < before + 100: time.sleep(0.001)
assert all(t.is_alive() for t in threads)
"#,
        ),
        (
            "pipe",
            r#"
r, w = os.pipe()
os.write(w, b"x" * 5000)
pid = os.fork()
if pid == 0:
    os.close(w)
    data = b""
    while len(data) < 10000: data += os.read(r, 65536)
    os._exit(7 if data == b"x" * 5000 + b"y" * 5000 else 1)
os.close(r)
ready()
os.write(w, b"y" * 5000)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"#,
        ),
        (
            "timer",
            r#"
hits = []
signal.signal(signal.SIGALRM, lambda *a: hits.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
began = time.monotonic()
ready()
n = len(hits)
while len(hits) < n + 5: time.sleep(0.005)
assert 0 <= time.monotonic() - began < 3600
"#,
        ),
        (
            "memory",
            r#"
blob = os.urandom(50 << 20)
import hashlib
digest = hashlib.sha256(blob).digest()
shared = mmap.mmap(-1, 1 << 20)
shared[:5] = b"hello"
ready()
assert hashlib.sha256(blob).digest() == digest and shared[:5] == b"hello"
"#,
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_survive_with_data_in_flight() {
    survive(&[
        (
            "listen",
            r#"
server = socket.create_server(("127.0.0.1", 0))
ready()
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
client.sendall(b"hi"); assert peer.recv(2) == b"hi"
"#,
        ),
        (
            "loopback",
            r#"
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
client.sendall(b"before" * 1000)
ready()
client.sendall(b"after")
data = b""
while len(data) < 6005: data += peer.recv(65536)
assert data == b"before" * 1000 + b"after"
peer.sendall(b"back"); assert client.recv(4) == b"back"
"#,
        ),
        (
            "loopback6",
            r#"
server = socket.create_server(("::1", 0), family=socket.AF_INET6)
client = socket.create_connection(server.getsockname()[:2])
peer, _ = server.accept()
client.sendall(b"six")
ready()
assert peer.recv(3) == b"six"
"#,
        ),
        (
            "unix",
            r#"
a, b = socket.socketpair()
a.sendall(b"pair")
path = "/tmp/unix-socket"
server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()
client = socket.socket(socket.AF_UNIX); client.connect(path)
peer, _ = server.accept()
client.sendall(b"queued")
ready()
assert b.recv(4) == b"pair" and peer.recv(6) == b"queued"
again = socket.socket(socket.AF_UNIX); again.connect(path); server.accept()
"#,
        ),
        (
            "epoll",
            r#"
ep = select.epoll()
r, w = os.pipe()
ep.register(r, select.EPOLLIN)
ready()
assert ep.poll(0) == []
os.write(w, b"x")
assert ep.poll(5) == [(r, select.EPOLLIN)]
"#,
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_survive_deleted_locked_and_watched() {
    survive(&[
        (
            "deleted",
            r#"
f = open("/tmp/deleted", "w+b"); f.write(b"still here"); f.flush(); os.unlink("/tmp/deleted")
ready()
f.seek(0); assert f.read() == b"still here" and not os.path.exists("/tmp/deleted")
"#,
        ),
        (
            "renamed",
            r#"
f = open("/tmp/first", "w+b"); f.write(b"linked"); f.flush()
os.link("/tmp/first", "/tmp/second"); os.unlink("/tmp/first")
ready()
f.seek(0); assert f.read() == b"linked" and open("/tmp/second", "rb").read() == b"linked"
f.write(b"!"); f.flush()
assert open("/tmp/second", "rb").read() == b"linked!"
"#,
        ),
        (
            "lock",
            r#"
f = open("/tmp/lock", "w"); fcntl.flock(f, fcntl.LOCK_EX)
ready()
g = open("/tmp/lock", "w")
try:
    fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB); raise SystemExit("the lock was lost")
except BlockingIOError: pass
fcntl.flock(f, fcntl.LOCK_UN); fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
"#,
        ),
        (
            "inotify",
            r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/tmp/watched", exist_ok=True)
fd = libc.inotify_init1(0)
assert libc.inotify_add_watch(fd, b"/tmp/watched", 0x100) > 0
ready()
name = "/tmp/watched/" + os.uname().nodename
open(name, "w").close()
assert os.path.basename(name).encode() in os.read(fd, 4096)
"#,
        ),
        (
            "shm",
            r#"
f = open("/dev/shm/block", "w+b"); f.truncate(1 << 20)
m = mmap.mmap(f.fileno(), 1 << 20); m[:4] = b"shm!"
ready()
assert m[:4] == b"shm!" and open("/dev/shm/block", "rb").read(4) == b"shm!"
"#,
        ),
        (
            "sqlite",
            r#"
import sqlite3
db = sqlite3.connect("/tmp/db.sqlite", isolation_level=None)
db.execute("pragma journal_mode=wal"); db.execute("create table t (n int)")
db.execute("insert into t values (1)")
db.execute("begin"); db.execute("insert into t values (2)")
ready()
db.execute("insert into t values (3)"); db.execute("commit")
assert [n for n, in db.execute("select n from t order by n")] == [1, 2, 3]
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
"#,
        ),
    ])
    .await;
}
