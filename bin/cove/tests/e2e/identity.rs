//! Identity tokens as others check them, and that their keys outlive the server.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::harness::Cove;

#[test]
fn stock_libraries_accept_identity_tokens() {
    let mut cove = Cove::start();
    let image = cove.scratch().join("busybox");
    cove.ok(["image", "import", "debian", image.to_str().unwrap()]);
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let output = Command::new(scripts.join("test-identity"))
        .env("COVE_DATA_DIR", cove.data_dir())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );

    // The keys are the control side's alone, and the same after a restart.
    let file = cove.data_dir().join("control/identity.keys");
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = cove.ok(["identity", "issuer"]);
    cove.stop();
    cove.serve();
    let after = cove.ok(["identity", "issuer"]);
    let key = |text: &str| text.lines().last().map(str::to_owned);
    assert_eq!(key(&before), key(&after));
    cove.ok(["create", "debian", "--name", "box"]);
    let token = cove.ok(["identity", "token", "box", "--audience", "vault"]);
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
}
