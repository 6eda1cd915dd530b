//! The order in which the kernel ends processes: guests cannot come after the host's own. With
//! `COVE_EXPECT_PINNED=1` (`scripts/oom-order`) a host that cannot pin the minimum fails the test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_isolation::slots::Slots;
use cove_isolation::{Boot, Isolation, Machine, MachineSpec, Root, TierHost};
use cove_isolation_container::{ContainerConfig, ContainerTier, OomOrder};
use cove_model::{Resources, SandboxId};
use cove_parser::Parser;
use cove_pool::Disk;
use cove_protocol::client::{Connect, Guest, Stream};
use cove_protocol::message::Start;

const PATIENCE: Duration = Duration::from_secs(60);

struct Direct(Arc<dyn Machine>);

#[async_trait::async_trait]
impl Connect for Direct {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.0.connect().await?))
    }
}

fn score(pid: i64) -> i32 {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    text.trim().parse().unwrap()
}

fn child_scores(first: i64) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    let children = children.split_whitespace();
    children.map(|pid| score(pid.parse().unwrap())).collect()
}

fn start(id: u32, script: &str) -> Start {
    Start {
        id: format!("prc_oom{id}"),
        argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
        ..Start::default()
    }
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
    let told = if order.pinned {
        "pinned"
    } else {
        "not pinned: this root lacks CAP_SYS_RESOURCE"
    };
    println!("the minimum of OOM scores is {told}");
    if std::env::var_os("COVE_EXPECT_PINNED").is_some() {
        assert!(order.pinned, "this host cannot pin the minimum");
    }
    run_as_the_unit_does(order.pinned);
    let dir = tempfile::Builder::new()
        .prefix("cove-oom-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let image = dir.path().join("image");
    fs::create_dir_all(image.join("bin")).unwrap();
    fs::copy("/bin/busybox", image.join("bin/busybox")).unwrap();
    for applet in ["sh", "cat", "sleep", "echo"] {
        symlink("busybox", image.join("bin").join(applet)).unwrap();
    }
    let volume = dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let instance = format!("oom{}", std::process::id());
    let host = Path::new("/run/cove");
    let slots = Slots::open(host, &instance, dir.path()).unwrap();
    // Never given back while the slots live: nothing but the parser runs under it.
    let confined = slots.take().unwrap().unwrap();
    let parser = Parser::new(cove_embedded::PARSER, confined.uid_base()).unwrap();
    std::mem::forget(confined);
    let config = ContainerConfig {
        warm: 0,
        ..ContainerConfig::default()
    };
    let host = TierHost {
        instance,
        data_dir: dir.path().to_owned(),
        pool_dir: dir.path().to_owned(),
        pool_device: None,
        host_dir: host.to_owned(),
        slots: Arc::clone(&slots),
        parser: Arc::new(parser),
        network: None,
    };
    let tier = ContainerTier::open(config, &host).unwrap();
    let boot = Boot {
        machine: MachineSpec {
            id: SandboxId::random(),
            hostname: "box".into(),
            limits: Resources {
                memory_mb: 64,
                ..Resources::default()
            },
            no_new_privs: false,
            network: Default::default(),
        },
        root: Box::new(move || {
            Ok(Root {
                image,
                disk: Disk::at(volume),
            })
        }),
    };
    let machine: Arc<dyn Machine> = Arc::from(tier.boot(boot).await.unwrap());
    let guest = Guest::new(Arc::new(Direct(Arc::clone(&machine))));
    let first = machine.record().detail["pid"].as_i64().unwrap();
    assert_eq!(score(first), order.sandboxes, "PID 1");

    let lower = "for score in -1000 -500 0 299; do echo $score > /proc/self/oom_score_adj && echo lowered; done; cat /proc/self/oom_score_adj";
    let result = guest.exec(start(0, lower)).await.unwrap();
    let said = String::from_utf8_lossy(&result.stdout).into_owned();
    if order.pinned {
        assert_eq!(said, "800\n", "a guest lowered its score");
    }
    // Root inside owns the file of PID 1 as well.
    let result = guest
        .exec(start(1, "echo 0 > /proc/1/oom_score_adj && echo lowered"))
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&result.stdout).into_owned();
    if order.pinned {
        assert_eq!(said, "", "a guest lowered the score of PID 1");
    }

    // Where it can be lowered, it is raised again, also in children that inherited it.
    let keep = "echo 0 > /proc/self/oom_score_adj; (sleep 1000) & while true; do sleep 1000; done";
    guest.start(start(2, keep)).await.unwrap();
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
    machine.kill().await.unwrap();
    machine.exited().await;
    machine.dispose().await.unwrap();
    tier.close().await;
    slots.release().unwrap();
}
