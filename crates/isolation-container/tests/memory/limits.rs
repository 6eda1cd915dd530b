//! The limits of a copy are its own, in force before it runs.

use cove_isolation::IsolationError;

use crate::fixture::Host;

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
