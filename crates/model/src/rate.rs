//! Token buckets: pure, with the time as an argument.

use std::time::{Duration, Instant};

use crate::clock::Steady;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    /// Tokens per second in the long run.
    pub per_second: f64,
    /// Tokens that may be taken at once.
    pub burst: f64,
}

/// A clock's reading.
pub trait Reading: Copy + Ord {
    /// How much later it is; zero when it is earlier.
    fn since(self, earlier: Self) -> Duration;
}

impl Reading for Steady {
    fn since(self, earlier: Self) -> Duration {
        Steady::since(self, earlier)
    }
}

impl Reading for Instant {
    fn since(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TokenBucket<R> {
    limit: RateLimit,
    tokens: f64,
    at: R,
}

impl<R: Reading> TokenBucket<R> {
    pub fn full(limit: RateLimit, now: R) -> Self {
        Self {
            limit,
            tokens: limit.burst,
            at: now,
        }
    }

    /// Takes that many tokens or none; an error is how long until there are as many. A clock that jumps back
    /// refills nothing.
    pub fn take(&mut self, tokens: u32, now: R) -> Result<(), Duration> {
        let passed = now.since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.limit.per_second).min(self.limit.burst.max(1.0));
        self.at = self.at.max(now);
        let missing = f64::from(tokens) - self.tokens;
        if missing <= 0.0 {
            self.tokens -= f64::from(tokens);
            return Ok(());
        }
        let wait = Duration::try_from_secs_f64(missing / self.limit.per_second);
        Err(wait.unwrap_or(Duration::MAX))
    }

    /// Whether forgetting it changes nothing.
    pub fn is_full(&self, now: R) -> bool {
        let passed = now.since(self.at).as_secs_f64();
        self.tokens + passed * self.limit.per_second >= self.limit.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: RateLimit = RateLimit {
        per_second: 10.0,
        burst: 5.0,
    };

    #[test]
    fn a_burst_passes_and_the_next_request_learns_when_to_come() {
        let now = Steady::default();
        let mut bucket = TokenBucket::full(LIMIT, now);
        for _ in 0..5 {
            bucket.take(1, now).unwrap();
        }
        let wait = bucket.take(1, now).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_millis(100));
        bucket.take(1, now + wait).unwrap();
    }

    #[test]
    fn several_are_taken_at_once_or_not_at_all() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(LIMIT, start);
        assert!(bucket.take(6, start).is_err());
        bucket.take(5, start).unwrap();
        let later = start + Duration::from_millis(200);
        bucket.take(2, later).unwrap();
        assert!(bucket.take(1, later).is_err());
        assert!(bucket.take(6, later + Duration::from_secs(100)).is_err());
        assert!(bucket.is_full(later + Duration::from_secs(100)));
    }

    #[test]
    fn a_clock_that_jumps_back_gives_nothing_and_takes_nothing() {
        let now = Steady::default() + Duration::from_secs(1000);
        let mut bucket = TokenBucket::full(LIMIT, now);
        for _ in 0..5 {
            bucket.take(1, now).unwrap();
        }
        let earlier = now.before(Duration::from_secs(500));
        assert!(bucket.take(1, earlier).is_err());
    }

    proptest! {
        #[test]
        fn never_more_than_burst_plus_rate(gaps_ms in prop::collection::vec(0u64..400, 1..200)) {
            let start = Steady::default();
            let mut bucket = TokenBucket::full(LIMIT, start);
            let (mut now, mut passed) = (start, 0u32);
            for gap in gaps_ms {
                now = now + Duration::from_millis(gap);
                passed += u32::from(bucket.take(1, now).is_ok());
            }
            let most = LIMIT.burst + now.since(start).as_secs_f64() * LIMIT.per_second;
            prop_assert!(f64::from(passed) <= most + 1e-6);
        }
    }
}
