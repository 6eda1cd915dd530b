//! The limits of a copy are its own, in force before it runs.

use cove_isolation::IsolationError;
use cove_model::Resources;

use crate::fixture::Host;

/// Tells, whenever it is asked, what it may have.
const TELLER: &str = r#"
import os, resource, time
while True:
    if os.path.exists("/tmp/ask"):
        shm = os.statvfs("/dev/shm")
        told = [*resource.getrlimit(resource.RLIMIT_NOFILE), shm.f_blocks * shm.f_frsize >> 20]
        with open("/tmp/answer.new", "w") as f: f.write(" ".join(map(str, told)))
        os.rename("/tmp/answer.new", "/tmp/answer"); os.unlink("/tmp/ask")
    time.sleep(0.005)
"#;
const NEW_PROCESS: &str =
    "python3 -c 'import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))'";

fn limits(memory_mb: u64, open_files: u64) -> Resources {
    Resources {
        memory_mb,
        open_files,
        pids: 512,
        ..Resources::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_files_and_shared_memory_of_a_copy_are_those_in_force_now() {
    let host = Host::open();
    let one = host.boot_within("one", limits(512, 4000)).await;
    one.start("/usr/bin/python3", TELLER).await;
    // This one gave some of it up, and keeps to that.
    let modest = format!(
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 350))\n{}",
        TELLER.replace("/tmp/a", "/tmp/modest-a")
    );
    one.start("/usr/bin/python3", &modest).await;
    one.say("echo kept > /dev/shm/kept").await;
    let snapshot = host.capture(&one).await;
    let mut all = vec![one];
    for (memory_mb, open_files) in [(512, 4000), (200, 1000), (600, 6000)] {
        let copy = host
            .try_restore_as(&snapshot, "copy", limits(memory_mb, open_files))
            .await
            .unwrap();
        copy.say("touch /tmp/ask /tmp/modest-ask").await;
        let wanted = format!("{open_files} {open_files} {}", memory_mb / 2);
        copy.until("cat /tmp/answer", |said| said == wanted).await;
        let wanted = format!("300 350 {}", memory_mb / 2);
        copy.until("cat /tmp/modest-answer", |said| said == wanted)
            .await;
        let told = copy.say(NEW_PROCESS).await;
        assert_eq!(told, format!("{open_files} {open_files}"));
        assert_eq!(copy.say("cat /dev/shm/kept").await, "kept");
        // Half of what /dev/shm may have, in pages.
        let pages = (memory_mb << 20) / 4 / 4096;
        let told = copy.say("cat /proc/sys/kernel/shmall").await;
        assert_eq!(told, pages.to_string());
        all.push(copy);
    }
    host.close(all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_lowers_its_own_limit_gets_no_other_one_past_a_copy() {
    let host = Host::open();
    let one = host.boot_within("one", limits(512, 4000)).await;
    one.start("/usr/bin/python3", TELLER).await;
    // Root inside may lower the limit of PID 1, from which a restore learns what was allowed before.
    one.say(
        "python3 -c 'import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (500, 500))'",
    )
    .await;
    let snapshot = host.capture(&one).await;
    let two = host
        .try_restore_as(&snapshot, "two", limits(512, 500))
        .await
        .unwrap();
    two.say("touch /tmp/ask").await;
    two.until("cat /tmp/answer", |said| said == "500 500 256")
        .await;
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_memory_in_use_comes_back_beyond_a_lower_limit_and_cannot_grow() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.say("python3 -c 'open(\"/dev/shm/block\", \"wb\").write(b\"x\" * (150 << 20))'")
        .await;
    let snapshot = host.capture(&one).await;
    let two = host
        .try_restore_as(&snapshot, "two", limits(250, 4000))
        .await
        .unwrap();
    let size = "python3 -c 'import os; print(os.path.getsize(\"/dev/shm/block\"))'";
    assert_eq!(two.say(size).await, (150_u64 << 20).to_string());
    let more = two
        .exec("python3 -c 'open(\"/dev/shm/more\", \"wb\").write(b\"x\" * (1 << 20))'")
        .await;
    let said = String::from_utf8_lossy(&more.stderr).into_owned();
    assert!(said.contains("No space left"), "{said}");
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_its_own_limits_and_is_told_them() {
    let host = Host::open();
    let one = host.boot("one").await;
    let snapshot = host.capture(&one).await;
    let two = host
        .try_restore_within(&snapshot, "two", 200)
        .await
        .unwrap();
    let total = two.say("cat /proc/meminfo").await;
    assert!(total.contains("204800 kB"), "{total}");
    assert!(one.say("cat /proc/meminfo").await.contains("524288 kB"));
    // More than it may have: it is killed for it, and the copy lives on.
    let hungry = "python3 -c 'x = bytearray(300 << 20); print(len(x))'";
    assert_ne!(two.exec(hungry).await.exit.code, 0);
    assert_eq!(one.say(hungry).await, (300_u64 << 20).to_string());
    assert_eq!(two.say("echo alive").await, "alive");
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_needs_more_than_it_may_have_is_refused() {
    let host = Host::open();
    let one = host.boot("one").await;
    let source = r#"
import time
x = bytearray(b"x") * (300 << 20)
open("/tmp/full", "w").close()
while True: time.sleep(0.01)
"#;
    one.start("/usr/bin/python3", source).await;
    one.until("ls /tmp", |said| said.contains("full")).await;
    let snapshot = host.capture(&one).await;
    let error = host
        .try_restore_within(&snapshot, "two", 200)
        .await
        .err()
        .unwrap();
    assert!(
        matches!(error, IsolationError::LimitBelowUse { .. }),
        "{error:?}"
    );
    let three = host
        .try_restore_within(&snapshot, "three", 400)
        .await
        .unwrap();
    assert_eq!(three.say("echo alive").await, "alive");
    host.close(vec![one, three]).await;
}
