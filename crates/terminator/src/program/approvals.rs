//! Which requests of which sandbox may use secrets that ask, and which wait for a person's decision.
//!
//! They are in memory only: a process that starts anew has none, so that its requests are asked for again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cove_model::approval::{
    APPROVAL_KEPT_S, APPROVALS_MAX, APPROVALS_PENDING_MAX, APPROVALS_WAITING_MAX, ApprovalState,
    BodyDigest, Decision,
};
use cove_model::secret::SecretHost;
use cove_model::{ApprovalId, SandboxId, SecretId};

use super::refusal::Refusal;
use super::table::now_ms;
use crate::call::{ASKED_MAX, Asked, Decided};

/// A version of a secret.
pub type Key = (SecretId, u64);

/// A sandbox may have this part of the entries that are left.
const SHARES: usize = 16;
const KEPT: Duration = Duration::from_secs(APPROVAL_KEPT_S);

/// What a request would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub host: SecretHost,
    pub method: String,
    pub path: String,
    pub body: Option<BodyDigest>,
}

/// A secret that a request would use.
#[derive(Debug, Clone)]
pub struct Asking {
    pub key: Key,
    /// Of the sandbox and the secret.
    pub slots: (u32, u32),
}

/// What was approved for one request. It is for this request alone: one that is approved once is used up with it.
#[derive(Default)]
pub struct Permit(Vec<(Key, Option<ApprovalId>)>);

struct Entry {
    sandbox: SandboxId,
    asking: Asking,
    wanted: Wanted,
    state: ApprovalState,
    waiting: u32,
    asked_ms: u64,
    until: Instant,
    expires_ms: u64,
}

impl Entry {
    fn is_over(&self) -> bool {
        // Also where somebody sets the clock, or the host sleeps.
        Instant::now() >= self.until || now_ms() >= self.expires_ms
    }

    fn last(&mut self, state: ApprovalState, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.state = state;
        self.until = Instant::now() + time;
        self.expires_ms = now_ms().saturating_add(ms);
    }
}

#[derive(Default)]
pub struct Approvals(BTreeMap<ApprovalId, Entry>);

impl Approvals {
    fn forget_over(&mut self) {
        self.0.retain(|_, entry| !entry.is_over());
    }

    /// What was approved for one request, used up with it; or one of the approvals that it waits for.
    pub fn permit(
        &mut self,
        sandbox: &SandboxId,
        secrets: &[Asking],
        wanted: &Wanted,
    ) -> Result<Result<Permit, ApprovalId>, Refusal> {
        self.forget_over();
        let (mut granted, mut spent, mut missing) = (Vec::new(), Vec::new(), None);
        for asking in secrets {
            match self.find(sandbox, asking, wanted) {
                Some((id, ApprovalState::Timed)) => granted.push((asking.key.clone(), Some(id))),
                Some((id, ApprovalState::Once)) => {
                    granted.push((asking.key.clone(), None));
                    spent.push(id);
                }
                Some((id, ApprovalState::Denied)) => return Err(Refusal::Denied(id)),
                Some((id, ApprovalState::Pending)) => missing = Some(id),
                None => missing = Some(self.ask(sandbox, asking, wanted)?),
            }
        }
        if let Some(id) = missing {
            return Ok(Err(id));
        }
        self.0.retain(|id, _| !spent.contains(id));
        Ok(Ok(Permit(granted)))
    }

    /// All of them, where they are approved for a time.
    pub fn timed(
        &mut self,
        sandbox: &SandboxId,
        secrets: &[Asking],
        wanted: &Wanted,
    ) -> Option<Permit> {
        self.forget_over();
        let each = secrets.iter().map(|asking| {
            let (id, state) = self.find(sandbox, asking, wanted)?;
            (state == ApprovalState::Timed).then(|| (asking.key.clone(), Some(id)))
        });
        each.collect::<Option<_>>().map(Permit)
    }

    /// Whether the permit is good for this secret still: what holds for a time may have been denied meanwhile.
    pub fn covers(&self, permit: &Permit, key: &Key) -> bool {
        permit.0.iter().any(|(known, timed)| {
            let holds = |id| {
                let entry: Option<&Entry> = self.0.get(id);
                entry.is_some_and(|it| it.state == ApprovalState::Timed && !it.is_over())
            };
            known == key && timed.as_ref().is_none_or(holds)
        })
    }

    fn find(
        &self,
        sandbox: &SandboxId,
        asking: &Asking,
        wanted: &Wanted,
    ) -> Option<(ApprovalId, ApprovalState)> {
        let theirs = || {
            let all = self.0.iter();
            all.filter(|(_, it)| it.sandbox == *sandbox && it.asking.key == asking.key)
        };
        let timed = theirs()
            .find(|(_, it)| it.state == ApprovalState::Timed && it.wanted.host == wanted.host);
        let found = timed.or_else(|| theirs().find(|(_, it)| it.wanted == *wanted));
        found.map(|(id, it)| (id.clone(), it.state))
    }

    fn ask(
        &mut self,
        sandbox: &SandboxId,
        asking: &Asking,
        wanted: &Wanted,
    ) -> Result<ApprovalId, Refusal> {
        let pending = self
            .0
            .values()
            .filter(|it| it.state == ApprovalState::Pending);
        let theirs = pending.filter(|it| it.sandbox == *sandbox).count();
        if theirs >= APPROVALS_PENDING_MAX || !self.make_room(sandbox) {
            return Err(Refusal::TooManyAsked);
        }
        let mut entry = Entry {
            sandbox: sandbox.clone(),
            asking: asking.clone(),
            wanted: wanted.clone(),
            state: ApprovalState::Pending,
            waiting: 0,
            asked_ms: now_ms(),
            until: Instant::now(),
            expires_ms: 0,
        };
        entry.last(ApprovalState::Pending, KEPT);
        // By ring: the program is confined, and `rand` would open a file for its seed.
        let bits = ring::rand::generate::<[u8; 16]>(&ring::rand::SystemRandom::new());
        let bits = bits.map_err(|_| Refusal::Busy)?.expose();
        let id = ApprovalId::of(u128::from_le_bytes(bits));
        self.0.insert(id.clone(), entry);
        Ok(id)
    }

    /// What a sandbox may have shrinks as the list fills, so that some sandboxes together do not keep out another
    /// one of their organisation: those that have none can ask until the list is full of one each. What is approved
    /// does not count: a person has done that. What was denied makes room for what is asked now.
    fn make_room(&mut self, sandbox: &SandboxId) -> bool {
        let open = |it: &&Entry| {
            matches!(it.state, ApprovalState::Pending | ApprovalState::Denied)
                && it.sandbox == *sandbox
        };
        let left = APPROVALS_MAX.saturating_sub(self.0.len());
        let theirs = self.0.values().filter(open).count();
        if left > 0 && theirs < (left / SHARES).max(1) {
            return true;
        }
        let denied = self.0.iter().filter(|(_, it)| {
            it.sandbox == *sandbox && it.state == ApprovalState::Denied && it.waiting == 0
        });
        let oldest = denied
            .min_by_key(|(_, it)| it.until)
            .map(|(id, _)| id.clone());
        oldest.is_some_and(|id| self.0.remove(&id).is_some())
    }

    /// `false` when as many requests of the sandbox are held as may be.
    pub fn wait(&mut self, sandbox: &SandboxId, id: &ApprovalId) -> bool {
        let theirs = self.0.values().filter(|it| it.sandbox == *sandbox);
        let waiting: u32 = theirs.map(|it| it.waiting).sum();
        match self.0.get_mut(id) {
            Some(entry) if waiting < APPROVALS_WAITING_MAX => {
                entry.waiting += 1;
                true
            }
            _ => false,
        }
    }

    pub fn waited(&mut self, id: &ApprovalId) {
        if let Some(entry) = self.0.get_mut(id) {
            entry.waiting = entry.waiting.saturating_sub(1);
        }
    }

    /// With the sandbox and the secret whose connections must end, where something is no longer approved.
    pub fn decide(
        &mut self,
        id: &ApprovalId,
        decision: Decision,
    ) -> (Decided, Option<(SandboxId, Key)>) {
        self.forget_over();
        let Some(entry) = self.0.get_mut(id) else {
            return (Decided::Unknown, None);
        };
        let before = entry.state;
        let open = matches!(before, ApprovalState::Pending | ApprovalState::Denied);
        match decision {
            Decision::Deny => {
                entry.last(ApprovalState::Denied, KEPT);
                let over = (entry.sandbox.clone(), entry.asking.key.clone());
                let over = (before == ApprovalState::Timed).then_some(over);
                return (Decided::Done, over);
            }
            _ if !open => return (Decided::Already, None),
            Decision::Once if entry.wanted.body.is_none() => return (Decided::NotOnce, None),
            Decision::Once => entry.last(ApprovalState::Once, KEPT),
            Decision::For(seconds) => {
                entry.last(ApprovalState::Timed, Duration::from_secs(seconds.into()));
                let (sandbox, key) = (entry.sandbox.clone(), entry.asking.key.clone());
                let host = entry.wanted.host.clone();
                // What else waits for the same needs no decision any more.
                self.0.retain(|_, it| {
                    let same =
                        it.sandbox == sandbox && it.asking.key == key && it.wanted.host == host;
                    !(same && it.state == ApprovalState::Pending)
                });
            }
        }
        (Decided::Done, None)
    }

    pub fn forget_sandbox(&mut self, sandbox: &SandboxId) {
        self.0.retain(|_, entry| entry.sandbox != *sandbox);
    }

    pub fn keep_secrets(&mut self, is_valid: impl Fn(&Key) -> bool) {
        self.0.retain(|_, entry| is_valid(&entry.asking.key));
    }

    /// In the order of their ids, those after this one.
    pub fn list(&mut self, after: Option<&ApprovalId>) -> Vec<Asked> {
        self.forget_over();
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let rest = self.0.range((from, std::ops::Bound::Unbounded));
        let asked = rest.take(ASKED_MAX).map(|(id, entry)| Asked {
            id: id.clone(),
            sandbox: entry.asking.slots.0,
            secret: entry.asking.slots.1,
            host: entry.wanted.host.clone(),
            method: entry.wanted.method.clone(),
            path: entry.wanted.path.clone(),
            body: entry.wanted.body,
            state: entry.state,
            waiting: entry.waiting,
            asked_ms: entry.asked_ms,
            expires_ms: entry.expires_ms,
        });
        asked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(path: &str, body: &[u8]) -> Wanted {
        Wanted {
            host: "api.example".parse().unwrap(),
            method: "POST".into(),
            path: path.into(),
            body: Some(super::super::body::digest(body)),
        }
    }

    fn asking() -> Asking {
        Asking {
            key: (SecretId::random(), 1),
            slots: (1, 1),
        }
    }

    fn asked(
        approvals: &mut Approvals,
        sandbox: &SandboxId,
        of: &Asking,
        it: &Wanted,
    ) -> ApprovalId {
        match approvals.permit(sandbox, std::slice::from_ref(of), it) {
            Ok(Err(id)) => id,
            Ok(Ok(_)) => panic!("it was permitted"),
            Err(refusal) => panic!("{refusal}"),
        }
    }

    fn permitted(approvals: &mut Approvals, sandbox: &SandboxId, of: &Asking, it: &Wanted) -> bool {
        matches!(
            approvals.permit(sandbox, std::slice::from_ref(of), it),
            Ok(Ok(_))
        )
    }

    #[test]
    fn once_is_for_the_same_request_of_the_same_sandbox_and_for_one() {
        let (mut approvals, of) = (Approvals::default(), asking());
        let (sandbox, other) = (SandboxId::random(), SandboxId::random());
        let request = wanted("/v1", b"a");
        let id = asked(&mut approvals, &sandbox, &of, &request);
        assert_eq!(asked(&mut approvals, &sandbox, &of, &request), id);
        assert_eq!(approvals.decide(&id, Decision::Once).0, Decided::Done);
        assert_eq!(approvals.decide(&id, Decision::For(60)).0, Decided::Already);
        for changed in [
            wanted("/v2", b"a"),
            wanted("/v1?x=y", b"a"),
            wanted("/v1", b"b"),
            Wanted {
                method: "PUT".into(),
                ..request.clone()
            },
            Wanted {
                host: "api.example:8443".parse().unwrap(),
                ..request.clone()
            },
            Wanted {
                host: "www.example".parse().unwrap(),
                ..request.clone()
            },
            Wanted {
                body: None,
                ..request.clone()
            },
        ] {
            assert!(
                !permitted(&mut approvals, &sandbox, &of, &changed),
                "{changed:?}"
            );
        }
        assert!(!permitted(&mut approvals, &other, &of, &request));
        let next = Asking {
            key: (of.key.0.clone(), 2),
            ..of.clone()
        };
        assert!(!permitted(&mut approvals, &other, &next, &request));
        assert!(permitted(&mut approvals, &sandbox, &of, &request));
        // The replay.
        let sandbox_again = asked(&mut Approvals::default(), &sandbox, &of, &request);
        assert_ne!(sandbox_again, id);
        assert_eq!(approvals.decide(&id, Decision::Once).0, Decided::Unknown);
    }

    #[test]
    fn what_is_approved_for_a_time_ends_with_it_or_when_it_is_denied() {
        let (mut approvals, of, sandbox) = (Approvals::default(), asking(), SandboxId::random());
        let endless = Wanted {
            body: None,
            ..wanted("/v1", b"")
        };
        let id = asked(&mut approvals, &sandbox, &of, &endless);
        let second = asked(&mut approvals, &sandbox, &of, &wanted("/v2", b""));
        assert_eq!(approvals.decide(&id, Decision::Once).0, Decided::NotOnce);
        assert_eq!(approvals.decide(&id, Decision::For(60)).0, Decided::Done);
        assert_eq!(
            approvals.decide(&second, Decision::Deny).0,
            Decided::Unknown
        );
        let any = wanted("/any", b"any");
        let secrets = std::slice::from_ref(&of);
        let permit = approvals.timed(&sandbox, secrets, &any).unwrap();
        assert!(approvals.covers(&permit, &of.key));
        let elsewhere = Wanted {
            host: "www.example".parse().unwrap(),
            ..any.clone()
        };
        assert!(approvals.timed(&sandbox, secrets, &elsewhere).is_none());
        let (decided, cut) = approvals.decide(&id, Decision::Deny);
        assert_eq!(
            (decided, cut),
            (Decided::Done, Some((sandbox.clone(), of.key.clone())))
        );
        assert!(!approvals.covers(&permit, &of.key));
        assert!(approvals.timed(&sandbox, secrets, &any).is_none());
        // Its own request is refused, another one asks.
        let refused = approvals.permit(&sandbox, secrets, &endless);
        assert!(matches!(refused, Err(Refusal::Denied(of)) if of == id));
        let third = asked(&mut approvals, &sandbox, &of, &any);
        approvals.decide(&third, Decision::For(60));
        approvals.0.get_mut(&third).unwrap().until = Instant::now();
        assert!(approvals.timed(&sandbox, secrets, &any).is_none());
        assert_eq!(
            approvals.decide(&third, Decision::For(60)).0,
            Decided::Unknown
        );
    }

    #[test]
    fn a_ninth_is_refused_and_takes_nothing_from_another_sandbox() {
        let (mut approvals, of) = (Approvals::default(), asking());
        let (greedy, other) = (SandboxId::random(), SandboxId::random());
        let ids: Vec<_> = (0..APPROVALS_PENDING_MAX)
            .map(|number| {
                asked(
                    &mut approvals,
                    &greedy,
                    &of,
                    &wanted(&format!("/{number}"), b""),
                )
            })
            .collect();
        let secrets = std::slice::from_ref(&of);
        let ninth = approvals.permit(&greedy, secrets, &wanted("/ninth", b""));
        assert!(matches!(ninth, Err(Refusal::TooManyAsked)));
        asked(&mut approvals, &other, &of, &wanted("/ninth", b""));
        for _ in 0..APPROVALS_WAITING_MAX {
            assert!(approvals.wait(&greedy, &ids[0]));
        }
        assert!(!approvals.wait(&greedy, &ids[1]));
        approvals.waited(&ids[0]);
        assert!(approvals.wait(&greedy, &ids[1]));
        approvals.decide(&ids[0], Decision::Deny);
        asked(&mut approvals, &greedy, &of, &wanted("/ninth", b""));
        approvals.forget_sandbox(&greedy);
        assert_eq!(approvals.list(None).len(), 1);
        approvals.keep_secrets(|_| false);
        assert!(approvals.list(None).is_empty());
    }

    #[test]
    fn many_sandboxes_that_ask_all_they_can_keep_nobody_else_out() {
        let (mut approvals, of) = (Approvals::default(), asking());
        let greedy: Vec<_> = (0..APPROVALS_MAX / APPROVALS_PENDING_MAX)
            .map(|_| SandboxId::random())
            .collect();
        let secrets = std::slice::from_ref(&of);
        let flood = |approvals: &mut Approvals| {
            for number in 0..APPROVALS_PENDING_MAX {
                for sandbox in &greedy {
                    let request = wanted(&format!("/{number}"), b"");
                    let _ = approvals.permit(sandbox, secrets, &request);
                }
            }
        };
        flood(&mut approvals);
        let modest: Vec<_> = (0..32).map(|_| SandboxId::random()).collect();
        for sandbox in &modest {
            asked(&mut approvals, sandbox, &of, &wanted("/once", b""));
        }
        // Nor do they when a person denies what they ask.
        for _ in 0..10 {
            let ids: Vec<_> = approvals.0.keys().cloned().collect();
            for id in ids {
                approvals.decide(&id, Decision::Deny);
            }
            flood(&mut approvals);
        }
        asked(&mut approvals, &SandboxId::random(), &of, &wanted("/", b""));
        // What is denied does not keep its own sandbox from asking.
        asked(&mut approvals, &modest[0], &of, &wanted("/new", b""));
        assert!(approvals.0.len() <= APPROVALS_MAX);
    }
}
