//! Token buckets: pure, with the time as an argument.

use std::time::Duration;

use cove_model::Steady;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    /// Requests per second in the long run; 0 means no limit.
    pub per_second: f64,
    /// Requests that may come at once.
    pub burst: f64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self {
            per_second: 2_000.0,
            burst: 4_000.0,
        }
    }
}

/// One key's bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Bucket {
    tokens: f64,
    at: Steady,
}

impl Bucket {
    pub fn full(limit: RateLimit, now: Steady) -> Self {
        Self {
            tokens: limit.burst,
            at: now,
        }
    }

    /// Takes one token, or says how long until there is one. A clock that jumps back refills nothing.
    pub fn take(&mut self, limit: RateLimit, now: Steady) -> Result<(), Duration> {
        if limit.per_second <= 0.0 {
            return Ok(());
        }
        let passed = now.since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * limit.per_second).min(limit.burst.max(1.0));
        self.at = self.at.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64(
            (1.0 - self.tokens) / limit.per_second,
        ))
    }

    /// Whether forgetting it changes nothing.
    pub fn is_full(&self, limit: RateLimit, now: Steady) -> bool {
        let passed = now.since(self.at).as_secs_f64();
        self.tokens + passed * limit.per_second >= limit.burst
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
    fn a_burst_passes_and_the_next_request_is_told_when() {
        let now = Steady::default();
        let mut bucket = Bucket::full(LIMIT, now);
        for _ in 0..5 {
            bucket.take(LIMIT, now).unwrap();
        }
        let wait = bucket.take(LIMIT, now).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_millis(100));
        bucket.take(LIMIT, now + wait).unwrap();
    }

    #[test]
    fn a_clock_that_jumps_back_gives_nothing_and_takes_nothing() {
        let now = Steady::default() + Duration::from_secs(1000);
        let mut bucket = Bucket::full(LIMIT, now);
        for _ in 0..5 {
            bucket.take(LIMIT, now).unwrap();
        }
        assert!(
            bucket
                .take(LIMIT, now.before(Duration::from_secs(500)))
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn never_more_than_burst_plus_rate(gaps_ms in prop::collection::vec(0u64..400, 1..200)) {
            let start = Steady::default();
            let mut bucket = Bucket::full(LIMIT, start);
            let (mut now, mut passed) = (start, 0u32);
            for gap in gaps_ms {
                now = now + Duration::from_millis(gap);
                passed += u32::from(bucket.take(LIMIT, now).is_ok());
            }
            let most = LIMIT.burst + now.since(start).as_secs_f64() * LIMIT.per_second;
            prop_assert!(f64::from(passed) <= most + 1e-6);
        }
    }
}
