//! The process's life after it is confined.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cove_model::network::Name;
use cove_vault::OpenedKeys;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::carry::{Counted, Counts, Distrusted, Route, carry};
use super::certificates::Certificates;
use super::table::Table;
use crate::call::{self, Call, Reply, Revealed, Start};
use crate::handover::{self, DISTRUSTED};

/// Connections at once; the limit of a sandbox and the gateway's own come first.
const CONNECTIONS_MAX: usize = 4096;
/// How long the gateway may take to say what it hands over.
const HANDOVER: Duration = Duration::from_secs(5);
/// How long to rest when descriptors or memory run out.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Config {
    gateway_uid: u32,
    table: Arc<Table>,
    certificates: Arc<Certificates>,
}

impl Config {
    /// Takes the keys out of the message; what is left of it in memory is overwritten with the process's end.
    pub fn new(start: &Start) -> io::Result<Self> {
        let bytes = |text: &str| STANDARD.decode(text).map_err(io::Error::other);
        let keys = OpenedKeys::from_parts(bytes(&start.opening)?, bytes(&start.authority)?);
        let hold = Duration::from_secs(start.approval_hold_s);
        let certificates = Certificates::new(start.org.as_str(), &keys, &start.roots)?;
        Ok(Self {
            gateway_uid: start.gateway_uid,
            table: Arc::new(Table::new(start.org.clone(), keys, hold)),
            certificates: Arc::new(certificates),
        })
    }
}

/// Until the engine that started it is gone.
pub async fn serve(
    config: Config,
    listener: UnixListener,
    mut engine: UnixStream,
    bell: UnixStream,
) -> io::Result<()> {
    config.table.hang_bell(bell);
    let (table, certificates) = (config.table.clone(), config.certificates.clone());
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    tokio::spawn(async move {
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return;
            };
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // The name of the socket is no secret; who is on the other end is asked of the kernel.
            let peer = stream.peer_cred().map(|peer| peer.uid());
            if peer.ok() != Some(config.gateway_uid) {
                continue;
            }
            let (table, certificates) = (table.clone(), certificates.clone());
            tokio::spawn(async move {
                let _permit = permit;
                let _ = take_over(&table, &certificates, stream).await;
            });
        }
    });
    call::write_reply(&mut engine, &Reply::Done).await?;
    loop {
        let reply = match call::read(&mut engine).await {
            Ok(Call::Secrets(secrets)) => match config.table.set_secrets(secrets) {
                true => Reply::Done,
                false => Reply::Refused,
            },
            Ok(Call::Place(placed)) => {
                config.table.place(placed);
                Reply::Done
            }
            Ok(Call::Remove(sandbox)) => {
                config.table.remove(&sandbox);
                Reply::Done
            }
            Ok(Call::Reveal { sandbox, secret }) => match config.table.reveal(&sandbox, &secret) {
                Some(value) => Reply::Value(Revealed(value)),
                None => Reply::Refused,
            },
            Ok(Call::Asked { after }) => Reply::Asked(config.table.asked(after.as_ref())),
            Ok(Call::Decide { approval, decision }) => {
                Reply::Decided(config.table.decide(&approval, decision))
            }
            Ok(Call::Wanted) => Reply::Wanted(config.table.take_wanted()),
            Ok(Call::Grant(granted)) => {
                config.table.grant(&granted);
                Reply::Done
            }
            Ok(Call::Uses) => Reply::Uses(config.table.take_uses()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        call::write_reply(&mut engine, &reply).await?;
    }
}

pub(super) async fn take_over(
    table: &Arc<Table>,
    certificates: &Certificates,
    mut gateway: UnixStream,
) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let taken = timeout(HANDOVER, handover::receive(&gateway)).await;
    let (message, client, server) = taken.map_err(late)??;
    let tcp = |socket: std::os::fd::OwnedFd| -> io::Result<TcpStream> {
        let socket = std::net::TcpStream::from(socket);
        socket.set_nonblocking(true)?;
        TcpStream::from_std(socket)
    };
    let route = Route {
        host: Name::from_text(&message.host).map_err(io::Error::other)?,
        port: message.port,
    };
    let hello = message.hello()?;
    let counts = Arc::new(Counts::default());
    let client = Counted::client(hello, tcp(client)?);
    let server = Counted::server(tcp(server)?, counts.clone());
    let full = || io::Error::other("the sandbox has too many connections");
    let connection = table.connect(message.sandbox).ok_or_else(full)?;
    let carrying = carry(certificates, connection, route, client, server);
    // The gateway says nothing more: when it closes its end, or is gone, the connection must end too.
    let carried = tokio::select! {
        carried = carrying => carried,
        _ = gateway.read_u8() => return Err(io::ErrorKind::ConnectionAborted.into()),
    };
    let counted = [&counts.sent, &counts.received].map(|it| it.load(Ordering::Relaxed));
    let mut told = counted.map(u64::to_le_bytes).concat();
    let distrusted = carried.as_ref().is_err_and(Distrusted::is);
    told.push(if distrusted { DISTRUSTED } else { 0 });
    // A gateway that has gone does not want to know.
    let _ = gateway.write_all(&told).await;
    carried
}
