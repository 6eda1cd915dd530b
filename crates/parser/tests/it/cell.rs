//! What the program has left while it reads: looked at from outside, in the middle of a job.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{PATIENCE, TEST_UID_BASE, directory, parser};

const LOOK: Duration = Duration::from_millis(10);

/// A tree that does not fit into a pipe, so that packing waits for its reader.
fn large_tree() -> tempfile::TempDir {
    let dir = directory();
    fs::write(dir.path().join("file"), vec![1; 4 << 20]).unwrap();
    dir
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let all = tasks.flatten().flatten().map(|task| {
        let children = fs::read_to_string(task.path().join("children"));
        children.unwrap_or_default()
    });
    let pids: Vec<String> = all.collect();
    pids.iter()
        .flat_map(|pids| pids.split_whitespace())
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// The processes of this test that run the program on a tree, found by their arguments.
fn workers(tree: &Path) -> Vec<u32> {
    let tree = tree.to_str().unwrap();
    let runs_on_it = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(tree)
    };
    let first: Vec<u32> = children(std::process::id())
        .into_iter()
        .filter(runs_on_it)
        .collect();
    first.iter().flat_map(|pid| children(*pid)).collect()
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(LOOK);
    }
}

fn status(pid: u32) -> impl Fn(&str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    move |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let line = line.and_then(|rest| rest.strip_prefix(':'));
        line.unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

#[test]
fn the_program_is_locked_in_while_it_reads() {
    let dir = large_tree();
    let packing = parser()
        .pack_tree(vec![dir.path().to_owned()], false)
        .unwrap();
    // The filter is the last thing it installs.
    let worker = until("the program locks itself in", || {
        let mut all = workers(dir.path()).into_iter();
        all.find(|pid| status(*pid)("Seccomp") == "2")
    });
    let status = status(worker);
    let base = TEST_UID_BASE.to_string();
    assert_eq!(status("Uid"), [&base[..]; 4].join(" "));
    assert_eq!(status("Gid"), [&base[..]; 4].join(" "));
    assert_eq!(status("Groups"), "");
    assert_eq!(status("NoNewPrivs"), "1");
    // To read what its ids do not own, and nothing else.
    for set in ["CapEff", "CapPrm"] {
        assert_eq!(status(set), "0000000000000004", "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(status(set), "0000000000000000", "{set}");
    }
    for namespace in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_ne!(of(&worker.to_string()), of("self"), "{namespace}");
    }
    let limits = fs::read_to_string(format!("/proc/{worker}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        let mut values = line[name.len()..].split_whitespace();
        values.next().unwrap().to_owned()
    };
    assert_eq!(limit("Max file size"), "0");
    assert_eq!(limit("Max core file size"), "0");
    assert_eq!(limit("Max open files"), "1024");
    // Its whole world is the tree.
    let mounts = fs::read_to_string(format!("/proc/{worker}/mountinfo")).unwrap();
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    let options = mounts.split(' ').nth(5).unwrap().to_owned();
    for option in ["ro", "nosuid", "nodev", "noexec", "noatime"] {
        assert!(options.split(',').any(|one| one == option), "{options}");
    }
    let files: Vec<PathBuf> = fs::read_dir(format!("/proc/{worker}/fd"))
        .unwrap()
        .map(|entry| fs::read_link(entry.unwrap().path()).unwrap_or_default())
        .collect();
    assert!(files.len() <= 6, "{files:?}");
    drop(packing);
    until("it ends with its driver", || {
        workers(dir.path()).is_empty().then_some(())
    });
}

#[test]
fn the_program_ends_with_the_thread_that_started_it() {
    let dir = large_tree();
    let tree = dir.path().to_owned();
    let started = std::thread::spawn(move || {
        let (output, end) = parser()
            .pack_tree(vec![tree.clone()], false)
            .unwrap()
            .split();
        until("it packs", || (!workers(&tree).is_empty()).then_some(()));
        // As if this process were gone: nobody ends the program, and nobody closes its output.
        std::mem::forget(end);
        output
    });
    let mut output = started.join().unwrap();
    until("nothing of it is left", || {
        workers(dir.path()).is_empty().then_some(())
    });
    let mut packed = Vec::new();
    output.read_to_end(&mut packed).unwrap();
    assert!(packed.len() < 4 << 20, "it did not get to its end");
}
