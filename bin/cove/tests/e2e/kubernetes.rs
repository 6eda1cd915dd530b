//! The manifests in `packaging/`, and a node as they run it: what is in them is what Kubernetes and the program take,
//! and sandboxes outlive their pod.

use std::path::Path;
use std::process::Command;

use super::needs;

fn run(script: &str) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let output = Command::new(scripts.join(script))
        .env("COVE", env!("CARGO_BIN_EXE_cove"))
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
fn the_manifests_are_what_kubernetes_compose_and_the_program_take() {
    let kubectl = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    if needs::has(
        "kubectl",
        kubectl.is_ok_and(|output| output.status.success()),
    ) {
        run("test-kubernetes");
    }
}

#[test]
fn a_sandbox_outlives_the_pod_of_its_node() {
    run("test-node-pod");
}
