//! The examples of the documentation, run as they stand.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::harness::{Cove, program};

/// A block of shell to run follows this line.
const MARK: &str = "<!-- run -->";

fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != MARK {
            continue;
        }
        assert_eq!(
            lines.next().map(str::trim),
            Some("```sh"),
            "a mark without a block"
        );
        blocks.push(
            lines
                .by_ref()
                .take_while(|line| *line != "```")
                .collect::<Vec<_>>()
                .join("\n"),
        );
    }
    blocks
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

#[test]
fn every_marked_example_runs() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path(), open).unwrap();
    let objects = format!("file://{}/bucket", place.path().display());
    let cove = Cove::start_with(&["--objects", &objects]);
    // The examples use the default image; here that name means the small one.
    let image = cove.scratch().join("busybox");
    cove.ok(["image", "import", "debian", image.to_str().unwrap()]);
    let place = cove.scratch().join("examples");
    std::fs::create_dir(&place).unwrap();
    std::os::unix::fs::symlink(program(), place.join("cove")).unwrap();
    let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
    let read = |name: &str| {
        std::fs::read_to_string(cove.data_dir().join(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    let prelude = r#"set -euo pipefail
api() { curl --silent --show-error --fail-with-body -H "Authorization: Bearer $COVE_API_KEY" "$@"; }
"#;
    let mut ran = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        // Blocks of one page follow each other, as its reader would type them.
        let script = blocks(&text).join("\n");
        if script.is_empty() {
            continue;
        }
        ran += 1;
        let output = Command::new("bash")
            .args(["-c", &format!("{prelude}{script}")])
            .current_dir(&place)
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
    }
    assert!(ran >= 2, "only {ran} documents have examples to run");
}

/// Commands of examples that are not run as they stand: they need a terminal, another machine, minutes,
/// or never end.
fn other_commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut lines = text.lines();
    let mut before = "";
    while let Some(line) = lines.next() {
        if line == "```sh" {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if before != MARK {
                let joined = block.join("\n").replace("\\\n", " ");
                let of_cove = joined.lines().filter(|line| line.starts_with("cove "));
                commands.extend(of_cove.map(str::to_owned));
            }
        }
        before = line.trim();
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
