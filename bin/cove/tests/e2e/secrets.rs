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

const SHADOW: &str =
    "echo root:x > /etc/shadow; chmod 600 /etc/shadow; stat -c '%u %a' /etc/shadow";

/// A user inside puts a link where root writes the placeholder the next time.
#[test]
fn a_link_inside_does_not_make_root_give_files_away() {
    let mut cove = Cove::start();
    set(&cove, "openai", "api.example");
    cove.ok([
        "create",
        "busybox",
        "--name",
        "box",
        "--user",
        "1000",
        "--allow",
        "api.example",
        "--secret",
        "openai=KEY",
        "--secret-file",
        "openai=/home/agent/key",
    ]);
    let held = |cove: &Cove| {
        let both = inside(cove, "box", "echo $KEY; cat /home/agent/key");
        let (variable, file) = both.split_once('\n').unwrap();
        assert_eq!(variable, file);
        file.to_owned()
    };
    let first = held(&cove);
    let as_root = |cove: &Cove, command: &str| {
        let said = cove.ok(["exec", "--user", "root", "box", "--", "sh", "-c", command]);
        said.trim().to_owned()
    };
    as_root(&cove, "chown 1000 /home/agent");
    let shadow = as_root(&cove, SHADOW);
    cove.ok(["snapshot", "box", "--name", "plain"]);
    inside(&cove, "box", "ln -sf /etc/shadow /home/agent/key");
    cove.ok(["snapshot", "box", "--name", "linked"]);
    // A new process of the server and a rollback to what has the link both make root write there.
    cove.stop();
    cove.serve();
    for step in ["restart", "rollback"] {
        if step == "rollback" {
            cove.ok(["rollback", "box", "linked"]);
        }
        let refused = cove.run(["exec", "box", "--", "true"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{step}");
        assert!(
            said.contains("/home/agent/key") && said.contains("link"),
            "{said}"
        );
    }
    // The owner can repair it from outside.
    let read = |name: &str| std::fs::read_to_string(cove.data_dir().join(name)).unwrap();
    let removed = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--fail-with-body",
            "-X",
            "DELETE",
        ])
        .args([
            "-H",
            &format!("Authorization: Bearer {}", read("root.key").trim()),
        ])
        .arg(format!(
            "{}/v1/sandboxes/box/files?path=/home/agent/key",
            read("url").trim()
        ))
        .output()
        .unwrap();
    assert!(removed.status.success(), "{removed:?}");
    assert_ne!(held(&cove), first);
    let found = as_root(&cove, "cat /etc/shadow; stat -c '%u %a' /etc/shadow");
    assert_eq!(found, format!("root:x\n{shadow}"));
    assert_eq!(shadow, "0 600");
    // A file of the user's own is replaced and stays the user's.
    cove.ok(["rollback", "box", "plain"]);
    held(&cove);
}

/// What a sandbox has at a path, seen from the host without a call into it. The path is one test's alone.
fn seen_from_outside(path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap() {
        let file = process.unwrap().path().join("root").join(&path[1..]);
        // Most of what is there has no such file, or is gone meanwhile.
        found.extend(std::fs::read_to_string(file));
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn copies_and_rollbacks_hold_their_own_placeholders_before_any_command() {
    let cove = Cove::start();
    set(&cove, "openai", "api.example");
    let path = format!("/run/early-{}/key", std::process::id());
    cove.ok([
        "create",
        "busybox",
        "--name",
        "box",
        "--allow",
        "api.example",
        "--secret-file",
        &format!("openai={path}"),
    ]);
    let first = inside(&cove, "box", &format!("cat {path}"));
    cove.ok(["snapshot", "box", "--name", "before"]);
    assert_eq!(seen_from_outside(&path), [first.as_str()]);
    cove.ok(["fork", "box", "--name", "copy"]);
    let both = seen_from_outside(&path);
    assert!(both.len() == 2 && both.contains(&first), "{both:?}");
    cove.ok(["rm", "copy"]);
    cove.ok(["rollback", "box", "before"]);
    let back = seen_from_outside(&path);
    assert!(back.len() == 1 && back[0] != first, "{back:?}");
    assert_eq!(inside(&cove, "box", &format!("cat {path}")), back[0]);
}

#[test]
fn a_copy_in_another_organisation_does_not_trust_the_first_ones_authority() {
    let cove = Cove::start();
    set(&cove, "openai", "api.example");
    cove.ok([
        "create",
        "busybox",
        "--name",
        "box",
        "--allow",
        "api.example",
        "--secret",
        "openai=KEY",
    ]);
    let ours = inside(&cove, "box", "cat $NODE_EXTRA_CA_CERTS");
    // Of its signature.
    let line = ours.lines().rev().nth(2).unwrap().to_owned();
    // The bundle of its own, and one with a second certificate.
    let other = "printf -- '-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----\\n'";
    inside(&cove, "box", &format!("{other} >> $SSL_CERT_FILE"));
    cove.ok(["snapshot", "box", "--name", "taken"]);
    let file = cove.scratch().join("taken.cove");
    let file = file.to_str().unwrap();
    cove.ok(["snapshot", "export", "taken", file]);

    let org = cove.ok(["org", "create", "other"]);
    let key = [
        "key",
        "create",
        "--org",
        org.trim(),
        "--scope",
        "admin",
        "theirs",
    ];
    let key = cove.json(key);
    let key = key["token"].as_str().unwrap().to_owned();
    let url = std::fs::read_to_string(cove.data_dir().join("url")).unwrap();
    let theirs = |args: &[&str]| {
        let mut command = cove.command(args.iter().copied());
        let output = command
            .env("COVE_URL", url.trim())
            .env("COVE_API_KEY", &key);
        let output = output.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let trusts = |sandbox: &str| {
        let find = format!("grep -rlF '{line}' /etc /usr 2>/dev/null; true");
        theirs(&["exec", sandbox, "--", "sh", "-c", &find])
    };
    theirs(&["snapshot", "import", file, "--name", "stranger"]);
    theirs(&["create", "--snapshot", "stranger", "--name", "plain"]);
    assert_eq!(trusts("plain"), "");
    let bundle = "cat /etc/ssl/certs/ca-certificates.crt";
    let kept = theirs(&["exec", "plain", "--", "sh", "-c", bundle]);
    assert_eq!(kept.matches("BEGIN").count(), 1, "{kept}");
    assert!(kept.contains("AAAA"), "{kept}");

    // With secrets of its own it trusts its own authority, and no other.
    let value = cove.scratch().join("value");
    std::fs::write(&value, CANARY).unwrap();
    let value = value.to_str().unwrap();
    theirs(&[
        "secret",
        "set",
        "own",
        "--host",
        "api.example",
        "--file",
        value,
    ]);
    theirs(&[
        "create",
        "--snapshot",
        "stranger",
        "--name",
        "holder",
        "--allow",
        "api.example",
        "--secret",
        "own=KEY",
    ]);
    assert_eq!(trusts("holder"), "");
    let kept = theirs(&["exec", "holder", "--", "sh", "-c", "cat $SSL_CERT_FILE"]);
    assert_eq!(kept.matches("BEGIN").count(), 2, "{kept}");
    // An image made of such a snapshot is another way there.
    cove.ok(["image", "create", "shared", "--from", "taken"]);
    theirs(&["create", "shared", "--name", "imaged"]);
    assert_eq!(trusts("imaged"), "");
}
