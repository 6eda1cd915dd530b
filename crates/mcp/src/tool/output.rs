//! Output of a command, kept within what a model can read: its beginning and its end.

use std::collections::VecDeque;

use cove_api::process::OutputChunk;

/// What is kept of one stream. The middle is left out when there is too much; its offsets are shown, so
/// that it can be read with `run_output`.
pub struct Kept {
    max: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Offset of the first byte kept.
    from: u64,
    /// Offset after the last byte seen.
    pub next: u64,
    /// Bytes the sandbox no longer had.
    dropped: u64,
}

impl Kept {
    pub fn new(from: u64, max: usize) -> Self {
        Self {
            max,
            head: Vec::new(),
            tail: VecDeque::new(),
            from,
            next: from,
            dropped: 0,
        }
    }

    pub fn push(&mut self, chunk: OutputChunk) {
        let (offset, dropped) = (chunk.offset, chunk.dropped);
        let Some(bytes) = chunk.into_bytes() else {
            return;
        };
        if dropped > 0 && self.head.is_empty() {
            self.from = offset;
        }
        self.dropped += dropped;
        self.next = offset + bytes.len() as u64;
        let half = self.max / 2;
        let room = half.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        self.tail.extend(&bytes[room..]);
        let over = self.tail.len().saturating_sub(half);
        self.tail.drain(..over);
    }

    /// Output that has no offsets of its own.
    pub fn push_text(&mut self, text: &str) {
        self.push(OutputChunk::new(self.next, 0, text.as_bytes()));
    }

    /// The last line that is not empty.
    pub fn last_line(&self) -> String {
        let mut bytes: Vec<u8> = self.tail.iter().copied().collect();
        if bytes.is_empty() {
            bytes.clone_from(&self.head);
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines().rev();
        lines
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default()
            .to_owned()
    }

    pub fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let missing_from = self.from + self.head.len() as u64;
        let missing_to = self.next - tail.len() as u64;
        let mut bytes = Vec::new();
        if self.dropped > 0 {
            bytes.extend(format!("[{} bytes are no longer kept]\n", self.dropped).bytes());
        }
        bytes.extend_from_slice(&self.head);
        if missing_to > missing_from {
            let count = missing_to - missing_from;
            let note =
                format!("\n[{count} bytes left out: offsets {missing_from} to {missing_to}]\n");
            bytes.extend(note.bytes());
        }
        bytes.extend(tail);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept_and_the_gap_is_told() {
        let mut kept = Kept::new(0, 8);
        kept.push(OutputChunk::new(0, 0, b"abc"));
        assert_eq!(kept.text(), "abc");
        kept.push(OutputChunk::new(3, 0, b"defghijkl"));
        assert_eq!(
            kept.text(),
            "abcd\n[4 bytes left out: offsets 4 to 8]\nijkl"
        );
        assert_eq!(kept.next, 12);
    }

    #[test]
    fn what_the_sandbox_no_longer_has_is_told() {
        let mut kept = Kept::new(0, 100);
        kept.push(OutputChunk::new(50, 50, b"end\n"));
        assert_eq!(kept.text(), "[50 bytes are no longer kept]\nend\n");
        assert_eq!(kept.last_line(), "end");
    }
}
