//! How many answers that go on one organisation may hold open, so that others have room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cove_control::{Admission, ControlError, ErrorCode, Principal};
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
    /// Events, output of processes, attached terminals, changes of files, progress of images.
    Live,
    /// Requests to previews.
    Visit,
    /// Connections to ports inside.
    Port,
}

impl Kind {
    pub const fn max(self) -> usize {
        match self {
            Self::Egress => 64,
            Self::Live => 1024,
            Self::Visit | Self::Port => 2048,
        }
    }

    const fn shown(self) -> &'static str {
        match self {
            Self::Egress => "followed egress logs",
            Self::Live => "live streams",
            Self::Visit => "visits under way",
            Self::Port => "connections to ports",
        }
    }
}

type Counts = HashMap<(OrgId, Kind), usize>;

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Streams(Arc<Mutex<Counts>>);

impl Streams {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, org: &OrgId, kind: Kind) -> Result<Slot, ControlError> {
        let of = (org.clone(), kind);
        let mut counts = self.counts();
        let count = counts.entry(of.clone()).or_default();
        if *count >= kind.max() {
            let message = format!("the organisation has {} {}", kind.max(), kind.shown());
            return Err(ControlError::new(ErrorCode::LimitReached, message)
                .retry_after(RETRY_S)
                .hint("close some, or follow several things with one stream"));
        }
        *count += 1;
        drop(counts);
        Ok(Slot {
            streams: self.clone(),
            of,
        })
    }
}

/// One of them, until it is dropped.
pub struct Slot {
    streams: Streams,
    of: (OrgId, Kind),
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
    pub fn seat(&self, principal: &Principal, kind: Kind) -> Result<Seat, ControlError> {
        Ok(Seat {
            _slot: self.streams.enter(&principal.org, kind)?,
            admission: self.control.admission_of(principal),
        })
    }
}

/// A counted place in a conversation, good as long as the key that opened it.
pub struct Seat {
    _slot: Slot,
    admission: Admission,
}

impl Seat {
    /// Returns when whoever sits here must go.
    pub async fn ended(self) {
        let Self { _slot, admission } = self;
        admission.ended().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.streams.counts();
        if let Some(count) = counts.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_organisation_has_its_number_of_every_kind_and_others_have_theirs() {
        let streams = Streams::default();
        let (one, other) = (OrgId::random(), OrgId::random());
        let kinds = [Kind::Egress, Kind::Live, Kind::Visit, Kind::Port];
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
            assert!(
                streams.counts().is_empty(),
                "nothing is kept of those who left"
            );
        }
    }
}
