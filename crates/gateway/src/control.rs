//! What the engine and the gateway process say to each other.
//!
//! The process is started with one [`Start`] over its standard input, descriptors attached, and
//! answers with one [`Reply`]. Afterwards each call is one connection to the control socket: a
//! frame there, a frame back. A [`Call::Watch`] stays open, so that each side learns of the other's
//! end. Frames are a length of four bytes, then JSON for what the process is told, which root writes, and
//! the fixed forms of [`reply`] for what it answers, which root reads.

pub mod reply;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use cove_model::SandboxId;
use cove_model::egress::{EgressEntry, EgressQuery};
use cove_model::network::Cidr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use self::reply::{BadReply, REPLY_BYTES_MAX};
pub use self::reply::{Hello, Reply};
use crate::journal::Kept;
use crate::limits::Limits;
use crate::policy::Policy;

/// Raised when a message changes its meaning. A gateway of another version is replaced.
pub const VERSION: u32 = 2;
/// Room for every policy of a full host in one table.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    pub version: u32,
    pub instance: String,
    /// What the program was built from; told back on [`Call::Hello`].
    pub build: String,
    /// Who to become.
    pub uid: u32,
    pub gid: u32,
    /// Who may use the control socket, besides root.
    pub owner: u32,
    pub upstreams: Vec<SocketAddr>,
    pub reserved: Vec<Cidr>,
    pub limits: Limits,
    pub table: Vec<Placed>,
    /// What earlier processes logged.
    pub logs: Vec<Kept>,
    /// What the sockets are bound to; told back on [`Call::Hello`].
    pub dns: SocketAddrV4,
    pub proxy: SocketAddrV4,
}

/// A sandbox at its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub address: Ipv4Addr,
    pub sandbox: SandboxId,
    /// The organisation whose sandbox it is; empty where nobody said.
    #[serde(default)]
    pub owner: String,
    pub policy: Policy,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub version: u32,
    pub instance: String,
    pub call: Call,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Call {
    Hello,
    /// Never answered after its first `Done`; ends when either side does.
    Watch,
    Place(Placed),
    Remove {
        address: Ipv4Addr,
    },
    /// The whole table; what is not in it goes.
    Replace(Vec<Placed>),
    Forget {
        sandbox: SandboxId,
    },
    Append(Vec<(Ipv4Addr, EgressEntry)>),
    Egress(EgressQuery),
    Upstreams(Vec<SocketAddr>),
    Stop,
}

pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    frame(&serde_json::to_vec(message)?)
}

fn frame(body: &[u8]) -> io::Result<Vec<u8>> {
    if body.len() > FRAME_BYTES_MAX {
        return Err(io::Error::other("the message is too long"));
    }
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    Ok([&length.to_be_bytes(), body].concat())
}

pub async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    stream.write_all(&encode(message)?).await
}

pub async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let body = body(stream, FRAME_BYTES_MAX).await?;
    Ok(serde_json::from_slice(&body)?)
}

pub async fn write_reply(stream: &mut (impl AsyncWrite + Unpin), reply: &Reply) -> io::Result<()> {
    stream.write_all(&frame(&reply.encode())?).await
}

pub async fn read_reply(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Reply> {
    let body = body(stream, REPLY_BYTES_MAX).await?;
    Reply::decode(&body).map_err(invalid)
}

async fn body(stream: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<Vec<u8>> {
    let length = within(stream.read_u32().await?, most)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

/// [`read`] for where there is no runtime yet.
pub fn read_blocking<T: DeserializeOwned>(stream: &mut impl io::Read) -> io::Result<T> {
    let body = body_blocking(stream, FRAME_BYTES_MAX)?;
    Ok(serde_json::from_slice(&body)?)
}

/// [`write_reply`] likewise.
pub fn write_reply_blocking(stream: &mut impl io::Write, reply: &Reply) -> io::Result<()> {
    stream.write_all(&frame(&reply.encode())?)
}

/// [`read_reply`] likewise.
pub fn read_reply_blocking(stream: &mut impl io::Read) -> io::Result<Reply> {
    let body = body_blocking(stream, REPLY_BYTES_MAX)?;
    Reply::decode(&body).map_err(invalid)
}

fn body_blocking(stream: &mut impl io::Read, most: usize) -> io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; within(u32::from_be_bytes(header), most)?];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn invalid(error: BadReply) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn within(announced: u32, most: usize) -> io::Result<usize> {
    match usize::try_from(announced) {
        Ok(length) if length <= most => Ok(length),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the message is too long",
        )),
    }
}
