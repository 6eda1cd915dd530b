//! What the engine and the gateway process say to each other.
//!
//! The process is started with one [`Start`] over its standard input, descriptors attached, and
//! answers with one [`Started`]. Afterwards each call is one connection to the control socket: a
//! frame there, a frame back. A [`Call::Watch`] stays open, so that each side learns of the other's
//! end. Frames are a length of four bytes, then JSON.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use cove_model::SandboxId;
use cove_model::network::Cidr;
use cove_runner::{EgressBatch, EgressEntry, EgressQuery};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::journal::Kept;
use crate::limits::Limits;
use crate::policy::Policy;

/// Raised when a message changes its meaning. A gateway of another version is replaced.
pub const VERSION: u32 = 1;
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

#[derive(Debug, Serialize, Deserialize)]
pub enum Started {
    Serving,
    Failed { message: String },
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

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Hello(Hello),
    Egress(EgressBatch),
    /// The log of that sandbox is not here.
    Unknown,
    Refused {
        message: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    pub instance: String,
    pub build: String,
    pub pid: u32,
    pub sandboxes: usize,
    pub connections: usize,
    pub dns: SocketAddrV4,
    pub proxy: SocketAddrV4,
}

pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("the message is too long"));
    }
    let length = u32::try_from(length).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

pub async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    stream.write_all(&encode(message)?).await
}

pub async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = length(stream.read_u32().await?)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// [`read`] for where there is no runtime yet.
pub fn read_blocking<T: DeserializeOwned>(stream: &mut impl io::Read) -> io::Result<T> {
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; length(u32::from_be_bytes(header))?];
    stream.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

fn length(announced: u32) -> io::Result<usize> {
    let length = usize::try_from(announced).map_err(io::Error::other)?;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("the message is too long"));
    }
    Ok(length)
}
