//! What the engine and the gateway process say to each other.
//!
//! The process is started with one [`Start`] over its standard input, descriptors attached, and
//! answers with one [`Reply`]. Afterwards each call is one connection to the control socket: a
//! frame there, a frame back. A [`Call::Watch`] stays open, so that each side learns of the other's
//! end. Frames carry JSON for what the process is sent, which root writes, and the fixed forms of [`reply`] for
//! what it answers, which root reads. A message names what the process must be able to enforce ([`needs`]).

pub mod needs;
#[cfg(test)]
mod recorded;
pub mod reply;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use cove_model::SandboxId;
use cove_model::egress::{EgressEntry, EgressQuery};
use cove_model::network::Cidr;
use cove_model::secret::SecretHost;
use cove_wire::frame::{GATEWAY_CALL, GATEWAY_REPLY};
use cove_wire::{Layout, blocking, stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use self::reply::{BadReply, REPLY_BYTES_MAX};
pub use self::reply::{Hello, Reply};
use crate::journal::Kept;
use crate::limits::Limits;
use crate::policy::Policy;

/// Raised when a message changes its meaning. Version 3 added `needs` and the features in a [`Hello`].
pub const VERSION: u32 = 3;
/// The oldest version that an engine adopts, and that a process serves: what it knows, all of them know.
pub const OLDEST: u32 = 2;

/// A process says no more than it can.
const REPLY: Layout = GATEWAY_REPLY.at_most(REPLY_BYTES_MAX);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Exactly [`VERSION`]: an engine starts the program that it carries.
    pub version: u32,
    /// What the process must be able to enforce.
    #[serde(default)]
    pub needs: Vec<String>,
    pub instance: String,
    /// What the program was built from; sent back on [`Call::Hello`].
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
    /// What the sockets are bound to; sent back on [`Call::Hello`].
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
    /// Absent: it holds no secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination: Option<Termination>,
}

/// Connections that the terminator of the sandbox's organisation gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Termination {
    /// The terminator's socket, a name of the abstract kind.
    pub socket: String,
    pub hosts: Vec<SecretHost>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The lowest that can carry the call; see [`Request::new`].
    pub version: u32,
    pub instance: String,
    /// What the process must be able to enforce. One of version 2 does not look at it.
    #[serde(default)]
    pub needs: Vec<String>,
    pub call: Call,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
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
    let body = serde_json::to_vec(message)?;
    Ok(blocking::whole(GATEWAY_CALL, 0, &body)?)
}

pub async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    stream.write_all(&encode(message)?).await
}

pub async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let (_, body) = stream::read(stream, GATEWAY_CALL).await?;
    Ok(serde_json::from_slice(&body)?)
}

pub async fn write_reply(stream: &mut (impl AsyncWrite + Unpin), reply: &Reply) -> io::Result<()> {
    Ok(stream::write(stream, REPLY, 0, &reply.encode()).await?)
}

pub async fn read_reply(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Reply> {
    let (_, body) = stream::read(stream, REPLY).await?;
    Reply::decode(&body).map_err(invalid)
}

/// [`read`] for where there is no runtime yet.
pub fn read_blocking<T: DeserializeOwned>(stream: &mut impl io::Read) -> io::Result<T> {
    let (_, body) = blocking::read(stream, GATEWAY_CALL)?;
    Ok(serde_json::from_slice(&body)?)
}

/// [`write_reply`] likewise.
pub fn write_reply_blocking(stream: &mut impl io::Write, reply: &Reply) -> io::Result<()> {
    Ok(blocking::write(stream, REPLY, 0, &reply.encode())?)
}

/// [`read_reply`] likewise.
pub fn read_reply_blocking(stream: &mut impl io::Read) -> io::Result<Reply> {
    let (_, body) = blocking::read(stream, REPLY)?;
    Reply::decode(&body).map_err(invalid)
}

fn invalid(error: BadReply) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
