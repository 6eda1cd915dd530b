//! What cannot be captured is named, and the sandbox goes on.

use std::time::Duration;

use cove_isolation::{Afterwards, IsolationError};
use cove_protocol::message::WriteFile;

use crate::fixture::Host;

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_cannot_be_captured_is_named_and_goes_on() {
    let host = Host::open();
    let one = host.boot("one").await;
    // A process that traces another cannot be captured: its victim has a tracer already.
    let source = r#"
import ctypes, os, time
libc = ctypes.CDLL(None)
pid = os.fork()
if pid == 0:
    libc.ptrace(0, 0, 0, 0)
    open("/tmp/traced", "w").close()
    while True: time.sleep(0.01)
while True: time.sleep(0.01)
"#;
    one.start("/usr/bin/python3", source).await;
    one.until("ls /tmp", |said| said.contains("traced")).await;
    let error = host
        .try_capture(&one, Afterwards::Continue)
        .await
        .err()
        .unwrap();
    let IsolationError::Uncapturable { process, reason } = &error else {
        panic!("{error:?}");
    };
    assert!(process.contains("python3"), "{process}: {reason}");
    assert_eq!(one.say("echo alive").await, "alive");
    host.close(vec![one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_cannot_be_copied_fails_the_capture_and_nothing_else() {
    let host = Host::open();
    let one = host.boot("one").await;
    for afterwards in [Afterwards::Continue, Afterwards::Hold] {
        let memory = host.path("memory");
        std::fs::create_dir(&memory).unwrap();
        let error = one
            .machine
            .capture(
                &memory,
                Box::new(|| Err(std::io::Error::other("the disk is full"))),
                afterwards,
            )
            .await
            .err()
            .unwrap();
        assert!(matches!(error, IsolationError::Failed { .. }), "{error:?}");
        assert_eq!(one.say("echo alive").await, "alive");
    }
    host.close(vec![one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_does_not_end_is_named() {
    let host = Host::open();
    let one = host.boot("one").await;
    let mut upload = one
        .guest
        .within(Duration::from_secs(60))
        .write_file(WriteFile {
            path: "/tmp/endless".into(),
            ..WriteFile::default()
        })
        .await
        .unwrap();
    upload
        .write(bytes::Bytes::from_static(b"one "))
        .await
        .unwrap();
    let error = host
        .try_capture(&one, Afterwards::Continue)
        .await
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("writing /tmp/endless"),
        "{error}"
    );
    upload
        .write(bytes::Bytes::from_static(b"two"))
        .await
        .unwrap();
    upload.finish().await.unwrap();
    assert_eq!(one.say("cat /tmp/endless").await, "one two");
    host.close(vec![one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_memory_is_refused_and_leaves_nothing() {
    let host = Host::open();
    let one = host.boot("one").await;
    let snapshot = host.capture(&one).await;
    for name in ["files.img", "pstree.img", "inventory.img"] {
        let path = snapshot.memory.join(name);
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, &good[..good.len() / 2]).unwrap();
        assert!(host.prove(&snapshot).await.is_err(), "{name}");
        assert!(host.try_restore(&snapshot, "two").await.is_err(), "{name}");
        std::fs::write(&path, &good).unwrap();
    }
    host.prove(&snapshot).await.unwrap();
    host.close(vec![one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_cannot_be_restored_is_found_out_by_the_proof() {
    for held in ["os.open('/proc/self', os.O_RDONLY)", "dead()"] {
        let host = Host::open();
        let one = host.boot("one").await;
        let source = format!(
            r#"
import os, time
def dead():
    pid = os.fork()
    if pid == 0: time.sleep(1000)
    fd = os.open("/proc/%d/status" % pid, os.O_RDONLY)
    os.kill(pid, 9); os.waitpid(pid, 0)
    return fd
fd = {held}
open("/tmp/held", "w").close()
while True: time.sleep(0.01)
"#
        );
        one.start("/usr/bin/python3", &source).await;
        one.until("ls /tmp", |said| said.contains("held")).await;
        // Either the capture says so, or it passes and then the proof tells the truth: what a restore
        // does is what the proof said.
        match host.try_capture(&one, Afterwards::Hold).await {
            Ok(snapshot) => {
                let proven = host.prove(&snapshot).await;
                let restored = host.try_restore(&snapshot, "two").await;
                assert_eq!(proven.is_ok(), restored.is_ok(), "{held}: {proven:?}");
                if let Ok(two) = restored {
                    two.end().await;
                }
                one.machine.thaw().await.unwrap();
            }
            Err(error) => assert!(
                matches!(error, IsolationError::Uncapturable { .. }),
                "{held}: {error:?}"
            ),
        }
        assert_eq!(one.say("echo alive").await, "alive");
        host.close(vec![one]).await;
    }
}
