//! Making, finding again, taking over and closing pools.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use cove_pool::{Access, Backend, BackendChoice, Kind, Pool, PoolConfig, PoolError, Status};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::fixture::{
    LOOP_BYTES, MIB, TestPool, image, loops_of, mounts_at, sandbox, scratch, staging, wait_until,
};
use crate::on_every_backend;

on_every_backend!(
    volumes_are_there_again_after_a_crash,
    a_second_open_is_refused_and_names_the_holder,
    closing_is_refused_while_another_handle_lives,
    a_closed_pool_opens_again_with_its_volumes,
    the_backend_of_a_directory_does_not_change,
    half_made_work_is_gone_after_a_crash,
);

fn volumes_are_there_again_after_a_crash(pool: &mut TestPool) {
    let id = image("one");
    pool.create(&id).unwrap();
    pool.write(&id, "file", "text");
    pool.set_read_only(&id).unwrap();
    let mounted = mounts_at(&pool.mount_point());
    for _ in 0..3 {
        pool.reopen();
        assert_eq!(pool.read(&id, "file"), "text");
        assert!(pool.info(&id).unwrap().read_only);
        assert_eq!(
            mounts_at(&pool.mount_point()),
            mounted,
            "mounts do not pile up"
        );
    }
}

fn a_second_open_is_refused_and_names_the_holder(pool: &mut TestPool) {
    let refused = Pool::open(pool.config.clone()).map(drop);
    let Err(error @ PoolError::Locked { pid, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(pid, Some(std::process::id()));
    assert!(error.to_string().contains(&std::process::id().to_string()));
    assert!(error.hint().is_some());
    pool.create(&sandbox("still-works")).unwrap();
}

fn closing_is_refused_while_another_handle_lives(pool: &mut TestPool) {
    let (first, second) = (pool.take(), (*pool).try_reopen());
    assert!(matches!(second, Err(PoolError::Locked { .. })));
    let clone = first.clone();
    assert!(matches!(first.close(), Err(PoolError::Busy { .. })));
    clone.create(&sandbox("still-works")).unwrap();
    clone.close().unwrap();
}

fn a_closed_pool_opens_again_with_its_volumes(pool: &mut TestPool) {
    let id = sandbox("one");
    pool.create(&id).unwrap();
    pool.write(&id, "file", "text");
    let host = pool.backend() == Backend::BtrfsHost;
    pool.take().close().unwrap();
    if !host {
        assert_eq!(mounts_at(&pool.mount_point()), 0);
        wait_until("the loop device is free", || {
            loops_of(&pool.data_dir().join("pool.img")).is_empty()
        });
    }
    pool.reopen();
    assert_eq!(pool.read(&id, "file"), "text");
}

fn the_backend_of_a_directory_does_not_change(pool: &mut TestPool) {
    let made_with = pool.backend();
    pool.config.backend = BackendChoice::Auto;
    pool.reopen();
    assert_eq!(pool.backend(), made_with);
    pool.config.backend = match made_with {
        Backend::Directory => BackendChoice::Btrfs,
        _ => BackendChoice::Directory,
    };
    let refused = pool.try_reopen();
    assert!(
        matches!(refused, Err(PoolError::BackendMismatch { existing, .. }) if existing == made_with)
    );
}

fn half_made_work_is_gone_after_a_crash(pool: &mut TestPool) {
    let (half, old) = (staging("half"), pool.root().join("partial"));
    pool.create(&half).unwrap();
    let (backend, trash) = (pool.backend(), pool.root().join("trash"));
    // The first pool must be gone: its own cleaning could remove what is laid here.
    pool.abandon();
    if backend == Backend::Directory {
        fs::create_dir_all(old.join("3/tree/etc")).unwrap();
        fs::create_dir_all(trash.join("0/etc")).unwrap();
    }
    pool.reopen();
    assert_eq!(names_in(&old), [""; 0]);
    wait_for_nothing_in(&trash);
    let report = pool.sweep(&|_| true);
    let context = format!("{report:?}, in the trash: {:?}", names_in(&trash));
    assert_eq!(report.removed, [half], "{context}");
    assert!(report.errors.is_empty(), "{context}");
    let left = pool.list(Kind::Staging);
    assert!(left.as_ref().unwrap().is_empty(), "{left:?}, {context}");
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(|entry| name(entry.unwrap())).collect()
}

fn wait_for_nothing_in(folder: &Path) {
    wait_until("the trash is empty", || names_in(folder).is_empty());
}

#[test]
fn what_could_not_be_deleted_is_deleted_later_without_another_wake() {
    let mut pool = TestPool::directory();
    let trash = pool.root().join("trash");
    pool.abandon();
    let busy = trash.join("0/etc");
    fs::create_dir_all(&busy).unwrap();
    fs::create_dir_all(trash.join("1/etc")).unwrap();
    mount("tmpfs", &busy, "tmpfs", MountFlags::empty(), c"size=1m").unwrap();
    pool.reopen();
    // One that resists does not keep the others.
    wait_until("the other tree is gone", || names_in(&trash) == ["0"]);
    let report = pool.sweep(&|_| true);
    assert_eq!(report.errors.len(), 1, "{report:?}");
    unmount(&busy, UnmountFlags::empty()).unwrap();
    wait_for_nothing_in(&trash);
}

#[test]
fn a_loop_pool_is_mounted_without_set_id_devices_and_programs() {
    let pool = TestPool::btrfs();
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = pool.mount_point().to_string_lossy().into_owned();
    let line = text.lines().find(|line| line.contains(&point)).unwrap();
    let options: Vec<_> = line.split(' ').nth(5).unwrap().split(',').collect();
    for wanted in ["nosuid", "nodev", "noexec", "noatime", "rw"] {
        assert!(options.contains(&wanted), "{wanted} in {line}");
    }
    // The kernel's own discards would punch holes into what the filesystem itself consists of.
    assert!(
        !line.split(" - ").nth(1).unwrap().contains("discard"),
        "{line}"
    );
    let file = fs::metadata(pool.data_dir().join("pool.img")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert_eq!(file.len(), LOOP_BYTES);
    assert!(file.blocks() * 512 < LOOP_BYTES / 4, "the file is sparse");
}

#[test]
fn deleted_data_goes_back_to_the_host() {
    let pool = TestPool::btrfs();
    let id = sandbox("big");
    pool.create(&id).unwrap();
    let held = || {
        fs::metadata(pool.data_dir().join("pool.img"))
            .unwrap()
            .blocks()
            * 512
    };
    let before = held();
    pool.write(&id, "file", vec![5; 128 << 20]);
    pool.sync(&id).unwrap();
    assert!(held() >= before + 100 * MIB);
    pool.delete(&id).unwrap();
    let other = sandbox("other");
    pool.create(&other).unwrap();
    wait_until("the host has its blocks back", || {
        pool.give_back_all().unwrap();
        held() < before + 50 * MIB
    });
}

#[test]
fn a_pool_that_others_still_hold_is_mounted_again_from_the_same_device() {
    let mut pool = TestPool::btrfs();
    let id = sandbox("one");
    pool.create(&id).unwrap();
    pool.write(&id, "file", "text");
    let held_by_a_sandbox = fs::File::open(pool.path(&id).join("file")).unwrap();
    let image = pool.data_dir().join("pool.img");
    let before = loops_of(&image);
    assert_eq!(before.len(), 1);
    pool.abandon();
    unmount(pool.mount_point(), UnmountFlags::DETACH).unwrap();
    assert_eq!(loops_of(&image), before, "the open file keeps the device");
    pool.reopen();
    assert_eq!(loops_of(&image), before);
    assert_eq!(pool.read(&id, "file"), "text");
    drop(held_by_a_sandbox);
}

#[test]
fn closing_is_refused_while_a_file_is_open_and_the_pool_stays() {
    let mut pool = TestPool::btrfs();
    let id = sandbox("one");
    pool.create(&id).unwrap();
    pool.write(&id, "file", "text");
    let open = fs::File::open(pool.path(&id).join("file")).unwrap();
    let refused = pool.take().close();
    assert!(
        matches!(refused, Err(PoolError::Busy { .. })),
        "{refused:?}"
    );
    assert_eq!(mounts_at(&pool.mount_point()), 1);
    pool.reopen();
    assert_eq!(pool.read(&id, "file"), "text");
    drop(open);
    pool.take().close().unwrap();
}

#[test]
fn a_foreign_mount_is_never_taken_for_the_pool() {
    let mut pool = TestPool::btrfs();
    pool.abandon();
    let point = pool.mount_point();
    mount("tmpfs", &point, "tmpfs", MountFlags::empty(), c"size=1m").unwrap();
    let refused = pool.try_reopen();
    assert!(
        matches!(refused, Err(PoolError::ForeignMount { .. })),
        "{refused:?}"
    );
    unmount(&point, UnmountFlags::empty()).unwrap();
    pool.reopen();
}

#[test]
fn a_copy_of_the_pool_mounted_in_its_place_is_refused() {
    let mut pool = TestPool::btrfs();
    pool.create(&sandbox("one")).unwrap();
    pool.take().close().unwrap();
    let (image, copy) = (
        pool.data_dir().join("pool.img"),
        pool.data_dir().join("copy.img"),
    );
    let copied = std::process::Command::new("cp")
        .args([
            "--sparse=always".as_ref(),
            image.as_os_str(),
            copy.as_os_str(),
        ])
        .status();
    assert!(copied.unwrap().success());
    pool.reopen();
    pool.abandon();
    // The mount is of a file that no longer has the name.
    fs::rename(&copy, &image).unwrap();
    let refused = pool.try_reopen();
    assert!(
        matches!(refused, Err(PoolError::ForeignMount { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_move_of_a_frozen_volume_that_was_cut_short_ends_frozen() {
    let mut pool = TestPool::btrfs();
    let moved = image("x");
    pool.create(&moved).unwrap();
    // As it lies between the thaw and the freeze.
    let note = pool.root().join("partial/freeze-staging-x");
    fs::write(&note, "staging/x\nimages/x\n").unwrap();
    assert!(!pool.info(&moved).unwrap().read_only);
    pool.reopen();
    assert!(pool.info(&moved).unwrap().read_only);
    assert!(!note.exists());
}

#[test]
fn a_loop_file_that_was_not_finished_is_made_anew() {
    let pool = TestPool::with(BackendChoice::Btrfs, |config| {
        fs::create_dir_all(&config.dir).unwrap();
        fs::write(config.dir.join("pool.img.new-1"), "half").unwrap();
    });
    let names = fs::read_dir(pool.data_dir()).unwrap().flatten();
    let mut names: Vec<_> = names
        .map(|e| e.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["pool", "pool.backend", "pool.img", "pool.lock"]);
}

#[test]
fn a_loop_file_with_something_else_in_it_is_refused_and_kept() {
    let dir = scratch();
    fs::write(dir.path().join("pool.img"), vec![0; 1 << 20]).unwrap();
    for backend in [BackendChoice::Auto, BackendChoice::Btrfs] {
        let mut config = PoolConfig::new(dir.path());
        config.backend = backend;
        let refused = Pool::open(config).map(drop);
        assert!(
            matches!(refused, Err(PoolError::NotBtrfsImage { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(
        fs::metadata(dir.path().join("pool.img")).unwrap().len(),
        MIB
    );
}

#[test]
fn a_loop_file_grows_while_mounted_and_never_shrinks() {
    let mut pool = TestPool::btrfs();
    let id = sandbox("one");
    pool.create(&id).unwrap();
    pool.write(&id, "file", "text");
    assert_eq!(pool.space().unwrap().total, LOOP_BYTES);
    pool.config.loop_size_bytes = Some(3 * LOOP_BYTES);
    pool.reopen();
    assert_eq!(pool.space().unwrap().total, 3 * LOOP_BYTES);
    assert_eq!(pool.read(&id, "file"), "text");
    pool.config.loop_size_bytes = Some(LOOP_BYTES);
    assert!(matches!(pool.try_reopen(), Err(PoolError::LoopSize { .. })));
    pool.config.loop_size_bytes = None;
    pool.reopen();
    assert_eq!(pool.space().unwrap().total, 3 * LOOP_BYTES);
    pool.take().close().unwrap();
    pool.config.loop_size_bytes = Some(4 * LOOP_BYTES);
    pool.reopen();
    assert_eq!(pool.space().unwrap().total, 4 * LOOP_BYTES);
}

#[test]
fn a_loop_file_too_small_for_btrfs_is_refused() {
    let dir = scratch();
    let mut config = PoolConfig::new(dir.path());
    config.backend = BackendChoice::Btrfs;
    config.loop_size_bytes = Some(MIB);
    let refused = Pool::open(config).map(drop);
    assert!(
        matches!(refused, Err(PoolError::LoopSize { bytes: MIB, .. })),
        "{refused:?}"
    );
    assert!(!dir.path().join("pool.img").exists());
}

#[test]
fn two_pools_live_side_by_side() {
    let (a, b) = (TestPool::btrfs(), TestPool::btrfs());
    let id = sandbox("same-name");
    a.create(&id).unwrap();
    b.create(&id).unwrap();
    a.write(&id, "file", "a");
    b.write(&id, "file", "b");
    a.snapshot(&id, &image("copy"), Access::ReadOnly).unwrap();
    assert_eq!(
        (a.read(&id, "file"), b.read(&id, "file")),
        ("a".into(), "b".into())
    );
    assert!(!b.exists(&image("copy")).unwrap());
}

#[test]
fn a_new_directory_on_this_machine_gets_btrfs_as_the_probe_says() {
    let pool = TestPool::with(BackendChoice::Auto, |_| {});
    assert_eq!(pool.backend(), Backend::BtrfsLoop);
    let findings = Pool::probe(pool.data_dir());
    let backend = findings.iter().find(|f| f.check == "pool.backend").unwrap();
    assert_eq!(backend.status, Status::Good, "{findings:?}");
    assert!(backend.detail.contains("btrfs-loop"), "{backend:?}");
    // The filesystem it is mounted from is its own, not the host's.
    let quota = findings.iter().find(|f| f.check == "pool.quota").unwrap();
    assert!(!quota.detail.contains("host filesystem"), "{quota:?}");
}

#[test]
fn the_probe_says_what_the_directory_backend_loses() {
    let pool = TestPool::directory();
    let findings = Pool::probe(pool.data_dir());
    let backend = findings.iter().find(|f| f.check == "pool.backend").unwrap();
    assert_eq!(backend.status, Status::Degraded);
    assert!(backend.detail.contains("copies") && backend.detail.contains("limits"));

    let nowhere = pool.data_dir().join("not/there/yet");
    assert!(!Pool::probe(&nowhere).is_empty());
    assert!(!nowhere.exists(), "a probe makes nothing");
}
