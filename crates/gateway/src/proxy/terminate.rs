//! Hands a connection to a bound host to its organisation's terminator. Which host that is, where it leads and
//! whether the policy allows it was decided here, as for every connection; cutting it stays with us too.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cove_model::network::Name;
use cove_terminator::handover::{self, COUNTS, DISTRUSTED, Handover};
use rustix::net::Shutdown;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::dial::Dialled;
use super::{finish, log_allowed, reset};
use crate::control::Termination;
use crate::state::Sandbox;

/// How long the terminator may take to take it.
const PATIENCE: Duration = Duration::from_secs(5);

/// In the log, for the owner of a program that pins the certificate of a host which a secret is bound to.
const DISTRUSTS: &str = "the client refused the certificate of the organisation's authority: it pins another one or \
                         has its own roots; it cannot reach a host that a secret is bound to";

/// How a connection ended.
struct Ended {
    sent: u64,
    received: u64,
    distrusted: bool,
}

pub(super) async fn hand_over(
    client: TcpStream,
    dialled: Dialled,
    sandbox: &Arc<Sandbox>,
    termination: &Termination,
    hello: &[u8],
) {
    let sequence = log_allowed(sandbox, &dialled);
    let carried = carry(&client, &dialled, sandbox, termination, hello).await;
    let mut fault = None;
    if let Ok(ended) = &carried {
        dialled.ticket.sent.store(ended.sent, Ordering::Relaxed);
        dialled
            .ticket
            .received
            .store(ended.received, Ordering::Relaxed);
        fault = ended.distrusted.then_some(DISTRUSTS);
    }
    // The terminator has copies of both: closing ours alone would not end them.
    for socket in [&client, &dialled.stream] {
        if carried.is_err() {
            reset(socket);
        }
        let _ = rustix::net::shutdown(socket.as_fd(), Shutdown::Both);
    }
    finish(sandbox, sequence, &dialled.ticket, fault);
}

async fn carry(
    client: &TcpStream,
    dialled: &Dialled,
    sandbox: &Sandbox,
    termination: &Termination,
    hello: &[u8],
) -> io::Result<Ended> {
    let message = Handover::new(
        sandbox.id.clone(),
        dialled
            .name
            .as_ref()
            .map(Name::to_string)
            .unwrap_or_default(),
        dialled.port,
        hello,
    );
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let giving = async {
        let terminator = UnixStream::connect(format!("\0{}", termination.socket)).await?;
        handover::send(
            &terminator,
            &message,
            client.as_fd(),
            dialled.stream.as_fd(),
        )
        .await?;
        Ok::<_, io::Error>(terminator)
    };
    let mut terminator = timeout(PATIENCE, giving).await.map_err(late)??;
    let mut counts = [0; COUNTS];
    tokio::select! {
        read = terminator.read_exact(&mut counts) => read?,
        () = dialled.ticket.cut.wait() => return Err(io::ErrorKind::ConnectionAborted.into()),
    };
    let (sent, received) = counts.split_at(COUNTS / 2);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let mut last = [0];
    let more = terminator.read(&mut last).await.unwrap_or(0);
    Ok(Ended {
        sent: number(sent),
        received: number(received),
        distrusted: more == 1 && last == [DISTRUSTED],
    })
}
