//! A host whose disk is smaller than what its sandboxes may write together.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use cove_model::{EventKind, SandboxId, State};
use cove_runner_api::{Finding, Level, RunnerApi, RunnerError};
use cove_tests::engine_host::{World, eventually, exec, output, shell, succeed};
use rustix::mount::{UnmountFlags, unmount};

use crate::PROGRAM;

const DISK_MB: u64 = 1536;
const DISK_BYTES: u64 = 1 << 30;

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// A small filesystem of the test's own, which the engine takes for the host's disk. On a real disk: on
/// tmpfs what the pool writes would be memory, and charged to whoever wrote it.
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("cove-disk-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let file = dir.path().join("file");
        std::fs::File::create(&file)
            .and_then(|file| file.set_len(DISK_BYTES))
            .unwrap();
        let disk = Self { dir };
        run(Command::new("mkfs.ext4")
            .args(["-q", "-m", "0", "-O", "^has_journal", "-E", "nodiscard"])
            .arg(&file));
        std::fs::create_dir(disk.path()).unwrap();
        let made = Command::new("losetup")
            .args(["-f", "--show"])
            .arg(&file)
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{made:?}");
        let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        // Where the file below can do it: otherwise version 2 of cgroups charges the cache of this device to
        // the sandbox that writes, on top of the sandbox's own.
        let _ = Command::new("losetup")
            .args(["--direct-io=on", &device])
            .output();
        run(Command::new("mount")
            .args(["-o", "discard", &device])
            .arg(disk.path()));
        // From here on the device goes with the mount.
        run(Command::new("losetup").args(["-d", &device]));
        std::fs::create_dir(disk.world()).unwrap();
        disk
    }

    pub fn world(&self) -> PathBuf {
        self.path().join("world")
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}

/// Everything that was left of a disk, taken by a program outside. It comes back when this is dropped.
struct Taken(PathBuf);

impl Taken {
    fn from(disk: &SmallDisk) -> Self {
        let taken = Self(disk.path().join("outside"));
        taken.more();
        taken
    }

    /// Takes what there is, down to the last block.
    fn more(&self) {
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.0)
            .unwrap();
        for size in [1 << 20, 4096] {
            let block = vec![7u8; size];
            while file
                .write_all(&block)
                .and_then(|()| file.sync_data())
                .is_ok()
            {}
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn disk_room(world: &World) -> Finding {
    let report = world.client().host().await.unwrap();
    let mut found = report.findings.into_iter();
    found.find(|finding| finding.name == "disk room").unwrap()
}

async fn limit_mb(world: &World, id: &SandboxId) -> u64 {
    world.client().sample(id).await.unwrap().disk_limit_bytes >> 20
}

/// Writes more than the host has, and is stopped; on and on, until the host is really full: what is on its
/// way to the disk is counted with care, and may turn out to be less.
async fn fill(world: &World, id: &SandboxId, name: &str) -> Finding {
    let command = format!("dd if=/dev/zero bs=1M count=1200 >> /root/{name}");
    eventually("the host is full", || async {
        let result = exec(&world.guest(id), &command).await;
        let said = String::from_utf8_lossy(&result.stderr).into_owned();
        assert_ne!(
            result.exit.code, 0,
            "more was written than there is: {said}"
        );
        assert!(
            said.contains("quota exceeded") || said.contains("No space left"),
            "{said}"
        );
        let finding = disk_room(world).await;
        (finding.level == Level::Error).then_some(finding)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fills_the_host_is_told_so_and_everybody_else_works_on() {
    let disk = SmallDisk::new();
    let mut world = World::with(PROGRAM, |setup| {
        setup.dir = disk.world();
        setup.pool_bytes = 2 << 30;
        setup.reserve_bytes = Some(128 << 20);
    })
    .await;
    let filler = world
        .create_with(|spec| spec.resources.disk_mb = DISK_MB)
        .await
        .id;
    let neighbour = world
        .create_with(|spec| spec.resources.disk_mb = DISK_MB)
        .await
        .id;
    assert_eq!(disk_room(&world).await.level, Level::Ok);
    let cursor = world.cursor().await;

    let finding = fill(&world, &filler, "big").await;
    assert!(finding.fix.is_some(), "{finding:?}");
    let held = |id: &SandboxId| {
        let id = id.clone();
        move |event: &cove_model::Event| {
            event.sandbox == id && matches!(event.kind, EventKind::DiskHeld { .. })
        }
    };
    world
        .event(cursor, "the filler is held", held(&filler))
        .await;
    world
        .event(cursor, "so is the other", held(&neighbour))
        .await;
    // The pool takes everything that was written, and still some more.
    succeed(&world.guest(&neighbour), "echo small > /root/small && sync").await;
    let left = disk.free();
    assert!(left > 16 << 20, "{left} bytes are left on the host");

    // An engine that is killed meanwhile leaves nobody held for ever, and the next one guards as well.
    let cursor = world.cursor().await;
    world.restart();
    fill(&world, &filler, "more").await;
    world.event(cursor, "held again", held(&neighbour)).await;
    succeed(&world.guest(&neighbour), "echo small > /root/again && sync").await;
    eventually("the filler is held as well", || async {
        if limit_mb(&world, &filler).await < DISK_MB {
            return Some(());
        }
        fill(&world, &filler, "more").await;
        None
    })
    .await;

    succeed(&world.guest(&filler), "rm /root/big /root/more && sync").await;
    for id in [&filler, &neighbour] {
        world
            .event(cursor, "it is let go", |event| {
                event.sandbox == *id && event.kind == EventKind::DiskReleased
            })
            .await;
        eventually("it has its own limit again", || async {
            (limit_mb(&world, id).await == DISK_MB).then_some(())
        })
        .await;
    }
    // They are let go as soon as the reserve is whole; the rest comes back to the host bit by bit.
    eventually("what was deleted is the host's again", || async {
        (disk.free() > 640 << 20).then_some(())
    })
    .await;
    eventually("the report says so", || async {
        (disk_room(&world).await.level == Level::Ok).then_some(())
    })
    .await;
    succeed(
        &world.guest(&neighbour),
        "dd if=/dev/zero of=/root/big bs=1M count=300 && sync",
    )
    .await;
    world.create().await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_files_are_the_hosts_again_after_a_while() {
    const WRITTEN: u64 = 96 << 20;
    let world = World::start(PROGRAM).await;
    let id = world.create().await.id;
    let guest = world.guest(&id);
    let image = world.setup.data_dir().join("pool.img");
    let backed = || {
        let file = std::fs::metadata(&image).unwrap();
        std::os::unix::fs::MetadataExt::blocks(&file) * 512
    };
    let write = "dd if=/dev/urandom of=/root/big bs=1M count=96 && sync";
    succeed(&guest, write).await;
    let full = backed();
    succeed(&guest, "rm /root/big && sync").await;
    eventually("the blocks are the host's again", || async {
        (backed() < full - WRITTEN / 2).then_some(())
    })
    .await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn space_cannot_be_reserved_behind_the_hosts_back() {
    let world = World::start(PROGRAM).await;
    let id = world.create().await.id;
    let guest = world.guest(&id);
    let reserved = exec(&guest, "fallocate -l 100M /root/big").await;
    let said = String::from_utf8_lossy(&reserved.stderr).into_owned();
    // Either it is refused, or the C library has really written it.
    match reserved.exit.code {
        0 => {
            succeed(&guest, "sync").await;
            let used = world.client().sample(&id).await.unwrap().disk_bytes;
            let disk = std::fs::metadata(world.setup.data_dir().join("pool.img")).unwrap();
            let backed = std::os::unix::fs::MetadataExt::blocks(&disk) * 512;
            assert!(backed >= used, "{used} bytes are used, {backed} are there");
        }
        _ => assert!(said.contains("not supported"), "{said}"),
    }
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_filled_from_outside_refuses_work_and_the_pool_stays_writable() {
    let disk = SmallDisk::new();
    let mut world = World::with(PROGRAM, |setup| {
        setup.dir = disk.world();
        setup.pool_bytes = 2 << 30;
        setup.reserve_bytes = Some(128 << 20);
    })
    .await;
    let client = world.client();
    let id = world.create().await.id;
    let spare = world.create().await.id;
    let write = "dd if=/dev/urandom of=/root/precious bs=1M count=8 && sync";
    succeed(&world.guest(&id), write).await;
    let sum = output(&world.guest(&id), "md5sum /root/precious").await;
    // Names come and go all the time: that is what the filesystem itself must write down.
    let churn = "i=0; while :; do i=$((i+1)); mkdir -p /root/d$((i%97)); echo $i > /root/d$((i%97))/f$i; \
                 rm -rf /root/d$(((i+40)%97)); done 2>/dev/null";
    world.guest(&id).start(shell(churn)).await.unwrap();
    let reserve = world.setup.data_dir().join("reserve");
    let kept = || std::fs::metadata(&reserve).map_or(0, |file| file.len());
    eventually("something is kept for the engine itself", || async {
        (kept() > 0).then_some(())
    })
    .await;
    let whole = kept();

    let taken = Taken::from(&disk);
    let refused = |error: RunnerError| {
        assert!(matches!(error, RunnerError::NoCapacity { .. }), "{error:?}");
    };
    refused(world.try_create(|_| {}).await.unwrap_err());
    eventually("a part of the engine's own reserve is given up", || async {
        (kept() < whole).then_some(())
    })
    .await;
    for round in 0..4 {
        // What was given up is taken as well.
        taken.more();
        client.check().await.unwrap();
        refused(world.try_create(|_| {}).await.unwrap_err());
        if round == 1 {
            refused(client.pause(&id).await.unwrap_err());
            assert_eq!(client.get(&id).await.unwrap().state, State::Running);
        }
        if round >= 2 {
            let before = kept();
            taken.more();
            world.restart();
            assert!(before > 0 && kept() < before);
        }
        exec(&world.guest(&id), "sync").await;
        let now = output(&world.guest(&id), "md5sum /root/precious").await;
        assert_eq!(now, sum);
    }
    client.check().await.unwrap();
    assert_eq!(disk_room(&world).await.level, Level::Error);
    // Deleting works with nothing left.
    taken.more();
    client.delete(&spare).await.unwrap();

    drop(taken);
    eventually("work goes on by itself", || async {
        world.try_create(|_| {}).await.ok()
    })
    .await;
    eventually("the sandbox may write again", || async {
        let write = "dd if=/dev/zero of=/root/more bs=1M count=32 && sync";
        let written = exec(&world.guest(&id), write).await;
        (written.exit.code == 0).then_some(())
    })
    .await;
    assert_eq!(
        output(&world.guest(&id), "md5sum /root/precious").await,
        sum
    );
    world.finish();
}
