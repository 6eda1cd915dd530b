//! The order in which the kernel ends processes: guests cannot come after the host's own. With
//! `COVE_EXPECT_PINNED=1` (`scripts/oom-order`) a host that cannot pin the minimum fails the test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::{Duration, Instant};

use cove_isolation_container::{ContainerConfig, OomOrder};
use cove_model::Resources;

#[path = "fixtures/tier.rs"]
mod tier;

use tier::{TestTier, end, guest_of, shell};

const PATIENCE: Duration = Duration::from_secs(120);

fn score(pid: i64) -> i32 {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    text.trim().parse().unwrap()
}

fn child_scores(first: i64) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    let children = children.split_whitespace();
    children.map(|pid| score(pid.parse().unwrap())).collect()
}

/// The unit's own score, which children inherit: what the server runs at must not reach the guests.
fn run_as_the_unit_does(pinned: bool) {
    if pinned {
        fs::write("/proc/self/oom_score_adj", "-500").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_cannot_make_the_kernel_end_the_host_before_them() {
    let order = OomOrder::of_this_host();
    let state = if order.pinned {
        "pinned"
    } else {
        "not pinned: this root lacks CAP_SYS_RESOURCE"
    };
    println!("the minimum of OOM scores is {state}");
    if std::env::var_os("COVE_EXPECT_PINNED").is_some() {
        assert!(order.pinned, "this host cannot pin the minimum");
    }
    run_as_the_unit_does(order.pinned);
    let config = ContainerConfig {
        warm: 0,
        ..ContainerConfig::default()
    };
    let tier = TestTier::open("oom", config);
    let limits = Resources {
        memory_mb: 64,
        ..Resources::default()
    };
    let machine = tier
        .boot_busybox(&["sh", "cat", "sleep", "echo"], limits)
        .await;
    let guest = guest_of(&machine);
    let first = machine.record().detail["pid"].as_i64().unwrap();
    assert_eq!(score(first), order.sandboxes, "PID 1");

    let lower = "for score in -1000 -500 0 299; do echo $score > /proc/self/oom_score_adj && echo lowered; done; cat /proc/self/oom_score_adj";
    let result = guest.exec(shell(lower)).await.unwrap();
    let said = String::from_utf8_lossy(&result.stdout).into_owned();
    if order.pinned {
        assert_eq!(said, "800\n", "a guest lowered its score");
    }
    // Root inside owns the file of PID 1 as well.
    let result = guest
        .exec(shell("echo 0 > /proc/1/oom_score_adj && echo lowered"))
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&result.stdout).into_owned();
    if order.pinned {
        assert_eq!(said, "", "a guest lowered the score of PID 1");
    }

    // Where it can be lowered, it is raised again, also in children that inherited it.
    let keep = "echo 0 > /proc/self/oom_score_adj; (sleep 1000) & while true; do sleep 1000; done";
    guest.start(shell(keep)).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let scores = child_scores(first);
        let wanted = if order.pinned { 800 } else { order.sandboxes };
        let of_first = score(first);
        if scores == [wanted] && of_first == order.sandboxes {
            break;
        }
        assert!(Instant::now() < deadline, "{of_first}, {scores:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        OomOrder::of_this_host().own < order.sandboxes,
        "the host comes after its guests"
    );
    end(&machine).await;
    tier.close().await;
}
