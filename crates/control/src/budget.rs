//! What callers' requests and answers take of the control plane's memory, paid by who asks.
//!
//! Every front counts here: bodies while they are read, output while it is collected, listings of a guest
//! while they come in, messages of WebSockets until they are delivered, answers until the last byte went to
//! the socket. An organisation has at most half of what others left free, a key at most
//! half of what its organisation could have, so neither another organisation nor another key finds nothing
//! left. Beyond that the one who asks is refused, and nobody else notices.

use std::sync::Arc;

use cove_model::{KeyId, OrgId};
use cove_protocol::client::{Bill, Pay};

use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::shares::{Portion, Shares, Sharing};

/// Bytes that all organisations together hold.
pub const MEMORY: Sharing = Sharing::new(512 * 1024 * 1024, 1024 * 1024);
/// What must be free for output before something is started whose output is collected.
const OUTPUT_ROOM: usize = 64 * 1024;
/// How long to wait before trying again.
const RETRY_S: u64 = 1;

/// Cheap to clone.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    organisations: Arc<Shares<OrgId>>,
    keys: Arc<Shares<(OrgId, Option<KeyId>)>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(MEMORY)
    }
}

impl Budget {
    pub fn new(sharing: Sharing) -> Self {
        // A key's own bound is taken from its organisation's share, below; the table only counts.
        let unbounded = Sharing::new(usize::MAX, usize::MAX);
        Self(Arc::new(Inner {
            organisations: Shares::new(sharing),
            keys: Shares::new(unbounded),
        }))
    }

    /// Whoever pays for what this caller asks. Nothing is held yet.
    pub fn account(&self, principal: &Principal) -> Account {
        Account {
            budget: self.clone(),
            org: principal.org.clone(),
            key: principal.key.clone(),
        }
    }

    /// Bytes held by everybody.
    pub fn held(&self) -> usize {
        self.0.organisations.held()
    }

    /// Organisations and keys that hold something.
    pub fn accounts(&self) -> usize {
        self.0.organisations.holders() + self.0.keys.holders()
    }

    /// Bytes held by one organisation.
    pub fn held_by(&self, org: &OrgId) -> usize {
        self.0.organisations.held_by(org)
    }
}

/// Who pays.
#[derive(Clone)]
pub struct Account {
    budget: Budget,
    org: OrgId,
    key: Option<KeyId>,
}

impl Account {
    /// A charge of nothing, to grow.
    pub fn charge(&self) -> Charge {
        let inner = &self.budget.0;
        let of_key = (self.org.clone(), self.key.clone());
        let promised = "nothing is within every share";
        Charge {
            org: inner
                .organisations
                .take(self.org.clone(), 0)
                .expect(promised),
            key: inner.keys.take(of_key, 0).expect(promised),
            account: self.clone(),
        }
    }

    /// Refuses to begin something whose output would find no room: before it is started is the time to.
    pub fn require_output_room(&self) -> Result<(), ControlError> {
        match self.fits(OUTPUT_ROOM) {
            true => Ok(()),
            false => Err(over()),
        }
    }

    /// Whether so much more would fit now.
    pub fn fits(&self, bytes: usize) -> bool {
        let inner = &self.budget.0;
        let sharing = inner.organisations.sharing();
        let mine = inner.organisations.held_by(&self.org);
        let others = inner.organisations.held().saturating_sub(mine);
        let share = sharing.share(others);
        let of_key = (self.org.clone(), self.key.clone());
        let key = inner.keys.held_by(&of_key).saturating_add(bytes);
        mine.saturating_add(bytes) <= share && key <= key_share(share, sharing)
    }
}

/// What one key may have of its organisation's share.
const fn key_share(share: usize, sharing: Sharing) -> usize {
    let half = share / 2;
    if half > sharing.promised {
        half
    } else {
        sharing.promised
    }
}

/// Bytes that somebody pays for, until this is dropped.
pub struct Charge {
    account: Account,
    org: Portion<OrgId>,
    key: Portion<(OrgId, Option<KeyId>)>,
}

impl Charge {
    pub fn bytes(&self) -> usize {
        self.org.amount()
    }

    /// The account it is on.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// More bytes; `false`, and nothing changed, when they are over the organisation's or the key's share.
    pub fn grow(&mut self, bytes: usize) -> bool {
        if !self.account.fits(bytes) || !self.org.grow(bytes) {
            return false;
        }
        self.key.force(bytes);
        true
    }

    /// As [`Charge::grow`], with the refusal that callers get.
    pub fn take(&mut self, bytes: usize) -> Result<(), ControlError> {
        match self.grow(bytes) {
            true => Ok(()),
            false => Err(over()),
        }
    }

    /// More bytes that are there already.
    pub fn force(&mut self, bytes: usize) {
        self.org.force(bytes);
        self.key.force(bytes);
    }

    pub fn shrink(&mut self, bytes: usize) {
        self.org.shrink(bytes);
        self.key.shrink(bytes);
    }
}

impl Pay for Account {
    fn bill(&self) -> Box<dyn Bill> {
        Box::new(self.charge())
    }
}

impl Bill for Charge {
    fn add(&mut self, bytes: usize) -> bool {
        self.grow(bytes)
    }
}

/// The refusal beyond a share.
pub fn over() -> ControlError {
    ControlError::new(
        ErrorCode::LimitReached,
        "this organisation or key uses its whole share of the server's memory for requests and answers",
    )
    .retry_after(RETRY_S)
    .hint(
        "read the answers of earlier requests, send fewer large ones at once, or use live answers",
    )
}

#[cfg(test)]
mod tests {
    use cove_store::Scope;

    use super::*;
    use crate::principal::Origin;

    fn caller(org: &OrgId) -> Principal {
        Principal {
            org: org.clone(),
            key: Some(KeyId::random()),
            scopes: vec![Scope::Use],
            home: false,
            sandbox: None,
            origin: Origin::default(),
        }
    }

    #[test]
    fn a_key_has_half_of_its_organisation_s_share_and_others_have_theirs() {
        let budget = Budget::new(Sharing::new(1000, 10));
        let (one, other) = (OrgId::random(), OrgId::random());
        let (first, second) = (caller(&one), caller(&one));
        let mut held = budget.account(&first).charge();
        assert!(held.grow(250), "half of the organisation's half");
        assert!(!held.grow(1), "a key does not take its organisation's all");
        let mut beside = budget.account(&second).charge();
        assert!(beside.grow(250) && !beside.grow(1));
        assert_eq!(budget.held_by(&one), 500);
        let mut others = budget.account(&caller(&other)).charge();
        assert!(others.grow(125), "a quarter of it all is left for one key");
        held.shrink(100);
        assert!(
            !held.grow(100),
            "others hold some, so the share is smaller now"
        );
        assert!(held.grow(30));
        drop((held, beside, others));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn what_is_there_already_is_counted_and_what_is_promised_is_had() {
        let budget = Budget::new(Sharing::new(1000, 10));
        let (one, other) = (caller(&OrgId::random()), caller(&OrgId::random()));
        let mut held = budget.account(&one).charge();
        held.force(5000);
        assert!(held.take(1).is_err());
        let mut others = budget.account(&other).charge();
        assert!(others.grow(10) && !others.grow(1));
    }
}
