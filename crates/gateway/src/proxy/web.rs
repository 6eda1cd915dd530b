//! Plain HTTP/1: every request is read before it is passed on, answers are spliced.
//!
//! All requests of a connection must be for the host of the first; clients keep connections per
//! host, so this only meets those who try. A websocket may take over a connection with its first
//! request, once the server has agreed to that.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cove_model::network::Name;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::buffer::Buffer;
use super::dial::Dialled;
use super::{HalfOpen, Proxy, Refusal, finish, log_allowed, log_denied, relay, reset};
use crate::http::{self, Body, Chunks, HEAD_BYTES_MAX, Head};
use crate::policy::Denied;
use crate::state::Sandbox;

/// What is read of a refused client's request so that it hears the answer.
const DRAIN_MAX: Duration = Duration::from_secs(1);
const DRAIN_BYTES_MAX: usize = 64 * 1024;
const SWITCHED: &[u8] = b"HTTP/1.1 101 ";

pub(super) async fn carry(
    proxy: &Proxy,
    client: TcpStream,
    target: SocketAddrV4,
    sandbox: &Arc<Sandbox>,
    half: HalfOpen,
) {
    let mut buffer = Buffer::default();
    let patience = proxy.world.limits.hello();
    let first = timeout(patience, read_head(&client, &mut buffer)).await;
    let first = first.unwrap_or(Err(Refusal::Slow));
    let name = first.as_ref().ok().map(|head| head.host.clone());
    let begun = match first {
        Ok(head) => begin(proxy, &head, target, sandbox)
            .await
            .map(|dialled| (head, dialled)),
        Err(refusal) => Err(refusal),
    };
    let (head, dialled) = match begun {
        Ok(begun) => begun,
        Err(refusal) => {
            log_denied(sandbox, name.as_ref(), target, &refusal);
            return refuse(&client, name.as_ref(), &refusal).await;
        }
    };
    drop(half);
    let sequence = log_allowed(sandbox, &dialled);
    let host = head.host.clone();
    let exchange = Exchange {
        proxy,
        client: &client,
        dialled: &dialled,
        sandbox,
        host: &host,
        patience,
    };
    let ended = tokio::select! {
        ended = exchange.run(buffer, head) => ended,
        () = dialled.ticket.cut.wait() => Err(Refusal::Policy(Denied::NotListed)),
    };
    if let Err(refusal) = ended {
        log_denied(sandbox, Some(&host), target, &refusal);
        reset(&client);
        reset(&dialled.stream);
    }
    finish(sandbox, sequence, &dialled.ticket, None);
}

async fn begin(
    proxy: &Proxy,
    head: &Head,
    target: SocketAddrV4,
    sandbox: &Arc<Sandbox>,
) -> Result<Dialled, Refusal> {
    if let Some(port) = head.port.filter(|port| *port != target.port()) {
        return Err(Refusal::OtherPort(port));
    }
    let route = proxy.by_name(&head.host, target, sandbox).await?;
    proxy
        .dial(route, target.port(), sandbox)
        .await
        .map_err(|(_, refusal)| refusal)
}

async fn read_head(client: &TcpStream, buffer: &mut Buffer) -> Result<Head, Refusal> {
    loop {
        if let Some(head) = http::head(buffer.bytes())? {
            return Ok(head);
        }
        let read = buffer.read(client, HEAD_BYTES_MAX).await;
        if read.map_err(|_| Refusal::Gone)? == 0 {
            return Err(Refusal::Gone);
        }
    }
}

struct Exchange<'a> {
    proxy: &'a Proxy,
    client: &'a TcpStream,
    dialled: &'a Dialled,
    sandbox: &'a Sandbox,
    host: &'a Name,
    patience: Duration,
}

impl Exchange<'_> {
    async fn run(&self, mut buffer: Buffer, head: Head) -> Result<(), Refusal> {
        let mut first = Some(head);
        if first.as_ref().is_some_and(|head| head.upgrade) {
            let length = first.take().map_or(0, |head| head.length);
            self.send(&buffer.take_first(length)).await?;
            if self.is_switched().await? {
                self.send(&buffer.take()).await?;
                let (sent, received) = (&self.dialled.ticket.sent, &self.dialled.ticket.received);
                let (server, pipes) = (&self.dialled.stream, &self.proxy.pipes);
                return relay::both_ways(self.client, server, pipes, self.sandbox, sent, received)
                    .await
                    .map_err(|_| Refusal::Gone);
            }
        }
        let answers = relay::one_way(
            &self.dialled.stream,
            self.client,
            &self.proxy.pipes,
            self.sandbox,
            &self.dialled.ticket.received,
        );
        tokio::pin!(answers);
        tokio::select! {
            // A server that has said all takes no further request.
            ended = &mut answers => return ended.map_err(|_| Refusal::Gone),
            ended = self.requests(buffer, first) => ended?,
        }
        answers.await.map_err(|_| Refusal::Gone)
    }

    async fn requests(&self, mut buffer: Buffer, first: Option<Head>) -> Result<(), Refusal> {
        let mut head = first;
        loop {
            let next = match head.take() {
                Some(head) => head,
                None => match self.next_head(&mut buffer).await? {
                    Some(head) => head,
                    None => {
                        use std::os::fd::AsFd;
                        let server = self.dialled.stream.as_fd();
                        // The server may have closed already, which is an end as well.
                        let _ = rustix::net::shutdown(server, rustix::net::Shutdown::Write);
                        return Ok(());
                    }
                },
            };
            self.send(&buffer.take_first(next.length)).await?;
            match next.body {
                Body::None => {}
                Body::Length(bytes) => self.body(&mut buffer, bytes).await?,
                Body::Chunked => self.chunks(&mut buffer).await?,
            }
        }
    }

    /// `None`: the client has no more to ask. It may take its time to begin, but not to end.
    async fn next_head(&self, buffer: &mut Buffer) -> Result<Option<Head>, Refusal> {
        if buffer.is_empty() {
            let read = buffer.read(self.client, HEAD_BYTES_MAX).await;
            if read.map_err(|_| Refusal::Gone)? == 0 {
                return Ok(None);
            }
        }
        let head = timeout(self.patience, read_head(self.client, buffer)).await;
        let head = head.unwrap_or(Err(Refusal::Slow))?;
        let port = self.dialled.port;
        if let Some(other) = head.port.filter(|other| *other != port) {
            return Err(Refusal::OtherPort(other));
        }
        if head.host != *self.host {
            return Err(Refusal::OtherHost);
        }
        if head.upgrade {
            return Err(Refusal::Http(http::Refused::Upgrade));
        }
        Ok(Some(head))
    }

    async fn body(&self, buffer: &mut Buffer, bytes: u64) -> Result<(), Refusal> {
        let held = buffer.bytes().len();
        let first = usize::try_from(bytes).map_or(held, |bytes| bytes.min(held));
        self.send(&buffer.take_first(first)).await?;
        let left = bytes - first as u64;
        let (from, to) = (self.client, &self.dialled.stream);
        let sent = &self.dialled.ticket.sent;
        relay::exactly(left, from, to, &self.proxy.pipes, self.sandbox, sent)
            .await
            .map_err(|_| Refusal::Gone)
    }

    async fn chunks(&self, buffer: &mut Buffer) -> Result<(), Refusal> {
        let mut chunks = Chunks::default();
        loop {
            let taken = chunks.take(buffer.bytes())?;
            self.send(&buffer.take_first(taken)).await?;
            if chunks.done() {
                return Ok(());
            }
            let read = buffer.read(self.client, HEAD_BYTES_MAX).await;
            if read.map_err(|_| Refusal::Gone)? == 0 {
                return Err(Refusal::Gone);
            }
        }
    }

    async fn send(&self, bytes: &[u8]) -> Result<(), Refusal> {
        let sent = relay::write_all(&self.dialled.stream, bytes).await;
        let sent = sent.map_err(|_| Refusal::Gone)?;
        self.dialled.ticket.sent.fetch_add(sent, Ordering::Relaxed);
        Ok(())
    }

    /// Passes on the beginning of the server's answer, which tells whether the client may now say
    /// anything, or goes on with requests.
    async fn is_switched(&self) -> Result<bool, Refusal> {
        let mut answer = Buffer::default();
        let complete = |bytes: &[u8]| bytes.len() >= SWITCHED.len() || !SWITCHED.starts_with(bytes);
        while !complete(answer.bytes()) {
            let read = answer.read(&self.dialled.stream, HEAD_BYTES_MAX).await;
            if read.map_err(|_| Refusal::Gone)? == 0 {
                break;
            }
        }
        let switched = answer.bytes().starts_with(SWITCHED);
        let passed = relay::write_all(self.client, &answer.take()).await;
        let passed = passed.map_err(|_| Refusal::Gone)?;
        let received = &self.dialled.ticket.received;
        received.fetch_add(passed, Ordering::Relaxed);
        Ok(switched)
    }
}

/// Tells the client why, in words.
async fn refuse(client: &TcpStream, name: Option<&Name>, refusal: &Refusal) {
    let status = match refusal {
        Refusal::Http(http::Refused::NotHttp) | Refusal::Gone | Refusal::Limit(_) => {
            return reset(client);
        }
        Refusal::Slow => "408 Request Timeout",
        Refusal::Http(_) => "400 Bad Request",
        Refusal::Undialled(_) | Refusal::Unresolved(_) => "502 Bad Gateway",
        _ => "403 Forbidden",
    };
    let host = name.map_or("this request", Name::as_str);
    let text = format!("cove network policy: {host}: {refusal}\n");
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    let told = async {
        relay::write_all(client, answer.as_bytes()).await?;
        use std::os::fd::AsFd;
        rustix::net::shutdown(client.as_fd(), rustix::net::Shutdown::Write)?;
        // Closing with bytes unread would reset the connection and take the answer with it.
        let mut read = 0;
        while read < DRAIN_BYTES_MAX {
            let mut rest = Buffer::default();
            match rest.read(client, DRAIN_BYTES_MAX).await? {
                0 => break,
                count => read += count,
            }
        }
        std::io::Result::Ok(())
    };
    if !matches!(timeout(DRAIN_MAX, told).await, Ok(Ok(()))) {
        reset(client);
    }
}
