//! Standard input on its way into a sandbox.

use std::io::Read;

use bytes::Bytes;
use cove_client::Client;
use tokio::sync::mpsc;

/// Read at once, and chunks read ahead of the sandbox.
const CHUNK: usize = 128 * 1024;
const AHEAD: usize = 4;

/// Chunks of standard input; the channel closes at its end. The reading thread is left behind when
/// nobody wants more.
pub fn chunks() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = vec![0; CHUNK];
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    if sender
                        .blocking_send(Bytes::copy_from_slice(&buffer[..count]))
                        .is_err()
                    {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    receiver
}

/// Feeds a process until the input's end, or until it takes no more; both are fine.
pub async fn feed(client: &Client, sandbox: &str, process: &str) {
    let mut chunks = chunks();
    while let Some(chunk) = chunks.recv().await {
        if client
            .write_stdin(sandbox, process, chunk, false)
            .await
            .is_err()
        {
            return;
        }
    }
    client
        .write_stdin(sandbox, process, Bytes::new(), true)
        .await
        .ok();
}
