//! What changes under a running server: its first key and its certificate.

use std::path::Path;

use rustix::process::Signal;

use super::harness::{Cove, signal, wait_for};

fn root_key(cove: &Cove) -> String {
    let text = std::fs::read_to_string(cove.data_dir().join("root.key")).unwrap();
    text.trim().to_owned()
}

#[test]
fn the_first_key_is_replaced_by_root_on_the_machine_and_by_nobody_else() {
    let cove = Cove::start();
    cove.sandbox("box");
    let old = root_key(&cove);
    let keys = cove.json(["key", "ls"]);
    let root = keys[0]["id"].as_str().unwrap();
    let refused = cove.run(["key", "rm", root]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    assert!(said.contains("cove key reset-root"), "{said}");
    cove.ok(["ls"]);

    let pid = cove.server_pid();
    cove.ok(["key", "reset-root"]);
    let new = root_key(&cove);
    assert_ne!(old, new);
    assert_eq!(cove.ok(["exec", "box", "--", "echo", "here"]), "here\n");
    let thief = cove
        .command(["ls"])
        .env("COVE_API_KEY", &old)
        .output()
        .unwrap();
    assert!(!thief.status.success(), "the old key still opens");
    assert_eq!(cove.server_pid(), pid, "the server itself goes on");
}

#[test]
fn the_first_key_of_a_stopped_server_is_taken_by_the_next_start() {
    let mut cove = Cove::start();
    let old = root_key(&cove);
    cove.stop();
    cove.ok(["key", "reset-root"]);
    assert_ne!(root_key(&cove), old);
    cove.serve();
    cove.ok(["ls"]);
    let thief = cove
        .command(["ls"])
        .env("COVE_API_KEY", &old)
        .output()
        .unwrap();
    assert!(!thief.status.success(), "the old key still opens");
}

fn write_certificate(dir: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
}

#[test]
fn a_new_certificate_is_used_after_sighup_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    write_certificate(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let trusted = dir.path().join("trusted.pem");
    std::fs::copy(dir.path().join("cert.pem"), &trusted).unwrap();
    let cove = Cove::start_trusting(
        &[
            "--tls-certificate",
            &path("cert.pem"),
            "--tls-key",
            &path("key.pem"),
        ],
        Some(trusted.clone()),
    );
    cove.sandbox("box");

    write_certificate(dir.path());
    cove.ok(["ls"]);
    signal(cove.server_pid(), Signal::HUP);
    wait_for("the new certificate is used", || {
        (!cove.run(["ls"]).status.success()).then_some(())
    });
    std::fs::copy(dir.path().join("cert.pem"), &trusted).unwrap();
    wait_for("whoever trusts the new certificate is served", || {
        cove.run(["ls"]).status.success().then_some(())
    });
    assert_eq!(cove.ok(["exec", "box", "--", "echo", "here"]), "here\n");

    let control = cove.role_pid("control");
    std::fs::write(dir.path().join("cert.pem"), "not a certificate").unwrap();
    signal(cove.server_pid(), Signal::HUP);
    wait_for("the log tells why", || {
        cove.log()
            .contains("reload failed, the server keeps its settings")
            .then_some(())
    });
    cove.ok(["ls"]);
    assert_eq!(cove.role_pid("control"), control);
    std::fs::copy(&trusted, dir.path().join("cert.pem")).unwrap();
}
