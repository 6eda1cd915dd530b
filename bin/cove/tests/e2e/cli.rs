//! Commands, their output and their exit codes.

use super::harness::{Cove, program, wait_for};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_first_session_reads_as_in_the_guide() {
    let cove = Cove::start();
    assert_eq!(
        cove.ok(["create", "busybox", "--name", "mine", "--label", "team=a"]),
        "mine\n"
    );
    let list = cove.ok(["ls"]);
    let mut lines = list.lines();
    let headings: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(
        headings,
        [
            "ID",
            "NAME",
            "STATE",
            "IMAGE",
            "ISOLATION",
            "CPU",
            "MEMORY",
            "NETWORK",
            "CREATED"
        ]
    );
    let row: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert!(row[0].starts_with("sbx_"), "{list}");
    assert_eq!(row[1..4], ["mine", "running", "busybox"]);
    assert_eq!(lines.next(), None);

    assert_eq!(
        cove.ok(["exec", "mine", "--", "echo", "hello", "--world"]),
        "hello --world\n"
    );
    assert_eq!(
        cove.ok(["exec", "mine", "-c", "echo kept > /tmp/note; cat /tmp/note"]),
        "kept\n"
    );
    assert_eq!(
        cove.ok([
            "exec",
            "-e",
            "A=b",
            "-w",
            "/tmp",
            "mine",
            "-c",
            "echo $A; pwd"
        ]),
        "b\n/tmp\n"
    );
    let shown = cove.json(["show", "mine"]);
    assert_eq!(shown["labels"]["team"], "a");
    assert_eq!(cove.ok(["ls", "--quiet", "--label", "team=b"]), "");
    assert!(cove.ok(["ps", "-a", "mine"]).contains("exit 0"));
    assert_eq!(cove.ok(["ps", "-q", "mine"]), "", "nothing runs now");
    assert!(cove.ok(["stats", "mine"]).contains("mine"));
    wait_for("the start is told as an event", || {
        cove.ok(["events"]).contains("running").then_some(())
    });
    assert!(cove.ok(["audit"]).contains("sandbox.create"));
    assert!(cove.ok(["image", "ls"]).contains("busybox"));

    let updated = cove.json(["update", "mine", "--memory", "512M", "--name", "yours"]);
    assert_eq!(
        (
            updated["resources"]["memory_mb"].as_u64(),
            updated["name"].as_str()
        ),
        (Some(512), Some("yours"))
    );
    assert_eq!(cove.ok(["stop", "yours"]), "yours\n");
    let refused = cove.run(["exec", "yours", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("cove start"), "{refused:?}");
    cove.ok(["start", "yours"]);
    assert_eq!(
        cove.ok(["exec", "yours", "--", "cat", "/tmp/note"]),
        "kept\n"
    );
    assert_eq!(cove.ok(["rm", "yours"]), "yours\n");
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
}

#[test]
fn exit_codes_are_the_command_s_own() {
    let cove = Cove::start();
    cove.sandbox("box");
    for (command, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
    ] {
        let output = cove.run(["exec", "box", "-c", command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {output:?}");
    }
    let missing = cove.run(["exec", "box", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
    let forbidden = cove.run(["exec", "box", "--", "/tmp"]);
    assert_eq!(forbidden.status.code(), Some(126), "{forbidden:?}");
    let nowhere = cove.run(["exec", "nowhere", "--", "true"]);
    assert_eq!(nowhere.status.code(), Some(125));
    assert_eq!(
        text(&nowhere.stderr).lines().next(),
        Some("cove: there is no sandbox 'nowhere'")
    );
    let late = cove.run(["exec", "--timeout", "1s", "box", "--", "sleep", "100"]);
    assert_eq!(late.status.code(), Some(124), "{late:?}");
    assert!(
        text(&late.stderr).contains("killed after its timeout"),
        "{late:?}"
    );
    let usage = cove.run(["exec", "--no-such-flag"]);
    assert_eq!(usage.status.code(), Some(2));
    let other = cove.run(["show", "nowhere"]);
    assert_eq!(other.status.code(), Some(1));
}

#[test]
fn run_leaves_nothing_behind() {
    let cove = Cove::start();
    let output = cove.run([
        "run",
        "--memory",
        "128M",
        "busybox",
        "--",
        "sh",
        "-c",
        "echo once; exit 5",
    ]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(5), "once\n"),
        "{output:?}"
    );
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
    let missing = cove.run(["run", "no-such-image", "--", "true"]);
    assert_eq!(missing.status.code(), Some(125));
    assert!(
        text(&missing.stderr).contains("cove image pull no-such-image"),
        "{missing:?}"
    );
}

#[test]
fn background_commands_are_found_again() {
    let cove = Cove::start();
    cove.sandbox("box");
    let id = cove
        .ok(["exec", "--detach", "box", "-c", "echo begun; sleep 1000"])
        .trim()
        .to_owned();
    assert!(id.starts_with("prc_"), "{id}");
    let running = cove.json(["ps", "box"]);
    assert!(
        running
            .as_array()
            .unwrap()
            .iter()
            .any(|process| process["id"] == id.as_str() && process["exit"].is_null())
    );
    wait_for("its output is there", || {
        (cove.ok(["logs", "box", &id]) == "begun\n").then_some(())
    });
    cove.ok(["kill", "box", &id, "--signal", "KILL"]);
    assert_eq!(cove.ok(["logs", "--follow", "box", &id]), "begun\n");
    wait_for("its end is told", || {
        cove.ok(["ps", "-a", "box"])
            .contains("signal 9")
            .then_some(())
    });
}

#[test]
fn keys_open_what_their_scope_says() {
    let cove = Cove::start();
    cove.sandbox("box");
    let key = cove
        .ok([
            "key",
            "create",
            "reader",
            "--scope",
            "read",
            "--expires",
            "1d",
        ])
        .trim()
        .to_owned();
    let mut ls = cove.command(["ls", "--quiet"]);
    assert!(
        ls.env("COVE_API_KEY", &key)
            .output()
            .unwrap()
            .status
            .success()
    );
    let mut exec = cove.command(["exec", "box", "--", "true"]);
    let refused = exec.env("COVE_API_KEY", &key).output().unwrap();
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("scope 'use'"), "{refused:?}");
    let wrong = cove
        .command(["ls"])
        .env("COVE_API_KEY", "cove_wrong")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(1));
    let keys = cove.json(["key", "ls"]);
    let id = keys
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["name"] == "reader")
        .unwrap()["id"]
        .clone();
    cove.ok(["key", "rm", id.as_str().unwrap()]);
    let revoked = cove
        .command(["ls"])
        .env("COVE_API_KEY", &key)
        .output()
        .unwrap();
    assert_eq!(revoked.status.code(), Some(1));
}

#[test]
fn help_completions_and_manual_need_no_server() {
    let run = |args: &[&str]| {
        let output = std::process::Command::new(program())
            .args(args)
            .env("COVE_DATA_DIR", "/nowhere")
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        text(&output.stdout)
    };
    assert!(run(&["--help"]).contains("sandbox"));
    assert!(run(&["serve", "--help"]).contains("--listen"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completion", shell]).contains("cove"));
    }
    assert!(run(&["man"]).contains(".TH"));
    let lost = std::process::Command::new(program())
        .args(["ls", "--url", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(lost.status.code(), Some(1));
    assert!(text(&lost.stderr).contains("cove serve"), "{lost:?}");
}

#[test]
fn a_second_server_over_the_same_data_is_refused() {
    let cove = Cove::start();
    let data_dir = cove.data_dir();
    let second = cove
        .command([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            data_dir.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        text(&second.stderr).contains("a server already uses"),
        "{second:?}"
    );
    let other = tempfile::tempdir_in("/var/tmp").unwrap();
    let url = std::fs::read_to_string(data_dir.join("url")).unwrap();
    let taken = url.trim().trim_start_matches("http://");
    let second = cove
        .command([
            "serve",
            "--listen",
            taken,
            "--data-dir",
            other.path().to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("is taken"), "{second:?}");
}
