//! Disks of machines, whatever a tier keeps on them.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use cove_pool::{DiskSource, PoolError};

use crate::fixture::{MIB, TestPool, sandbox, snapshot, staging};
use crate::on_every_backend;

on_every_backend!(
    a_disk_is_made_once_and_found_again,
    a_copy_of_a_disk_comes_without_memory_and_goes_its_own_way,
    a_block_image_is_copied_as_a_tree_is,
    memory_moves_between_disks_and_is_roots_alone,
    a_disk_with_nothing_but_memory_is_blank,
    memory_that_is_still_being_written_is_cleared,
);

fn a_disk_is_made_once_and_found_again(pool: &mut TestPool) {
    let id = sandbox("one");
    let disk = pool.ready_disk(&id, &DiskSource::Own, None).unwrap();
    assert!(disk.is_blank().unwrap() && !disk.has_memory());
    fs::write(disk.dir().join("kept"), "text").unwrap();
    disk.make_memory().unwrap();
    fs::write(disk.memory().join("pages"), "old").unwrap();
    let again = pool.ready_disk(&id, &DiskSource::Own, None).unwrap();
    assert_eq!(
        fs::read_to_string(again.dir().join("kept")).unwrap(),
        "text"
    );
    assert!(!again.has_memory(), "memory of processes that are gone");
}

fn a_copy_of_a_disk_comes_without_memory_and_goes_its_own_way(pool: &mut TestPool) {
    let (id, copy) = (sandbox("one"), sandbox("two"));
    let disk = pool.ready_disk(&id, &DiskSource::Own, None).unwrap();
    fs::write(disk.dir().join("file"), "before").unwrap();
    disk.make_memory().unwrap();
    fs::write(disk.memory().join("pages"), "secret").unwrap();
    let source = DiskSource::CopyOf(id.clone());
    let copy = pool.ready_disk(&copy, &source, None).unwrap();
    assert!(disk.has_memory() && !copy.has_memory());
    fs::write(disk.dir().join("file"), "after").unwrap();
    assert_eq!(
        fs::read_to_string(copy.dir().join("file")).unwrap(),
        "before"
    );
    let missing = DiskSource::CopyOf(snapshot("nobody"));
    let refused = pool.ready_disk(&sandbox("three"), &missing, None);
    assert!(
        matches!(refused, Err(PoolError::NotFound { .. })),
        "{refused:?}"
    );
}

/// The raw disk of a virtual machine: one sparse file that is written in place.
fn a_block_image_is_copied_as_a_tree_is(pool: &mut TestPool) {
    const SIZE: u64 = 64 * MIB;
    let (id, copy) = (sandbox("one"), sandbox("two"));
    let limit = pool.limits().is_ok().then_some(8 * MIB);
    let disk = pool.ready_disk(&id, &DiskSource::Own, limit).unwrap();
    let image = fs::File::create_new(disk.dir().join("disk.raw")).unwrap();
    image.set_len(SIZE).unwrap();
    let block = |byte: u8| vec![byte; MIB as usize];
    image.write_all_at(&block(1), 0).unwrap();
    image.write_all_at(&block(2), SIZE - MIB).unwrap();
    pool.sync(&id).unwrap();
    assert!(pool.measure(&id).unwrap() < 8 * MIB, "the holes take room");
    let source = DiskSource::CopyOf(id.clone());
    let copied = pool.ready_disk(&copy, &source, limit).unwrap();
    image.write_all_at(&block(3), 0).unwrap();
    let mut other = fs::File::open(copied.dir().join("disk.raw")).unwrap();
    assert_eq!(other.metadata().unwrap().size(), SIZE);
    let mut read = block(0);
    for (at, byte) in [(0, 1), (SIZE - MIB, 2)] {
        other.seek(SeekFrom::Start(at)).unwrap();
        other.read_exact(&mut read).unwrap();
        assert!(read == block(byte), "at {at}");
    }
    pool.swap(&id, &copy).unwrap();
    let mut now = vec![0];
    let swapped = fs::File::open(pool.disk(&id).dir().join("disk.raw")).unwrap();
    swapped.read_exact_at(&mut now, 0).unwrap();
    assert_eq!(now, [1]);
    if limit.is_some() {
        // The copy's limit is its own: it may write as much as the first one could.
        let mut writing = fs::OpenOptions::new()
            .write(true)
            .open(pool.disk(&id).dir().join("disk.raw"))
            .unwrap();
        writing.seek(SeekFrom::Start(16 * MIB)).unwrap();
        let full = (0..16).find_map(|_| {
            let written = writing
                .write_all(&block(7))
                .and_then(|()| writing.sync_all());
            written.err()
        });
        assert!(full.is_some(), "a block image outgrew its disk's limit");
    }
}

fn memory_moves_between_disks_and_is_roots_alone(pool: &mut TestPool) {
    let (id, other, third) = (sandbox("one"), staging("two"), snapshot("three"));
    let disk = pool.ready_disk(&id, &DiskSource::Own, None).unwrap();
    disk.make_memory().unwrap();
    fs::write(disk.memory().join("pages-1"), vec![7; MIB as usize]).unwrap();
    pool.sync(&id).unwrap();
    assert!(disk.memory_bytes() >= MIB);
    for to in [&other, &third] {
        pool.create(to).unwrap();
    }
    disk.copy_memory(&pool.disk(&other)).unwrap();
    assert!(disk.has_memory());
    disk.move_memory(&pool.disk(&third)).unwrap();
    assert!(!disk.has_memory() && disk.memory_bytes() == 0);
    for to in [&other, &third] {
        let memory = pool.disk(to).memory();
        assert_eq!(fs::metadata(&memory).unwrap().mode() & 0o7777, 0o700);
        let pages = fs::read(memory.join("pages-1")).unwrap();
        assert_eq!(pages.len() as u64, MIB);
    }
    let taken = pool.disk(&third).copy_memory(&pool.disk(&other));
    assert!(taken.is_err(), "memory of another was written over");
}

fn a_disk_with_nothing_but_memory_is_blank(pool: &mut TestPool) {
    let disk = pool
        .ready_disk(&sandbox("one"), &DiskSource::Own, None)
        .unwrap();
    disk.make_memory().unwrap();
    assert!(disk.is_blank().unwrap());
    fs::create_dir(disk.dir().join("upper")).unwrap();
    assert!(!disk.is_blank().unwrap());
}

fn memory_that_is_still_being_written_is_cleared(pool: &mut TestPool) {
    let id = sandbox("captured");
    pool.create(&id).unwrap();
    let disk = pool.disk(&id);
    disk.make_memory().unwrap();
    let dir = disk.memory();
    let (begun, beginning) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        // Like a capture, it holds the directory and ends when that is gone.
        for file in 0..100_000 {
            if fs::write(dir.join(format!("pages-{file}")), "page").is_err() {
                return;
            }
            if file == 10 {
                begun.send(()).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    });
    beginning.recv().unwrap();
    disk.clear_memory().unwrap();
    writer.join().unwrap();
    assert!(!disk.has_memory());
}
