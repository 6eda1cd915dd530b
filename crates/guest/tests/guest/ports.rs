//! Listening ports and connections to them.

use cove_protocol::message::{ErrorCode, Start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use crate::harness::*;

#[tokio::test]
async fn listeners_are_found_with_who_listens() {
    let guest = TestGuest::start().await;
    let four = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = four.local_addr().unwrap().port();
    let found = async || {
        let ports = guest.ports().await.unwrap();
        ports
            .into_iter()
            .find(|found| found.port == u32::from(port))
    };
    let listener = found().await.unwrap();
    assert_eq!(listener.address, "127.0.0.1");
    assert!(!listener.process.is_empty());
    // A child that another test forks holds the listener too, until it runs its program.
    let own = std::process::id();
    eventually("it is this process's", async || {
        found().await.unwrap().pid as u32 == own
    })
    .await;
    drop(four);
    eventually("it is gone", async || found().await.is_none()).await;
}

#[tokio::test]
async fn listeners_of_other_users_are_found_too() {
    let guest = TestGuest::start().await;
    let script = "import socket,time\ns=socket.socket()\ns.bind(('127.0.0.1',0))\ns.listen()\nprint(s.getsockname()[1],flush=True)\ntime.sleep(1000)";
    let start = Start {
        user: "daemon".to_owned(),
        ..argv(&["python3", "-c", script])
    };
    let id = start.id.clone();
    let mut follow = guest.start_following(start).await.unwrap();
    let port: u32 = read_until(&mut follow, "\n").await.trim().parse().unwrap();
    let pid = guest.process(&id).await.unwrap().pid;
    let ports = guest.ports().await.unwrap();
    let found = ports.iter().find(|found| found.port == port).unwrap();
    assert_eq!((found.pid, found.process.as_str()), (pid, "python3"));
}

#[tokio::test]
async fn a_connection_carries_bytes_both_ways_and_closes_by_halves() {
    let guest = TestGuest::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Answers only once it has seen the end of what was sent.
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).await.unwrap();
        all.reverse();
        socket.write_all(&all).await.unwrap();
    });
    let mut stream = guest.connect_port(port).await.unwrap();
    let mut random = Random(3);
    let mut data: Vec<u8> = (0..2_000_000).map(|_| random.next() as u8).collect();
    stream.write_all(&data).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = Vec::new();
    within("the answer", stream.read_to_end(&mut back))
        .await
        .unwrap();
    data.reverse();
    assert!(back == data);
    server.await.unwrap();
}

#[tokio::test]
async fn a_server_may_speak_first_and_hang_up_first() {
    let guest = TestGuest::start().await;
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"hello").await.unwrap();
        socket.shutdown().await.unwrap();
        let mut rest = String::new();
        socket.read_to_string(&mut rest).await.unwrap();
        rest
    });
    let mut stream = guest.connect_port(port).await.unwrap();
    let mut greeting = String::new();
    within("greeting", stream.read_to_string(&mut greeting))
        .await
        .unwrap();
    assert_eq!(greeting, "hello");
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(within("server", server).await.unwrap(), "bye");
}

#[tokio::test]
async fn a_caller_that_leaves_closes_the_connection() {
    let guest = TestGuest::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stream = guest.connect_port(port).await.unwrap();
    let (mut socket, _) = listener.accept().await.unwrap();
    drop(stream);
    let mut rest = Vec::new();
    // Ended or reset: either way it is over.
    let _ = within("the end", socket.read_to_end(&mut rest)).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_refused() {
    let guest = TestGuest::start().await;
    // Held without listening, so that nobody else is given it.
    let held = TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = held.local_addr().unwrap().port();
    let got = guest.connect_port(port).await.map(drop);
    assert_eq!(code(got), ErrorCode::ConnectionRefused);
    drop(held);
    assert_eq!(
        code(guest.connect_port(0).await.map(drop)),
        ErrorCode::Invalid
    );
}
