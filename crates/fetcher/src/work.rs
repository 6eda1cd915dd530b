//! The program's work: looks up the image, then sends the layers its parent asks for, until the parent
//! has enough and closes the socket.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::Mutex;

use crate::blob::Blob;
use crate::client::Client;
use crate::wire::{HEADER_BYTES, Header, Order, Reply, Request};

/// The way to the parent.
pub struct Parent(Mutex<OwnedWriteHalf>);

impl Parent {
    /// A parent that no longer reads ends this process, so a failed write changes nothing.
    pub async fn send(&self, reply: &Reply) {
        let frame = reply.encode();
        let _ = self.0.lock().await.write_all(&frame).await;
    }
}

pub async fn run(parent: StdStream, order: Order) -> io::Result<()> {
    let (mut requests, replies) = UnixStream::from_std(parent)?.into_split();
    let parent = Arc::new(Parent(Mutex::new(replies)));
    let found = match Client::new(&order) {
        Ok(client) => client
            .resolve(&order)
            .await
            .map(|manifest| (client, manifest)),
        Err(error) => Err(error),
    };
    let client = match found {
        Ok((client, manifest)) => {
            parent.send(&Reply::Resolved(Box::new(manifest))).await;
            Arc::new(client)
        }
        Err(error) => {
            parent.send(&Reply::Failed(error)).await;
            return Ok(());
        }
    };
    loop {
        let mut header = [0; HEADER_BYTES];
        match requests.read_exact(&mut header).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        };
        let header = Header::of_request(header).map_err(io::Error::other)?;
        let mut payload = vec![0; header.length];
        requests.read_exact(&mut payload).await?;
        let request = Request::decode(header, &payload).map_err(io::Error::other)?;
        let Request::Blob {
            stream,
            digest,
            size,
            from,
        } = request
        else {
            return Err(io::Error::other("there is one order only"));
        };
        let blob = Blob {
            stream,
            digest,
            size,
            length: from,
        };
        let (client, parent) = (Arc::clone(&client), Arc::clone(&parent));
        tokio::spawn(async move {
            let result = client.send_blob(blob, &parent).await;
            parent.send(&Reply::End { stream, result }).await;
        });
    }
}
