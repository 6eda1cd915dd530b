//! Objects of the kernel that programs hold by descriptors and mappings.

use cove_protocol::message::Start;

use crate::fixture::{Host, has, shell};
use crate::programs::survive;

#[tokio::test(flavor = "multi_thread")]
async fn timers_signals_and_events_with_descriptors_survive() {
    survive(&[
        (
            "timerfd",
            r#"
fd = libc.timerfd_create(1, 0); assert fd >= 0
spec = struct.pack("qqqq", 0, 20_000_000, 0, 20_000_000)
assert libc.timerfd_settime(fd, 0, spec, None) == 0
os.read(fd, 8)
ready()
for _ in range(3): assert struct.unpack("Q", os.read(fd, 8))[0] >= 1
"#,
        ),
        (
            "eventfd",
            r#"
fd = libc.eventfd(5, 0x800); assert fd >= 0
ready()
assert struct.unpack("Q", os.read(fd, 8))[0] == 5
os.write(fd, struct.pack("Q", 3)); assert struct.unpack("Q", os.read(fd, 8))[0] == 3
"#,
        ),
        (
            "signalfd",
            r#"
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
mask = struct.pack("Q", 1 << (signal.SIGUSR2 - 1)) + bytes(120)
fd = libc.signalfd(-1, mask, 0); assert fd >= 0
os.kill(os.getpid(), signal.SIGUSR2)
ready()
assert struct.unpack("I", os.read(fd, 128)[:4])[0] == signal.SIGUSR2
os.kill(os.getpid(), signal.SIGUSR2)
assert struct.unpack("I", os.read(fd, 128)[:4])[0] == signal.SIGUSR2
"#,
        ),
        (
            "sleeper",
            r#"
woken = []
def nap():
    time.sleep(0.3); woken.append(1); time.sleep(0.3); woken.append(2)
thread = threading.Thread(target=nap); thread.start()
ready()
thread.join(60); assert woken == [1, 2]
"#,
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mapped_files_and_shared_memory_survive() {
    survive(&[
        (
            "mapped",
            r#"
f = open("/tmp/mapped", "w+b"); f.write(b"x" * 8192); f.flush()
shared = mmap.mmap(f.fileno(), 8192)
private = mmap.mmap(f.fileno(), 8192, flags=mmap.MAP_PRIVATE)
shared[:4] = b"both"; private[4096:4100] = b"mine"
ready()
assert shared[:4] == b"both" and private[4096:4100] == b"mine" and shared[4096:4100] == b"xxxx"
shared[:5] = b"after"; shared.flush()
assert open("/tmp/mapped", "rb").read(5) == b"after" and private[:5] == b"after"
"#,
        ),
        (
            "deleted",
            r#"
f = open("/tmp/mapped-gone", "w+b"); f.write(b"y" * 8192); f.flush()
shared = mmap.mmap(f.fileno(), 8192); os.unlink("/tmp/mapped-gone"); f.close()
shared[:5] = b"alive"
ready()
assert shared[:6] == b"alivey" and not os.path.exists("/tmp/mapped-gone")
"#,
        ),
        (
            "memfd",
            r#"
fd = os.memfd_create("block"); os.ftruncate(fd, 1 << 20)
one = mmap.mmap(fd, 1 << 20); one[:3] = b"one"
pid = os.fork()
if pid == 0:
    while one[3:6] != b"two": time.sleep(0.005)
    one[6:11] = b"three"; os._exit(0)
ready()
one[3:6] = b"two"
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and one[:11] == b"onetwothree"
"#,
        ),
        (
            "systemv",
            r#"
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(0x1234, 8192, 0o1600); assert segment >= 0
at = libc.shmat(segment, None, 0); ctypes.memmove(at, b"segment", 7)
semaphore = libc.semget(0x1234, 1, 0o1600); assert semaphore >= 0
assert libc.semctl(semaphore, 0, 16, 3) == 0
queue = libc.msgget(0x1234, 0o1600); assert queue >= 0
assert libc.msgsnd(queue, struct.pack("q", 1) + b"queued", 6, 0) == 0
ready()
assert ctypes.string_at(at, 7) == b"segment" and libc.shmget(0x1234, 8192, 0o600) == segment
assert libc.semctl(semaphore, 0, 12) == 3
buffer = ctypes.create_string_buffer(64)
assert libc.msgrcv(queue, buffer, 56, 0, 0) == 6 and buffer.raw[8:14] == b"queued"
"#,
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_server_answers_in_the_copy_and_datagrams_still_arrive() {
    survive(&[
        (
            "http",
            r#"
import http.server, urllib.request
class Answer(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Answer.count += 1
        self.send_response(200); self.end_headers(); self.wfile.write(b"%d" % Answer.count)
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
ask = lambda: urllib.request.urlopen("http://127.0.0.1:%d/" % server.server_port, timeout=60).read()
assert ask() == b"1"
ready()
assert ask() == b"2" and ask() == b"3"
"#,
        ),
        (
            "datagrams",
            r#"
bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); bound.bind(("127.0.0.1", 0)); bound.settimeout(60)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sender.connect(bound.getsockname())
unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); unix.bind("\0abstract-name"); unix.settimeout(60)
ready()
sender.send(b"late"); assert bound.recv(10) == b"late"
other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
other.sendto(b"local", "\0abstract-name"); assert unix.recv(10) == b"local"
"#,
        ),
        (
            "asyncio",
            r#"
import asyncio
async def main():
    loop = asyncio.get_running_loop()
    async def serve(reader, writer):
        while line := await reader.readline(): writer.write(line.upper()); await writer.drain()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"before\n"); assert await reader.readline() == b"BEFORE\n"
    tick = asyncio.create_task(asyncio.sleep(0.2, "ticked"))
    await loop.run_in_executor(None, ready)
    writer.write(b"after\n"); assert await reader.readline() == b"AFTER\n"
    assert await tick == "ticked"
asyncio.run(main())
"#,
        ),
    ])
    .await;
}

/// A server, a periodic timer, a worker thread and a child, all in one event loop.
const NODE: &str = r#"
const http = require("http"), fs = require("fs"), { Worker } = require("worker_threads");
let ticks = 0, asked = 0, worker = 0;
setInterval(() => ticks++, 10);
new Worker("const {parentPort} = require('worker_threads'); let n = 0; setInterval(() => parentPort.postMessage(++n), 10);", { eval: true })
  .on("message", n => worker = n);
const server = http.createServer((_, answer) => answer.end(JSON.stringify({ asked: ++asked, ticks, worker })));
server.listen(0, "127.0.0.1", () => fs.writeFileSync("/tmp/port", String(server.address().port)));
"#;

#[tokio::test(flavor = "multi_thread")]
async fn node_with_a_server_timers_and_threads_survives() {
    if !has("node", &["usr/bin/node"]) {
        return;
    }
    let host = Host::open();
    let one = host.boot("one").await;
    let start = Start {
        argv: vec!["/usr/bin/node".into(), "-e".into(), NODE.into()],
        ..shell("")
    };
    one.guest.start(start).await.unwrap();
    let ask = r#"python3 -c '
import json, urllib.request
told = json.load(urllib.request.urlopen("http://127.0.0.1:%s/" % open("/tmp/port").read(), timeout=60))
print(told["asked"], told["ticks"], told["worker"])' 2>/dev/null || true"#;
    let numbers = |said: &str| -> Vec<u64> {
        said.split(' ')
            .filter_map(|word| word.parse().ok())
            .collect()
    };
    let ready = |said: &str| {
        let told = numbers(said);
        told.len() == 3 && told[1] > 2 && told[2] > 2
    };
    let before = numbers(&one.until(ask, ready).await);
    let snapshot = host.capture(&one).await;
    let two = host.restore(&snapshot, "two").await;
    for sandbox in [&two, &one] {
        let now = numbers(&sandbox.say(ask).await);
        assert!(now[0] == before[0] + 1, "{now:?} after {before:?}");
        // Timers of both threads go on.
        sandbox
            .until(ask, |said| {
                let later = numbers(said);
                later.len() == 3 && later[1] > now[1] && later[2] > now[2]
            })
            .await;
    }
    host.close(vec![one, two]).await;
}
