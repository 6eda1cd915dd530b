//! `cove destroy`: nothing of an installation stays, and nothing goes by mistake.

use std::process::Output;

use super::harness::Cove;

/// Processes of this sandbox's guest, found by a command that nobody else runs.
fn sleepers(marker: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
        .filter(|line| line == format!("sleep\0{marker}\0").as_bytes())
        .count()
}

fn mounts_below(dir: &std::path::Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts
        .lines()
        .filter(|line| line.contains(dir.to_str().unwrap()))
        .map(str::to_owned)
        .collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_destroyed_installation_leaves_neither_processes_nor_files() {
    let mut cove = Cove::start();
    cove.sandbox("box");
    let marker = format!("{}", 1_000_000 + std::process::id());
    let command = format!("sleep {marker}");
    cove.ok(["exec", "--detach", "box", "--", "sh", "-c", &command]);
    super::harness::wait_for("the command runs", || {
        (sleepers(&marker) == 1).then_some(())
    });
    cove.ok(["exec", "box", "-c", "echo data > /tmp/kept; sync"]);
    cove.ok(["snapshot", "box", "--name", "kept"]);

    let refused = cove.run(["destroy", "--yes"]);
    assert!(
        said(&refused).contains("a server is running"),
        "{refused:?}"
    );
    cove.stop();
    let refused = cove.run(["destroy"]);
    assert!(said(&refused).contains("--yes"), "{refused:?}");
    let other = cove.scratch().join("photos");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("one"), "").unwrap();
    let refused = cove
        .command(["destroy", "--yes"])
        .env("COVE_DATA_DIR", &other)
        .output()
        .unwrap();
    assert!(
        said(&refused).contains("not a server's data directory"),
        "{refused:?}"
    );
    assert!(other.join("one").exists());
    assert_eq!(sleepers(&marker), 1, "a stopped server's sandbox runs on");

    cove.ok(["destroy", "--keep-data"]);
    assert_eq!(sleepers(&marker), 0);
    assert_eq!(mounts_below(&cove.data_dir()), Vec::<String>::new());
    cove.serve();
    cove.ok(["start", "box"]);
    assert_eq!(cove.ok(["exec", "box", "--", "cat", "/tmp/kept"]), "data\n");
    cove.stop();

    cove.ok(["destroy", "--yes"]);
    assert!(!cove.data_dir().exists());
    assert_eq!(mounts_below(&cove.data_dir()), Vec::<String>::new());
}
