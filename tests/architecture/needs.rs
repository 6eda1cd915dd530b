//! No test passes because something is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_tests::needs;

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap().to_owned()
}

/// Every file of tests in the repository.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next: Vec<PathBuf> = ["tests", "crates", "bin"]
        .map(|dir| root().join(dir))
        .into();
    while let Some(dir) = next.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let within_tests = path.components().any(|part| part.as_os_str() == "tests");
            if path.is_dir() && !path.ends_with("target") {
                next.push(path);
            } else if within_tests && path.extension().is_some_and(|kind| kind == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn only_the_opt_out_says_that_a_test_is_skipped() {
    let files = sources();
    assert!(files.len() > 100, "{} files", files.len());
    let mut wrong = Vec::new();
    for path in files {
        if path.ends_with("tests/src/needs.rs") || path.ends_with("architecture/needs.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            if line.contains("println!(\"skipped") || line.contains("#[ignore") {
                wrong.push(format!("{}:{}: {line}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Run as a program of its own: the variable belongs to the whole process.
#[test]
fn what_is_missing_fails_a_test_unless_it_is_opted_out_of() {
    const ASK: &str = "COVE_NEEDS_ASK";
    if let Ok(name) = std::env::var(ASK) {
        assert!(!needs::has(&name, false));
        assert!(needs::has(&name, true));
        return;
    }
    let passes = |name: &str, without: &str| {
        let myself = std::env::current_exe().unwrap();
        let ended = Command::new(myself)
            .args([
                "--exact",
                "needs::what_is_missing_fails_a_test_unless_it_is_opted_out_of",
            ])
            .env(ASK, name)
            .env("COVE_TEST_WITHOUT", without)
            .output()
            .unwrap();
        ended.status.success()
    };
    assert!(passes("criu", "tmux, criu"));
    assert!(!passes("criu", ""));
    assert!(!passes("criu", "tmux"));
    assert!(!passes("unheard-of", "unheard-of"));
}

#[test]
fn the_script_knows_the_same_names() {
    let script = fs::read_to_string(root().join("scripts/test")).unwrap();
    let known = format!("known=\"{}\"", needs::KNOWN.join(" "));
    assert!(
        script.contains(&known),
        "scripts/test does not have {known}"
    );
}

/// The suites on cgroup version 2 run in a virtual machine: without it or its kernel they fail.
#[test]
fn without_a_virtual_machine_the_suites_on_version_2_fail() {
    let empty = tempfile::tempdir().unwrap();
    let script = root().join("scripts/test-cgroup-v2");
    let bash = "/bin/bash";
    let no_kernel = Command::new(bash)
        .arg(&script)
        .env("COVE_KERNEL_PREFIX", empty.path())
        .output()
        .unwrap();
    let no_qemu = Command::new(bash)
        .arg(&script)
        .env("PATH", empty.path())
        .output()
        .unwrap();
    for ended in [no_kernel, no_qemu] {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success(), "it passed: {said}");
        assert!(said.contains("COVE_TEST_WITHOUT=qemu"), "{said}");
    }
    let all = fs::read_to_string(root().join("scripts/test")).unwrap();
    assert!(
        all.contains("scripts/test-cgroup-v2"),
        "make test leaves them out"
    );
}
