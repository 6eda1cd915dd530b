//! Connections into sandboxes and volumes of nodes, shared between organisations.
//!
//! The relay of a node carries each of them as long as it lasts, as one of the calls it takes. A connection on this
//! host takes no such place: the runner passes it on and is done with it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cove_model::{HostId, OrgId};
use cove_protocol::client::Stream;
use cove_runner_api::GuestStream;
use cove_runner_api::wire::CALLS_MAX;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::shares::{Portion, Shares, Sharing};

/// Of one node. An eighth of what its relay carries is for calls to its runner alone, whatever was promised.
pub const RELAYED: Sharing = Sharing {
    total: CALLS_MAX / 4 * 3,
    promised: 16,
    hard: CALLS_MAX / 8 * 7,
};
/// How long to wait before trying again.
const RETRY_S: u64 = 1;

/// The places of one host.
pub(crate) struct Relayed(Arc<Shares<OrgId>>);

impl Default for Relayed {
    fn default() -> Self {
        Self(Shares::new(RELAYED))
    }
}

impl Relayed {
    /// Organisations that have connections.
    pub fn holders(&self) -> usize {
        self.0.holders()
    }
}

/// A place, where the way leads through a relay.
pub(crate) struct Place(Option<Portion<OrgId>>);

impl Place {
    /// The connection keeps it until it ends.
    pub fn hold(self, stream: GuestStream) -> Box<dyn Stream> {
        match self.0 {
            Some(place) => Box::new(Held {
                stream,
                _place: place,
            }),
            None => Box::new(stream),
        }
    }
}

impl Control {
    /// A place for one more connection to this host.
    pub(crate) fn relayed(&self, host: &HostId, org: &OrgId) -> Result<Place, ControlError> {
        let host = self.host_of(host)?;
        let Some(node) = &host.node else {
            return Ok(Place(None));
        };
        let shares = &host.relayed.0;
        match shares.take(org.clone(), 1) {
            Some(place) => Ok(Place(Some(place))),
            None => {
                let held = shares.held_by(org);
                let message = format!(
                    "the organisation has {held} connections into sandboxes of node {}",
                    node.name
                );
                Err(ControlError::new(ErrorCode::LimitReached, message)
                    .retry_after(RETRY_S)
                    .hint("close some: each stream, command, transfer and visit under way is one"))
            }
        }
    }
}

struct Held {
    stream: GuestStream,
    _place: Portion<OrgId>,
}

impl AsyncRead for Held {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Held {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
