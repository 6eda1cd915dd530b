//! The one thing a resolver must read to refuse: who was asked for. A query is answered in place, with its own
//! question; what is not a query gets no answer.

use std::fmt::Write;

use cove_limits::DOMAIN_NAME_MAX;

/// Longer queries are cut by the kernel, and have no room for more than a question anyway.
pub const BYTES_MAX: usize = 512;
const HEADER: usize = 12;
const LABEL_MAX: usize = 63;
const NAME_BYTES_MAX: usize = 255;
/// This is an answer, and one to a query that wants recursion, which is not available.
const ANSWER: u8 = 0x80;
const OPERATION: u8 = 0x78;
const RECURSION_WANTED: u8 = 0x01;
const REFUSED: u8 = 5;

/// Turns the query in the buffer into its refusal. The name asked for, and the refusal's length.
pub fn refuse(buffer: &mut [u8], length: usize) -> Option<(String, usize)> {
    let message = buffer.get(..length)?;
    let header = message.get(..HEADER)?;
    let questions = u16::from_be_bytes([header[4], header[5]]);
    if header[2] & (ANSWER | OPERATION) != 0 || questions != 1 {
        return None;
    }
    let (name, end) = name(message)?;
    // Type and class.
    let end = end + 4;
    message.get(..end)?;
    buffer[2] = ANSWER | (buffer[2] & RECURSION_WANTED);
    buffer[3] = REFUSED;
    buffer[6..HEADER].fill(0);
    Some((name, end))
}

/// The question's name, and where it ends. It has no pointers: there is nothing before it to point to.
fn name(message: &[u8]) -> Option<(String, usize)> {
    let mut shown = String::new();
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        if length > LABEL_MAX || at + length - HEADER >= NAME_BYTES_MAX {
            return None;
        }
        let label = message.get(at..at + length)?;
        at += length;
        if !shown.is_empty() {
            shown.push('.');
        }
        for byte in label {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => shown.push(char::from(*byte)),
                b'A'..=b'Z' => shown.push(char::from(byte.to_ascii_lowercase())),
                // As in zone files, so that nothing of it is taken for anything else where it is shown.
                _ => write!(shown, "\\{byte:03}").ok()?,
            }
        }
    }
    if shown.is_empty() {
        shown.push('.');
    }
    shown.truncate(DOMAIN_NAME_MAX);
    Some((shown, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(labels: &[&[u8]]) -> Vec<u8> {
        let mut message = vec![0xab, 0xcd, 0x01, 0x20, 0, 1, 0, 0, 0, 0, 0, 1];
        for label in labels {
            message.push(label.len() as u8);
            message.extend_from_slice(label);
        }
        message.extend([0, 0, 1, 0, 1]);
        message
    }

    /// With the additional record that resolvers add.
    fn extended(labels: &[&[u8]]) -> Vec<u8> {
        let mut message = asking(labels);
        message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        message
    }

    fn refused(message: &[u8]) -> Option<(String, Vec<u8>)> {
        let mut buffer = [0; BYTES_MAX];
        buffer[..message.len()].copy_from_slice(message);
        let (name, length) = refuse(&mut buffer, message.len())?;
        Some((name, buffer[..length].to_vec()))
    }

    #[test]
    fn a_query_becomes_its_refusal() {
        let question = asking(&[b"PyPI", b"org"]);
        let (name, answer) = refused(&extended(&[b"PyPI", b"org"])).unwrap();
        assert_eq!(name, "pypi.org");
        assert_eq!(answer[..4], [0xab, 0xcd, 0x81, REFUSED]);
        assert_eq!(answer[4..HEADER], [0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(answer[HEADER..], question[HEADER..]);
        assert_eq!(refused(&asking(&[])).unwrap().0, ".");
    }

    #[test]
    fn damaged_queries_are_refused_as_a_library_reads_them() {
        use hickory_proto::op::{Message, MessageType, ResponseCode};

        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |bound: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % bound as u64) as usize
        };
        let (mut answered, mut read) = (0, 0);
        for round in 0..50_000 {
            let labels: [&[u8]; 3] = [b"a-1", b"PyPI", b"example"];
            let mut query = match round % 2 {
                0 => asking(&labels[below(3)..]),
                _ => extended(&labels[below(3)..]),
            };
            for _ in 0..below(4) {
                let at = below(query.len());
                match below(3) {
                    0 => query[at] = below(256) as u8,
                    1 => query.truncate(at.max(1)),
                    _ => query.insert(at, below(256) as u8),
                }
            }
            let Some((_, answer)) = refused(&query) else {
                continue;
            };
            answered += 1;
            assert!(
                answer.len() <= query.len(),
                "no answer is longer than its query"
            );
            let Ok(message) = Message::from_vec(&answer) else {
                continue;
            };
            read += 1;
            assert_eq!(message.metadata.id.to_be_bytes(), query[..2]);
            assert_eq!(message.metadata.message_type, MessageType::Response);
            assert_eq!(message.metadata.response_code, ResponseCode::Refused);
            assert_eq!(message.queries.len(), 1);
            assert!(message.answers.is_empty() && message.additionals.is_empty());
            // What the library reads of the query itself, where it can, is what was answered.
            if let Ok(asked) = Message::from_vec(&query) {
                assert_eq!(asked.queries, message.queries);
            }
        }
        assert!(
            answered > 10_000 && read * 10 > answered * 9,
            "{read} of {answered}"
        );
    }

    #[test]
    fn names_are_hostile_text() {
        let (name, _) = refused(&asking(&[b"a\x1b[2J\n.\"\\\xff", b"x"])).unwrap();
        assert_eq!(
            name,
            "a\\027\\0912\\074\\010\\046\\034\\092\\255.x".replace("\\074", "j")
        );
        let label = [0xff; LABEL_MAX];
        let (name, _) = refused(&asking(&[&label, &label, &label])).unwrap();
        assert_eq!(name.len(), DOMAIN_NAME_MAX);
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()));
    }

    #[test]
    fn what_is_no_query_gets_no_answer() {
        let good = asking(&[b"example", b"com"]);
        for length in 0..good.len() {
            assert_eq!(refused(&good[..length]), None, "cut at {length}");
        }
        let mut answer = good.clone();
        answer[2] |= ANSWER;
        let mut update = good.clone();
        update[2] |= 5 << 3;
        let mut two = good.clone();
        two[5] = 2;
        let mut pointer = good.clone();
        pointer[HEADER] = 0xc0;
        let label: &[u8] = &[b'a'; LABEL_MAX];
        let long = asking(&[label; 5]);
        for bad in [answer, update, two, pointer, long] {
            assert_eq!(refused(&bad), None, "{bad:?}");
        }
    }
}
