//! Kills a working process at many points and checks what the next one finds.
//!
//! The program starts itself as a child that makes a pool and works in it, kills it when it has said
//! a certain number of things or when a certain file appears, and opens the pool again.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cove_pool::{Access, BackendChoice, Kind, Pool, PoolConfig, VolumeId};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

const NAME: &str = "a_kill_at_any_point_leaves_a_pool_that_opens_whole";
const PATIENCE: Duration = Duration::from_secs(120);

/// Files in each volume: enough that a kill hits the middle of a copy.
const FILES: usize = 40;
const KILLS: usize = 24;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, dir, backend] = &args[..]
        && word == "work-until-killed"
    {
        work(&config(Path::new(dir), backend));
        return ExitCode::FAILURE;
    }
    // The two questions that test runners ask of a program without the usual harness.
    if args.iter().any(|arg| arg == "--list") {
        if !args.iter().any(|arg| arg == "--ignored") {
            println!("{NAME}: test");
        }
        return ExitCode::SUCCESS;
    }
    let filters: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    if !filters.is_empty() && !filters.iter().any(|filter| NAME.contains(filter.as_str())) {
        return ExitCode::SUCCESS;
    }
    for backend in ["btrfs", "directory"] {
        killed_while_working(backend);
    }
    killed_while_making_the_loop_file();
    println!("test {NAME} ... ok");
    ExitCode::SUCCESS
}

fn config(dir: &Path, backend: &str) -> PoolConfig {
    let mut config = PoolConfig::new(dir);
    config.backend = match backend {
        "btrfs" => BackendChoice::Btrfs,
        _ => BackendChoice::Directory,
    };
    config.loop_size_bytes = Some(1 << 30);
    config.reserve_bytes = Some(0);
    config
}

fn id(kind: Kind, name: impl ToString) -> VolumeId {
    VolumeId::new(kind, name.to_string()).expect("a name of the allowed alphabet")
}

/// Says what comes next, so that the parent can choose where to strike.
fn say(what: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{what}")
        .and_then(|()| out.flush())
        .expect("the parent listens");
}

/// Life as the engine lives it: images are filled in staging, frozen and renamed; sandboxes come from
/// images, are snapshotted, rolled back and deleted.
fn work(config: &PoolConfig) {
    say("open");
    let pool = Pool::open(config.clone()).expect("the pool opens");
    for round in 0u64.. {
        let image = id(Kind::Image, round);
        if pool.exists(&image).expect("a look") {
            continue;
        }
        let filling = id(Kind::Staging, round);
        say("create");
        pool.delete(&filling).expect("a delete");
        pool.create(&filling).expect("a create");
        fill(&pool, &filling);
        say("freeze");
        pool.set_read_only(&filling).expect("a freeze");
        say("rename");
        pool.rename(&filling, &image).expect("a rename");
        let (sandbox, saved, back) = (
            id(Kind::Sandbox, round),
            id(Kind::Snapshot, round),
            id(Kind::Staging, "back"),
        );
        say("fork");
        pool.snapshot(&image, &sandbox, Access::Writable)
            .expect("a fork");
        say("snapshot");
        pool.snapshot(&sandbox, &saved, Access::ReadOnly)
            .expect("a snapshot");
        say("roll back");
        pool.delete(&back).expect("a delete");
        pool.snapshot(&saved, &back, Access::Writable)
            .expect("a fork");
        pool.swap(&sandbox, &back).expect("a swap");
        pool.delete(&back).expect("a delete");
        say("delete");
        pool.delete(&saved).expect("a delete");
    }
}

fn fill(pool: &Pool, volume: &VolumeId) {
    for n in 0..FILES {
        let path = pool.path(volume).join(n.to_string());
        fs::write(path, vec![b'x'; 4096]).expect("a file");
    }
}

fn is_whole(pool: &Pool, volume: &VolumeId) -> bool {
    (0..FILES).all(|n| {
        let meta = fs::metadata(pool.path(volume).join(n.to_string()));
        meta.is_ok_and(|meta| meta.len() == 4096)
    })
}

/// A data directory whose mount goes with it, also when a check fails.
struct Data {
    dir: TempDir,
}

impl Data {
    fn new() -> Data {
        let builder = tempfile::Builder::new()
            .prefix("cove-pool-")
            .tempdir_in("/var/tmp");
        Data {
            dir: builder.expect("a temporary directory"),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().to_path_buf()
    }

    fn worker(&self, backend: &str) -> Worker {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .arg("work-until-killed")
            .arg(self.dir.path())
            .arg(backend)
            .stdout(Stdio::piped())
            .spawn();
        Worker(child.expect("a child"))
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = unmount(self.dir.path().join("pool"), UnmountFlags::DETACH);
    }
}

/// A child that never outlives the test.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn killed_while_working(backend: &str) {
    let data = Data::new();
    for kill in 0..KILLS {
        let mut worker = data.worker(backend);
        let out = worker.0.stdout.take().expect("a pipe");
        // Each time one step further, so that every step is struck, each a little differently.
        let heard: Vec<_> = BufReader::new(out)
            .lines()
            .take(2 + kill)
            .flatten()
            .collect();
        assert_eq!(
            heard.len(),
            2 + kill,
            "the child failed by itself after {heard:?}"
        );
        drop(worker);
        let last = &heard[heard.len() - 1];
        let pool = Pool::open(config(&data.path(), backend)).expect("the pool opens again");
        check(&pool, &format!("{backend}, killed at {last:?}"));
        if kill % 4 == 3 {
            let report = pool.sweep(&|id| id.kind() == Kind::Image);
            assert!(
                report.errors.is_empty() && report.unknown.is_empty(),
                "{report:?}"
            );
            assert!(pool.list(Kind::Staging).expect("a list").is_empty());
            assert!(pool.list(Kind::Sandbox).expect("a list").is_empty());
        }
    }
    let pool = Pool::open(config(&data.path(), backend)).expect("the pool opens again");
    assert!(
        !pool.list(Kind::Image).expect("a list").is_empty(),
        "the children did some work"
    );
    pool.close().expect("nothing holds the pool");
}

fn check(pool: &Pool, when: &str) {
    for kind in [Kind::Image, Kind::Sandbox, Kind::Snapshot] {
        for volume in pool.list(kind).expect("a list") {
            assert!(
                is_whole(pool, &volume.id),
                "{when}: {} is not whole",
                volume.id
            );
            let frozen = kind != Kind::Sandbox;
            assert_eq!(volume.read_only, frozen, "{when}: {}", volume.id);
        }
    }
    let partial = fs::read_dir(pool.root().join("partial")).expect("a folder");
    assert_eq!(partial.count(), 0, "{when}: work in progress is left");
}

fn killed_while_making_the_loop_file() {
    for appears in ["pool.lock", "pool.img.new-", "pool.img", "pool.backend"] {
        let data = Data::new();
        let worker = data.worker("btrfs");
        let deadline = Instant::now() + PATIENCE;
        let there = || {
            let names = fs::read_dir(data.path()).expect("a folder").flatten();
            let names = names.filter_map(|entry| entry.file_name().into_string().ok());
            names.into_iter().any(|name| {
                name == appears || name.starts_with("pool.img.new-") && appears.ends_with('-')
            })
        };
        while !there() {
            assert!(Instant::now() < deadline, "{appears} never appears");
            std::thread::yield_now();
        }
        drop(worker);
        let pool = Pool::open(config(&data.path(), "btrfs")).expect("the pool opens");
        check(&pool, appears);
        let probe = id(Kind::Sandbox, "works");
        pool.create(&probe).expect("a create");
        fill(&pool, &probe);
        pool.set_limit(&probe, Some(64 << 20)).expect("a limit");
        let leftovers = fs::read_dir(data.path()).expect("a folder").flatten();
        assert_eq!(
            leftovers.count(),
            4,
            "{appears}: pool, its marker, its lock and its file"
        );
        pool.close().expect("nothing holds the pool");
    }
}
