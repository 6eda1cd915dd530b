//! A hostile registry: answers each request with what a test says, and counts who came. And a name
//! server that changes its mind.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

/// What becomes of a request.
pub enum Reply {
    /// A status, header lines that end with a line break each, and a body.
    Whole(&'static str, String, Vec<u8>),
    /// Announces so many bytes and sends none.
    Silent(usize),
}

pub fn ok(body: impl Into<Vec<u8>>) -> Reply {
    Reply::Whole("200 OK", String::new(), body.into())
}

pub fn redirect(location: &str) -> Reply {
    Reply::Whole(
        "307 Temporary Redirect",
        format!("Location: {location}\r\n"),
        Vec::new(),
    )
}

pub fn not_found() -> Reply {
    Reply::Whole("404 Not Found", String::new(), Vec::new())
}

pub struct Stub {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    /// `answer` gets a request's path.
    pub async fn start(
        address: &str,
        answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Arc<AtomicUsize> = Arc::default();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let (counted, noted, answer) = (
            Arc::clone(&connections),
            Arc::clone(&heads),
            Arc::new(answer),
        );
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let (noted, answer) = (Arc::clone(&noted), Arc::clone(&answer));
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") && head.len() < 16 << 10 {
                        let Ok(byte) = client.read_u8().await else {
                            return;
                        };
                        head.push(byte);
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    noted.lock().unwrap().push(head);
                    let reply = match answer(&path) {
                        Reply::Whole(status, headers, body) => {
                            let length = body.len();
                            let head = format!(
                                "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
                            );
                            let mut reply = head.into_bytes();
                            reply.extend(body);
                            reply
                        }
                        Reply::Silent(length) => {
                            let head =
                                format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                            let _ = client.write_all(head.as_bytes()).await;
                            // Until the other side gives up.
                            let _ = client.read_u8().await;
                            return;
                        }
                    };
                    let _ = client.write_all(&reply).await;
                    let _ = client.shutdown().await;
                });
            }
        });
        Self {
            address,
            connections,
            heads,
            task,
        }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// Answers the n-th question for an address (of IPv4) with the n-th address, the last one ever after;
/// questions for IPv6 get `six`.
pub async fn name_server(
    four: Vec<[u8; 4]>,
    six: Option<[u8; 16]>,
) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut asked = 0;
        let mut buffer = [0; 2048];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
            let question = &buffer[..length];
            // The name ends with a zero length; kind and class follow.
            let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let kind = u16::from_be_bytes([question[end - 4], question[end - 3]]);
            let data: Option<Vec<u8>> = match kind {
                1 if !four.is_empty() => {
                    asked += 1;
                    Some(four[(asked - 1).min(four.len() - 1)].to_vec())
                }
                28 => six.map(|bytes| bytes.to_vec()),
                _ => None,
            };
            let mut answer = question[..2].to_vec();
            answer.extend([0x81, 0x80, 0, 1, 0, u8::from(data.is_some()), 0, 0, 0, 0]);
            answer.extend_from_slice(&question[12..end]);
            if let Some(data) = data {
                answer.extend([0xc0, 12]);
                answer.extend(kind.to_be_bytes());
                answer.extend([0, 1, 0, 0, 0, 0, 0, data.len() as u8]);
                answer.extend(data);
            }
            let _ = socket.send_to(&answer, peer).await;
        }
    });
    (address, task)
}
