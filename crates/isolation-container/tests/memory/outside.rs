//! Connections that lead out of a sandbox: the original keeps them, a copy finds them closed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use crate::fixture::{Host, Sandbox};

/// A pair of interfaces between the host and a sandbox; it goes with the sandbox's namespace.
struct Wire {
    name: String,
    ours: String,
    theirs: String,
}

impl Wire {
    fn lay(sandbox: &Sandbox) -> Self {
        let pid = sandbox.machine.record().detail["pid"].as_i64().unwrap();
        let (high, low) = ((pid / 250) % 250 + 1, pid % 250 + 1);
        let wire = Self {
            name: format!("cvm{pid}"),
            ours: format!("198.18.{high}.{low}"),
            theirs: format!("198.19.{high}.{low}"),
        };
        let Self { name, ours, theirs } = &wire;
        for line in [
            format!("ip link add {name} type veth peer name out netns {pid}"),
            format!("ip addr add {ours}/32 peer {theirs} dev {name}"),
            format!("ip link set {name} up"),
            format!("nsenter -t {pid} -n ip addr add {theirs}/32 peer {ours} dev out"),
            format!("nsenter -t {pid} -n ip link set out up"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
            assert!(status.success(), "{line}");
        }
        wire
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["link", "del", &self.name])
            .stderr(std::process::Stdio::null())
            .status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_original_keeps_its_connections_and_a_copy_finds_them_closed() {
    let host = Host::open();
    let one = host.boot("one").await;
    let wire = Wire::lay(&one);
    let listener = TcpListener::bind((wire.ours.as_str(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let source = format!(
        r#"
import socket, select
out = socket.create_connection(("{}", {port}))
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname()); peer, _ = server.accept()
open("/tmp/connected", "w").close()
while True:
    try: data = out.recv(100)
    except OSError as error: data = b"error %d" % error.errno
    near.sendall(b"loopback"); assert peer.recv(8) == b"loopback"
    with open("/tmp/heard", "a") as f: f.write(data.decode() + "\n")
    if not data or data.startswith(b"error"): break
    out.sendall(b"heard " + data)
"#,
        wire.ours
    );
    one.start("/usr/bin/python3", &source).await;
    let (mut connection, _) = listener.accept().unwrap();
    one.until("ls /tmp", |said| said.contains("connected"))
        .await;
    let snapshot = host.capture(&one).await;
    let two = host.restore(&snapshot, "two").await;
    let heard = two.until("cat /tmp/heard", |said| !said.is_empty()).await;
    assert!(heard.starts_with("error"), "the copy heard {heard:?}");

    connection.write_all(b"still here").unwrap();
    let mut answer = [0; 16];
    connection.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"heard still here");
    assert_eq!(one.say("cat /tmp/heard").await, "still here");
    drop(wire);
    host.close(vec![one, two]).await;
}
