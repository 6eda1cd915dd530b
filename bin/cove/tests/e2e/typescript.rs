//! The TypeScript SDK's own tests, examples and package, against a real server.

use std::path::Path;
use std::process::Command;

use super::harness::Cove;
use super::needs;

#[test]
fn the_typescript_sdk_passes_its_tests() {
    let npm = Command::new("npm").arg("--version").output();
    if !needs::has("node", npm.is_ok_and(|output| output.status.success())) {
        return;
    }
    let cove = Cove::start();
    cove.ok(["image", "build-debian"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-typescript");
    let output = Command::new(script)
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
    let left = cove.json(["ls"]);
    assert_eq!(left.as_array().map(Vec::len), Some(0), "{left}");
}
