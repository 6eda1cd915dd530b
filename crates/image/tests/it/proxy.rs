//! Stands between the store and a registry: notes every request, can cut an answer short, and can
//! ask for a token first.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[derive(Default, Clone)]
pub struct Options {
    /// The first answer to a request for a blob of at least this many bytes ends after so many.
    pub cut_after: Option<usize>,
    /// Who asks for the blob that was cut again gets no answer any more.
    pub cut_for_good: bool,
    /// Requests need a token, which costs this name and password.
    pub token_for: Option<(&'static str, &'static str)>,
}

pub struct Proxy {
    pub port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

/// The cut that is still to be made, and where one was made.
struct Cut {
    after: Option<usize>,
    path: Option<String>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    pub async fn start(upstream: u16, options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let cut = Arc::new(Mutex::new(Cut {
            after: options.cut_after,
            path: None,
        }));
        let log = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (log, cut, options) = (Arc::clone(&log), Arc::clone(&cut), options.clone());
                tokio::spawn(async move {
                    // A client that hangs up ends the connection, which is all there is to do.
                    let _ = serve(client, port, upstream, &log, &cut, &options).await;
                });
            }
        });
        Self {
            port,
            requests,
            task,
        }
    }

    pub fn reference(&self, image: &str) -> String {
        format!("127.0.0.1:{}/{image}", self.port)
    }

    /// The heads of all requests so far whose first line has these words.
    pub fn requests(&self, words: &str) -> Vec<String> {
        let all = self.requests.lock().unwrap();
        all.iter()
            .filter(|head| head.lines().next().unwrap_or_default().contains(words))
            .cloned()
            .collect()
    }
}

async fn serve(
    mut client: TcpStream,
    port: u16,
    upstream: u16,
    log: &Mutex<Vec<String>>,
    cut: &Mutex<Cut>,
    options: &Options,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    log.lock().unwrap().push(head.clone());
    let lower = head.to_ascii_lowercase();
    if let Some((name, password)) = options.token_for {
        use base64::Engine;
        let basic = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
        let answer = if head.starts_with("GET /token?") {
            let good =
                head.contains(&format!("Basic {basic}")) && head.contains("scope=repository%3A");
            if good {
                answer("200 OK", "", "{\"token\":\"sesame\"}")
            } else {
                answer("401 Unauthorized", "", "")
            }
        } else if lower.contains("authorization: bearer sesame") {
            String::new()
        } else {
            let challenge = format!(
                "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"test\"\r\n"
            );
            answer("401 Unauthorized", &challenge, "")
        };
        if !answer.is_empty() {
            return client.write_all(answer.as_bytes()).await;
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    if options.cut_for_good && cut.lock().unwrap().path.as_ref() == Some(&path) {
        return Ok(());
    }
    let mut server = TcpStream::connect(("127.0.0.1", upstream)).await?;
    let once = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    server.write_all(once.as_bytes()).await?;
    let is_blob = head.lines().next().unwrap_or_default().contains("/blobs/");
    let mut sent = 0;
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = server.read(&mut buffer).await?;
        if count == 0 {
            return client.shutdown().await;
        }
        let limit = cut.lock().unwrap().after;
        if let Some(limit) = limit.filter(|limit| is_blob && sent + count > *limit) {
            *cut.lock().unwrap() = Cut {
                after: None,
                path: Some(path),
            };
            client.write_all(&buffer[..limit - sent]).await?;
            return client.shutdown().await;
        }
        client.write_all(&buffer[..count]).await?;
        sent += count;
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
