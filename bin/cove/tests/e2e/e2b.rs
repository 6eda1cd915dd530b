//! The official SDKs of E2B against a real server.

use std::path::Path;
use std::process::Command;

use super::harness::Cove;

#[test]
fn the_official_sdks_of_e2b_work_as_the_documentation_says() {
    let cove = Cove::start_with(&["--rate-per-second", "0"]);
    cove.ok(["image", "build-debian"]);
    cove.ok(["image", "build-code-interpreter"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-e2b");
    let output = Command::new(script)
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
