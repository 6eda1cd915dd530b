//! The last bytes of one output stream, with the absolute offset of each, and when they came. Memory is taken
//! as it fills: most commands print little.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use cove_limits::OUTPUT_TIMES_MAX;
use cove_protocol::message::OutputTime;

/// The first allocation.
const FIRST: usize = 4 * 1024;
/// Marks of time in one ring; see [`Ring::times_max`].
const TIMES_MIN: usize = 256;
/// Bytes of memory for output per mark of time.
const BYTES_PER_TIME: usize = 64;

pub struct Ring {
    buffer: Vec<u8>,
    /// Index of the oldest byte in `buffer`.
    head: usize,
    length: usize,
    /// Bytes kept at most; 0 keeps nothing and only counts.
    limit: usize,
    /// Absolute offset behind the newest byte.
    end: u64,
    /// When bytes came: from each offset up to the next one's.
    times: VecDeque<OutputTime>,
    /// Milliseconds between two marks. It grows where a stream writes more often than its marks have room for.
    apart_ms: u64,
}

impl Ring {
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            head: 0,
            length: 0,
            limit,
            end: 0,
            times: VecDeque::new(),
            apart_ms: 1,
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

    /// What is pushed next comes at this time.
    pub fn mark(&mut self, unix_ms: i64) {
        if self.limit == 0 {
            return;
        }
        let oldest = self.oldest();
        while self.times.get(1).is_some_and(|next| next.offset <= oldest) {
            self.times.pop_front();
        }
        match self.times.back_mut() {
            Some(last) if last.unix_ms.abs_diff(unix_ms) < self.apart_ms => return,
            // Nothing came at that time.
            Some(last) if last.offset == self.end => {
                last.unix_ms = unix_ms;
                return;
            }
            _ => {}
        }
        let most = self.times_max();
        if self.times.len() >= most {
            let mut stays = false;
            self.times.retain(|_| {
                stays = !stays;
                stays
            });
            self.apart_ms = self.apart_ms.saturating_mul(2);
        } else if self.times.len() < most / 4 {
            self.apart_ms = (self.apart_ms / 2).max(1);
        }
        self.times.push_back(OutputTime {
            offset: self.end,
            unix_ms,
        });
    }

    /// A share of the memory that the output has.
    fn times_max(&self) -> usize {
        (self.buffer.len() / BYTES_PER_TIME).clamp(TIMES_MIN, OUTPUT_TIMES_MAX)
    }

    /// When the bytes between two offsets came. The first mark is of the first byte, unless that is not known.
    pub fn times(&self, from: u64, to: u64) -> Vec<OutputTime> {
        if from >= to {
            return Vec::new();
        }
        let later = self.times.partition_point(|time| time.offset <= from);
        let first = later.checked_sub(1).map(|index| OutputTime {
            offset: from,
            ..self.times[index]
        });
        let later = self.times.range(later..);
        let later = later.take_while(|time| time.offset < to).copied();
        first.into_iter().chain(later).collect()
    }

    /// Takes up marks that were kept with the output. Those that do not fit it are left out.
    pub fn restore_times(&mut self, times: impl Iterator<Item = OutputTime>) {
        let mut from = self.oldest();
        for time in times.take(OUTPUT_TIMES_MAX) {
            if (from..self.end).contains(&time.offset) {
                from = time.offset + 1;
                self.times.push_back(time);
            }
        }
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

    fn marks(ring: &Ring, from: u64, to: u64) -> Vec<(u64, i64)> {
        let times = ring.times(from, to).into_iter();
        times.map(|time| (time.offset, time.unix_ms)).collect()
    }

    #[test]
    fn bytes_have_the_time_they_came_at() {
        let mut ring = Ring::new(4096);
        push(&mut ring, b"before");
        for (at, data) in [
            (1000, "one\n"),
            (1000, "two\n"),
            (2500, "three\n"),
            (900, "set back\n"),
        ] {
            ring.mark(at);
            push(&mut ring, data.as_bytes());
        }
        // When the first ones came is not known.
        let end = ring.end();
        assert_eq!(marks(&ring, 0, end), [(6, 1000), (14, 2500), (20, 900)]);
        assert_eq!(marks(&ring, 9, 15), [(9, 1000), (14, 2500)]);
        assert_eq!(marks(&ring, 16, 20), [(16, 2500)]);
        assert_eq!(marks(&ring, end, end), []);
        ring.discard();
        ring.mark(3000);
        push(&mut ring, b"more");
        assert_eq!(marks(&ring, 0, ring.end()), []);
    }

    #[test]
    fn marks_are_bounded_and_go_with_their_bytes() {
        for limit in [4096, 1 << 20] {
            let mut ring = Ring::new(limit);
            for at in 0..50_000 {
                ring.mark(at);
                push(&mut ring, b"a line of text\n");
            }
            assert!(ring.times.len() <= ring.times_max());
            let all = marks(&ring, ring.oldest(), ring.end());
            assert_eq!(all[0].0, ring.oldest());
            // Each is about as late as its bytes, and none is later.
            for (offset, at) in all {
                let exact = (offset / 15).cast_signed();
                assert!(at <= exact && exact - at < 200, "{offset}: {at} {exact}");
            }
        }
    }

    #[test]
    fn a_stream_that_calms_down_has_exact_marks_again() {
        let mut ring = Ring::new(4096);
        for at in 0..2000 {
            ring.mark(at);
            push(&mut ring, b"x");
        }
        assert!(ring.apart_ms > 1);
        for at in 0..2000 {
            ring.mark(10_000 + at * 1000);
            push(&mut ring, &[b'y'; 100]);
        }
        assert_eq!(ring.apart_ms, 1);
    }

    #[test]
    fn marks_that_do_not_fit_are_not_taken_up() {
        let mut ring = Ring::starting_at(100, 50);
        push(&mut ring, &[1; 20]);
        let kept = [(40, 1), (50, 2), (60, 3), (55, 4), (69, 5), (70, 6)];
        let kept = kept.map(|(offset, unix_ms)| OutputTime { offset, unix_ms });
        ring.restore_times(kept.into_iter());
        assert_eq!(marks(&ring, 50, 70), [(50, 2), (60, 3), (69, 5)]);
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
