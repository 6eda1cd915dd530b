//! What people type who come from Docker and kubectl.

use serde_json::Value;

use super::harness::Cove;

#[test]
fn commands_go_by_the_names_people_know() {
    let cove = Cove::start();
    cove.ok(["create", "--image", "busybox", "--name", "one"]);
    assert_eq!(cove.json(["list"])[0]["name"], "one");
    assert!(cove.ok(["ls"]).contains("off"), "the policy is shown");
    assert!(cove.ok(["show", "one"]).contains("cove update --allow"));
    cove.ok(["rename", "one", "two"]);
    assert_eq!(cove.json(["inspect", "two"])[0]["name"], "two");
    assert!(cove.ok(["images"]).contains("busybox"));
    cove.ok(["snapshot", "two", "--name", "kept"]);
    assert!(cove.ok(["snapshot", "ls", "two"]).contains("kept"));
    cove.ok(["snapshot", "rm", "kept"]);
    cove.ok(["delete", "two"]);
    // It is gone: without force that is an error.
    assert_eq!(cove.run(["rm", "two"]).status.code(), Some(1));
    cove.ok(["rm", "-f", "two"]);
    let ran = cove.ok(["run", "-i", "--rm", "busybox", "--", "echo", "once"]);
    assert_eq!(ran, "once\n");
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
}

#[test]
fn variables_come_from_files_and_the_command_line_wins() {
    let cove = Cove::start();
    let file = cove.scratch().join("variables");
    std::fs::write(&file, "# remark\nONE=file\n\nTWO=file with spaces\n").unwrap();
    let file = file.to_str().unwrap();
    cove.ok([
        "create",
        "busybox",
        "--name",
        "box",
        "--env-file",
        file,
        "-e",
        "ONE=line",
    ]);
    let shown = cove.ok(["exec", "box", "-c", "echo $ONE, $TWO"]);
    assert_eq!(shown, "line, file with spaces\n");
    std::fs::write(cove.scratch().join("variables"), "TWO=other\n").unwrap();
    let shown = cove.ok(["exec", "--env-file", file, "box", "-c", "echo $ONE, $TWO"]);
    assert_eq!(shown, "line, other\n");
    std::fs::write(cove.scratch().join("variables"), "=nothing\n").unwrap();
    let wrong = cove.run(["exec", "--env-file", file, "box", "--", "true"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(text(&wrong.stderr).contains("line 1"), "{wrong:?}");
}

#[test]
fn timeouts_exit_with_124_and_logs_end_with_the_last_lines() {
    let cove = Cove::start();
    cove.ok(["create", "busybox", "--name", "box"]);
    let ended = cove.run(["exec", "--timeout", "1s", "box", "--", "sleep", "100"]);
    assert_eq!(ended.status.code(), Some(124), "{ended:?}");
    let ended = cove.run(["run", "--timeout", "1s", "busybox", "--", "sleep", "100"]);
    assert_eq!(ended.status.code(), Some(124), "{ended:?}");
    cove.ok(["exec", "box", "-c", "seq 1 100"]);
    assert_eq!(cove.ok(["logs", "--tail", "2", "box"]), "99\n100\n");
    assert_eq!(cove.ok(["logs", "--tail", "1", "--follow", "box"]), "100\n");
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let cove = Cove::start();
    for arguments in [
        &["--json", "show", "nothing"][..],
        &["--json", "rm", "nothing"],
        &["--json", "exec", "nothing", "--", "true"],
    ] {
        let failed = cove.run(arguments.iter().copied());
        assert!(failed.stdout.is_empty(), "{failed:?}");
        let told: Value = serde_json::from_slice(&failed.stderr).unwrap();
        let error = &told["error"];
        assert_eq!(error["code"], "not_found", "{told}");
        assert_eq!(error["exit_code"], failed.status.code().unwrap(), "{told}");
        assert!(
            error["message"].as_str().unwrap().contains("nothing"),
            "{told}"
        );
    }
}

#[test]
fn an_image_that_is_none_is_named_with_what_may_have_been_meant() {
    let cove = Cove::start();
    let missing = cove.run(["create", "mybox"]);
    let told = text(&missing.stderr);
    assert!(told.contains("cove create --name mybox"), "{told}");
    assert!(told.contains("cove image pull mybox"), "{told}");
    // What can only be an image is fetched; here nobody answers for its registry.
    let failed = cove.run(["create", "127.0.0.1:1/app:1"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(text(&failed.stderr).contains("127.0.0.1:1"), "{failed:?}");
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
}

#[test]
fn a_closed_network_is_named_when_a_command_fails_for_it() {
    let cove = Cove::start();
    cove.ok(["create", "busybox", "--name", "box"]);
    let failed = cove.run(["exec", "box", "--", "wget", "-q", "http://example.com"]);
    assert_ne!(failed.status.code(), Some(0));
    let told = text(&failed.stderr);
    assert!(told.contains("network of this sandbox is off"), "{told}");
    assert!(
        told.contains("cove update box --allow preset:packages"),
        "{told}"
    );
    // Other failures have nothing to do with it.
    let failed = cove.run(["exec", "box", "--", "false"]);
    assert_eq!(text(&failed.stderr), "");
}

#[test]
fn versions_name_the_commit_and_the_server() {
    let cove = Cove::start();
    let version = cove.ok(["--version"]);
    let expected = concat!("cove ", env!("CARGO_PKG_VERSION"), " (");
    assert!(
        version.starts_with(expected) && version.contains(", debug, "),
        "{version}"
    );
    let both = cove.json(["version"]);
    assert_eq!(both["server"], env!("CARGO_PKG_VERSION"));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
