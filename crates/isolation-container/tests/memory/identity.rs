//! What a restored sandbox is to the kernel: its boot id, and when it ends if memory runs out.

use std::fs;
use std::time::Instant;

use cove_isolation::Afterwards;

use crate::fixture::{Host, PATIENCE, Sandbox};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const SCORE_OF_FIRST: i32 = 300;
const SCORE_OF_COMMANDS: i32 = 800;

async fn boot_id(sandbox: &Sandbox) -> String {
    let id = sandbox.say(&format!("cat {BOOT_ID}")).await;
    assert_eq!(id.len(), 36, "{id:?}");
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_id_is_the_sandboxs_own_kept_by_a_resume_and_new_in_a_copy() {
    let host = Host::open();
    let hosts = fs::read_to_string(BOOT_ID).unwrap();
    let one = host.boot("one").await;
    let (_, id) = one.detail();
    let first = boot_id(&one).await;
    assert_ne!(first, hosts.trim());
    let other = host.boot("other").await;
    assert_ne!(first, boot_id(&other).await, "another sandbox's");
    one.machine.freeze().await.unwrap();
    one.machine.thaw().await.unwrap();
    assert_eq!(first, boot_id(&one).await, "after a freeze");
    // A program that looked before and looks again, as after a pause.
    let look =
        format!("while true; do cat {BOOT_ID} > /tmp/b; mv /tmp/b /tmp/seen; sleep 0.02; done");
    one.start("/bin/sh", &look).await;
    one.until("cat /tmp/seen", |seen| seen == first).await;
    let snapshot = host.try_capture(&one, Afterwards::Hold).await.unwrap();
    one.end().await;

    let resumed = host.resume(&snapshot, "one", id).await;
    assert_eq!(first, boot_id(&resumed).await, "after a resume");
    let copy = host.restore(&snapshot, "one").await;
    let copied = boot_id(&copy).await;
    assert_ne!(first, copied, "a copy has its original's");
    copy.until("cat /tmp/seen", |seen| seen == copied).await;
    // A copy of the copy is another again, and the copy keeps its own over a pause.
    let (_, id) = copy.detail();
    let again = host.capture(&copy).await;
    let back = host.resume(&again, "one", id).await;
    assert_eq!(copied, boot_id(&back).await);
    let second = host.restore(&again, "two").await;
    assert_ne!(copied, boot_id(&second).await);
    host.close(vec![other, resumed, copy, back, second]).await;
}

fn score(pid: i32) -> i32 {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    text.trim().parse().unwrap()
}

fn children_of(first: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

async fn eventually_in_order(what: &str, sandbox: &Sandbox, commands: &[i32]) {
    let (first, _) = sandbox.detail();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut scores: Vec<i32> = children_of(first).into_iter().map(score).collect();
        scores.sort_unstable();
        if score(first) == SCORE_OF_FIRST && scores == commands {
            return;
        }
        let found = (score(first), scores);
        assert!(
            Instant::now() < deadline,
            "{what}: {found:?}, wanted {commands:?}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_are_in_order_after_a_freeze_a_resume_and_a_copy() {
    let host = Host::open();
    let one = host.boot("one").await;
    one.start("/bin/sh", "while true; do sleep 1000; done")
        .await;
    // May be raised inside, and that is kept.
    one.start(
        "/bin/sh",
        "echo 900 > /proc/self/oom_score_adj; while true; do sleep 1000; done",
    )
    .await;
    let wanted = [SCORE_OF_COMMANDS, 900];
    eventually_in_order("cold", &one, &wanted).await;
    one.machine.freeze().await.unwrap();
    one.machine.thaw().await.unwrap();
    eventually_in_order("thawed", &one, &wanted).await;
    let snapshot = host.capture(&one).await;
    let (_, id) = one.detail();
    let resumed = host.resume(&snapshot, "one", id).await;
    eventually_in_order("resumed", &resumed, &wanted).await;
    let copy = host.restore(&snapshot, "two").await;
    eventually_in_order("copied", &copy, &wanted).await;
    let lowered = "echo 0 > /proc/self/oom_score_adj; while true; do sleep 1000; done";
    copy.start("/bin/sh", lowered).await;
    match cove_isolation_container::OomOrder::of_this_host().pinned {
        true => {
            println!("the minimum is pinned on this host");
            let wanted = [SCORE_OF_COMMANDS, SCORE_OF_COMMANDS, 900];
            eventually_in_order("refused", &copy, &wanted).await;
        }
        false => {
            println!("the minimum is not pinned on this host: no CAP_SYS_RESOURCE");
            let wanted = [SCORE_OF_FIRST, SCORE_OF_COMMANDS, 900];
            eventually_in_order("raised again", &copy, &wanted).await;
        }
    }
    host.close(vec![one, resumed, copy]).await;
}
