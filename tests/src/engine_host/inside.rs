//! Commands inside a sandbox, and the small tree its image is made of.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use cove_model::ProcessId;
use cove_protocol::client::{ExecResult, Guest};
use cove_protocol::message::Start;

const BUSYBOX: &str = "/bin/busybox";

pub fn process_id() -> String {
    ProcessId::random().to_string()
}

/// A command for the image's shell.
pub fn shell(command: &str) -> Start {
    Start {
        id: process_id(),
        argv: vec!["/bin/sh".into(), "-c".into(), command.into()],
        ..Start::default()
    }
}

pub async fn exec(guest: &Guest, command: &str) -> ExecResult {
    guest
        .exec(shell(command))
        .await
        .unwrap_or_else(|error| panic!("'{command}': {}", chain(&error)))
}

/// Runs a command that must succeed.
pub async fn succeed(guest: &Guest, command: &str) -> ExecResult {
    let result = exec(guest, command).await;
    assert_eq!(
        result.exit.code,
        0,
        "'{command}' failed: {:?}\n{}{}",
        result.exit,
        String::from_utf8_lossy(&result.stdout),
        String::from_utf8_lossy(&result.stderr)
    );
    result
}

/// What a command that must succeed prints, without the last line's end.
pub async fn output(guest: &Guest, command: &str) -> String {
    let result = succeed(guest, command).await;
    String::from_utf8_lossy(&result.stdout)
        .trim_end()
        .to_owned()
}

/// A root made of one static program.
pub fn busybox_tree(dir: &Path) {
    let bin = dir.join("bin");
    for place in ["bin", "tmp", "etc", "root", "proc", "sys", "dev"] {
        fs::create_dir_all(dir.join(place)).expect("a tree under /var/tmp");
    }
    fs::copy(BUSYBOX, bin.join("busybox")).expect("busybox-static is installed");
    let listed = Command::new(BUSYBOX)
        .arg("--list")
        .output()
        .expect("busybox runs");
    for applet in String::from_utf8_lossy(&listed.stdout).lines() {
        if applet != "busybox" {
            symlink("busybox", bin.join(applet)).expect("a link in a new tree");
        }
    }
    fs::write(dir.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").expect("a new tree");
    fs::write(dir.join("etc/group"), "root:x:0:\n").expect("a new tree");
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
