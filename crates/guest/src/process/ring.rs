//! The last bytes of one output stream, with the absolute offset of each. Memory is taken as it
//! fills: most commands print little.

use bytes::{Bytes, BytesMut};

/// The first allocation.
const FIRST: usize = 4 * 1024;

pub struct Ring {
    buffer: Vec<u8>,
    /// Index of the oldest byte in `buffer`.
    head: usize,
    length: usize,
    /// Bytes kept at most; 0 keeps nothing and only counts.
    limit: usize,
    /// Absolute offset behind the newest byte.
    end: u64,
}

impl Ring {
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            head: 0,
            length: 0,
            limit,
            end: 0,
        }
    }

    /// Empty, with so much written and dropped before.
    pub fn starting_at(limit: usize, end: u64) -> Self {
        Self {
            end,
            ..Self::new(limit)
        }
    }

    /// Keeps so much from now on, if that is more.
    pub fn widen(&mut self, limit: usize) {
        self.limit = self.limit.max(limit);
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn oldest(&self) -> u64 {
        self.end - self.length as u64
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn allocated(&self) -> usize {
        self.buffer.len()
    }

    /// How much more memory keeping `incoming` further bytes would take.
    pub fn growth_for(&self, incoming: usize) -> usize {
        let wanted = (self.length + incoming).min(self.limit);
        if wanted <= self.buffer.len() {
            return 0;
        }
        wanted.next_power_of_two().max(FIRST).min(self.limit) - self.buffer.len()
    }

    pub fn grow(&mut self, by: usize) {
        let mut larger = vec![0; self.buffer.len() + by];
        let (first, second) = self.slices(self.head, self.length);
        larger[..first.len()].copy_from_slice(first);
        larger[first.len()..self.length].copy_from_slice(second);
        self.buffer = larger;
        self.head = 0;
    }

    /// Keeps nothing from now on, but goes on counting.
    pub fn discard(&mut self) {
        *self = Self {
            end: self.end,
            ..Self::new(0)
        };
    }

    pub fn push(&mut self, data: &[u8]) {
        self.end += data.len() as u64;
        let capacity = self.buffer.len();
        let data = &data[data.len().saturating_sub(capacity)..];
        if data.is_empty() {
            return;
        }
        let overflow = (self.length + data.len()).saturating_sub(capacity);
        self.head = (self.head + overflow) % capacity;
        self.length -= overflow;
        let tail = (self.head + self.length) % capacity;
        let first = data.len().min(capacity - tail);
        self.buffer[tail..tail + first].copy_from_slice(&data[..first]);
        self.buffer[..data.len() - first].copy_from_slice(&data[first..]);
        self.length += data.len();
    }

    /// At most `limit` bytes from `offset` on, and the offset they really start at: later when the
    /// ring no longer has the asked-for ones.
    pub fn read(&self, offset: u64, limit: usize) -> (u64, Bytes) {
        let start = offset.clamp(self.oldest(), self.end);
        let count = usize::try_from(self.end - start)
            .unwrap_or(usize::MAX)
            .min(limit);
        if count == 0 {
            return (start, Bytes::new());
        }
        // `start` is within the ring, so the difference is smaller than its length.
        let skip = (start - self.oldest()) as usize;
        let (first, second) = self.slices((self.head + skip) % self.buffer.len(), count);
        let mut data = BytesMut::with_capacity(count);
        data.extend_from_slice(first);
        data.extend_from_slice(second);
        (start, data.freeze())
    }

    fn slices(&self, from: usize, count: usize) -> (&[u8], &[u8]) {
        let first = count.min(self.buffer.len() - from);
        (
            &self.buffer[from..from + first],
            &self.buffer[..count - first],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(ring: &mut Ring, data: &[u8]) {
        let growth = ring.growth_for(data.len());
        if growth > 0 {
            ring.grow(growth);
        }
        ring.push(data);
    }

    fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(2_654_435_761) >> 7) as u8
    }

    #[test]
    fn it_keeps_the_newest_bytes_at_their_offsets() {
        let mut seed = 7_u64;
        for limit in [1, 5, 4096, 5000, 9000] {
            let mut ring = Ring::new(limit);
            for _ in 0..300 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let count = (seed >> 33) % 3000;
                let data: Vec<u8> = (ring.end()..ring.end() + count).map(byte).collect();
                push(&mut ring, &data);
                let kept = ring.end() - ring.oldest();
                assert_eq!(kept, ring.end().min(limit as u64), "limit {limit}");
                let (start, all) = ring.read(0, usize::MAX);
                assert_eq!(start, ring.oldest());
                let wanted: Vec<u8> = (ring.oldest()..ring.end()).map(byte).collect();
                assert_eq!(all, wanted);
                let middle = ring.oldest() + kept / 2;
                let (start, part) = ring.read(middle, 10);
                assert_eq!(start, middle);
                assert_eq!(part.len() as u64, (ring.end() - middle).min(10));
            }
        }
    }

    #[test]
    fn memory_follows_what_is_kept() {
        let mut ring = Ring::new(256 * 1024);
        assert_eq!(ring.allocated(), 0);
        push(&mut ring, b"hello");
        assert_eq!(ring.allocated(), FIRST);
        push(&mut ring, &[0; 1 << 20]);
        assert_eq!(ring.allocated(), 256 * 1024);
    }

    #[test]
    fn a_ring_that_may_not_grow_drops_instead() {
        let mut ring = Ring::new(1 << 20);
        ring.grow(ring.growth_for(1));
        ring.push(&[1; 10_000]);
        assert_eq!(ring.oldest(), 10_000 - FIRST as u64);
    }

    #[test]
    fn a_discarded_ring_only_counts() {
        let mut ring = Ring::new(100);
        push(&mut ring, &[1; 50]);
        ring.discard();
        push(&mut ring, &[1; 50]);
        assert_eq!((ring.oldest(), ring.end(), ring.allocated()), (100, 100, 0));
    }
}
