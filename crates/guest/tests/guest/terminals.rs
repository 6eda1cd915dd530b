//! Commands on a terminal.

use cove_protocol::message::{ErrorCode, PtySize, Resize, Start};

use crate::harness::*;

fn on_terminal(words: &[&str], cols: u32, rows: u32) -> Start {
    Start {
        pty: Some(PtySize { cols, rows }),
        ..argv(words)
    }
}

#[tokio::test]
async fn a_terminal_has_its_size_and_controls_its_session() {
    let guest = TestGuest::start().await;
    let start = on_terminal(
        &[
            "sh",
            "-c",
            "stty size; tty; ps -o tpgid= -p $$; echo $$; echo $TERM",
        ],
        91,
        27,
    );
    let result = within("the command", guest.exec(start)).await.unwrap();
    let text = String::from_utf8(result.stdout.to_vec()).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(lines[0], "27 91", "{text}");
    assert!(lines[1].starts_with("/dev/pts/"), "{text}");
    assert_eq!(
        lines[2], lines[3],
        "the shell is not in the foreground: {text}"
    );
    assert_eq!(lines[4], "xterm-256color");
    assert!(result.stderr.is_empty());
}

#[tokio::test]
async fn two_viewers_see_a_terminal_that_is_resized_and_typed_into() {
    let guest = TestGuest::start().await;
    let script = "trap 'stty size' WINCH; echo ready; while read line; do echo got:$line; done";
    let start = on_terminal(&["bash", "-c", script], 80, 24);
    let id = start.id.clone();
    let mut first = guest.start_following(start).await.unwrap();
    let mut second = guest.follow(from_start(&id)).await.unwrap();
    read_until(&mut first, "ready").await;
    read_until(&mut second, "ready").await;
    let resize = Resize {
        id: id.clone(),
        size: Some(PtySize {
            cols: 132,
            rows: 43,
        }),
    };
    guest.resize(resize.clone()).await.unwrap();
    let mut stdin = guest.stdin(&id).await.unwrap();
    stdin.write(bytes("hello\n")).await.unwrap();
    for viewer in [&mut first, &mut second] {
        let text = read_until(viewer, "got:hello").await;
        assert!(text.contains("43 132"), "{text:?}");
    }
    let told = guest.process(&id).await.unwrap();
    assert_eq!((told.pty.unwrap().cols, told.viewers), (132, 2));
    // End of input is the terminal's end-of-file character.
    stdin.close().await.unwrap();
    assert_eq!(read_exit(&mut first).await.code, 0);
    assert_eq!(read_exit(&mut second).await.code, 0);
    assert_eq!(code(guest.resize(resize).await), ErrorCode::Gone);
}

#[tokio::test]
async fn all_of_a_terminals_output_comes_before_the_exit() {
    let guest = TestGuest::start().await;
    for _ in 0..10 {
        let start = on_terminal(&["sh", "-c", "stty -onlcr; seq 1 5000; echo last"], 80, 24);
        let result = within("seq", guest.exec(start)).await.unwrap();
        let wanted: String = (1..=5000).map(|n| format!("{n}\n")).collect::<String>() + "last\n";
        assert_eq!(result.stdout.len(), wanted.len());
        assert!(result.stdout == wanted.as_bytes());
    }
}

#[tokio::test]
async fn a_terminal_belongs_to_its_user() {
    let guest = TestGuest::start().await;
    let start = Start {
        user: "daemon".to_owned(),
        ..on_terminal(
            &["sh", "-c", "stat -c %U $(tty); echo again > $(tty)"],
            80,
            24,
        )
    };
    let result = within("the command", guest.exec(start)).await.unwrap();
    let text = String::from_utf8(result.stdout.to_vec()).unwrap();
    assert_eq!(text.replace('\r', ""), "daemon\nagain\n");
}

#[tokio::test]
async fn an_impossible_size_is_refused() {
    let guest = TestGuest::start().await;
    for (cols, rows) in [(0, 24), (80, 0), (70_000, 24)] {
        let start = on_terminal(&["true"], cols, rows);
        assert_eq!(code(guest.start(start).await), ErrorCode::Invalid);
    }
}
