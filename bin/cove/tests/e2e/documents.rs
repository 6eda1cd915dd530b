//! The examples of the documentation, run as they stand.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::harness::{Cove, program};

/// What stands in the line before each block of shell commands: whether and where the test below runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark<'a> {
    /// `<!-- run -->`
    Run,
    /// `<!-- run with CAPABILITY -->`: where the host has that.
    RunWith(&'a str),
    /// `<!-- not run: REASON -->`
    NotRun(&'a str),
}

impl<'a> Mark<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let text = line.trim().strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        match text.split_once("run") {
            Some(("", "")) => Some(Self::Run),
            Some(("", with)) => with.strip_prefix(" with ").map(Self::RunWith),
            Some(("not ", reason)) => reason.strip_prefix(": ").map(Self::NotRun),
            _ => None,
        }
    }
}

/// The blocks of shell commands of a page, with what stands before them.
fn shell_blocks(text: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    let mut before = "";
    while let Some(line) = lines.next() {
        if ["```sh", "```console"].contains(&line) {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((before, block.join("\n")));
        }
        before = line;
    }
    blocks
}

/// The blocks of a page that run here, in order, as its reader would type them.
fn script(cove: &Cove, page: &Path, text: &str) -> String {
    let mut script = String::new();
    for (before, block) in shell_blocks(text) {
        let mark = Mark::of(before);
        let mark = mark.unwrap_or_else(|| panic!("{}: no mark: {block}", page.display()));
        if match mark {
            Mark::Run => true,
            Mark::RunWith("criu") => super::travel::captures_memory(cove),
            Mark::RunWith(other) => panic!("{}: unknown capability {other}", page.display()),
            Mark::NotRun(reason) => {
                assert!(reason.len() > 10, "{}: {reason:?}", page.display());
                false
            }
        } {
            script.push_str(&block);
            script.push('\n');
        }
    }
    script
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    for entry in std::fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// What a page could leave behind. Organisations cannot be deleted, and snapshots that Cove took by itself go by
/// themselves.
fn left(cove: &Cove) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for (kind, args) in [
        ("sandbox", &["ls"][..]),
        ("snapshot", &["snapshot", "ls"]),
        ("template", &["template", "ls"]),
        ("volume", &["volume", "ls"]),
        ("image", &["image", "ls"]),
        ("secret", &["secret", "ls"]),
        ("key", &["key", "ls"]),
        ("public key", &["ssh-key", "ls"]),
    ] {
        for one in cove.json(args.iter().copied()).as_array().unwrap() {
            let is_gone = !one["revoked_at"].is_null();
            let is_automatic = matches!(
                one["kind"].as_str(),
                Some("auto" | "rollback" | "fork" | "build")
            );
            if !is_gone && !is_automatic {
                left.insert(format!("{kind} {} {}", one["id"], one["name"]));
            }
        }
    }
    left
}

/// Each page by itself: in a directory of its own, with nothing of other pages, and it leaves nothing behind.
#[test]
fn every_page_runs_by_itself_and_cleans_up() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path(), open).unwrap();
    let objects = format!("file://{}/bucket", place.path().display());
    let cove = Cove::start_with(&["--objects", &objects, "--overcommit-disk", "64"]);
    cove.ok(["image", "build-debian"]);
    cove.ok(["image", "build-code-interpreter"]);
    let programs = cove.scratch().join("programs");
    std::fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink(program(), programs.join("cove")).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let read = |name: &str| {
        std::fs::read_to_string(cove.data_dir().join(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    let before = left(&cove);
    let mut ran = 0;
    for (number, document) in documents().iter().enumerate() {
        let text = std::fs::read_to_string(document).unwrap();
        let script = script(&cove, document, &text);
        if script.is_empty() {
            continue;
        }
        ran += 1;
        let directory = cove.scratch().join(format!("page-{number}"));
        std::fs::create_dir(&directory).unwrap();
        let output = Command::new("bash")
            .args(["-c", &format!("set -euo pipefail\n{script}")])
            .current_dir(&directory)
            .env("PATH", &path)
            .env("COVE_DATA_DIR", cove.data_dir())
            .env("COVE_URL", read("url"))
            .env("COVE_API_KEY", read("root.key"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}: {}\n{}\n{}",
            document.display(),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let after = left(&cove);
        let more: Vec<_> = after.symmetric_difference(&before).collect();
        assert!(more.is_empty(), "{} leaves: {more:?}", document.display());
    }
    assert!(ran >= 15, "only {ran} documents have examples to run");
}

#[test]
fn marks_of_blocks_are_read() {
    assert_eq!(Mark::of("<!-- run -->"), Some(Mark::Run));
    assert_eq!(
        Mark::of("<!-- run with criu -->"),
        Some(Mark::RunWith("criu"))
    );
    assert_eq!(
        Mark::of("<!-- not run: it is slow -->"),
        Some(Mark::NotRun("it is slow"))
    );
    for other in ["", "<!-- runs -->", "<!-- not run -->", "text"] {
        assert_eq!(Mark::of(other), None, "{other}");
    }
    let page = "<!-- run -->\n```sh\na\n```\ntext\n```console\nb\nc\n```\n```json\nd\n```\n";
    let blocks = [("<!-- run -->", "a".into()), ("text", "b\nc".into())];
    assert_eq!(shell_blocks(page), blocks);
}

/// Commands of examples that are not run as they stand: they need a terminal, another machine, minutes,
/// or never end.
fn other_commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for (before, block) in shell_blocks(text) {
        if !matches!(Mark::of(before), Some(Mark::Run)) {
            let joined = block.replace("\\\n", " ");
            let typed = joined
                .lines()
                .map(|line| line.strip_prefix("$ ").unwrap_or(line));
            commands.extend(
                typed
                    .filter(|line| line.starts_with("cove "))
                    .map(str::to_owned),
            );
        }
    }
    commands
}

#[test]
fn every_other_command_in_the_documents_is_one() {
    /// What arguments that make no sense end with.
    const USAGE: i32 = 2;
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    std::os::unix::fs::symlink(program(), place.path().join("cove")).unwrap();
    let path = format!(
        "{}:{}",
        place.path().display(),
        std::env::var("PATH").unwrap()
    );
    let mut seen = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for command in other_commands(&text) {
            seen += 1;
            // Nobody listens at this address: what is understood gets that far and no further.
            let output = Command::new("timeout")
                .args(["10", "bash", "-o", "pipefail", "-c", &command])
                .current_dir(place.path())
                .env("PATH", &path)
                .env("COVE_DATA_DIR", place.path().join("nothing"))
                .env("COVE_URL", "http://127.0.0.1:1")
                .env("COVE_API_KEY", format!("cove_{}", "0".repeat(64)))
                .stdin(std::process::Stdio::null())
                .output()
                .unwrap();
            let code = output.status.code();
            assert!(
                code != Some(USAGE) && code != Some(127),
                "{}: {command}\n{}",
                document.display(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(seen >= 10, "only {seen} commands were found");
}

#[test]
fn the_api_fuzzer_finds_nothing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/fuzz-api");
    // Few requests each, so that a usual test run stays short; `scripts/fuzz-api` alone does more.
    let output = Command::new(script)
        .args([program(), "6"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn generators_of_clients_take_the_contract_as_it_is() {
    let cove = Cove::start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-openapi");
    let output = Command::new(script)
        .env("COVE_DATA_DIR", cove.data_dir())
        .env_remove("COVE_URL")
        .env_remove("COVE_API_KEY")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
