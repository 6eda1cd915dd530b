//! The official Daytona SDKs, unmodified, against a real server.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::harness::Cove;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The program that stands on the page, which its readers will type.
fn example() -> String {
    let page = std::fs::read_to_string(root().join("docs/daytona.md")).unwrap();
    let (_, rest) = page
        .split_once("<!-- run with the SDK -->\n```python\n")
        .expect("the page has an example");
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_official_daytona_sdks_work() {
    let cove = Cove::start();
    let org = cove.ok(["org", "create", "strangers"]);
    let other = cove.json(["key", "create", "--org", org.trim(), "other"]);
    let run = |args: &[&str]| {
        let output = Command::new(root().join("scripts/test-daytona"))
            .args(args)
            .env_remove("COVE_WRITE_TABLES")
            .env("COVE_DATA_DIR", cove.data_dir())
            .env("OTHER_API_KEY", other["token"].as_str().unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{args:?}: {said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    };
    // The first create prepares the image that it needs: there is only the tests' own.
    assert!(!cove.ok(["image", "ls"]).contains("debian"));
    let program = cove.scratch().join("example.py");
    std::fs::write(&program, example()).unwrap();
    let said = run(&["--run", program.to_str().unwrap()]);
    assert_eq!(said.trim(), "hello from the sandbox");
    cove.ok(["image", "build-debian"]);
    cove.ok(["image", "build-code-interpreter"]);
    run(&[]);
    run(&["--node"]);
    let left = cove.json(["ls"]);
    assert_eq!(left.as_array().map(Vec::len), Some(0), "{left}");
}
