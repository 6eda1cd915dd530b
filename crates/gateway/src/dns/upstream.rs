//! Asks the host's resolvers: over UDP from a fresh port with a random number, over TCP when the
//! answer is too long for that.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use parking_lot::RwLock;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::wire::{self, Upstream, WireName};
use crate::limits::UPSTREAMS_MAX;

/// How long one resolver may take for one try.
const TRY: Duration = Duration::from_millis(1500);
/// Each resolver is asked that many times, in turn.
const ROUNDS: usize = 2;
/// How long a question waits for others to be answered before it is given up.
pub const SLOT_WAIT: Duration = Duration::from_secs(2);
/// Packets that are not our answer before a try is given up.
const STRAY_PACKETS_MAX: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("the host has no resolver")]
    None,
    #[error("the host's resolvers do not answer")]
    Silent(#[source] io::Error),
    #[error("too many questions wait for the host's resolvers")]
    Busy,
}

#[derive(Debug)]
pub struct Upstreams {
    servers: RwLock<Vec<SocketAddr>>,
}

impl Upstreams {
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        let upstreams = Self {
            servers: RwLock::default(),
        };
        upstreams.set(servers);
        upstreams
    }

    pub fn set(&self, mut servers: Vec<SocketAddr>) {
        servers.truncate(UPSTREAMS_MAX);
        *self.servers.write() = servers;
    }

    pub async fn ask(&self, name: &WireName, kind: u16) -> Result<Upstream, UpstreamError> {
        let servers = self.servers.read().clone();
        let mut last = None;
        let mut failure = None;
        for _ in 0..ROUNDS {
            for server in &servers {
                match timeout(TRY, one(*server, name, kind)).await {
                    Ok(Ok(answer)) if answer.code == wire::SERVER_FAILURE => failure = Some(answer),
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => last = Some(error),
                    Err(_) => last = Some(io::ErrorKind::TimedOut.into()),
                }
            }
            if let Some(failure) = failure {
                return Ok(failure);
            }
        }
        Err(last.map_or(UpstreamError::None, UpstreamError::Silent))
    }
}

async fn one(server: SocketAddr, name: &WireName, kind: u16) -> io::Result<Upstream> {
    let id = random_id()?;
    let question = wire::encode_query(id, name, kind);
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connected, so that packets from elsewhere never arrive.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(&question).await?;
    let mut buffer = vec![0; usize::from(wire::UDP_BYTES)];
    for _ in 0..STRAY_PACKETS_MAX {
        let length = socket.recv(&mut buffer).await?;
        match wire::parse_upstream(&buffer[..length], id, name, kind) {
            Ok(Some(answer)) if answer.truncated => {
                return by_stream(server, id, &question, name, kind).await;
            }
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) | Err(_) => {}
        }
    }
    Err(io::Error::other("only strange packets came back"))
}

/// Straight from the kernel: a confined process has no file to read randomness from.
fn random_id() -> io::Result<u16> {
    let mut bytes = [0; 2];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(u16::from_ne_bytes(bytes))
}

async fn by_stream(
    server: SocketAddr,
    id: u16,
    question: &[u8],
    name: &WireName,
    kind: u16,
) -> io::Result<Upstream> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(question);
    stream.write_all(&message).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; usize::from(length)];
    stream.read_exact(&mut buffer).await?;
    match wire::parse_upstream(&buffer, id, name, kind) {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(io::Error::other("the answer is to another question")),
        Err(bad) => Err(io::Error::other(bad)),
    }
}
