//! The Python SDK's own tests and the programs in `examples/`, against a real server.

use std::path::Path;
use std::process::Command;

use super::harness::Cove;

/// Runs a script of the project for the server of `cove`.
fn run(cove: &Cove, script: &str) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let output = Command::new(scripts.join(script))
        .env_remove("COVE_URL")
        .env_remove("COVE_API_KEY")
        .env_remove("COVE_CONTEXT")
        .env("COVE_DATA_DIR", cove.data_dir())
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
fn the_python_sdk_passes_its_tests() {
    let cove = Cove::start();
    cove.ok(["image", "build-debian"]);
    cove.ok(["image", "build-code-interpreter"]);
    run(&cove, "test-python");
}

#[test]
fn the_examples_do_what_they_promise() {
    let cove = Cove::start();
    cove.ok(["image", "build-debian"]);
    run(&cove, "test-examples");
}
