//! Disk limits: real ones on btrfs, refused elsewhere.

use std::fs;
use std::io::Write;

use cove_pool::{Access, PoolError, VolumeId};

use crate::fixture::{MIB, TestPool, btrfs, image, sandbox, snapshot, wait_until};

fn fill(pool: &TestPool, id: &VolumeId, bytes: u64) -> Result<(), std::io::Error> {
    let mut file = fs::File::create(pool.path(id).join("fill"))?;
    let mut noise = 1u64;
    let chunk: Vec<u8> = (0..MIB)
        .map(|_| {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (noise >> 33) as u8
        })
        .collect();
    for _ in 0..bytes / MIB {
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

fn assert_quota(result: Result<(), std::io::Error>) {
    let error = result.expect_err("the limit holds");
    assert_eq!(error.raw_os_error(), Some(libc::EDQUOT), "{error}");
}

#[test]
fn a_full_volume_gets_an_error_and_disturbs_nobody() {
    let pool = TestPool::btrfs();
    let (small, other) = (sandbox("small"), sandbox("other"));
    pool.create(&small).unwrap();
    pool.create(&other).unwrap();
    pool.set_limit(&small, Some(32 * MIB)).unwrap();
    assert_eq!(pool.usage(&small).unwrap().limit_bytes, Some(32 * MIB));
    assert_quota(fill(&pool, &small, 64 * MIB));
    assert!(pool.usage(&small).unwrap().referenced_bytes <= 32 * MIB);
    fill(&pool, &other, 64 * MIB).unwrap();
    // A full volume can still be emptied, and then written again.
    fs::remove_file(pool.path(&small).join("fill")).unwrap();
    wait_until("the space is given back", || {
        pool.sync(&small).unwrap();
        pool.usage(&small).unwrap().referenced_bytes < 8 * MIB
    });
    fill(&pool, &small, 16 * MIB).unwrap();
    pool.create(&sandbox("third")).unwrap();
}

#[test]
fn many_small_files_count_with_their_metadata() {
    let pool = TestPool::btrfs();
    let id = sandbox("small");
    pool.create(&id).unwrap();
    pool.set_limit(&id, Some(4 * MIB)).unwrap();
    let make = |n: u32| fs::write(pool.path(&id).join(format!("{n}-{}", "x".repeat(200))), "");
    let refused = (0..200_000).map(make).find_map(Result::err);
    let error = refused.expect("empty files fill a volume too");
    assert_eq!(error.raw_os_error(), Some(libc::EDQUOT));
}

#[test]
fn a_limit_below_use_is_refused_and_changes_nothing() {
    let pool = TestPool::btrfs();
    let id = sandbox("one");
    pool.create(&id).unwrap();
    pool.set_limit(&id, Some(64 * MIB)).unwrap();
    // Not synced: what waits in memory counts as well.
    pool.write(&id, "file", vec![9; 16 << 20]);
    let refused = pool.set_limit(&id, Some(8 * MIB));
    let Err(PoolError::LimitBelowUse { limit, used }) = refused else {
        panic!("{refused:?}");
    };
    assert!(limit == 8 * MIB && used >= 16 * MIB, "{used}");
    assert_eq!(pool.usage(&id).unwrap().limit_bytes, Some(64 * MIB));
    pool.set_limit(&id, Some(20 * MIB)).unwrap();
    assert_quota(fill(&pool, &id, 16 * MIB));
}

#[test]
fn a_lifted_limit_no_longer_holds() {
    let pool = TestPool::btrfs();
    let id = sandbox("one");
    pool.create(&id).unwrap();
    pool.set_limit(&id, Some(8 * MIB)).unwrap();
    assert_quota(fill(&pool, &id, 16 * MIB));
    pool.set_limit(&id, None).unwrap();
    assert_eq!(pool.usage(&id).unwrap().limit_bytes, None);
    fill(&pool, &id, 32 * MIB).unwrap();
}

#[test]
fn a_limit_follows_its_volume_through_rename_swap_and_reopening() {
    let mut pool = TestPool::btrfs();
    let (a, b, c) = (sandbox("a"), sandbox("b"), sandbox("c"));
    pool.create(&a).unwrap();
    pool.create(&b).unwrap();
    pool.set_limit(&a, Some(8 * MIB)).unwrap();
    pool.swap(&a, &b).unwrap();
    pool.rename(&b, &c).unwrap();
    pool.take().close().unwrap();
    pool.reopen();
    assert_eq!(pool.usage(&c).unwrap().limit_bytes, Some(8 * MIB));
    assert_quota(fill(&pool, &c, 16 * MIB));
    fill(&pool, &a, 16 * MIB).unwrap();
}

#[test]
fn a_fork_is_charged_and_limited_for_its_own_writes_only() {
    let pool = TestPool::btrfs();
    let (parent, frozen, fork) = (sandbox("parent"), snapshot("frozen"), sandbox("fork"));
    pool.create(&parent).unwrap();
    pool.set_limit(&parent, Some(64 * MIB)).unwrap();
    pool.write(&parent, "inherited", vec![3; 32 << 20]);
    pool.sync(&parent).unwrap();
    pool.snapshot(&parent, &frozen, Access::ReadOnly).unwrap();
    pool.snapshot(&frozen, &fork, Access::Writable).unwrap();
    let fresh = pool.usage(&fork).unwrap();
    assert!(fresh.referenced_bytes < MIB, "{fresh:?}");
    assert_eq!(fresh.limit_bytes, None, "limits are not inherited");
    assert!(pool.measure(&fork).unwrap() >= 32 * MIB);
    pool.set_limit(&fork, Some(16 * MIB)).unwrap();
    assert_quota(fill(&pool, &fork, 32 * MIB));
    fill(&pool, &parent, 16 * MIB).unwrap();
}

#[test]
fn what_a_snapshot_holds_stays_charged_to_its_writer() {
    let pool = TestPool::btrfs();
    let (id, frozen) = (sandbox("one"), snapshot("frozen"));
    pool.create(&id).unwrap();
    fill(&pool, &id, 16 * MIB).unwrap();
    pool.snapshot(&id, &frozen, Access::ReadOnly).unwrap();
    fs::remove_file(pool.path(&id).join("fill")).unwrap();
    pool.sync(&id).unwrap();
    assert!(pool.usage(&id).unwrap().referenced_bytes >= 16 * MIB);
    pool.delete(&frozen).unwrap();
    wait_until("the snapshot lets go", || {
        pool.sync(&id).unwrap();
        pool.usage(&id).unwrap().referenced_bytes < MIB
    });
}

#[test]
fn counters_of_deleted_volumes_do_not_pile_up() {
    let pool = TestPool::btrfs();
    let groups = || {
        let output = std::process::Command::new("btrfs")
            .args(["filesystem", "show", "--raw"])
            .arg(pool.root())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let uuid = text
            .split("uuid: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .to_owned();
        let folder = format!("/sys/fs/btrfs/{}/qgroups", uuid.trim());
        let names = fs::read_dir(folder).unwrap().flatten();
        names
            .filter(|e| e.file_name().to_string_lossy().starts_with("0_"))
            .count()
    };
    let before = groups();
    for n in 0..5 {
        let (writer, frozen) = (sandbox(&format!("w{n}")), snapshot(&format!("s{n}")));
        pool.create(&writer).unwrap();
        fill(&pool, &writer, MIB).unwrap();
        pool.snapshot(&writer, &frozen, Access::ReadOnly).unwrap();
        // The writer goes first, so its counter must outlive it for the snapshot's sake.
        pool.delete(&writer).unwrap();
    }
    wait_until("no counter is left over", || {
        let report = pool.sweep(&|_| false);
        assert!(report.errors.is_empty(), "{report:?}");
        pool.create(&sandbox("x")).unwrap();
        pool.sync(&sandbox("x")).unwrap();
        pool.delete(&sandbox("x")).unwrap();
        groups() <= before + 1
    });
}

#[test]
fn deleting_takes_nested_subvolumes_along_also_from_frozen_volumes() {
    for frozen in [false, true] {
        let pool = TestPool::btrfs();
        let id = sandbox("one");
        pool.create(&id).unwrap();
        let top = pool.path(&id);
        for nested in ["a", "b", "a/inner", "a/inner/most"] {
            let path = top.join(nested);
            assert!(btrfs(&["subvolume", "create", path.to_str().unwrap()]));
            fs::write(path.join("file"), nested).unwrap();
        }
        if frozen {
            pool.set_read_only(&id).unwrap();
        }
        pool.delete(&id).unwrap();
        assert!(!pool.exists(&id).unwrap());
    }
}

#[test]
fn directories_refuse_limits_and_say_why() {
    let pool = TestPool::directory();
    let id = image("one");
    pool.create(&id).unwrap();
    assert!(pool.limits().is_err());
    let refused = pool.set_limit(&id, Some(MIB));
    let Err(PoolError::Unsupported { reason, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("btrfs"), "{reason}");
    pool.set_limit(&id, None).unwrap();
}

#[test]
fn a_pool_on_the_hosts_btrfs_limits_too() {
    let pool = TestPool::host_btrfs();
    let id = sandbox("one");
    pool.create(&id).unwrap();
    pool.set_limit(&id, Some(8 * MIB)).unwrap();
    assert_quota(fill(&pool, &id, 16 * MIB));
}

#[test]
fn a_count_finds_inherited_data_names_and_attributes_and_gives_up_in_time() {
    use std::time::{Duration, Instant};
    let pool = TestPool::btrfs();
    let (parent, copy) = (sandbox("parent"), sandbox("copy"));
    let soon = || Instant::now() + Duration::from_secs(60);
    pool.create(&parent).unwrap();
    let count = |id: &VolumeId| pool.count(id, soon()).unwrap().unwrap();
    let empty = count(&parent);
    pool.write(&parent, "data", vec![3; 4 << 20]);
    fs::hard_link(
        pool.path(&parent).join("data"),
        pool.path(&parent).join("again"),
    )
    .unwrap();
    pool.sync(&parent).unwrap();
    pool.snapshot(&parent, &copy, Access::Writable).unwrap();
    let inherited = count(&copy) - empty;
    assert!((4 * MIB..5 * MIB).contains(&inherited), "{inherited}");

    let before = count(&copy);
    for n in 0..1000 {
        pool.write(&copy, &format!("empty-{n}"), Vec::new());
    }
    assert!(count(&copy) >= before + 1000 * 1024, "names take room");
    let before = count(&copy);
    let dir = pool.path(&copy).join("hoard");
    fs::create_dir(&dir).unwrap();
    for n in 0..100 {
        let value = vec![7; 4000];
        let name = format!("user.{n}");
        rustix::fs::setxattr(&dir, name, &value, rustix::fs::XattrFlags::CREATE).unwrap();
    }
    let hoarded = count(&copy) - before;
    assert!(hoarded >= 100 * 4000, "so do attributes: {hoarded}");
    assert_eq!(pool.count(&copy, Instant::now()).unwrap(), None);
}
