//! The Python SDK's own tests, against a real server.

use std::path::Path;
use std::process::Command;

use super::harness::Cove;

#[test]
fn the_python_sdk_passes_its_tests() {
    let cove = Cove::start();
    cove.ok(["image", "build-debian"]);
    cove.ok(["image", "build-code-interpreter"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-python");
    let output = Command::new(script)
        .env_remove("COVE_URL")
        .env_remove("COVE_API_KEY")
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
