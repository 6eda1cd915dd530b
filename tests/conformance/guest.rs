//! Attacks on PID 1 and on the host's way to it.

use std::sync::Arc;
use std::time::Duration;

use cove_protocol::message::{ErrorCode, ReadFile, Signal, Start};
use cove_runner_api::RunnerApi;
use cove_tests::{Sandbox, eventually, start_as};

use crate::world::{Case, World, attempts, cases};

pub fn cases() -> Vec<Case> {
    cases![
        no_signal_from_inside_ends_or_stops_pid_1,
        a_command_that_stops_or_kills_everything_leaves_the_sandbox_usable,
        the_guests_program_cannot_be_changed,
        running_the_guest_through_proc_gives_no_way_to_write_it,
        the_host_reaches_pid_1_whatever_lies_at_its_sockets_path,
        an_unprivileged_user_cannot_talk_to_the_guest,
        garbage_and_floods_on_the_socket_do_not_keep_the_host_out,
        a_crippled_guest_can_still_be_deleted,
        a_neighbours_socket_cannot_be_passed_off,
    ]
}

/// The pid of a container's PID 1 on the host.
pub async fn host_pid(sandbox: &Sandbox) -> u32 {
    let map = sandbox.sh("", "cat /proc/self/uid_map").await.ok();
    let base = map
        .split_whitespace()
        .nth(1)
        .expect("a map has a base")
        .to_owned();
    let entries = std::fs::read_dir("/proc").expect("the host has /proc");
    entries
        .filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_string_lossy()
                .parse::<u32>()
                .ok()
        })
        .find(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name))?;
                Some(
                    line.split_whitespace()
                        .map(str::to_owned)
                        .collect::<Vec<_>>(),
                )
            };
            field("Uid:").is_some_and(|uid| uid[1] == base)
                && field("NSpid:")
                    .is_some_and(|pids| pids.len() > 2 && pids.last().is_some_and(|p| p == "1"))
        })
        .expect("PID 1 is a process of the host")
}

async fn answers(sandbox: &Sandbox) {
    assert_eq!(sandbox.sh("", "echo alive").await.ok(), "alive\n");
}

async fn no_signal_from_inside_ends_or_stops_pid_1(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let before = sandbox
        .guest
        .info()
        .await
        .expect("the guest answers")
        .started_unix_ms;
    let all = "import os\nfor s in range(1, 65):\n  try: os.kill(1, s)\n  except OSError: pass\nprint('sent')";
    for user in ["", "user"] {
        assert_eq!(sandbox.python(user, all).await.ok(), "sent\n");
        answers(&sandbox).await;
    }
    let after = sandbox
        .guest
        .info()
        .await
        .expect("the guest answers")
        .started_unix_ms;
    assert_eq!(before, after, "PID 1 was replaced");
}

async fn a_command_that_stops_or_kills_everything_leaves_the_sandbox_usable(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let bystander = sandbox
        .spawn(Start {
            argv: vec!["sleep".into(), "1000".into()],
            ..start_as("user")
        })
        .await;
    // It stops itself as well, so nobody waits for its end.
    let stopper = sandbox
        .spawn(Start {
            argv: [
                "python3",
                "-c",
                "import os; os.kill(-1, 19); os.kill(os.getpid(), 19)",
            ]
            .map(String::from)
            .to_vec(),
            ..start_as("")
        })
        .await;
    // A command started now could be stopped as well, so the guest itself is asked for the states.
    for id in [&bystander, &stopper] {
        let pid = sandbox
            .guest
            .process(id.clone())
            .await
            .expect("it is known")
            .pid;
        eventually("the command is stopped", || async {
            let path = format!("/proc/{pid}/stat");
            let mut stat = sandbox
                .guest
                .read_file(ReadFile {
                    path,
                    ..ReadFile::default()
                })
                .await
                .ok()?;
            let data = stat.next().await.ok()??;
            data.windows(4).any(|part| part == b") T ").then_some(())
        })
        .await;
    }
    answers(&sandbox).await;
    sandbox
        .guest
        .signal(Signal {
            id: stopper,
            signal: 9,
            only_leader: false,
        })
        .await
        .expect("a stopped command can be killed");
    let ran = sandbox
        .python("", "import os; os.kill(-1, 9); print('killed')")
        .await;
    assert_eq!(ran.stdout, "killed\n");
    eventually("the bystander is gone", || async {
        let process = sandbox.guest.process(bystander.clone()).await.ok()?;
        process.exit.filter(|exit| exit.signal == 9)
    })
    .await;
    answers(&sandbox).await;
}

async fn the_guests_program_cannot_be_changed(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let program = r#"
DENIED = (errno.EROFS, errno.ETXTBSY, errno.EACCES, errno.EPERM, errno.EBUSY)
for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
    attempt("open the guest", lambda: os.open("/.cove/bin/guest", flags), *DENIED)
    attempt("open PID 1's program", lambda: os.open("/proc/1/exe", flags), *DENIED)
attempt("unlink", lambda: os.unlink("/.cove/bin/guest"), *DENIED)
attempt("rename", lambda: os.rename("/.cove/bin/guest", "/.cove/bin/old"), *DENIED)
attempt("rename its directory", lambda: os.rename("/.cove/bin", "/.cove/old"), *DENIED)
attempt("chmod", lambda: os.chmod("/.cove/bin/guest", 0o777), *DENIED)
attempt("truncate", lambda: os.truncate("/.cove/bin/guest", 0), *DENIED)
attempt("link", lambda: os.link("/.cove/bin/guest", "/tmp/guest"), errno.EXDEV, *DENIED)
attempt("new file beside it", lambda: open("/.cove/bin/other", "w"), *DENIED)
attempt("attribute", lambda: os.setxattr("/.cove/bin/guest", "user.x", b"y"), errno.ENOTSUP, *DENIED)
finish()
"#;
    for user in ["", "user"] {
        attempts(&sandbox, user, program).await;
    }
}

async fn running_the_guest_through_proc_gives_no_way_to_write_it(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    attempts(&sandbox, "", include_str!("programs/own_program.py")).await;
    // A command is, at the moment of exec, a child of the guest whose program is the guest's own.
    for argv in [
        vec!["/proc/self/exe".to_owned()],
        vec![
            "/proc/self/exe".into(),
            "--listen".into(),
            "--root-files".into(),
            "/tmp".into(),
        ],
    ] {
        let start = Start {
            argv,
            timeout_ms: 1000,
            ..start_as("")
        };
        // Whether it starts at all is the guest's choice.
        let _ = sandbox.try_exec(start).await;
    }
    answers(&sandbox).await;
}

async fn the_host_reaches_pid_1_whatever_lies_at_its_sockets_path(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let before = sandbox
        .guest
        .info()
        .await
        .expect("the guest answers")
        .started_unix_ms;
    let same = || async {
        let info = sandbox.guest.info().await.expect("the guest answers");
        assert_eq!(info.started_unix_ms, before);
    };
    sandbox
        .sh(
            "",
            "mv /.cove/sock /.cove/moved && ln -s /etc/passwd /.cove/sock",
        )
        .await
        .ok();
    same().await;
    sandbox
        .sh("", "ln -sfn /proc/1/root/run /.cove/sock; rm /.cove/moved")
        .await
        .ok();
    same().await;
    let impostor = r#"
import os, select, socket
os.path.lexists("/.cove/sock") and os.unlink("/.cove/sock")
listener = socket.socket(socket.AF_UNIX)
listener.bind("/.cove/sock")
listener.listen(64)
print("ready", flush=True)
select.select([listener], [], [])
print("visited", flush=True)
"#;
    let id = sandbox
        .spawn(Start {
            argv: vec!["python3".into(), "-".into()],
            input: Some(impostor.into()),
            ..start_as("")
        })
        .await;
    eventually("the impostor listens", || async {
        let process = sandbox.guest.process(id.clone()).await.ok()?;
        (process.stdout_bytes >= 6).then_some(())
    })
    .await;
    for _ in 0..20 {
        same().await;
    }
    answers(&sandbox).await;
    let process = sandbox
        .guest
        .process(id)
        .await
        .expect("the impostor is known");
    assert!(
        process.exit.is_none() && process.stdout_bytes == 6,
        "the host went to the impostor: {process:?}"
    );
}

async fn an_unprivileged_user_cannot_talk_to_the_guest(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    // Version 1 and the request to shut down with no grace: both numbers are tags of the protocol.
    let program = r#"
import socket, struct
message = bytes([0x08, 1, 0xc2, 0x01, 0])
try:
    s = socket.socket(socket.AF_UNIX)
    s.connect("/.cove/sock")
    s.sendall(struct.pack("<I", len(message)) + message)
    s.settimeout(120)
    print("answer" if b"only root" not in s.recv(4096) else "refused")
except (PermissionError, ConnectionError):
    print("refused")
"#;
    assert_eq!(sandbox.python("user", program).await.ok(), "refused\n");
    answers(&sandbox).await;
}

async fn garbage_and_floods_on_the_socket_do_not_keep_the_host_out(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let program = r#"
import os, random, socket, struct, time
random.seed(7)
held, refused = [], 0
print("on", flush=True)
end = time.monotonic() + 4
while time.monotonic() < end or not os.path.exists("/tmp/enough"):
    try:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(1)
        s.connect("/.cove/sock")
        kind = random.randrange(5)
        if kind == 0: s.sendall(os.urandom(4096))
        elif kind == 1: s.sendall(struct.pack("<I", 0xffffffff) + b"x" * 1000)
        elif kind == 2: s.sendall(struct.pack("<I", 100) + b"half")
        elif kind == 3: s.sendall(struct.pack("<I", 0) * 100)
        held.append(s)
        if len(held) > 2000: held = held[1000:]
    except OSError:
        refused += 1
        held = held[len(held) // 2:]
print("done")
"#;
    let user_too = sandbox
        .spawn(Start {
            argv: vec!["python3".into(), "-".into()],
            input: Some(program.into()),
            ..start_as("user")
        })
        .await;
    let id = sandbox
        .spawn(Start {
            argv: vec!["python3".into(), "-".into()],
            input: Some(program.into()),
            ..start_as("")
        })
        .await;
    let both = [id, user_too];
    for flood in &both {
        eventually("the flood has begun", || async {
            let process = sandbox.guest.process(flood.clone()).await.ok()?;
            (process.stdout_bytes > 0).then_some(())
        })
        .await;
    }
    // They go on until the host got through often enough, however slow the machine is.
    for _ in 0..5 {
        answers(&sandbox).await;
        let process = sandbox
            .guest
            .process(both[0].clone())
            .await
            .expect("the flood is known");
        assert!(process.exit.is_none(), "the flood ended: {process:?}");
    }
    sandbox.sh("", "touch /tmp/enough").await.ok();
    for flood in &both {
        eventually("the flood ends", || async {
            sandbox.guest.process(flood.clone()).await.ok()?.exit
        })
        .await;
    }
    answers(&sandbox).await;
}

async fn a_crippled_guest_can_still_be_deleted(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    // Root inside may take its own PID 1's descriptors away; that is its own loss.
    let program = "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)); resource.prlimit(1, resource.RLIMIT_AS, (0, 0))";
    let _ = sandbox.python("", program).await;
    let answer = sandbox.guest.within(Duration::from_secs(2)).info().await;
    if let Err(error) = &answer {
        assert_ne!(error.code(), Some(ErrorCode::Internal), "{error:?}");
    }
    world
        .host
        .engine
        .delete(&sandbox.id)
        .await
        .expect("it can be deleted");
}

async fn a_neighbours_socket_cannot_be_passed_off(world: Arc<World>) {
    // Hard links and renames cannot bring another socket under the name the host opened, and an
    // abstract name of one sandbox is not heard in another.
    let (one, other) = (world.sandbox().await, world.sandbox().await);
    let listen = "import socket, time\ns = socket.socket(socket.AF_UNIX); s.bind('\\0cove'); s.listen(); print('ready', flush=True); time.sleep(1000)";
    let id = one
        .spawn(Start {
            argv: vec!["python3".into(), "-".into()],
            input: Some(listen.into()),
            ..start_as("")
        })
        .await;
    eventually("the listener is ready", || async {
        (one.guest.process(id.clone()).await.ok()?.stdout_bytes >= 6).then_some(())
    })
    .await;
    let reach = "import socket\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect('\\0cove'); print('reached')\nexcept ConnectionRefusedError: print('nobody')";
    assert_eq!(other.python("", reach).await.ok(), "nobody\n");
    assert_eq!(one.python("", reach).await.ok(), "reached\n");
}
