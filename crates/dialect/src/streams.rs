//! How many answers that go on one organisation may hold open, so that others have room.

use std::sync::Arc;

use cove_control::{Admission, ControlError, ErrorCode, Portion, Principal, Shares, Sharing};
use cove_model::OrgId;
use futures_util::{Stream, StreamExt};

use crate::Front;

/// How long to wait before trying again.
const RETRY_S: u64 = 1;

/// What is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A followed log of network decisions: each waits in the control plane, the host and its gateway.
    Egress,
    /// Requests of every kind, until their answer begins: whatever they make the server or a sandbox do.
    Request,
    /// Events, output of processes, attached terminals, changes of files, progress of images.
    Live,
    /// Commands and code whose answer comes in one piece when they have ended.
    Run,
    /// Files, archives and snapshots on their way in or out.
    Transfer,
    /// Requests to previews.
    Visit,
    /// Connections to ports inside.
    Port,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Egress,
        Self::Request,
        Self::Live,
        Self::Run,
        Self::Transfer,
        Self::Visit,
        Self::Port,
    ];

    /// How many there are for everybody, and how many each organisation has in any case.
    pub const fn sharing(self) -> Sharing {
        match self {
            Self::Egress => Sharing::new(128, 2),
            Self::Request => Sharing::new(8192, 64),
            Self::Live => Sharing::new(2048, 16),
            Self::Run => Sharing::new(4096, 32),
            Self::Transfer => Sharing::new(1024, 16),
            Self::Visit | Self::Port => Sharing::new(4096, 16),
        }
    }

    /// How many one organisation has while others have none.
    pub const fn max(self) -> usize {
        self.sharing().most()
    }

    const fn shown(self) -> &'static str {
        match self {
            Self::Egress => "followed egress logs",
            Self::Request => "requests under way",
            Self::Live => "live streams",
            Self::Run => "commands under way",
            Self::Transfer => "uploads and downloads under way",
            Self::Visit => "visits under way",
            Self::Port => "connections to ports",
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Streams(Arc<[Arc<Shares<OrgId>>; Kind::ALL.len()]>);

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Kind::ALL.map(|kind| Shares::new(kind.sharing()))))
    }
}

impl Streams {
    /// Organisations that hold something open, counted for each kind.
    pub fn holders(&self) -> usize {
        self.0.iter().map(|shares| shares.holders()).sum()
    }

    pub fn enter(&self, org: &OrgId, kind: Kind) -> Result<Slot, ControlError> {
        let shares = &self.0[kind as usize];
        let Some(place) = shares.take(org.clone(), 1) else {
            let held = shares.held_by(org);
            let message = format!("the organisation has {held} {}", kind.shown());
            return Err(ControlError::new(ErrorCode::LimitReached, message)
                .retry_after(RETRY_S)
                .hint("close some, or follow several things with one stream"));
        };
        Ok(Slot { _place: place })
    }
}

/// One of them, until it is dropped.
pub struct Slot {
    _place: Portion<OrgId>,
}

impl Slot {
    /// The same stream, counted until it ends or is dropped.
    pub fn hold<S: Stream>(self, stream: S) -> impl Stream<Item = S::Item> + use<S> {
        stream.map(move |item| {
            let _ = &self;
            item
        })
    }
}

impl Front {
    /// Lets somebody into a conversation that left HTTP behind.
    pub fn seat(&self, principal: &Principal, kind: Kind) -> Result<StreamPermit, ControlError> {
        Ok(StreamPermit {
            _slot: self.streams.enter(&principal.org, kind)?,
            admission: self.control.admission_of(principal),
        })
    }
}

/// A counted place in a conversation, good as long as the key that opened it.
pub struct StreamPermit {
    _slot: Slot,
    admission: Admission,
}

impl StreamPermit {
    /// Returns when whoever sits here must go.
    pub async fn ended(self) {
        let Self { _slot, admission } = self;
        admission.ended().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_organisation_has_its_number_of_every_kind_and_others_have_theirs() {
        let streams = Streams::default();
        let (one, other) = (OrgId::random(), OrgId::random());
        let kinds = Kind::ALL;
        for (kind, beside) in kinds.into_iter().zip(kinds.into_iter().cycle().skip(1)) {
            let mut held: Vec<Slot> = (0..kind.max())
                .map(|_| streams.enter(&one, kind).expect("room"))
                .collect();
            let refused = streams.enter(&one, kind).err().expect("full");
            assert_eq!(refused.code, ErrorCode::LimitReached, "{kind:?}");
            assert!(refused.message.contains(kind.shown()), "{refused:?}");
            assert!(streams.enter(&one, beside).is_ok(), "{kind:?}");
            assert!(streams.enter(&other, kind).is_ok(), "{kind:?}");
            held.pop();
            assert!(streams.enter(&one, kind).is_ok(), "{kind:?}");
            drop(held);
            assert_eq!(streams.0[kind as usize].held(), 0, "all was given back");
        }
    }
}
