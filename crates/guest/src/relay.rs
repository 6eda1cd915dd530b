//! Connections to TCP ports inside, carried over a call.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use cove_protocol::message::{ConnectPort, ErrorCode, InputKind, ReplyKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::call::{Call, Ended, Receiver, Sender};
use crate::failure::Failure;
use crate::state::State;

/// Loopback answers at once, unless its backlog is full.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may go on when a capture waits for it to end.
const CAPTURE_GRACE: Duration = Duration::from_millis(300);
/// Read from the port at once.
const CHUNK: usize = 64 * 1024;

pub async fn serve(state: &Rc<State>, call: &mut Call, request: ConnectPort) -> Result<(), Ended> {
    let port = u16::try_from(request.port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Failure::invalid(format!("{} is not a port", request.port)))?;
    let socket = connect(port).await?;
    // Small messages must not wait for each other.
    let _ = socket.set_nodelay(true);
    call.done(0).await?;
    let (from_port, to_port) = socket.into_split();
    let (sender, receiver) = call.split();
    // Each direction ends by itself; a caller that is gone ends both.
    let carried = async { tokio::try_join!(inward(receiver, to_port), outward(sender, from_port)) };
    tokio::select! {
        carried = carried => carried.map(drop),
        // Such a connection cannot be taken up again. What is under way gets a moment to end.
        () = overstayed(state) => Err(Ended::Lost),
    }
}

async fn overstayed(state: &State) {
    state.quiet.begun().await;
    tokio::time::sleep(CAPTURE_GRACE).await;
}

async fn connect(port: u16) -> Result<TcpStream, Failure> {
    let mut reason = None;
    for address in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ] {
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            // What the first address says is what a person expects to read.
            Ok(Err(error)) => reason = reason.or(Some(error)),
            Err(_) => reason = reason.or(Some(std::io::ErrorKind::TimedOut.into())),
        }
    }
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    Err(Failure::new(
        ErrorCode::ConnectionRefused,
        format!("nothing answers on port {port}{reason}"),
    ))
}

async fn inward(mut call: Receiver<'_>, mut port: OwnedWriteHalf) -> Result<(), Ended> {
    let mut open = true;
    loop {
        match call.input().await?.kind {
            // After the port stopped listening the rest is let go: its own end will be reported.
            Some(InputKind::Data(data)) => open = open && port.write_all(&data).await.is_ok(),
            Some(InputKind::End(_)) => {
                // A port that is gone already needs no goodbye.
                let _ = port.shutdown().await;
                return Ok(());
            }
            _ => return Err(Ended::Lost),
        }
    }
}

async fn outward(mut call: Sender<'_>, mut port: OwnedReadHalf) -> Result<(), Ended> {
    let mut sent = 0;
    let mut buffer = bytes::BytesMut::new();
    loop {
        buffer.reserve(CHUNK);
        // A reset connection has nothing more to say either.
        let count = port.read_buf(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            call.done(sent).await?;
            return Ok(());
        }
        sent += count as u64;
        let data: Bytes = buffer.split().freeze();
        call.reply(ReplyKind::Data(data)).await?;
    }
}
