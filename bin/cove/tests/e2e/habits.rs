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
    let dated = cove.ok(["logs", "-t", "--since", "1h", "--tail", "1", "box"]);
    let (at, line) = dated.split_once(' ').unwrap();
    assert!(at.ends_with('Z') && line == "100\n", "{dated}");
    assert_eq!(
        cove.ok(["logs", "--since", "2100-01-01T00:00:00Z", "box"]),
        ""
    );
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
    let hint = "the network of this sandbox is off; example.com was refused";
    assert_eq!(told.matches(hint).count(), 1, "{told}");
    assert!(
        told.contains("cove update box --allow preset:packages"),
        "{told}"
    );
    // While the command goes on, and also where it succeeds in the end.
    let look_up = "nslookup -type=a Pypi.org >/dev/null; nslookup files.example >/dev/null; true";
    let done = cove.run(["exec", "box", "-c", look_up]);
    assert_eq!(done.status.code(), Some(0));
    let told = text(&done.stderr);
    assert_eq!(told.matches("was refused").count(), 1, "{told}");
    assert!(told.contains("pypi.org was refused"), "{told}");
    // By address: counted, and explained with the failure.
    let failed = cove.run(["exec", "box", "--", "wget", "-q", "http://192.0.2.1/"]);
    let told = text(&failed.stderr);
    assert!(told.contains("by address were refused"), "{told}");
    // Other failures have nothing to do with it, whatever they print.
    let failed = cove.run(["exec", "box", "--", "false"]);
    assert_eq!(text(&failed.stderr), "");
    let failed = cove.run(["exec", "box", "-c", "echo Could not resolve host; exit 6"]);
    assert_eq!(text(&failed.stderr), "");

    // In one piece over HTTP, and in the log.
    let read = |name: &str| std::fs::read_to_string(cove.data_dir().join(name)).unwrap();
    let (url, key) = (read("url"), read("root.key"));
    let (url, bearer) = (
        format!("{}/v1/sandboxes/box/exec", url.trim()),
        format!("Authorization: Bearer {}", key.trim()),
    );
    let body = r#"{"argv": ["nslookup", "-type=a", "pypi.org"]}"#;
    let json = "Content-Type: application/json";
    let asked = std::process::Command::new("curl")
        .args(["--silent", "--show-error", "--fail-with-body"])
        .args(["-H", &bearer, "-H", json, "-d", body, &url])
        .output()
        .unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    let hint = answer["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("pypi.org was refused"), "{answer}");
    let log = cove.ok(["egress", "box", "--denied"]);
    for part in [
        "example.com",
        "pypi.org",
        "files.example",
        "reach an address",
    ] {
        assert!(log.contains(part), "{log}");
    }
    assert!(log.contains("the network is off"), "{log}");
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

#[test]
fn keys_and_organisations_go_by_their_names() {
    let cove = Cove::start();
    cove.ok(["key", "create", "ci", "--scope", "read"]);
    cove.ok(["key", "create", "twice"]);
    cove.ok(["key", "create", "twice"]);
    cove.ok(["key", "rm", "ci"]);
    let unclear = cove.run(["key", "delete", "twice"]);
    assert_eq!(unclear.status.code(), Some(1), "{unclear:?}");
    assert!(
        text(&unclear.stderr).contains("give the id of one"),
        "{unclear:?}"
    );
    let keys = cove.json(["key", "list"]);
    let revoked: Vec<_> = keys
        .as_array()
        .unwrap()
        .iter()
        .filter(|key| !key["revoked_at"].is_null())
        .map(|key| key["name"].as_str().unwrap())
        .collect();
    assert_eq!(revoked, ["ci"]);
    assert_eq!(cove.run(["key", "rm", "nothing"]).status.code(), Some(1));
    cove.ok(["org", "create", "research"]);
    let changed = cove.json(["org", "quota", "research", "--sandboxes", "3"]);
    assert_eq!(changed["quota"]["sandboxes"], 3);
    let made = cove.json(["org", "create", "empty"]);
    let removed = cove.json(["org", "rm", "empty"]);
    assert_eq!(removed["deleted"], made["id"]);
    let gone = cove.run(["org", "rm", "empty"]);
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

#[test]
fn usage_is_by_day_and_by_name() {
    let cove = Cove::start();
    cove.sandbox("idle");
    cove.sandbox("busy");
    cove.ok([
        "exec",
        "busy",
        "-c",
        "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done",
    ]);
    let usage = super::harness::wait_for("its CPU time is charged", || {
        let usage = cove.json(["usage", "--days", "2", "--top", "1"]);
        (usage["items"][0]["name"] == "busy").then_some(usage)
    });
    assert_eq!(usage["items"].as_array().unwrap().len(), 1);
    let days = usage["days"].as_array().unwrap();
    assert_eq!(days.len(), 2);
    let spent: f64 = days
        .iter()
        .map(|day| day["total"]["cpu_seconds"].as_f64().unwrap())
        .sum();
    assert!(spent > 0.0, "{usage}");
    cove.ok(["rm", "busy"]);
    let shown = cove.ok(["usage"]);
    assert!(
        shown.contains("(deleted)") && shown.contains("idle"),
        "{shown}"
    );
}

#[test]
fn figures_come_once_or_for_as_long_as_somebody_reads() {
    use std::io::BufRead;
    let cove = Cove::start();
    cove.sandbox("box");
    let once = cove.ok(["stats", "--no-stream"]);
    assert!(
        once.starts_with("SANDBOX") && once.contains("box"),
        "{once}"
    );
    let mut child = cove
        .command(["--json", "stats", "--follow"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let rounds: Vec<Value> = lines
        .take(2)
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    for round in rounds {
        assert_eq!(round[0]["sandbox"], "box", "{round}");
    }
}

#[test]
fn a_shell_completes_the_names_of_sandboxes() {
    let cove = Cove::start();
    cove.sandbox("alpha");
    cove.sandbox("beta");
    let complete = |words: &[&str]| {
        let mut command = cove.command(["--", "cove"].into_iter().chain(words.iter().copied()));
        command
            .env("COMPLETE", "fish")
            .env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        let output = command.output().unwrap();
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout)
    };
    assert_eq!(complete(&["exec", "al"]), "alpha\n");
    let both = complete(&["rm", ""]);
    assert!(
        both.contains("alpha\n") && both.contains("beta\n"),
        "{both}"
    );
    assert!(complete(&["cp", "be"]).contains("beta:"));
    // A server that does not answer is no reason to say anything.
    let mut command = cove.command(["--", "cove", "exec", "al"]);
    command
        .env("COMPLETE", "fish")
        .env("COVE_URL", "http://127.0.0.1:1");
    let output = command.output().unwrap();
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        (String::new(), String::new())
    );
}

#[test]
fn a_command_line_that_cannot_be_read_is_json_where_json_is_asked_for() {
    let wrong = std::process::Command::new(super::harness::program())
        .args(["exec", "--json", "--no-such-flag"])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let told: Value = serde_json::from_slice(&wrong.stderr).unwrap();
    assert_eq!(told["error"]["code"], "usage", "{told}");
    assert!(
        told["error"]["message"]
            .as_str()
            .unwrap()
            .contains("--no-such-flag"),
        "{told}"
    );
}

#[test]
fn a_file_here_is_not_imported_by_a_server_elsewhere() {
    let cove = Cove::start();
    let elsewhere = cove.run([
        "image",
        "import",
        "x",
        "/etc/hostname",
        "--url",
        "http://127.0.0.1:1",
    ]);
    assert_eq!(elsewhere.status.code(), Some(1), "{elsewhere:?}");
    assert!(
        text(&elsewhere.stderr).contains("runs on another machine"),
        "{elsewhere:?}"
    );
    let copied = std::fs::read_dir(cove.data_dir().join("import"));
    assert_eq!(copied.map_or(0, Iterator::count), 0, "a copy was made");
}

#[test]
fn a_killed_run_leaves_nothing() {
    let cove = Cove::start();
    let mut child = cove
        .command(["run", "busybox", "--", "sleep", "100000"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    super::harness::wait_for("its command runs", || {
        let all = cove.json(["ls"]);
        let id = all[0]["id"].as_str()?;
        let listed = cove.run(["ps", "-q", id]);
        listed.stdout.starts_with(b"prc_").then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    super::harness::wait_for("the sandbox is deleted", || {
        (cove.json(["ls"]) == serde_json::json!([])).then_some(())
    });
    // One that is to be kept has no such rule.
    cove.ok(["run", "--keep", "busybox", "--", "true"]);
    let kept = cove.json(["ls"]);
    assert!(kept[0]["lifecycle"]["delete_after_s"].is_null(), "{kept}");
}

#[test]
fn a_run_without_a_command_names_the_fix_and_makes_nothing() {
    let cove = Cove::start();
    for args in [
        &["run", "busybox"][..],
        &["run", "-i", "busybox"],
        &["run", "-d", "busybox"],
    ] {
        let refused = cove.run(args.iter().copied());
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        let told = text(&refused.stderr);
        assert!(told.contains("no command to run"), "{told}");
        assert!(told.contains("cove run -it IMAGE"), "{told}");
    }
    let refused = cove.run(["run", "-t", "busybox"]);
    assert!(
        text(&refused.stderr).contains("must be a terminal"),
        "{refused:?}"
    );
    let refused = cove.run(["run", "-d", "-p", "8000", "busybox", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(
        text(&refused.stderr).contains("cove port-forward"),
        "{refused:?}"
    );
    for option in ["-i", "-t", "--rm"] {
        let refused = cove.run(["run", "-d", option, "busybox", "--", "true"]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
    // Without its command the sandbox is of no use.
    let failed = cove.run(["run", "-d", "busybox", "--", "/no/such/program"]);
    assert_eq!(failed.status.code(), Some(127), "{failed:?}");
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
}

#[test]
fn a_detached_run_stays_and_prints_its_id() {
    let cove = Cove::start();
    let printed = cove.ok([
        "run", "-d", "--name", "job", "busybox", "--", "echo", "done",
    ]);
    let id = cove.json(["show", "job"])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(printed, format!("{id}\n"));
    super::harness::wait_for("its command has ended", || {
        (cove.ok(["logs", &id]) == "done\n").then_some(())
    });
    let shown = cove.json(["show", &id]);
    assert_eq!(shown["state"], "running");
    assert!(shown["lifecycle"]["delete_after_s"].is_null(), "{shown}");
    let started = cove.json(["run", "-d", "busybox", "--", "sleep", "1000"]);
    let other = started["sandbox"].as_str().unwrap();
    let running = cove.ok(["ps", "-q", other]);
    assert_eq!(running.trim(), started["process"].as_str().unwrap());
}

#[test]
fn a_restart_ends_processes_keeps_the_disk_and_starts_what_was_stopped() {
    let cove = Cove::start();
    cove.sandbox("box");
    cove.ok(["exec", "box", "-c", "echo kept > /file"]);
    cove.ok(["exec", "-d", "box", "--", "sleep", "1000"]);
    assert_eq!(cove.ok(["restart", "--grace", "1s", "box"]), "box\n");
    assert_eq!(cove.ok(["ps", "-q", "box"]), "");
    assert_eq!(cove.ok(["exec", "box", "--", "cat", "/file"]), "kept\n");
    cove.ok(["stop", "box"]);
    cove.ok(["restart", "box"]);
    assert_eq!(cove.json(["show", "box"])["state"], "running");
    cove.ok(["freeze", "box"]);
    cove.ok(["unpause", "box"]);
    assert_eq!(cove.json(["show", "box"])["state"], "running");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
