//! The smallest whole: a root made of one static program, a guest that answers, nothing left after.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::Arc;

use cove_isolation::{Adopted, Isolation, Machine};
use cove_isolation_container::{ContainerConfig, Handing};
use cove_model::Resources;

#[path = "fixtures/tier.rs"]
mod tier;

use tier::{TestTier, end, guest_of, shell};

const APPLETS: [&str; 9] = [
    "sh", "true", "id", "cat", "nproc", "hostname", "uptime", "ls", "mount",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_boots_answers_and_leaves_nothing() {
    boot(Handing::Auto).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn older_kernels_that_take_layers_as_paths_boot_the_same() {
    let before = mounts();
    boot(Handing::Paths).await;
    assert_eq!(mounts(), before, "a layer stayed attached on the host");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_ends_no_machine_that_is_dropped_meanwhile() {
    let config = || ContainerConfig {
        warm: 0,
        ..ContainerConfig::default()
    };
    let tier = TestTier::open("dropped", config());
    let limits = Resources {
        memory_mb: 64,
        ..Resources::default()
    };
    let machine = tier.boot_busybox(&APPLETS, limits).await;
    let record = machine.record();
    // As an engine does that is told to end while it opens: its machines go, and its sweep goes on.
    drop(machine);
    tier.tier.sweep().await.unwrap();
    let tier = tier.reopen(config());
    let Adopted::Running(machine) = tier.tier.adopt(&record).await.unwrap() else {
        panic!("the sweep ended it");
    };
    let machine: Arc<dyn Machine> = machine.into();
    let result = guest_of(&machine).exec(shell("hostname")).await.unwrap();
    assert_eq!(result.stdout.as_ref(), b"box\n");
    end(&machine).await;
    tier.close().await;
}

fn mounts() -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .filter(|line| line.contains("/run/cove"))
        .count()
}

async fn boot(handing: Handing) {
    let config = ContainerConfig {
        warm: 1,
        handing,
        ..ContainerConfig::default()
    };
    let tier = TestTier::open(&format!("boot{handing:?}"), config);
    let limits = Resources {
        memory_mb: 64,
        ..Resources::default()
    };
    let machine = tier.boot_busybox(&APPLETS, limits).await;
    let script =
        "id -u; hostname; nproc; cat /proc/uptime; cat /proc/meminfo; mount; ls -la / /dev /.cove";
    let result = guest_of(&machine).exec(shell(script)).await.unwrap();
    let stdout = String::from_utf8_lossy(&result.stdout).into_owned();
    assert_eq!(
        result.exit.code,
        0,
        "{stdout}{}",
        String::from_utf8_lossy(&result.stderr)
    );
    assert!(stdout.starts_with("0\nbox\n1\n"), "{stdout}");
    end(&machine).await;
    tier.close().await;
}
