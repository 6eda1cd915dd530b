//! Secrets by the command line: what is inside a sandbox that holds one, and that no value is anywhere on the host.

use std::io::Write;
use std::process::{Command, Stdio};

use super::harness::{Cove, program};

const CANARY: &str = "sk-canary-0123456789";

fn set(cove: &Cove, name: &str, host: &str) {
    let mut child = Command::new(program())
        .args(["secret", "set", name, "--host", host])
        .env("COVE_DATA_DIR", cove.data_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{CANARY}").unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
}

fn inside(cove: &Cove, sandbox: &str, command: &str) -> String {
    let said = cove.ok(["exec", sandbox, "--", "sh", "-c", command]);
    said.trim().to_owned()
}

#[test]
fn inside_are_placeholders_and_trust_and_no_value_is_on_the_host() {
    let mut cove = Cove::start();
    set(&cove, "openai", "api.example");
    let refused = cove.run([
        "create",
        "busybox",
        "--allow",
        "other.example",
        "--secret",
        "openai=KEY",
    ]);
    assert!(!refused.status.success());
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("api.example"), "{refused}");
    cove.ok([
        "create",
        "busybox",
        "--name",
        "box",
        "--allow",
        "api.example",
        "--secret",
        "openai=KEY",
        "--secret-file",
        "openai=/run/keys/openai",
        "--env",
        "GIT_SSL_CAINFO=/mine",
    ]);
    let first = inside(&cove, "box", "echo $KEY");
    assert!(first.starts_with("cove-secret-"), "{first}");
    assert_eq!(inside(&cove, "box", "cat /run/keys/openai"), first);
    assert_eq!(inside(&cove, "box", "stat -c %a /run/keys/openai"), "600");
    let bundle = inside(&cove, "box", "cat $SSL_CERT_FILE");
    let authority = inside(&cove, "box", "cat $NODE_EXTRA_CA_CERTS");
    assert!(authority.starts_with("-----BEGIN CERTIFICATE-----"));
    assert!(bundle.contains(&authority), "{bundle}");
    // What the owner says wins.
    assert_eq!(inside(&cove, "box", "echo $GIT_SSL_CAINFO"), "/mine");
    // A sandbox without secrets has none of it.
    cove.ok(["create", "busybox", "--name", "plain"]);
    let plain = inside(
        &cove,
        "plain",
        "echo $SSL_CERT_FILE; ls /etc/cove 2>&1 | grep -c pem; true",
    );
    assert_eq!(plain, "0");

    // Copies have their own, and so has it after a rollback and a restart of the server.
    cove.ok(["snapshot", "box", "--name", "before"]);
    cove.ok(["fork", "box", "--name", "copy"]);
    let copied = inside(&cove, "copy", "echo $KEY; cat /run/keys/openai");
    let (variable, file) = copied.split_once('\n').unwrap();
    assert_eq!(variable, file);
    assert_ne!(variable, first);
    cove.ok(["rollback", "box", "before"]);
    let back = inside(&cove, "box", "echo $KEY; cat /run/keys/openai");
    let (variable, file) = back.split_once('\n').unwrap();
    assert_eq!(variable, file);
    assert_ne!(variable, first);
    let kept = variable.to_owned();
    cove.stop();
    cove.serve();
    assert_eq!(inside(&cove, "box", "echo $KEY"), kept);
    let twice = inside(&cove, "box", "grep -c BEGIN $SSL_CERT_FILE");
    assert_eq!(twice, bundle.matches("BEGIN").count().to_string());
    assert_eq!(cove.ok(["secret", "uses", "openai"]).lines().count(), 1);

    let shown =
        cove.ok(["secret", "ls", "--json"]) + &cove.ok(["audit"]) + &cove.ok(["inspect", "box"]);
    assert!(!shown.contains(CANARY), "{shown}");
    let seen = inside(
        &cove,
        "box",
        "cat /proc/1/environ /proc/self/environ | tr '\\0' '\\n'",
    );
    assert!(
        seen.contains("KEY=cove-secret-") && !seen.contains(CANARY),
        "{seen}"
    );
    // Database, journals, records, logs and everything else but the pool's image, which is looked at from inside.
    let found = Command::new("grep")
        .args(["-rlF", "--exclude-dir=pool", "--exclude=pool*", CANARY])
        .args([cove.data_dir(), cove.scratch().to_path_buf()])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    let search = format!("grep -rl {CANARY} /run /etc /root /tmp 2>/dev/null; true");
    assert_eq!(inside(&cove, "box", &search), "");
    cove.ok(["secret", "rm", "openai"]);
    assert!(!cove.ok(["secret", "ls"]).contains("openai"));
}
