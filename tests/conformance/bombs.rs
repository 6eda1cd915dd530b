//! Attempts to take more than was given: memory, processes, disk, descriptors, CPU. Each ends at the
//! sandbox's own limit.

use std::sync::Arc;
use std::time::Instant;

use cove_model::EventKind;
use cove_protocol::message::{ErrorCode, Signal, Start};
use cove_runner_api::RunnerApi;
use cove_tests::{Sandbox, eventually, start_as};

use crate::world::{Case, World, cases};

pub fn cases() -> Vec<Case> {
    cases![
        a_fork_bomb_ends_at_the_limit_and_can_be_killed,
        a_thread_bomb_ends_at_the_limit,
        orphaned_children_are_reaped,
        a_memory_bomb_is_killed_and_reported_and_pid_1_lives,
        shared_memory_counts_as_memory_and_has_an_end,
        system_v_memory_left_behind_does_not_starve_pid_1,
        a_disk_bomb_fills_its_own_disk_only,
        an_inode_bomb_fills_its_own_disk_only,
        a_descriptor_bomb_ends_at_the_limit,
        a_busy_sandbox_gets_no_more_than_its_share,
        a_tree_too_deep_to_walk_can_be_deleted,
    ]
}

async fn usable(sandbox: &Sandbox) {
    assert_eq!(sandbox.sh("", "echo alive").await.ok(), "alive\n");
}

async fn a_fork_bomb_ends_at_the_limit_and_can_be_killed(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.pids = 64).await;
    let bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass";
    let id = sandbox
        .spawn(Start {
            argv: vec!["python3".into(), "-c".into(), bomb.into()],
            ..start_as("user")
        })
        .await;
    let refusal = eventually("a command is refused", || async {
        let start = Start {
            argv: vec!["true".into()],
            ..start_as("")
        };
        sandbox
            .try_exec(start)
            .await
            .err()
            .and_then(|error| error.code())
    })
    .await;
    assert_eq!(refusal, ErrorCode::TooManyProcesses);
    let sample = world
        .host
        .engine
        .sample(&sandbox.id)
        .await
        .expect("a sample");
    assert!(sample.pids <= 64, "{} processes", sample.pids);
    world.check_unharmed().await;
    sandbox
        .guest
        .signal(Signal {
            id,
            signal: 9,
            only_leader: false,
        })
        .await
        .expect("the bomb can be killed");
    eventually("commands run again", || async {
        let start = Start {
            argv: vec!["true".into()],
            ..start_as("")
        };
        sandbox.try_exec(start).await.ok()
    })
    .await;
}

async fn a_thread_bomb_ends_at_the_limit(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.pids = 100).await;
    let bomb = r#"
import threading
threading.stack_size(65536)
gate, count = threading.Event(), 0
try:
    while True:
        threading.Thread(target=gate.wait).start()
        count += 1
except RuntimeError:
    print(count)
gate.set()
"#;
    let count: u64 = sandbox
        .python("user", bomb)
        .await
        .ok()
        .trim()
        .parse()
        .expect("a number");
    assert!((10..100).contains(&count), "{count} threads");
    usable(&sandbox).await;
}

async fn orphaned_children_are_reaped(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.pids = 256).await;
    let flood = r#"
import os
for _ in range(1000):
    if os.fork() == 0:
        for _ in range(2):
            if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
print("done")
"#;
    assert_eq!(sandbox.python("user", flood).await.ok(), "done\n");
    eventually("no zombie is left", || async {
        let seen = sandbox
            .sh("", "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '")
            .await;
        (seen.stdout.trim() == "0").then_some(())
    })
    .await;
}

async fn a_memory_bomb_is_killed_and_reported_and_pid_1_lives(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.memory_mb = 96).await;
    let before = world
        .host
        .engine
        .events(0, 0)
        .await
        .expect("events")
        .events
        .last()
        .map_or(0, |event| event.sequence);
    let bomb = "import sys\nkeep = []\nwhile True: keep.append(b'x' * (1 << 20))";
    for user in ["", "user"] {
        let ran = sandbox.python(user, bomb).await;
        assert!(ran.exit.oom, "{ran:?}");
        assert_eq!((ran.exit.signal, ran.exit.code), (9, 137));
        assert_eq!(ran.exit.memory_limit_bytes, 96 << 20);
        assert!(ran.exit.memory_peak_bytes > 48 << 20, "{ran:?}");
        usable(&sandbox).await;
    }
    let shell = sandbox
        .sh("", "python3 -c 'x = bytearray(1 << 30)'; exit $?")
        .await;
    assert!(shell.exit.oom, "a shell whose child was killed: {shell:?}");
    let sample = world
        .host
        .engine
        .sample(&sandbox.id)
        .await
        .expect("a sample");
    assert!(sample.oom_kills >= 3, "{sample:?}");
    eventually("the host is told", || async {
        let batch = world.host.engine.events(before, 0).await.ok()?;
        batch
            .events
            .iter()
            .any(|event| {
                event.sandbox == sandbox.id
                    && matches!(event.kind, EventKind::Oom { limit_mb: 96, .. })
            })
            .then_some(())
    })
    .await;
}

async fn shared_memory_counts_as_memory_and_has_an_end(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.memory_mb = 128).await;
    let ran = sandbox
        .sh("user", "head -c 1G /dev/zero > /dev/shm/full")
        .await;
    assert_ne!(ran.exit.code, 0);
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
    let sample = world
        .host
        .engine
        .sample(&sandbox.id)
        .await
        .expect("a sample");
    assert!(sample.memory_bytes > 48 << 20, "{sample:?}");
    usable(&sandbox).await;
    let inodes = "import os\ni = 0\ntry:\n  while i < 2000000: open(f'/dev/shm/{i}', 'w').close(); i += 1\nexcept OSError as e: print('end')";
    let ran = sandbox
        .python(
            "user",
            &format!("import os; os.unlink('/dev/shm/full')\n{inodes}"),
        )
        .await;
    assert!(ran.stdout == "end\n" || ran.exit.oom, "{ran:?}");
    usable(&sandbox).await;
}

async fn system_v_memory_left_behind_does_not_starve_pid_1(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.memory_mb = 128).await;
    // Segments and queues outlive their makers, so killing the bomb alone gives nothing back. It is
    // small itself and fills memory to the last page.
    let compile = Start {
        argv: ["gcc", "-O1", "-o", "/tmp/bomb", "-x", "c", "-"]
            .map(String::from)
            .to_vec(),
        input: Some(include_str!("programs/ipc.c").into()),
        ..start_as("user")
    };
    sandbox.exec(compile).await.ok();
    for kind in ["memory", "queues", "semaphores"] {
        let argv = vec!["/tmp/bomb".into(), kind.into()];
        let ran = sandbox
            .exec(Start {
                argv,
                ..start_as("user")
            })
            .await;
        assert!(
            ran.exit.oom || ran.exit.code == 0,
            "the bomb did not go off: {ran:?}"
        );
        for _ in 0..10 {
            usable(&sandbox).await;
        }
        // There is still room to work.
        sandbox.python("user", "x = bytearray(8 << 20)").await.ok();
    }
}

async fn a_disk_bomb_fills_its_own_disk_only(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.disk_mb = 64).await;
    let pool = world.host.engine.pool();
    let before = pool.space().expect("the pool has a size").free;
    let ran = sandbox
        .sh("user", "head -c 300M /dev/urandom > ~/full && sync ~/full")
        .await;
    assert_ne!(ran.exit.code, 0, "300 MB went into 64");
    assert!(
        ran.stderr.contains("quota exceeded") || ran.stderr.contains("No space left"),
        "{ran:?}"
    );
    let other = world.sandbox_with(|limits| limits.disk_mb = 64).await;
    other
        .sh("user", "head -c 10M /dev/urandom > ~/fine && sync ~/fine")
        .await
        .ok();
    // Full is not broken: removing works, and then there is room again.
    sandbox
        .sh(
            "user",
            "rm ~/full && sync / && echo small > ~/small && cat ~/small",
        )
        .await
        .ok();
    drop(other);
    let sample = world
        .host
        .engine
        .sample(&sandbox.id)
        .await
        .expect("a sample");
    assert_eq!(sample.disk_limit_bytes, 64 << 20);
    world
        .host
        .engine
        .delete(&sandbox.id)
        .await
        .expect("it can be deleted");
    eventually("the space is back", || async {
        (pool.space().ok()?.free + (256 << 20) > before).then_some(())
    })
    .await;
}

async fn an_inode_bomb_fills_its_own_disk_only(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.disk_mb = 16).await;
    let bomb = r#"
import os
os.makedirs("/tmp/many")
made = 0
try:
    while made < 400000:
        if made % 1000 == 0: os.makedirs(f"/tmp/many/{made // 1000}")
        os.symlink("x" * 200, f"/tmp/many/{made // 1000}/{made}")
        made += 1
except OSError as error:
    print(error.errno, made)
"#;
    let said = sandbox.python("user", bomb).await.ok();
    // EDQUOT or ENOSPC.
    assert!(
        said.starts_with("122 ") || said.starts_with("28 "),
        "{said:?}"
    );
    usable(&sandbox).await;
    sandbox
        .sh(
            "user",
            "rm -rf /tmp/many && sync / && echo again > /tmp/again",
        )
        .await
        .ok();
}

async fn a_descriptor_bomb_ends_at_the_limit(world: Arc<World>) {
    let sandbox = world.sandbox_with(|limits| limits.open_files = 256).await;
    let bomb = r#"
import os
held = []
try:
    while True: held.append(os.dup(0))
except OSError as error:
    print(error.errno, len(held) < 256)
"#;
    for user in ["", "user"] {
        assert_eq!(sandbox.python(user, bomb).await.ok(), "24 True\n");
    }
    usable(&sandbox).await;
}

async fn a_busy_sandbox_gets_no_more_than_its_share(world: Arc<World>) {
    const SHARE: f64 = 0.5;
    let sandbox = world.sandbox_with(|limits| limits.cpu = SHARE).await;
    let hog = "for i in 1 2 3 4 5 6; do (while :; do :; done) & done; wait";
    let id = sandbox
        .spawn(Start {
            shell: hog.into(),
            ..start_as("user")
        })
        .await;
    let used = || async {
        let sample = world
            .host
            .engine
            .sample(&sandbox.id)
            .await
            .expect("a sample");
        sample.cpu_usec as f64 / 1e6
    };
    let (begin, before) = (Instant::now(), used().await);
    // The neighbour does its work meanwhile.
    let work = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo $i";
    let other = world.sandbox_with(|limits| limits.cpu = 1.0).await;
    assert_eq!(other.sh("user", work).await.ok(), "400000\n");
    // It gets its own, though late where others have much to do.
    let taken = eventually("the hog ran for a while", || async {
        let taken = used().await - before;
        (begin.elapsed().as_secs_f64() > 2.0 && taken > 0.1).then_some(taken)
    })
    .await;
    let share = taken / begin.elapsed().as_secs_f64();
    assert!(share < SHARE * 1.3, "{share:.2} CPUs instead of {SHARE}");
    sandbox
        .guest
        .signal(Signal {
            id,
            signal: 9,
            only_leader: false,
        })
        .await
        .expect("the hog can be killed");
}

async fn a_tree_too_deep_to_walk_can_be_deleted(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let program = r#"
import os
os.chdir("/tmp")
for i in range(3000):
    os.mkdir("d" * 100); os.chdir("d" * 100)
print("deep")
"#;
    assert_eq!(sandbox.python("user", program).await.ok(), "deep\n");
    usable(&sandbox).await;
    world
        .host
        .engine
        .delete(&sandbox.id)
        .await
        .expect("it can be deleted");
}
