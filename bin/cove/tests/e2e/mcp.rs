//! The official MCP clients against a real server, over HTTP and through `cove mcp`.

use std::path::Path;
use std::process::Command;

use super::harness::{Cove, program};

#[test]
fn the_official_mcp_clients_work_over_both_transports() {
    let cove = Cove::start_with(&["--rate-per-second", "0"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-mcp");
    let output = Command::new(script)
        .arg("busybox")
        .env("COVE_DATA_DIR", cove.data_dir())
        .env("COVE_PROGRAM", program())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
