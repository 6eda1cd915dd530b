//! The official SDKs of E2B against a real server.

use std::path::Path;
use std::process::Command;

use super::harness::Cove;

/// The first program of a user.
const FIRST: &str = "
from e2b import Sandbox

with Sandbox.create() as sandbox:
    print(sandbox.commands.run('echo hello from the sandbox').stdout)
";

#[test]
fn the_official_sdks_of_e2b_work_as_the_documentation_says() {
    let cove = Cove::start_with(&["--rate-per-second", "0"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-e2b");
    let run = |args: &[&str]| {
        let output = Command::new(&script)
            .args(args)
            .env_remove("COVE_API_KEY")
            .env("COVE_DATA_DIR", cove.data_dir())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    };
    // The first create prepares the image that it needs: there is only the tests' own.
    assert!(!cove.ok(["image", "ls"]).contains("debian"));
    let program = cove.scratch().join("first.py");
    std::fs::write(&program, FIRST).unwrap();
    let said = run(&["--run", program.to_str().unwrap()]);
    assert_eq!(said.trim(), "hello from the sandbox");

    cove.ok(["image", "build-debian"]);
    cove.ok(["image", "build-code-interpreter"]);
    run(&[]);
}
