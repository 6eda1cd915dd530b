//! Copies of copies, and many at once.

use crate::fixture::{Host, Sandbox};

const GENERATIONS: u32 = 25;
const FORKS: usize = 20;

/// Holds a number in memory and says it when asked.
const KEEPER: &str = r#"
import os, time
n = 0
while True:
    if os.path.exists("/tmp/ask"):
        n += 1
        with open("/tmp/answer.new", "w") as f: f.write(str(n))
        os.rename("/tmp/answer.new", "/tmp/answer")
        os.unlink("/tmp/ask")
    time.sleep(0.005)
"#;

async fn ask(sandbox: &Sandbox) -> u32 {
    sandbox.say("touch /tmp/ask").await;
    sandbox
        .until("ls /tmp/ask 2>/dev/null; true", str::is_empty)
        .await;
    sandbox.say("cat /tmp/answer").await.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_five_generations_keep_their_memory() {
    let host = Host::open();
    let mut current = host.boot("generation-0").await;
    current.start("/usr/bin/python3", KEEPER).await;
    for generation in 1..=GENERATIONS {
        assert_eq!(ask(&current).await, generation);
        let snapshot = host.capture(&current).await;
        let next = host
            .restore(&snapshot, &format!("generation-{generation}"))
            .await;
        std::mem::replace(&mut current, next).end().await;
        std::fs::remove_dir_all(&snapshot.volume).unwrap();
        std::fs::remove_dir_all(&snapshot.memory).unwrap();
    }
    assert_eq!(ask(&current).await, GENERATIONS + 1);
    host.close(vec![current]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_copies_of_one_snapshot_live_apart() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.start("/usr/bin/python3", KEEPER).await;
    assert_eq!(ask(&one).await, 1);
    let snapshot = host.capture(&one).await;
    let names: Vec<String> = (0..FORKS).map(|n| format!("fork-{n}")).collect();
    let restores = names.iter().map(|name| host.restore(&snapshot, name));
    let copies = futures_util::future::join_all(restores).await;
    for (copy, name) in copies.iter().zip(&names) {
        assert_eq!(&copy.say("hostname").await, name);
        assert_eq!(ask(copy).await, 2);
    }
    assert_eq!(ask(&one).await, 2);
    let mut all = copies;
    all.push(one);
    host.close(all).await;
}
