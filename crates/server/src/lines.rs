//! Lines of refused requests in the log: some of each caller in a second, then only their number. A
//! caller that is refused as fast as it can ask fills nobody's disk and hides nobody else's lines.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines of one caller in a second. All that have no key are one.
const LINES_MAX: u32 = 20;
/// Callers that are counted apart.
const CALLERS_MAX: usize = 1024;
const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct RefusedLines(Mutex<State>);

#[derive(Default)]
struct State {
    since: Option<Instant>,
    of: HashMap<String, u32>,
    left_out: u64,
}

impl RefusedLines {
    /// Whether this caller's line is written. Says how many were not, once a second.
    pub fn admits(&self, caller: &str) -> bool {
        let (admitted, left_out) = self.take(caller, Instant::now());
        if left_out > 0 {
            tracing::info!(target: "cove::http", left_out, "left refused requests out of the log");
        }
        admitted
    }

    fn take(&self, caller: &str, now: Instant) -> (bool, u64) {
        let mut state = self.0.lock();
        let mut left_out = 0;
        if state.since.is_none_or(|since| now - since >= SECOND) {
            state.since = Some(now);
            state.of.clear();
            left_out = std::mem::take(&mut state.left_out);
        }
        let known = state.of.get(caller).copied();
        let room = known.is_some() || state.of.len() < CALLERS_MAX;
        let admitted = room && known.unwrap_or(0) < LINES_MAX;
        if admitted {
            *state.of.entry(caller.to_owned()).or_default() += 1;
        } else {
            state.left_out += 1;
        }
        (admitted, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_a_neighbour_is_still_heard() {
        let (lines, now) = (RefusedLines::default(), Instant::now());
        let written = (0..1000).filter(|_| lines.take("loud", now).0).count();
        assert_eq!(written as u32, LINES_MAX);
        assert!(lines.take("quiet", now).0);
        let (again, left_out) = lines.take("loud", now + SECOND);
        assert!(again);
        assert_eq!(left_out, 1000 - u64::from(LINES_MAX));
    }
}
