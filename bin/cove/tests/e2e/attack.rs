//! `scripts/attack` against a server of its own: one tenant does what it can, another must not notice.

use std::path::Path;
use std::process::Command;

use super::harness::Cove;

#[test]
fn one_tenant_cannot_take_the_server_from_another() {
    let cove = Cove::start();
    let read = |name: &str| {
        let text = std::fs::read_to_string(cove.data_dir().join(name)).unwrap();
        text.trim().to_owned()
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/attack");
    let output = Command::new(script)
        .args(["--url", &read("url"), "--image", "busybox"])
        .env("COVE_API_KEY", read("root.key"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{output:?}");
    // Each has a line, and none was left out: for want of time, or of something that this server has.
    assert!(said.lines().count() >= 15, "{said}");
    assert!(!said.contains(" skipped "), "{said}");
}
