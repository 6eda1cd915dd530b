//! Times the pool's operations on a real loop-backed btrfs and on plain directories, and prints them.
//!
//! Figures are for reading, nothing is asserted. Run as root: `cargo bench -p cove-pool`.

use std::fs;
use std::time::{Duration, Instant};

use cove_pool::{Access, BackendChoice, Kind, Pool, PoolConfig, VolumeId};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

const ROUNDS: usize = 200;
const FILES: usize = 20_000;

struct Bench {
    pool: Option<Pool>,
    dir: TempDir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(self.pool.take());
        let _ = unmount(self.dir.path().join("pool"), UnmountFlags::DETACH);
    }
}

fn id(kind: Kind, name: impl ToString) -> VolumeId {
    VolumeId::new(kind, name.to_string()).expect("a name of the allowed alphabet")
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    println!(
        "  {what:<44} p50 {:>9.3} ms   p99 {:>9.3} ms   n {}",
        at(50),
        at(99),
        times.len()
    );
}

fn timed(rounds: usize, mut step: impl FnMut(usize)) -> Vec<Duration> {
    let time = |n| {
        let start = Instant::now();
        step(n);
        start.elapsed()
    };
    (0..rounds).map(time).collect()
}

fn run(choice: BackendChoice, copies: usize) {
    let dir = tempfile::Builder::new()
        .prefix("cove-pool-")
        .tempdir_in("/var/tmp")
        .expect("a directory");
    let mut config = PoolConfig::new(dir.path());
    config.backend = choice;
    let mut bench = Bench { pool: None, dir };
    let start = Instant::now();
    bench.pool = Some(Pool::open(config.clone()).expect("the pool opens"));
    let first = start.elapsed();
    drop(bench.pool.take());
    let start = Instant::now();
    bench.pool = Some(Pool::open(config).expect("the pool opens"));
    let again = start.elapsed();
    let pool = bench.pool.as_ref().expect("opened above");
    println!(
        "{}: first open {first:.1?}, open again {again:.1?}",
        pool.backend()
    );

    let sandbox = |n: usize| id(Kind::Sandbox, n);
    report(
        "create",
        timed(ROUNDS, |n| pool.create(&sandbox(n)).expect("a create")),
    );
    if pool.limits().is_ok() {
        let limit = |n: usize| pool.set_limit(&sandbox(n), Some(1 << 30)).expect("a limit");
        report("set_limit", timed(ROUNDS, limit));
        report(
            "usage",
            timed(ROUNDS, |n| {
                pool.usage(&sandbox(n)).expect("a figure");
            }),
        );
    }
    report(
        "list, 200 volumes",
        timed(10, |_| drop(pool.list(Kind::Sandbox).expect("a list"))),
    );
    report(
        "check_room",
        timed(ROUNDS, |_| pool.check_room(1).expect("room")),
    );
    report(
        "swap",
        timed(ROUNDS - 1, |n| {
            pool.swap(&sandbox(n), &sandbox(n + 1)).expect("a swap")
        }),
    );
    report(
        "delete, empty",
        timed(ROUNDS, |n| pool.delete(&sandbox(n)).expect("a delete")),
    );

    let image = id(Kind::Image, "big");
    pool.create(&image).expect("a create");
    for n in 0..FILES {
        let folder = pool.path(&image).join((n / 200).to_string());
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(n.to_string()), [7u8; 4096]).expect("a file");
    }
    pool.sync(&image).expect("a sync");
    pool.set_read_only(&image).expect("a freeze");
    let fork = |n: usize| {
        pool.snapshot(&image, &sandbox(n), Access::Writable)
            .expect("a fork")
    };
    report("snapshot of 20,000 files", timed(copies, fork));
    let touched = |n: usize| {
        fs::write(pool.path(&sandbox(n)).join("new"), vec![1u8; 1 << 20]).expect("a file");
        let start = Instant::now();
        pool.snapshot(&sandbox(n), &id(Kind::Snapshot, n), Access::ReadOnly)
            .expect("a snapshot");
        start.elapsed()
    };
    report(
        "the same after writing 1 MiB to it",
        (0..copies).map(touched).collect(),
    );
    report(
        "delete, 20,000 files",
        timed(copies, |n| pool.delete(&sandbox(n)).expect("a delete")),
    );
}

fn main() {
    // `cargo test --benches` asks for a quick pass; there is nothing to check here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    run(BackendChoice::Btrfs, 30);
    run(BackendChoice::Directory, 5);
}
