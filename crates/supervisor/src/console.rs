//! What a program says: read to its end, of which the last part is kept.

use std::collections::VecDeque;

/// What is told of it when a start fails.
const KEPT: usize = 600;

#[derive(Default)]
pub struct Tail(VecDeque<u8>);

impl Tail {
    pub fn of(bytes: &[u8]) -> Self {
        let mut tail = Self::default();
        tail.add(bytes);
        tail
    }

    pub fn add(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        self.0.extend(bytes);
        let surplus = self.0.len().saturating_sub(KEPT);
        self.0.drain(..surplus);
    }

    /// As one line.
    pub fn line(&self) -> String {
        let plain = self.0.iter().map(|byte| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => ' ',
        });
        let text: String = plain.collect();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_is_told_as_one_plain_line() {
        let mut tail = Tail::default();
        tail.add(&vec![b'a'; 100_000]);
        tail.add(b"\r\nthe \x1b[31mend\n");
        let line = tail.line();
        assert!(
            line.ends_with("aaa the [31mend") && line.len() <= KEPT,
            "{line}"
        );
    }
}
