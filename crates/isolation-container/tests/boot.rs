//! The smallest whole: a root made of one static program, a guest that answers, nothing left after.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use cove_isolation::slots::Slots;
use cove_isolation::{Boot, Isolation, Machine, MachineSpec, Root, TierHost};
use cove_isolation_container::{ContainerConfig, ContainerTier, Handing};
use cove_model::{Resources, SandboxId};
use cove_parser::Parser;
use cove_pool::Disk;
use cove_protocol::client::{Connect, Guest, Stream};
use cove_protocol::message::Start;

struct Direct(Arc<dyn Machine>);

#[async_trait::async_trait]
impl Connect for Direct {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.0.connect().await?))
    }
}

fn busybox_image(dir: &Path) {
    fs::create_dir_all(dir.join("bin")).unwrap();
    fs::copy("/bin/busybox", dir.join("bin/busybox")).unwrap();
    for applet in [
        "sh", "true", "id", "cat", "nproc", "hostname", "uptime", "ls", "mount",
    ] {
        symlink("busybox", dir.join("bin").join(applet)).unwrap();
    }
}

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

fn mounts() -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .filter(|line| line.contains("/run/cove"))
        .count()
}

async fn boot(handing: Handing) {
    let dir = tempfile::Builder::new()
        .prefix("cove-boot-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let image = dir.path().join("image");
    busybox_image(&image);
    let volume = dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let instance = format!("boot{}{handing:?}", std::process::id());
    let host = Path::new("/run/cove");
    let slots = Slots::open(host, &instance, dir.path()).unwrap();
    // Never given back while the slots live: nothing but the parser runs under it.
    let confined = slots.take().unwrap().unwrap();
    let parser = Parser::new(cove_embedded::PARSER, confined.uid_base()).unwrap();
    std::mem::forget(confined);
    let config = ContainerConfig {
        warm: 1,
        handing,
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
    let start = Start {
        id: "prc_aaaaaaaaaaaaaaaaaaaa".into(),
        argv: vec!["/bin/sh".into(), "-c".into(), "id -u; hostname; nproc; cat /proc/uptime; cat /proc/meminfo; mount; ls -la / /dev /.cove".into()],
        ..Start::default()
    };
    let result = guest.exec(start).await.unwrap();
    let stdout = String::from_utf8_lossy(&result.stdout).into_owned();
    assert_eq!(
        result.exit.code,
        0,
        "{stdout}{}",
        String::from_utf8_lossy(&result.stderr)
    );
    assert!(stdout.starts_with("0\nbox\n1\n"), "{stdout}");
    machine.kill().await.unwrap();
    machine.exited().await;
    machine.dispose().await.unwrap();
    tier.close().await;
    slots.release().unwrap();
}
