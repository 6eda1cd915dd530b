//! `--json` is never ignored: every command prints JSON, or refuses in JSON.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use serde_json::Value;

use super::harness::Cove;

const COMMANDS: &str = include_str!("commands.txt");
const PUBLIC_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJvb2tzaGVsZmJvb2tzaGVsZmJvb2tzaGVsZmJvb2tz laptop\n";

#[test]
fn every_command_prints_json_or_refuses_in_json() {
    let cove = Cove::start();
    cove.sandbox("box");
    let scratch = cove.scratch().to_str().unwrap();
    std::fs::write(cove.scratch().join("file"), "content").unwrap();
    std::fs::write(cove.scratch().join("key.pub"), PUBLIC_KEY).unwrap();
    std::fs::create_dir(cove.scratch().join("context")).unwrap();
    std::fs::write(cove.scratch().join("context/Dockerfile"), "FROM busybox\n").unwrap();
    let process = cove.ok(["exec", "--detach", "box", "--", "sleep", "1000"]);
    let mut wrong = Vec::new();
    for line in COMMANDS.lines().filter(|line| !line.starts_with('#')) {
        let [name, expected, arguments] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("not three columns: {line}");
        };
        let arguments = arguments
            .replace("{scratch}", scratch)
            .replace("{process}", process.trim());
        let mut command = cove.command(["--json"].into_iter().chain(arguments.split_whitespace()));
        command.env("XDG_CONFIG_HOME", cove.scratch());
        if expected == "stream" {
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut first = String::new();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            stdout.read_line(&mut first).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(
                serde_json::from_str::<Value>(&first).is_ok(),
                "{name}: {first:?}"
            );
            continue;
        }
        let output = command.output().unwrap();
        if let Err(why) = judge(expected, &output) {
            wrong.push(format!("{name}: {why}: {output:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn judge(expected: &str, output: &Output) -> Result<(), &'static str> {
    if !is_json(&output.stdout) {
        return Err("standard output is not JSON");
    }
    if output.status.success() {
        return match expected {
            "error" => Err("succeeded"),
            "output" if output.stdout.is_empty() => Err("printed nothing"),
            _ => Ok(()),
        };
    }
    if expected == "output" {
        return Err("failed");
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let last = told.lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(last).map_err(|_| "the error is not JSON")?;
    match error["error"]["message"].is_string() && error["error"]["exit_code"].is_u64() {
        true => Ok(()),
        false => Err("the error lacks its message or exit code"),
    }
}

/// One value, or one a line.
fn is_json(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    serde_json::from_str::<Value>(&text).is_ok()
        || text
            .lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok())
}
