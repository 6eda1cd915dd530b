//! What every snapshot must do.

use std::os::unix::fs::PermissionsExt;

use cove_isolation::Afterwards;

use crate::fixture::Host;

/// Counts in memory and on the disk.
const COUNTER: &str =
    "n=0; while true; do n=$((n+1)); echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.01; done";

fn number(said: &str) -> u64 {
    said.parse().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_where_the_original_was_and_both_live() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.start("/bin/sh", COUNTER).await;
    one.until("cat /tmp/n", |said| number(said) > 3).await;
    let snapshot = host.capture(&one).await;
    assert!(snapshot.captured.memory_bytes > 0 && snapshot.captured.stopped_us > 0);
    let mode = std::fs::metadata(&snapshot.memory)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700, "others could read memory");
    let at_capture = number(
        std::fs::read_to_string(snapshot.volume.join("upper/tmp/n"))
            .unwrap()
            .trim(),
    );

    let two = host.restore(&snapshot, "two").await;
    assert_eq!(two.say("hostname").await, "two");
    assert_eq!(one.say("hostname").await, "one");
    let in_two = number(
        &two.until("cat /tmp/n", |said| number(said) > at_capture + 3)
            .await,
    );
    assert!(in_two > at_capture);
    one.until("cat /tmp/n", |said| number(said) > at_capture)
        .await;
    host.prove(&snapshot).await.unwrap();
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_machine_stands_still_until_it_is_let_go() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.start("/bin/sh", COUNTER).await;
    one.until("cat /tmp/n", |said| number(said) > 3).await;
    let snapshot = host.try_capture(&one, Afterwards::Hold).await.unwrap();
    let copied = std::fs::read_to_string(snapshot.volume.join("upper/tmp/n")).unwrap();
    let now = std::fs::read_to_string(one.volume.join("upper/tmp/n")).unwrap();
    assert_eq!(copied, now, "it ran on after the disk was copied");
    one.machine.thaw().await.unwrap();
    one.until("cat /tmp/n", |said| number(said) > number(copied.trim()))
        .await;
    host.close(vec![one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_machine_can_be_ended() {
    let host = Host::open();
    let one = host.boot("one").await;
    let snapshot = host.try_capture(&one, Afterwards::Hold).await.unwrap();
    one.end().await;
    let two = host.restore(&snapshot, "two").await;
    assert_eq!(two.say("hostname").await, "two");
    host.close(vec![two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_machine_stands_still_and_wakes() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.start("/bin/sh", COUNTER).await;
    one.until("cat /tmp/n", |said| number(said) > 3).await;
    let clock = host.boot("clock").await;
    clock.start("/bin/sh", COUNTER).await;
    one.machine.freeze().await.unwrap();
    one.machine.freeze().await.unwrap();
    let before = one.used_at_rest().await;
    let frozen = std::fs::read_to_string(one.volume.join("upper/tmp/n")).unwrap();
    clock.until("cat /tmp/n", |said| number(said) > 30).await;
    assert_eq!(one.used().await, before, "it took CPU time");
    one.machine.thaw().await.unwrap();
    one.machine.thaw().await.unwrap();
    one.until("cat /tmp/n", |said| number(said) > number(frozen.trim()))
        .await;
    one.machine.freeze().await.unwrap();
    host.close(vec![one, clock]).await;
}
