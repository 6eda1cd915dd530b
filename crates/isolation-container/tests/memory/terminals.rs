//! Shells and programs in terminals, with all the ways to hold one.

use bytes::Bytes;
use cove_protocol::message::{PtySize, Start};

use crate::fixture::{Host, Sandbox, has, shell};
use crate::programs::output_until;

/// Starts a program in a terminal.
async fn in_terminal(sandbox: &Sandbox, argv: &[&str]) -> String {
    let start = Start {
        argv: argv.iter().map(|&word| word.into()).collect(),
        pty: Some(PtySize { cols: 80, rows: 24 }),
        ..shell("")
    };
    let id = start.id.clone();
    sandbox.guest.start(start).await.unwrap();
    id
}

async fn type_in(sandbox: &Sandbox, id: &str, line: &str) {
    let mut stdin = sandbox.guest.stdin(id).await.unwrap();
    stdin
        .write(Bytes::copy_from_slice(line.as_bytes()))
        .await
        .unwrap();
    stdin.flush().await.unwrap();
}

async fn holds_own_terminal(sandbox: &Sandbox) {
    sandbox
        .until("ls -l /proc/[0-9]*/fd 2>/dev/null", |said| {
            said.contains("/dev/tty")
        })
        .await;
}

/// Whether the process group of a `sleep` is the one in front of its terminal.
fn sleeps_in_front(stats: &str) -> bool {
    stats.lines().any(|stat| {
        let rest = stat.split_once(" (sleep) ").map_or("", |(_, rest)| rest);
        // The state, the parent, the group, the session, the terminal and the group in front of that.
        let fields: Vec<&str> = rest.split(' ').collect();
        fields.len() > 5 && fields[2] == fields[5]
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_with_a_shell_and_jobs_survives() {
    let host = Host::open();
    let one = host.boot("one").await;
    let id = in_terminal(&one, &["/bin/bash", "--norc", "-i"]).await;
    type_in(&one, &id, "mine=kept; sleep 1000 & echo sta''rted\n").await;
    output_until(&one.guest, &id, "started").await;
    let snapshot = host.capture(&one).await;
    let two = host.restore(&snapshot, "two").await;
    for sandbox in [&two, &one] {
        let line = "stty size; echo var=$mine; kill %1 && echo kil''led\n";
        type_in(sandbox, &id, line).await;
        let text = output_until(&sandbox.guest, &id, "killed").await;
        assert!(
            text.contains("24 80") && text.contains("var=kept"),
            "{text}"
        );
    }
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_that_holds_its_own_terminal_survives_copies_of_copies() {
    let host = Host::open();
    let one = host.boot("one").await;
    // A plain sh opens /dev/tty for job control.
    let id = in_terminal(&one, &["/bin/sh", "-i"]).await;
    type_in(&one, &id, "mine=kept; sleep 1000 & echo sta''rted\n").await;
    output_until(&one.guest, &id, "started").await;
    holds_own_terminal(&one).await;
    let snapshot = host.capture(&one).await;
    host.prove(&snapshot).await.unwrap();
    let two = host.restore(&snapshot, "two").await;
    let again = host.capture(&two).await;
    let three = host.restore(&again, "three").await;
    for sandbox in [&three, &two, &one] {
        type_in(sandbox, &id, "echo var=$mine; kill %1 && echo kil''led\n").await;
        let text = output_until(&sandbox.guest, &id, "killed").await;
        assert!(text.contains("var=kept"), "{text}");
        // Control characters still reach the job in front.
        type_in(sandbox, &id, "echo fro''nt; sleep 2000\n").await;
        output_until(&sandbox.guest, &id, "front").await;
        // Before it is in front, the control character would go to the shell.
        sandbox
            .until("cat /proc/[0-9]*/stat 2>/dev/null", sleeps_in_front)
            .await;
        type_in(sandbox, &id, "\u{3}").await;
        type_in(sandbox, &id, "echo pro''mpt\n").await;
        output_until(&sandbox.guest, &id, "prompt").await;
    }
    host.close(vec![one, two, three]).await;
}

/// Holds nothing but `/dev/tty`, as a pager does that reads its text from a pipe.
const PAGER: &str = r#"
import os, time
tty = os.open("/dev/tty", os.O_RDWR)
null = os.open("/dev/null", os.O_RDWR)
for fd in (0, 1, 2): os.dup2(null, fd)
os.write(tty, b"pag" + b"ing\n")
while True:
    line = os.read(tty, 100)
    os.write(tty, b"he" + b"ard " + line)
    if line == b"quit\n": break
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_holds_its_own_terminal_survives_in_front_of_its_shell() {
    let host = Host::open();
    let one = host.boot("one").await;
    let id = in_terminal(&one, &["/bin/bash", "--norc", "-i"]).await;
    one.guest
        .exec(Start {
            argv: vec!["/bin/sh".into(), "-c".into(), "cat > /tmp/pager".into()],
            input: Some(PAGER.as_bytes().to_vec().into()),
            ..shell("")
        })
        .await
        .unwrap();
    type_in(&one, &id, "python3 /tmp/pager\n").await;
    output_until(&one.guest, &id, "paging").await;
    let snapshot = host.capture(&one).await;
    let two = host.restore(&snapshot, "two").await;
    for sandbox in [&two, &one] {
        type_in(sandbox, &id, "quit\n").await;
        output_until(&sandbox.guest, &id, "heard quit").await;
        type_in(sandbox, &id, "echo shell-is-ba''ck\n").await;
        output_until(&sandbox.guest, &id, "shell-is-back").await;
    }
    host.close(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tmux_with_somebody_attached_survives() {
    if !has("tmux", &["usr/bin/tmux", "usr/lib/locale/C.utf8"]) {
        return;
    }
    let host = Host::open();
    let one = host.boot("one").await;
    let tmux = "export TERM=xterm LC_ALL=C.UTF-8; tmux -u -f /dev/null";
    let begun =
        format!("{tmux} new-session -d -s work /bin/sh && {tmux} set -g default-terminal screen");
    one.say(&begun).await;
    let attach = format!("{tmux} attach -t work");
    let id = in_terminal(&one, &["/bin/sh", "-c", &attach]).await;
    let attached = format!("{tmux} list-clients");
    one.until(&attached, |said| said.contains("work")).await;
    type_in(&one, &id, "mine=kept; echo sta''rted\n").await;
    let screen = format!("{tmux} capture-pane -p -t work");
    one.until(&screen, |said| said.contains("started")).await;
    let snapshot = host.capture(&one).await;
    let two = host.restore(&snapshot, "two").await;
    for sandbox in [&two, &one] {
        sandbox.until(&attached, |said| said.contains("work")).await;
        type_in(sandbox, &id, "echo var=$mine\n").await;
        sandbox
            .until(&screen, |said| said.contains("var=kept"))
            .await;
    }
    host.close(vec![one, two]).await;
}
