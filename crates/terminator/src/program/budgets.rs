//! What requests may still use of the budgets of secrets, as far as this process was given it.
//!
//! ```text
//!  database ── block ──► purse ── reservation ──► request ── settled ──► what is not used, back to the purse
//!      ▲                   │ idle, or its day is over
//!      └──────── back ─────┘
//! ```
//! The database counts a block as used before the block is here. What is lost with this process stays counted.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cove_model::SecretId;

use super::refusal::{Over, Refusal};
use crate::call::{Granted, Purse, WANTED_MAX, Wanted};

/// A purse that nobody used for so long is given back.
const IDLE: Duration = Duration::from_secs(2);
/// How long the database's word on what is left holds. A request after that asks again.
const LEFT_HOLDS: Duration = Duration::from_millis(500);
/// After so long without an answer it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Purses of one organisation: more than its secrets and the sandboxes of a host have together.
const PURSES_MAX: usize = 65_536;

/// What a request uses of one secret's budget at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    pub purse: Purse,
    pub id: SecretId,
    /// The secret's name, for refusals.
    pub name: String,
    /// The slot of the sandbox.
    pub asker: u32,
    pub amount: u64,
}

/// A part of a purse that belongs to one request.
#[derive(Debug)]
pub struct Part {
    purse: Purse,
    id: SecretId,
    day: u32,
    amount: u64,
}

#[derive(Default)]
pub struct Budgets {
    purses: HashMap<Purse, State>,
    back: HashMap<(Purse, u32), u64>,
}

struct State {
    id: SecretId,
    available: u64,
    /// Used beyond what was reserved; the next block pays for it.
    debt: u64,
    /// When the block was given, and until when it is good.
    day: u32,
    ends: Option<Instant>,
    /// What the database had left, and when it said so.
    left: Option<(u64, Instant)>,
    renews_ms: Option<u64>,
    /// What requests wait for, and the sandbox of the last of them.
    waiting: u64,
    asker: u32,
    asked: Option<Instant>,
    /// What was given ahead of use last time; twice as much the next time, while it is used.
    ahead: u64,
    used: Instant,
}

impl State {
    fn new(id: SecretId, now: Instant) -> Self {
        Self {
            id,
            available: 0,
            debt: 0,
            day: 0,
            ends: None,
            left: None,
            renews_ms: None,
            waiting: 0,
            asker: 0,
            asked: None,
            ahead: 0,
            used: now,
        }
    }
}

/// What becomes of a try to reserve.
pub enum Tried {
    Reserved(Vec<Part>),
    /// Blocks are needed; the engine is to be told.
    Short,
}

impl Budgets {
    fn state(&mut self, purse: Purse, id: &SecretId, now: Instant) -> &mut State {
        let state = self
            .purses
            .entry(purse)
            .or_insert_with(|| State::new(id.clone(), now));
        // Another secret of the same name: nothing of the old one's is this one's.
        if state.id != *id {
            *state = State::new(id.clone(), now);
        }
        if state.ends.is_some_and(|ends| ends <= now) {
            let amount = std::mem::take(&mut state.available);
            let back = self.back.entry((purse, state.day)).or_default();
            *back = back.saturating_add(amount);
            (state.ends, state.left) = (None, None);
        }
        state
    }

    /// All of it or nothing, for a request that waits since then.
    pub fn reserve(
        &mut self,
        needs: &[Need],
        since: Instant,
        now: Instant,
    ) -> Result<Tried, Refusal> {
        if self.purses.len() >= PURSES_MAX {
            return Err(Refusal::Busy);
        }
        let mut short = false;
        for need in needs {
            let state = self.state(need.purse, &need.id, now);
            state.used = now;
            if state.available >= need.amount && state.debt == 0 {
                continue;
            }
            let holds = |(_, at): &(u64, Instant)| *at >= since || now < *at + LEFT_HOLDS;
            let known = state.left.filter(holds);
            if let Some((left, _)) = known
                && state.available.saturating_add(left) < need.amount.saturating_add(state.debt)
            {
                let left = state.available.saturating_add(left);
                return Err(Refusal::OverBudget(Box::new(Over {
                    secret: need.name.clone(),
                    of: need.purse.of,
                    own: need.purse.sandbox.is_some(),
                    need: need.amount,
                    left: left.saturating_sub(state.debt),
                    renews_ms: state.renews_ms,
                })));
            }
            short = true;
        }
        if short {
            return Ok(Tried::Short);
        }
        let parts = needs.iter().map(|need| {
            let state = self.state(need.purse, &need.id, now);
            state.available -= need.amount;
            Part {
                purse: need.purse,
                id: need.id.clone(),
                day: state.day,
                amount: need.amount,
            }
        });
        Ok(Tried::Reserved(parts.collect()))
    }

    /// A request waits for these until [`Budgets::waited`].
    pub fn wait(&mut self, needs: &[Need], now: Instant) {
        for need in needs {
            let state = self.state(need.purse, &need.id, now);
            state.waiting = state.waiting.saturating_add(need.amount);
            state.asker = need.asker;
        }
    }

    pub fn waited(&mut self, needs: &[Need]) {
        for need in needs {
            if let Some(state) = self.purses.get_mut(&need.purse)
                && state.id == need.id
            {
                state.waiting = state.waiting.saturating_sub(need.amount);
            }
        }
    }

    /// What was not used of a part.
    pub fn settle(&mut self, part: &mut Part, now: Instant) {
        let amount = std::mem::take(&mut part.amount);
        if amount == 0 {
            return;
        }
        let state = self.state(part.purse, &part.id, now);
        if state.day == part.day {
            state.available = state.available.saturating_add(amount);
            return;
        }
        let back = self.back.entry((part.purse, part.day)).or_default();
        *back = back.saturating_add(amount);
    }

    /// What was said of what is left may be over: a limit was changed. Purses of secrets that are gone go too.
    pub fn forget_left(&mut self, is_there: impl Fn(&SecretId) -> bool) {
        self.purses.retain(|_, state| is_there(&state.id));
        self.purses.values_mut().for_each(|it| it.left = None);
    }

    /// A sandbox is gone, with what is its own. Without any other sandbox everything goes back.
    pub fn remove(&mut self, sandbox: u32, last: bool) {
        let gone: Vec<Purse> = self
            .purses
            .keys()
            .filter(|it| last || it.sandbox == Some(sandbox))
            .copied()
            .collect();
        for purse in gone {
            if let Some(state) = self.purses.remove(&purse) {
                let back = self.back.entry((purse, state.day)).or_default();
                *back = back.saturating_add(state.available);
            }
        }
        self.back.retain(|_, amount| *amount > 0);
    }

    /// Gives back what nobody has used for a while. Whether there is something to tell.
    pub fn rest(&mut self, now: Instant) -> bool {
        for (purse, state) in &mut self.purses {
            if state.waiting > 0 || now < state.used + IDLE {
                continue;
            }
            state.ahead = 0;
            let amount = std::mem::take(&mut state.available);
            if amount > 0 {
                let back = self.back.entry((*purse, state.day)).or_default();
                *back = back.saturating_add(amount);
                state.left = None;
            }
        }
        self.purses.retain(|_, state| {
            state.waiting > 0 || state.debt > 0 || state.available > 0 || now < state.used + IDLE
        });
        !self.back.is_empty()
    }

    /// Whether the engine has to be told of a need.
    pub fn is_wanting(&self, now: Instant) -> bool {
        !self.back.is_empty() || self.purses.values().any(|it| is_wanting(it, now))
    }

    /// What the engine is told, once.
    pub fn take_wanted(&mut self, now: Instant) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        let told: Vec<_> = self.back.keys().take(WANTED_MAX).copied().collect();
        for (purse, day) in told {
            let amount = self.back.remove(&(purse, day)).unwrap_or(0);
            if amount > 0 {
                wanted.push(Wanted::Back { purse, day, amount });
            }
        }
        for (purse, state) in &mut self.purses {
            if wanted.len() == WANTED_MAX {
                break;
            }
            if !is_wanting(state, now) {
                continue;
            }
            state.asked = Some(now);
            let all = state.waiting.saturating_add(state.debt);
            let more = state.ahead;
            state.ahead = more.saturating_mul(2).max(all);
            wanted.push(Wanted::Need {
                purse: *purse,
                asker: state.asker,
                need: all.saturating_sub(state.available),
                more,
            });
        }
        wanted
    }

    /// A block that the database counted. `id`: the secret that has the slot now.
    pub fn grant(&mut self, granted: &Granted, id: Option<&SecretId>, now: Instant) {
        let Granted { purse, day, .. } = *granted;
        // Nobody is there to use it: it is as good as lost, and counts as used.
        let Some(id) = id else {
            return;
        };
        let state = self.state(purse, id, now);
        let before = (state.available > 0 && state.day != day).then_some(state.available);
        let old_day = state.day;
        if before.is_some() {
            state.available = 0;
        }
        let paid = state.debt.min(granted.amount);
        state.debt -= paid;
        state.available = state.available.saturating_add(granted.amount - paid);
        state.day = day;
        state.ends = now.checked_add(Duration::from_millis(granted.lasts_ms));
        state.left = Some((granted.left, now));
        state.renews_ms = granted.renews_ms;
        state.asked = None;
        state.used = now;
        if let Some(amount) = before {
            let back = self.back.entry((purse, old_day)).or_default();
            *back = back.saturating_add(amount);
        }
    }
}

fn is_wanting(state: &State, now: Instant) -> bool {
    let fresh = state.asked.is_some_and(|at| now < at + ASK_AGAIN);
    !fresh && state.waiting.saturating_add(state.debt) > state.available
}

impl Part {
    pub fn is_of(&self, need: &Need) -> bool {
        self.purse == need.purse
    }

    pub fn left(&self) -> u64 {
        self.amount
    }

    pub fn of(&self) -> cove_model::secret::BudgetUnit {
        self.purse.of
    }

    /// Uses up to so much for good; how much there was.
    pub fn spend(&mut self, amount: u64) -> u64 {
        let spent = self.amount.min(amount);
        self.amount -= spent;
        spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cove_model::secret::BudgetUnit;

    const DAY_MS: u64 = 86_400_000;

    fn purse() -> Purse {
        Purse {
            secret: 0,
            sandbox: None,
            of: BudgetUnit::Requests,
        }
    }

    fn need(id: &SecretId, amount: u64) -> Need {
        Need {
            purse: purse(),
            id: id.clone(),
            name: "token".into(),
            asker: 1,
            amount,
        }
    }

    fn granted(amount: u64, left: u64, day: u32) -> Granted {
        Granted {
            purse: purse(),
            amount,
            left,
            day,
            lasts_ms: DAY_MS,
            renews_ms: Some(1),
        }
    }

    fn reserved(budgets: &mut Budgets, id: &SecretId, amount: u64, now: Instant) -> Option<Part> {
        match budgets.reserve(&[need(id, amount)], now, now) {
            Ok(Tried::Reserved(mut parts)) => parts.pop(),
            _ => None,
        }
    }

    #[test]
    fn nothing_is_reserved_twice_and_what_is_not_used_comes_back() {
        let (mut budgets, id, now) = (Budgets::default(), SecretId::random(), Instant::now());
        assert!(reserved(&mut budgets, &id, 1, now).is_none());
        budgets.wait(&[need(&id, 1)], now);
        let wanted = budgets.take_wanted(now);
        assert!(
            matches!(
                wanted[..],
                [Wanted::Need {
                    need: 1,
                    more: 0,
                    ..
                }]
            ),
            "{wanted:?}"
        );
        // It is under way.
        assert!(!budgets.is_wanting(now));
        assert!(budgets.is_wanting(now + ASK_AGAIN));
        budgets.grant(&granted(10, 0, 5), Some(&id), now);
        budgets.waited(&[need(&id, 1)]);
        let mut first = reserved(&mut budgets, &id, 7, now).unwrap();
        let refused = budgets.reserve(&[need(&id, 4)], now, now);
        assert!(matches!(refused, Err(Refusal::OverBudget(over)) if over.left == 3));
        assert_eq!(first.spend(2), 2);
        budgets.settle(&mut first, now);
        budgets.settle(&mut first, now);
        assert!(reserved(&mut budgets, &id, 9, now).is_none());
        let mut all = reserved(&mut budgets, &id, 8, now).unwrap();
        assert_eq!(all.spend(100), 8);
        budgets.settle(&mut all, now);
        assert!(!budgets.rest(now + IDLE));
    }

    #[test]
    fn needs_of_several_budgets_are_met_together_or_not_at_all() {
        let (mut budgets, id, now) = (Budgets::default(), SecretId::random(), Instant::now());
        budgets.grant(&granted(1, 0, 5), Some(&id), now);
        let own = Need {
            purse: Purse {
                sandbox: Some(4),
                ..purse()
            },
            ..need(&id, 1)
        };
        let both = [need(&id, 1), own];
        assert!(matches!(budgets.reserve(&both, now, now), Ok(Tried::Short)));
        assert!(reserved(&mut budgets, &id, 1, now).is_some());
    }

    #[test]
    fn a_block_of_yesterday_goes_back_to_yesterday() {
        let (mut budgets, id, now) = (Budgets::default(), SecretId::random(), Instant::now());
        let short = Granted {
            lasts_ms: 1,
            ..granted(10, 0, 5)
        };
        budgets.grant(&short, Some(&id), now);
        let mut part = reserved(&mut budgets, &id, 4, now).unwrap();
        let later = now + Duration::from_millis(1);
        assert!(matches!(
            budgets.reserve(&[need(&id, 1)], later, later),
            Ok(Tried::Short)
        ));
        budgets.grant(&granted(2, 0, 6), Some(&id), later);
        budgets.settle(&mut part, later);
        assert!(reserved(&mut budgets, &id, 3, later).is_none());
        let mut wanted = budgets.take_wanted(later);
        wanted.retain(|it| matches!(it, Wanted::Back { .. }));
        assert!(
            matches!(
                wanted[..],
                [Wanted::Back {
                    day: 5,
                    amount: 10,
                    ..
                }]
            ),
            "{wanted:?}"
        );
    }

    #[test]
    fn idle_blocks_and_those_of_sandboxes_that_are_gone_go_back_once() {
        let (mut budgets, id, now) = (Budgets::default(), SecretId::random(), Instant::now());
        budgets.grant(&granted(10, 90, 5), Some(&id), now);
        assert!(!budgets.rest(now));
        assert!(budgets.rest(now + IDLE));
        let wanted = budgets.take_wanted(now + IDLE);
        assert!(
            matches!(wanted[..], [Wanted::Back { amount: 10, .. }]),
            "{wanted:?}"
        );
        assert!(budgets.take_wanted(now + IDLE).is_empty());
        budgets.grant(&granted(3, 0, 5), Some(&id), now);
        budgets.remove(9, false);
        assert!(!budgets.is_wanting(now));
        budgets.remove(9, true);
        assert!(budgets.is_wanting(now));
        // A secret that was removed takes its blocks along.
        budgets.take_wanted(now);
        budgets.grant(&granted(3, 0, 5), Some(&id), now);
        budgets.forget_left(|_| false);
        budgets.remove(9, true);
        assert!(budgets.take_wanted(now).is_empty());
    }

    #[test]
    fn another_secret_of_the_same_name_has_nothing_of_the_old_ones() {
        let (mut budgets, id, now) = (Budgets::default(), SecretId::random(), Instant::now());
        budgets.grant(&granted(10, 0, 5), Some(&id), now);
        let mut part = reserved(&mut budgets, &id, 5, now).unwrap();
        let other = SecretId::random();
        assert!(reserved(&mut budgets, &other, 1, now).is_none());
        budgets.settle(&mut part, now);
        assert!(reserved(&mut budgets, &other, 1, now).is_none());
    }
}
