//! What people do on any machine and expect to work inside.

use std::sync::Arc;

use cove_protocol::message::{PtySize, Start};
use cove_tests::{eventually, start_as};

use crate::world::{Case, World, cases};

/// A script that checks itself: name, user, text. All run with `set -e`.
const SCRIPTS: &[(&str, &str, &str)] = &[
    (
        "sudo_and_su_change_the_user",
        "user",
        r#"
        test "$(sudo id -u)" = 0
        test "$(sudo su user -c 'id -un')" = user
        test "$(sudo -u nobody id -un)" = nobody
        test "$(id -un)" = user"#,
    ),
    (
        "accounts_can_be_added",
        "",
        r#"
        useradd -m -s /bin/bash ann
        groupadd crew
        usermod -aG crew ann
        test "$(su - ann -c 'id -nG; pwd' | tr '\n' ' ')" = "ann crew /home/ann "
        echo ann:secret | chpasswd
        userdel -r ann"#,
    ),
    (
        "a_background_loop_runs_beside_its_command",
        "user",
        r#"
        setsid sh -c 'while :; do date >> /tmp/ticks; sleep 0.05; done' </dev/null >/dev/null 2>&1 &
        for i in $(seq 4000); do
            test "$(cat /tmp/ticks 2>/dev/null | wc -l)" -ge 3 && break
            sleep 0.05
        done
        test "$(cat /tmp/ticks | wc -l)" -ge 3"#,
    ),
    (
        "c_programs_compile_and_run",
        "user",
        r#"
        cd "$(mktemp -d)"
        printf '#include <stdio.h>\n#include <math.h>\nint main(void){printf("%%.3f\\n", sqrt(2.0));return 0;}\n' > a.c
        printf 'a: a.c\n\tgcc -O2 -o a a.c -lm\n' > Makefile
        make -s
        test "$(./a)" = 1.414"#,
    ),
    (
        "a_local_package_installs_with_apt",
        "",
        r#"
        cd "$(mktemp -d)"
        mkdir -p pkg/DEBIAN pkg/usr/bin pkg/etc repo
        printf 'Package: hello-cove\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@example.invalid>\nDescription: a test\n' > pkg/DEBIAN/control
        printf '#!/bin/sh\nset -e\nadduser --system --no-create-home _hello 2>/dev/null || useradd -r _hello\nchown _hello /usr/bin/hello-cove\n' > pkg/DEBIAN/postinst
        printf '/etc/hello\n' > pkg/DEBIAN/conffiles
        echo x > pkg/etc/hello
        chmod 755 pkg/DEBIAN/postinst
        printf '#!/bin/sh\necho hello from a package\n' > pkg/usr/bin/hello-cove
        chmod 755 pkg/usr/bin/hello-cove
        dpkg-deb --root-owner-group -b pkg repo/hello-cove_1.0_all.deb >/dev/null
        cd repo
        size=$(stat -c %s hello-cove_1.0_all.deb)
        sum=$(sha256sum hello-cove_1.0_all.deb | cut -d' ' -f1)
        { cat ../pkg/DEBIAN/control; printf 'Filename: ./hello-cove_1.0_all.deb\nSize: %s\nSHA256: %s\n' $size $sum; } > Packages
        rm -f /etc/apt/sources.list.d/*
        echo "deb [trusted=yes] file:$PWD ./" > /etc/apt/sources.list
        chmod -R a+rX "$PWD/.."
        apt-get update -qq
        apt-get install -y -qq hello-cove >/dev/null
        test "$(hello-cove)" = "hello from a package"
        test "$(stat -c %U /usr/bin/hello-cove)" = _hello
        apt-get remove -y -qq hello-cove >/dev/null
        ! command -v hello-cove"#,
    ),
    (
        "a_wheel_installs_with_pip_in_a_venv",
        "user",
        r#"
        cd "$(mktemp -d)"
        python3 - <<'END'
import zipfile
with zipfile.ZipFile("cove_hello-1.0-py3-none-any.whl", "w") as w:
    w.writestr("cove_hello.py", "WORD = 'hello'\n")
    w.writestr("cove_hello-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: cove-hello\nVersion: 1.0\n")
    w.writestr("cove_hello-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    w.writestr("cove_hello-1.0.dist-info/RECORD", "")
END
        python3 -m venv env
        env/bin/pip -q install --no-index ./cove_hello-1.0-py3-none-any.whl
        test "$(env/bin/python -c 'import cove_hello; print(cove_hello.WORD)')" = hello"#,
    ),
    (
        "git_commits_and_clones",
        "user",
        r#"
        cd "$(mktemp -d)"
        git init -q a
        cd a
        git config user.email a@example.invalid
        git config user.name A
        for i in 1 2 3; do echo $i > f$i; git add f$i; git commit -qm "add $i"; done
        cd ..
        git clone -q a b
        test "$(git -C b rev-list --count HEAD)" = 3"#,
    ),
    (
        "a_renamed_directory_of_the_image_keeps_its_content",
        "",
        r#"
        cp -r /usr/share/git-core /tmp/copy
        mv /usr/share/git-core /usr/share/git-moved
        diff -r /tmp/copy /usr/share/git-moved
        mv /usr/share/git-moved /srv/git-far
        diff -r /tmp/copy /srv/git-far
        mkdir /usr/share/git-core
        test -z "$(ls -A /usr/share/git-core)"
        rm -rf /srv/git-far"#,
    ),
    (
        "links_owners_and_modes_work",
        "",
        r#"
        cd "$(mktemp -d)"
        echo text > file
        ln file hard
        ln -s file soft
        test "$(stat -c %h file)" = 2
        echo more >> hard
        test "$(cat soft | wc -l)" = 2
        chown user:user file
        test "$(stat -c %U:%G hard)" = user:user
        chown 65534:65534 file
        chmod 4711 hard
        test "$(stat -c %a file)" = 4711
        # A hard link to a file of the image, which is copied up first.
        ln /etc/debian_version copy
        test "$(stat -c %h copy)" -ge 1
        touch -d 2001-02-03 file
        test "$(date -r file +%Y)" = 2001
        chmod 700 .
        ! su user -c "cat $PWD/file""#,
    ),
    (
        "figures_are_the_sandboxs_own",
        "",
        r#"
        test "$(nproc)" = 1
        test "$(grep -c ^processor /proc/cpuinfo)" = 1
        test "$(cat /sys/devices/system/cpu/online)" = 0
        test "$(awk '/^MemTotal/ {print $2}' /proc/meminfo)" = 524288
        test "$(free -m | awk '/^Mem:/ {print $2}')" = 512
        test "$(cut -d. -f1 /proc/uptime)" -lt 600
        test "$(cat /etc/hostname)" = "$(hostname)"
        getent hosts "$(hostname)" >/dev/null
        test "$(ps -o pid= -p 1 | tr -d ' ')" = 1"#,
    ),
    (
        "a_login_shell_reads_the_users_profile",
        "user",
        r#"
        test "$HOME" = /home/user
        test "$PWD" = /home/user
        test "$USER" = user
        echo 'export FROM_PROFILE=yes' >> ~/.profile
        test "$(bash -lc 'echo $FROM_PROFILE')" = yes
        test "$(umask)" = 0022"#,
    ),
    (
        "large_files_have_holes_and_offsets",
        "user",
        r#"
        cd "$(mktemp -d)"
        truncate -s 6G big
        printf end | dd of=big bs=1 seek=5000000000 conv=notrunc status=none
        test "$(stat -c %s big)" = 6442450944
        test "$(tail -c +5000000001 big | head -c 3)" = end
        test "$(stat -c %b big)" -lt 10000"#,
    ),
    (
        "sh_is_where_scripts_expect_it",
        "user",
        r#"
        printf '#!/usr/bin/env python3\nprint("script")\n' > /tmp/s
        chmod +x /tmp/s
        test "$(/tmp/s)" = script
        echo 'echo $0' | sh | grep -q sh
        test "$(mktemp -d | wc -c)" -gt 5
        tar -C /etc -czf /tmp/etc.tgz passwd group && tar -tzf /tmp/etc.tgz | grep -q passwd
        xz -k /tmp/etc.tgz && xz -dc /tmp/etc.tgz.xz | tar -tz >/dev/null"#,
    ),
];

const PROGRAMS: &[(&str, &str)] = &[
    (
        "sqlite_commits",
        r#"
import os, sqlite3, tempfile
path = os.path.join(tempfile.mkdtemp(), "db")
for mode in ("delete", "wal"):
    db = sqlite3.connect(path)
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("create table if not exists t (x)")
    for i in range(20):
        with db: db.execute("insert into t values (?)", (i,))
    db.close()
assert sqlite3.connect(path).execute("select count(*) from t").fetchone()[0] == 40
"#,
    ),
    (
        "processes_share_memory",
        r#"
import multiprocessing as mp
from multiprocessing import shared_memory
def work(i): return i * i
def add(counter):
    for _ in range(100):
        with counter.get_lock(): counter.value += 1
if True:
    mp.set_start_method("fork")
    with mp.Pool(4) as pool: assert sum(pool.map(work, range(100))) == 328350
    counter = mp.Value("i", 0)
    several = [mp.Process(target=add, args=(counter,)) for _ in range(4)]
    [p.start() for p in several]; [p.join() for p in several]
    assert counter.value == 400
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    block.buf[0] = 7
    again = shared_memory.SharedMemory(name=block.name)
    assert again.buf[0] == 7
    again.close(); block.close(); block.unlink()
"#,
    ),
    (
        "sockets_work_on_loopback",
        r#"
import os, socket, tempfile, threading
def echo(server):
    c, _ = server.accept()
    while data := c.recv(65536): c.sendall(data)
    c.close()
path = os.path.join(tempfile.mkdtemp(), "s")
unix = socket.socket(socket.AF_UNIX); unix.bind(path); unix.listen()
servers = [(socket.create_server(("127.0.0.1", 0)), socket.AF_INET),
           (socket.create_server(("::1", 0), family=socket.AF_INET6), socket.AF_INET6), (unix, socket.AF_UNIX)]
for server, family in servers:
    threading.Thread(target=echo, args=(server,), daemon=True).start()
    c = socket.socket(family); c.connect(server.getsockname())
    payload = os.urandom(1 << 20); got = b""
    sender = threading.Thread(target=lambda: (c.sendall(payload), c.shutdown(socket.SHUT_WR))); sender.start()
    while part := c.recv(65536): got += part
    assert got == payload, family
a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); a.bind(("127.0.0.1", 0))
a.sendto(b"hi", a.getsockname()); assert a.recv(10) == b"hi"
x, y = socket.socketpair()
socket.send_fds(x, [b"f"], [a.fileno()]); assert len(socket.recv_fds(y, 10, 1)[1]) == 1
assert socket.create_server(("0.0.0.0", 80 if os.geteuid() == 0 else 8080))
assert socket.gethostbyname("localhost") == "127.0.0.1"
"#,
    ),
    (
        "locks_maps_and_watches_work",
        r#"
import ctypes, fcntl, mmap, os, tempfile
path = os.path.join(tempfile.mkdtemp(), "f")
with open(path, "wb") as f: f.truncate(1 << 20)
a, b = open(path, "r+b"), open(path, "r+b")
fcntl.flock(a, fcntl.LOCK_EX)
try: fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB); raise SystemExit("locked twice")
except BlockingIOError: pass
m, n = mmap.mmap(a.fileno(), 0), mmap.mmap(b.fileno(), 0)
m[5:10] = b"hello"; m.flush(); assert n[5:10] == b"hello"
os.lseek(b.fileno(), 0, 0); assert b.read(10)[5:] == b"hello"
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0); assert fd >= 0
libc.inotify_add_watch(fd, os.path.dirname(path).encode(), 0x100)
open(os.path.join(os.path.dirname(path), "new"), "w").close()
assert b"new" in os.read(fd, 4096)
os.setxattr(path, "user.note", b"kept"); assert os.getxattr(path, "user.note") == b"kept"
"#,
    ),
    (
        "signals_and_timers_work",
        r#"
import os, select, signal, subprocess, time
got = []
signal.signal(signal.SIGALRM, lambda *_: got.append("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.02)
deadline = time.monotonic() + 240
while not got and time.monotonic() < deadline: select.select([], [], [], 0.05)
assert got == ["alarm"]
child = subprocess.Popen(["sleep", "1000"])
os.kill(child.pid, signal.SIGSTOP); os.waitpid(child.pid, os.WUNTRACED)
os.kill(child.pid, signal.SIGCONT); os.waitpid(child.pid, os.WCONTINUED)
child.send_signal(signal.SIGTERM); assert child.wait() == -15
assert signal.sigtimedwait([signal.SIGUSR1], 0) is None
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); os.kill(os.getpid(), signal.SIGUSR1)
assert signal.sigtimedwait([signal.SIGUSR1], 5).si_signo == signal.SIGUSR1
assert abs(time.time() - os.stat("/proc/self").st_ctime) < 3600
"#,
    ),
    (
        "a_debugger_can_trace_its_own_child",
        r#"
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
pid = os.fork()
if pid == 0:
    libc.ptrace(0, 0, None, None)
    os.execv("/bin/true", ["true"])
assert os.WIFSTOPPED(os.waitpid(pid, 0)[1])
calls = 0
while True:
    assert libc.ptrace(24, pid, None, None) == 0
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status): break
    calls += 1
assert calls > 10, calls
"#,
    ),
    (
        "everybody_can_ping",
        r#"
import socket
icmp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
icmp.settimeout(120)
icmp.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]) + b"cove", ("127.0.0.1", 0))
assert icmp.recv(64).endswith(b"cove")
"#,
    ),
    (
        "terminals_can_be_opened",
        r#"
import os, pty, termios
pid, master = pty.fork()
if pid == 0: os.execvp("sh", ["sh", "-c", "tty; stty size"])
out = b""
try:
    while part := os.read(master, 1024): out += part
except OSError: pass
os.waitpid(pid, 0)
assert out.startswith(b"/dev/pts/"), out
"#,
    ),
];

pub fn cases() -> Vec<Case> {
    let scripts = SCRIPTS.iter().map(|(name, user, script)| {
        Case::new(
            format!("everyday::{name}"),
            move |world: Arc<World>| async move {
                let sandbox = world.sandbox().await;
                sandbox.sh(user, &format!("set -e\n{script}")).await.ok();
            },
        )
    });
    let programs = PROGRAMS.iter().map(|(name, program)| {
        Case::new(
            format!("everyday::{name}"),
            move |world: Arc<World>| async move {
                let sandbox = world.sandbox().await;
                for user in ["", "user"] {
                    sandbox.python(user, program).await.ok();
                }
            },
        )
    });
    let mut all: Vec<Case> = scripts.chain(programs).collect();
    all.extend(cases![
        a_daemon_ticks_on_after_its_command_ended,
        a_terminal_has_the_size_that_was_asked_for,
        an_image_of_one_static_program_runs,
        work_survives_a_stop_and_a_start,
    ]);
    all
}

async fn a_daemon_ticks_on_after_its_command_ended(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let daemon = "setsid sh -c 'while :; do echo >> /tmp/ticks; sleep 0.02; done' </dev/null >/dev/null 2>&1 &";
    sandbox.sh("user", daemon).await.ok();
    let ticks = || async {
        let seen = sandbox
            .sh("user", "cat /tmp/ticks 2>/dev/null | wc -l")
            .await
            .ok();
        seen.trim().parse::<u64>().expect("a number")
    };
    let first = ticks().await;
    eventually("the daemon goes on", || async {
        (ticks().await > first + 3).then_some(())
    })
    .await;
}

async fn a_terminal_has_the_size_that_was_asked_for(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let start = Start {
        shell: "tty; stty size; stty -a | grep -o ' echo '; test -t 0 && test -t 1 && test -t 2"
            .into(),
        pty: Some(PtySize {
            cols: 123,
            rows: 45,
        }),
        ..start_as("user")
    };
    let seen = sandbox.exec(start).await.ok();
    assert_eq!(seen, "/dev/pts/0\r\n45 123\r\n echo \r\n");
}

async fn an_image_of_one_static_program_runs(world: Arc<World>) {
    let spec = cove_model::SandboxSpec {
        image: "busybox".into(),
        ..world.spec()
    };
    let sandbox = world.host.sandbox(spec).await;
    let seen = sandbox
        .sh(
            "",
            "id -u; cat /etc/hostname > /dev/null && echo named; ls /",
        )
        .await
        .ok();
    assert!(seen.starts_with("0\nnamed\n"), "{seen}");
}

async fn work_survives_a_stop_and_a_start(world: Arc<World>) {
    use cove_runner_api::RunnerApi;
    let sandbox = world.sandbox().await;
    sandbox.sh("", "echo kept > /srv/kept; rm /etc/debian_version; mv /usr/share/git-core /usr/share/moved").await.ok();
    let begun = std::time::Instant::now();
    world
        .host
        .engine
        .stop(&sandbox.id, 1000)
        .await
        .expect("it stops");
    world
        .host
        .engine
        .start(&sandbox.id)
        .await
        .expect("it starts");
    let seen = sandbox.sh("", "cat /srv/kept; test ! -e /etc/debian_version && ls -d /usr/share/moved; cut -d. -f1 /proc/uptime").await.ok();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[..2], ["kept", "/usr/share/moved"]);
    // It counts from the start on.
    assert!(
        lines[2]
            .parse::<u64>()
            .is_ok_and(|uptime| uptime <= begun.elapsed().as_secs() + 1),
        "{seen}"
    );
}
