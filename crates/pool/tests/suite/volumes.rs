//! What every backend does the same way.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cove_pool::{Access, Kind, PoolError};

use crate::fixture::{MIB, TestPool, image, mounts_at, sandbox, snapshot, staging, wait_until};
use crate::on_every_backend;

on_every_backend!(
    a_new_volume_is_an_empty_directory_that_can_be_written,
    creating_what_exists_is_refused,
    a_snapshot_and_its_source_go_their_own_ways,
    a_fork_of_a_frozen_snapshot_can_be_written_and_frozen_again,
    a_snapshot_never_replaces_a_volume_and_needs_a_source,
    a_frozen_volume_stays_frozen_when_it_changes_kind,
    renaming_refuses_a_taken_name_and_a_missing_volume,
    swapping_exchanges_two_volumes,
    swapping_refuses_frozen_and_missing_volumes,
    deleting_is_idempotent_and_takes_frozen_volumes,
    listing_shows_each_kind_by_name,
    usage_follows_what_is_written,
    measuring_counts_hard_links_once,
    sweeping_leaves_exactly_what_is_claimed,
    sweeping_reports_strangers_and_leaves_them,
    a_full_host_stops_creates_but_not_deletes,
    eight_threads_work_side_by_side,
    of_many_creates_of_one_name_one_wins,
    nobody_but_root_gets_into_the_pool,
    a_missing_volume_is_named_in_the_error,
    a_version_changes_with_what_was_written_and_not_with_what_was_read,
);

fn a_new_volume_is_an_empty_directory_that_can_be_written(pool: &mut TestPool) {
    let id = sandbox("one");
    assert!(!pool.exists(&id).unwrap());
    pool.create(&id).unwrap();
    assert!(pool.exists(&id).unwrap());
    assert_eq!(fs::read_dir(pool.path(&id)).unwrap().count(), 0);
    let meta = fs::metadata(pool.path(&id)).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o755, 0));
    pool.write(&id, "file", "text");
    pool.sync(&id).unwrap();
    assert_eq!(pool.read(&id, "file"), "text");
}

fn creating_what_exists_is_refused(pool: &mut TestPool) {
    let id = image("one");
    pool.create(&id).unwrap();
    pool.write(&id, "file", "kept");
    let refused = pool.create(&id);
    assert!(matches!(refused, Err(PoolError::Exists { id: named }) if named == id));
    assert_eq!(pool.read(&id, "file"), "kept");
}

fn a_snapshot_and_its_source_go_their_own_ways(pool: &mut TestPool) {
    let (source, copy) = (sandbox("source"), sandbox("copy"));
    pool.create(&source).unwrap();
    pool.write(&source, "file", "before");
    pool.snapshot(&source, &copy, Access::Writable).unwrap();
    pool.write(&source, "file", "source");
    assert_eq!(pool.read(&copy, "file"), "before");
    pool.write(&copy, "file", "copy");
    assert_eq!(pool.read(&source, "file"), "source");
    pool.delete(&source).unwrap();
    assert_eq!(pool.read(&copy, "file"), "copy");
}

fn a_fork_of_a_frozen_snapshot_can_be_written_and_frozen_again(pool: &mut TestPool) {
    let (source, frozen, fork) = (sandbox("source"), snapshot("frozen"), sandbox("fork"));
    pool.create(&source).unwrap();
    pool.write(&source, "file", "one");
    pool.snapshot(&source, &frozen, Access::ReadOnly).unwrap();
    assert!(pool.info(&frozen).unwrap().read_only);
    if pool.backend().is_btrfs() {
        let refused = fs::write(pool.path(&frozen).join("file"), "two").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    }
    pool.snapshot(&frozen, &fork, Access::Writable).unwrap();
    assert!(!pool.info(&fork).unwrap().read_only);
    pool.write(&fork, "file", "three");
    pool.set_read_only(&fork).unwrap();
    pool.set_read_only(&fork).unwrap();
    assert!(pool.info(&fork).unwrap().read_only);
    assert_eq!(pool.read(&frozen, "file"), "one");
}

fn a_snapshot_never_replaces_a_volume_and_needs_a_source(pool: &mut TestPool) {
    let (a, b, none) = (sandbox("a"), sandbox("b"), sandbox("none"));
    pool.create(&a).unwrap();
    pool.create(&b).unwrap();
    pool.write(&b, "file", "b");
    for access in [Access::ReadOnly, Access::Writable] {
        let refused = pool.snapshot(&a, &b, access);
        assert!(matches!(refused, Err(PoolError::Exists { id }) if id == b));
        let refused = pool.snapshot(&none, &b, access);
        assert!(matches!(refused, Err(PoolError::NotFound { id }) if id == none));
    }
    assert_eq!(pool.read(&b, "file"), "b");
    assert!(!pool.info(&b).unwrap().read_only);
}

fn a_frozen_volume_stays_frozen_when_it_changes_kind(pool: &mut TestPool) {
    let (filling, done, again) = (staging("x"), image("x"), image("y"));
    pool.create(&filling).unwrap();
    pool.write(&filling, "file", "text");
    pool.set_read_only(&filling).unwrap();
    pool.rename(&filling, &done).unwrap();
    pool.rename(&done, &again).unwrap();
    assert!(!pool.exists(&filling).unwrap() && !pool.exists(&done).unwrap());
    assert!(pool.info(&again).unwrap().read_only);
    assert_eq!(pool.read(&again, "file"), "text");
    let notes = fs::read_dir(pool.root().join("partial")).unwrap().count();
    assert_eq!(notes, 0);
}

fn renaming_refuses_a_taken_name_and_a_missing_volume(pool: &mut TestPool) {
    let (a, b, none) = (staging("a"), image("b"), image("none"));
    pool.create(&a).unwrap();
    pool.create(&b).unwrap();
    pool.set_read_only(&a).unwrap();
    assert!(matches!(pool.rename(&a, &b), Err(PoolError::Exists { id }) if id == b));
    assert!(
        pool.info(&a).unwrap().read_only,
        "a refused rename thaws nothing"
    );
    assert!(matches!(pool.rename(&none, &a), Err(PoolError::NotFound { id }) if id == none));
}

fn swapping_exchanges_two_volumes(pool: &mut TestPool) {
    let (live, back) = (sandbox("live"), staging("back"));
    pool.create(&live).unwrap();
    pool.create(&back).unwrap();
    pool.write(&live, "file", "live");
    pool.write(&back, "file", "back");
    pool.swap(&live, &back).unwrap();
    assert_eq!(pool.read(&live, "file"), "back");
    assert_eq!(pool.read(&back, "file"), "live");
}

fn swapping_refuses_frozen_and_missing_volumes(pool: &mut TestPool) {
    let (a, b, none) = (sandbox("a"), sandbox("b"), sandbox("none"));
    pool.create(&a).unwrap();
    pool.create(&b).unwrap();
    pool.set_read_only(&b).unwrap();
    assert!(matches!(pool.swap(&a, &b), Err(PoolError::ReadOnly { id }) if id == b));
    assert!(matches!(pool.swap(&a, &none), Err(PoolError::NotFound { id }) if id == none));
}

fn deleting_is_idempotent_and_takes_frozen_volumes(pool: &mut TestPool) {
    let id = image("one");
    pool.create(&id).unwrap();
    fs::create_dir_all(pool.path(&id).join("a/b/c")).unwrap();
    pool.write(&id, "a/b/c/file", "text");
    pool.set_read_only(&id).unwrap();
    pool.delete(&id).unwrap();
    assert!(!pool.exists(&id).unwrap());
    pool.delete(&id).unwrap();
    pool.create(&id).unwrap();
    assert_eq!(fs::read_dir(pool.path(&id)).unwrap().count(), 0);
    wait_until("the trash is empty", || {
        fs::read_dir(pool.root().join("trash")).unwrap().count() == 0
    });
}

fn listing_shows_each_kind_by_name(pool: &mut TestPool) {
    for name in ["c", "a", "b"] {
        pool.create(&image(name)).unwrap();
    }
    pool.create(&sandbox("z")).unwrap();
    pool.set_read_only(&image("b")).unwrap();
    let listed = pool.list(Kind::Image).unwrap();
    let rows: Vec<_> = listed
        .iter()
        .map(|row| (row.id.name(), row.read_only))
        .collect();
    assert_eq!(rows, [("a", false), ("b", true), ("c", false)]);
    let hour = Duration::from_secs(3600);
    for row in &listed {
        let age = SystemTime::now().duration_since(row.created);
        assert!(age.unwrap_or_default() < hour, "{row:?}");
        assert_eq!(row.usage.is_some(), pool.limits().is_ok());
    }
    assert!(pool.list(Kind::Snapshot).unwrap().is_empty());
}

fn usage_follows_what_is_written(pool: &mut TestPool) {
    let id = sandbox("one");
    pool.create(&id).unwrap();
    let empty = pool.usage(&id).unwrap();
    assert!(empty.referenced_bytes < MIB, "{empty:?}");
    assert_eq!(empty.limit_bytes, None);
    pool.write(&id, "file", vec![7; 8 << 20]);
    // Before and after it reaches the disk: a reader must not see use vanish in between.
    if pool.limits().is_ok() {
        assert!(pool.usage(&id).unwrap().referenced_bytes >= 8 * MIB);
    }
    pool.sync(&id).unwrap();
    let full = pool.usage(&id).unwrap();
    assert!(
        (8 * MIB..10 * MIB).contains(&full.referenced_bytes),
        "{full:?}"
    );
    fs::remove_file(pool.path(&id).join("file")).unwrap();
    wait_until("the space is given back", || {
        pool.sync(&id).unwrap();
        pool.usage(&id).unwrap().referenced_bytes < MIB
    });
}

fn measuring_counts_hard_links_once(pool: &mut TestPool) {
    let (id, copy) = (sandbox("one"), snapshot("copy"));
    pool.create(&id).unwrap();
    fs::create_dir(pool.path(&id).join("dir")).unwrap();
    pool.write(&id, "file", vec![7; 4 << 20]);
    fs::hard_link(
        pool.path(&id).join("file"),
        pool.path(&id).join("dir/again"),
    )
    .unwrap();
    pool.sync(&id).unwrap();
    let shown = pool.measure(&id).unwrap();
    assert!((4 * MIB..5 * MIB).contains(&shown), "{shown}");
    pool.snapshot(&id, &copy, Access::ReadOnly).unwrap();
    let inherited = pool.measure(&copy).unwrap();
    assert!((4 * MIB..5 * MIB).contains(&inherited), "{inherited}");
}

fn sweeping_leaves_exactly_what_is_claimed(pool: &mut TestPool) {
    let ids = [
        image("keep"),
        image("drop"),
        sandbox("keep"),
        sandbox("drop"),
        snapshot("drop"),
    ];
    for id in &ids {
        pool.create(id).unwrap();
        pool.write(id, "file", "text");
    }
    pool.set_read_only(&image("drop")).unwrap();
    let half_made = staging("keep");
    pool.create(&half_made).unwrap();
    let report = pool.sweep(&|id| id.name() == "keep");
    assert!(
        report.errors.is_empty() && report.unknown.is_empty(),
        "{report:?}"
    );
    let removed: BTreeSet<_> = report.removed.into_iter().collect();
    let expected = [image("drop"), sandbox("drop"), snapshot("drop"), half_made];
    assert_eq!(removed, expected.into_iter().collect());
    for id in &ids {
        assert_eq!(pool.exists(id).unwrap(), id.name() == "keep", "{id}");
    }
    assert_eq!(fs::read_dir(pool.root().join("trash")).unwrap().count(), 0);
}

fn sweeping_reports_strangers_and_leaves_them(pool: &mut TestPool) {
    let stranger = pool.root().join("images/Not A Volume");
    fs::create_dir(&stranger).unwrap();
    // Not made by the pool, but named like a volume: swept like one.
    fs::create_dir_all(pool.root().join("images/by-hand/deep")).unwrap();
    assert_eq!(pool.list(Kind::Image).unwrap().len(), 1);
    let report = pool.sweep(&|_| false);
    assert!(report.errors.is_empty(), "{report:?}");
    assert_eq!(report.unknown.as_slice(), std::slice::from_ref(&stranger));
    assert!(stranger.exists());
    assert!(!pool.root().join("images/by-hand").exists());
}

fn a_full_host_stops_creates_but_not_deletes(pool: &mut TestPool) {
    let id = sandbox("one");
    pool.create(&id).unwrap();
    pool.config.reserve_bytes = Some(u64::MAX / 2);
    pool.reopen();
    for refused in [
        pool.create(&sandbox("two")),
        pool.snapshot(&id, &snapshot("two"), Access::ReadOnly),
        pool.check_room(1),
    ] {
        let Err(PoolError::Full { reserve, free, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(reserve > free);
    }
    assert!(!pool.exists(&sandbox("two")).unwrap());
    pool.delete(&id).unwrap();
    assert!(!pool.exists(&id).unwrap());
    pool.config.reserve_bytes = Some(0);
    pool.reopen();
    pool.create(&sandbox("two")).unwrap();
    let space = pool.space().unwrap();
    assert!(
        pool.check_room(space.free.saturating_add(MIB << 20))
            .is_err()
    );
}

fn eight_threads_work_side_by_side(pool: &mut TestPool) {
    const THREADS: usize = 8;
    const ROUNDS: usize = 10;
    let base = image("base");
    pool.create(&base).unwrap();
    pool.write(&base, "file", "base");
    pool.set_read_only(&base).unwrap();
    let pool = &*pool;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let base = &base;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let kept = sandbox(&format!("{thread}-{round}"));
                    let gone = sandbox(&format!("gone-{thread}-{round}"));
                    pool.create(&gone).unwrap();
                    pool.snapshot(base, &kept, Access::Writable).unwrap();
                    pool.write(&kept, "own", kept.name());
                    pool.swap(&kept, &gone).unwrap();
                    pool.swap(&kept, &gone).unwrap();
                    pool.delete(&gone).unwrap();
                }
            });
        }
    });
    let listed = pool.list(Kind::Sandbox).unwrap();
    assert_eq!(listed.len(), THREADS * ROUNDS);
    for row in listed {
        assert_eq!(pool.read(&row.id, "file"), "base");
        assert_eq!(pool.read(&row.id, "own"), row.id.name());
    }
}

fn of_many_creates_of_one_name_one_wins(pool: &mut TestPool) {
    let (source, pool) = (image("source"), &*pool);
    pool.create(&source).unwrap();
    let won: usize = thread::scope(|scope| {
        let attempts: Vec<_> = (0..8)
            .map(|turn| {
                let (source, target) = (&source, sandbox("target"));
                scope.spawn(move || match turn % 2 {
                    0 => pool.create(&target),
                    _ => pool.snapshot(source, &target, Access::Writable),
                })
            })
            .collect();
        let outcomes = attempts.into_iter().map(|attempt| attempt.join().unwrap());
        outcomes
            .map(|outcome| match outcome {
                Ok(()) => 1,
                Err(PoolError::Exists { .. }) => 0,
                Err(other) => panic!("{other:?}"),
            })
            .sum()
    });
    assert_eq!(won, 1);
}

fn nobody_but_root_gets_into_the_pool(pool: &mut TestPool) {
    for path in [
        pool.root().to_path_buf(),
        pool.root().join("sandboxes"),
        pool.data_dir().into(),
    ] {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
    let mounted = mounts_at(&pool.mount_point());
    assert_eq!(
        mounted,
        usize::from(pool.data_dir().join("pool.img").exists())
    );
}

fn a_missing_volume_is_named_in_the_error(pool: &mut TestPool) {
    let none = sandbox("none");
    let attempts = [
        pool.usage(&none).map(drop),
        pool.measure(&none).map(drop),
        pool.info(&none).map(drop),
        pool.set_limit(&none, None),
        pool.set_read_only(&none),
        pool.sync(&none),
    ];
    for refused in attempts {
        assert!(matches!(refused, Err(PoolError::NotFound { id }) if id == none));
    }
}

fn a_version_changes_with_what_was_written_and_not_with_what_was_read(pool: &mut TestPool) {
    let (volume, copy) = (sandbox("a"), snapshot("a"));
    pool.create(&volume).unwrap();
    pool.write(&volume, "f", "one");
    pool.sync(&volume).unwrap();
    pool.snapshot(&volume, &copy, Access::ReadOnly).unwrap();
    let version = pool.version(&volume).unwrap();
    fs::read(pool.path(&volume).join("f")).unwrap();
    pool.sync(&volume).unwrap();
    assert_eq!(pool.version(&volume).unwrap(), version);
    pool.write(&volume, "f", "two");
    pool.sync(&volume).unwrap();
    assert_ne!(pool.version(&volume).unwrap(), version);
}

#[test]
fn what_a_snapshot_holds_alone_is_told_from_what_it_shares() {
    let pool = TestPool::btrfs();
    let (volume, copy) = (sandbox("a"), snapshot("a"));
    pool.create(&volume).unwrap();
    let soon = || Instant::now() + Duration::from_secs(60);
    pool.write(&volume, "f", vec![1; 4 << 20]);
    pool.snapshot(&volume, &copy, Access::ReadOnly).unwrap();
    let shares = pool.shares(&copy, soon()).unwrap();
    assert_eq!(
        (shares.exclusive_bytes, shares.shared_bytes, shares.complete),
        (0, 4 * MIB, true)
    );
    pool.write(&volume, "f", vec![2; 4 << 20]);
    pool.sync(&volume).unwrap();
    let shares = pool.shares(&copy, soon()).unwrap();
    assert_eq!((shares.exclusive_bytes, shares.shared_bytes), (4 * MIB, 0));
    assert!(!pool.shares(&copy, Instant::now()).unwrap().complete);
}
