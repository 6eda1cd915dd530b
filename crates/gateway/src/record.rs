//! An entry of the egress log as one line of text: how it crosses from the process to the engine, and how it
//! lies on disk. The reader is root and the writer talks to untrusted clients, so a line is a fixed number of fields
//! between tabs, each an integer, a word of a short list or an escaped text, and each entry has exactly one.
//!
//! ```text
//! sequence  nanoseconds  protocol  verdict  name  address  port  sent  received  rule
//! ```

use std::fmt::Write;
use std::str::FromStr;

use cove_model::egress::{EgressEntry, EgressProtocol, EgressVerdict};
use time::OffsetDateTime;

/// No line is longer: texts in an entry are cut.
pub const LINE_BYTES_MAX: usize = 4096;
pub(crate) const SEPARATOR: char = '\t';
const FIELDS: usize = 10;
/// Before a text that may be absent.
const PRESENT: char = '=';

const PROTOCOLS: [(EgressProtocol, &str); 5] = [
    (EgressProtocol::Dns, "dns"),
    (EgressProtocol::Tcp, "tcp"),
    (EgressProtocol::Udp, "udp"),
    (EgressProtocol::Icmp, "icmp"),
    (EgressProtocol::Other, "other"),
];
const VERDICTS: [(EgressVerdict, &str); 2] = [
    (EgressVerdict::Allowed, "allowed"),
    (EgressVerdict::Denied, "denied"),
];

/// The line, without its end.
pub fn encode(entry: &EgressEntry) -> String {
    let mut line = String::new();
    let name = entry.name.as_deref().map(|name| PRESENT.to_string() + name);
    let optional = |number: Option<String>| number.unwrap_or_default();
    let fields: [String; FIELDS] = [
        entry.sequence.to_string(),
        entry.at.unix_timestamp_nanos().to_string(),
        word(&PROTOCOLS, entry.protocol).to_owned(),
        word(&VERDICTS, entry.verdict).to_owned(),
        escape(&name.unwrap_or_default()),
        optional(entry.address.map(|address| address.to_string())),
        optional(entry.port.map(|port| port.to_string())),
        entry.sent_bytes.to_string(),
        entry.received_bytes.to_string(),
        escape(&entry.rule),
    ];
    for (number, field) in fields.iter().enumerate() {
        if number > 0 {
            line.push(SEPARATOR);
        }
        line.push_str(field);
    }
    line
}

/// `None` for anything but a line that [`encode`] writes.
pub fn decode(line: &str) -> Option<EgressEntry> {
    if line.len() > LINE_BYTES_MAX {
        return None;
    }
    let mut fields = line.split(SEPARATOR);
    let mut next = || fields.next();
    let entry = EgressEntry {
        sequence: next()?.parse().ok()?,
        at: OffsetDateTime::from_unix_timestamp_nanos(next()?.parse().ok()?).ok()?,
        protocol: meaning(&PROTOCOLS, next()?)?,
        verdict: meaning(&VERDICTS, next()?)?,
        name: match next()? {
            "" => None,
            text => Some(unescape(text.strip_prefix(PRESENT)?)?),
        },
        address: absent_or(next()?)?,
        port: absent_or(next()?)?,
        sent_bytes: next()?.parse().ok()?,
        received_bytes: next()?.parse().ok()?,
        rule: unescape(next()?)?,
    };
    // Numbers have several spellings; one of them is ours. This also finds fields beyond the last.
    (encode(&entry) == line).then_some(entry)
}

fn word<T: PartialEq + Copy>(words: &[(T, &'static str)], value: T) -> &'static str {
    let found = words.iter().find(|(known, _)| *known == value);
    found.map_or("", |(_, word)| word)
}

fn meaning<T: Copy>(words: &[(T, &str)], word: &str) -> Option<T> {
    let found = words.iter().find(|(_, known)| *known == word);
    found.map(|(value, _)| *value)
}

/// Absent is an empty field; the outer `None` is a field that makes no sense.
fn absent_or<T: FromStr>(field: &str) -> Option<Option<T>> {
    match field {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    }
}

/// Control characters, the separator and the end of a line included, as `\`, hexadecimal digits and `;`.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            control if control.is_control() => {
                write!(escaped, "\\{:02x};", control as u32).expect("a string takes everything");
            }
            plain => escaped.push(plain),
        }
    }
    escaped
}

fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        rest = match after.strip_prefix('\\') {
            Some(after) => {
                plain.push('\\');
                after
            }
            None => {
                let (digits, after) = after.split_once(';')?;
                let number = u32::from_str_radix(digits, 16).ok()?;
                plain.push(char::from_u32(number)?);
                after
            }
        };
    }
    plain.push_str(rest);
    Some(plain)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    pub(crate) fn entry() -> impl Strategy<Value = EgressEntry> {
        let protocols = prop::sample::select(PROTOCOLS.map(|(protocol, _)| protocol).to_vec());
        let verdicts = prop::sample::select(VERDICTS.map(|(verdict, _)| verdict).to_vec());
        let text = || any::<String>().prop_filter("it is cut", |text| text.len() < 200);
        (
            (any::<u64>(), any::<i64>(), protocols, verdicts),
            (
                proptest::option::of(text()),
                any::<Option<IpAddr>>(),
                any::<Option<u16>>(),
            ),
            (any::<u64>(), any::<u64>(), text()),
        )
            .prop_map(
                |(
                    (sequence, at, protocol, verdict),
                    (name, address, port),
                    (sent_bytes, received_bytes, rule),
                )| EgressEntry {
                    sequence,
                    at: OffsetDateTime::from_unix_timestamp_nanos(at.into())
                        .expect("64 bits of nanoseconds are within the calendar"),
                    protocol,
                    name,
                    address,
                    port,
                    verdict,
                    rule,
                    sent_bytes,
                    received_bytes,
                },
            )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_entry_is_read_as_it_was_written(entry in entry()) {
            let line = encode(&entry);
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(decode(&line), Some(entry));
        }

        #[test]
        fn damaged_lines_are_refused_or_mean_exactly_one_entry(
            entry in entry(),
            at in any::<prop::sample::Index>(),
            put in prop::sample::select(vec!['\t', '\\', '0', '+', ';', '=', 'x', '\u{7f}', 'ä']),
        ) {
            let mut characters: Vec<char> = encode(&entry).chars().collect();
            let at = at.index(characters.len());
            characters[at] = put;
            let line: String = characters.into_iter().collect();
            if let Some(entry) = decode(&line) {
                prop_assert_eq!(encode(&entry), line);
            }
        }

        #[test]
        fn any_text_gets_an_answer(line in any::<String>()) {
            if let Some(entry) = decode(&line) {
                prop_assert_eq!(encode(&entry), line);
            }
        }
    }

    #[test]
    fn a_name_that_is_empty_is_not_an_absent_one() {
        let mut entry = decode("5\t0\tdns\tdenied\t\t\t\t0\t0\tr").expect("a line of ours");
        assert_eq!(entry.name, None);
        entry.name = Some(String::new());
        assert_eq!(decode(&encode(&entry)), Some(entry));
    }

    #[test]
    fn other_spellings_and_more_fields_are_refused() {
        let line = "5\t0\tdns\tdenied\t=a\t10.0.0.1\t53\t0\t0\tr";
        assert!(decode(line).is_some());
        for other in [
            line.replace("5\t0", "+5\t0"),
            line.replace("5\t0", "05\t0"),
            line.replace("=a", "a"),
            line.replace("10.0.0.1", "010.0.0.1"),
            line.replace("denied", "Denied"),
            line.replace("\tr", "\tr\tr"),
            line.replace("=a", "=\\41;"),
            format!("{line}{}", "r".repeat(LINE_BYTES_MAX)),
        ] {
            assert_eq!(decode(&other), None, "{other}");
        }
    }
}
