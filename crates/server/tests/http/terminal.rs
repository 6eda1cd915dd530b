//! Terminals over WebSockets: several viewers, input from any of them, and coming back.

use cove_api::process::{
    AttachEvent, AttachQuery, AttachRequest, Exit, Process, StartProcess, TerminalSize,
};
use cove_client::{AttachMessage, Attachment};
use tokio::time::timeout;

use super::harness::{DEADLINE, Server, refused};

async fn terminal(server: &Server, command: &str) -> Process {
    let start = StartProcess {
        command: Some(command.into()),
        pty: Some(TerminalSize { cols: 80, rows: 24 }),
        ..StartProcess::default()
    };
    server.client.start_process("box", &start).await.unwrap()
}

async fn attach(server: &Server, process: &Process, stdout_from: u64) -> Attachment {
    let from = AttachQuery {
        stdout_from,
        stderr_from: 0,
    };
    server
        .client
        .attach("box", &process.id, &from)
        .await
        .unwrap()
}

/// Output until it contains `wanted`; the text and the offset behind it.
async fn until(attachment: &mut Attachment, wanted: &str) -> (String, u64) {
    let mut text = String::new();
    let mut next = 0;
    let read = async {
        loop {
            match attachment
                .receiver
                .next()
                .await
                .unwrap()
                .expect("the terminal goes on")
            {
                AttachMessage::Output { offset, data, .. } => {
                    assert!(
                        next == 0 || offset == next,
                        "output at {offset} instead of {next}"
                    );
                    next = offset + data.len() as u64;
                    text.push_str(&String::from_utf8_lossy(&data));
                    if text.contains(wanted) {
                        return;
                    }
                }
                AttachMessage::Event(AttachEvent::Exit(exit)) => {
                    panic!("it ended: {exit:?}, said {text}")
                }
                AttachMessage::Event(_) => {}
            }
        }
    };
    timeout(DEADLINE, read)
        .await
        .unwrap_or_else(|_| panic!("waited for {wanted:?}"));
    (text, next)
}

async fn exit(attachment: &mut Attachment) -> Exit {
    let read = async {
        loop {
            match attachment
                .receiver
                .next()
                .await
                .unwrap()
                .expect("an exit is told")
            {
                AttachMessage::Event(AttachEvent::Exit(exit)) => return exit,
                _ => continue,
            }
        }
    };
    timeout(DEADLINE, read).await.expect("it ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_viewers_see_the_same_and_either_may_type() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let process = terminal(
        &server,
        "stty -echo; echo ready; while read line; do echo said $line; done; exit 4",
    )
    .await;
    let mut one = attach(&server, &process, 0).await;
    let mut two = attach(&server, &process, 0).await;
    until(&mut one, "ready").await;
    until(&mut two, "ready").await;
    one.sender.input(b"hello\n".to_vec()).await.unwrap();
    until(&mut one, "said hello").await;
    until(&mut two, "said hello").await;
    two.sender.input(b"back\n".to_vec()).await.unwrap();
    until(&mut one, "said back").await;
    two.sender.input(vec![4]).await.unwrap();
    assert_eq!(exit(&mut one).await.exit_code, 4);
    assert_eq!(exit(&mut two).await.exit_code, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_comes_back_to_where_it_was() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let process = terminal(
        &server,
        "stty -echo; echo ready; while read line; do echo said $line; done",
    )
    .await;
    let mut one = attach(&server, &process, 0).await;
    let (_, offset) = until(&mut one, "ready\r\n").await;
    drop(one);
    let mut again = attach(&server, &process, offset).await;
    again.sender.input(b"more\n".to_vec()).await.unwrap();
    let (text, _) = until(&mut again, "said more").await;
    assert!(!text.contains("ready"), "{text}");
    again
        .sender
        .request(&AttachRequest::Signal {
            signal: "KILL".into(),
        })
        .await
        .unwrap();
    assert_eq!(exit(&mut again).await.signal, Some(9));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resize_reaches_the_terminal() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let process = terminal(&server, "stty -echo; stty size; read line; stty size").await;
    let mut one = attach(&server, &process, 0).await;
    until(&mut one, "24 80").await;
    one.sender
        .request(&AttachRequest::Resize {
            cols: 132,
            rows: 50,
        })
        .await
        .unwrap();
    one.sender
        .request(&AttachRequest::Resize { cols: 0, rows: 50 })
        .await
        .unwrap();
    one.sender.input(b"\n".to_vec()).await.unwrap();
    until(&mut one, "50 132").await;
    assert_eq!(exit(&mut one).await.exit_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_on_a_terminal_is_refused_and_it_goes_on() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let process = terminal(&server, "stty -echo; echo ready; read line; echo bye").await;
    let mut one = attach(&server, &process, 0).await;
    until(&mut one, "ready").await;
    one.sender
        .request(&AttachRequest::Signal {
            signal: "NOPE".into(),
        })
        .await
        .unwrap();
    let refusal = async {
        loop {
            if let Some(AttachMessage::Event(AttachEvent::Refused { message })) =
                one.receiver.next().await.unwrap()
            {
                return message;
            }
        }
    };
    let message = timeout(DEADLINE, refusal)
        .await
        .expect("the refusal is told");
    assert!(message.contains("signal"), "{message}");
    one.sender.input(b"\n".to_vec()).await.unwrap();
    until(&mut one, "bye").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_to_nothing_is_refused_before_the_upgrade() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let from = AttachQuery::default();
    let missing = server
        .client
        .attach("box", "prc_aaaaaaaaaaaaaaaaaaaa", &from)
        .await;
    assert_eq!(refused(missing.map(drop)).0, 404);
    let (status, body) = super::walk::ask(
        &server.client,
        cove_api::route::Verb::Get,
        "/v1/sandboxes/box/processes/prc_aaaaaaaaaaaaaaaaaaaa/attach",
    )
    .await;
    assert_eq!(status, 422);
    super::walk::error_of(&body);
}
