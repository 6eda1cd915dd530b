//! Ids of builds and of versions as E2B's clients read them: as UUIDs, which say what they name.

use cove_model::{BuildId, TemplateId};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const CHARS: usize = 20;
/// The five digits before the 100 bits of an id.
const BUILD: &str = "00000";
const VERSION: &str = "00001";

/// What a UUID of ours names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    Build(BuildId),
    Version(TemplateId),
}

pub fn of_build(id: &BuildId) -> String {
    uuid(BUILD, id.as_str())
}

pub fn of_version(id: &TemplateId) -> String {
    uuid(VERSION, id.as_str())
}

fn uuid(kind: &str, id: &str) -> String {
    let random = id.rsplit('_').next().unwrap_or_default();
    let value = random.bytes().enumerate().fold(0u128, |value, (at, byte)| {
        let digit = ALPHABET.iter().position(|letter| *letter == byte);
        value | (digit.unwrap_or_default() as u128) << (5 * at)
    });
    let digits = format!("{kind}{value:025x}");
    // Version 8 is free to have any content.
    format!(
        "{}-{}-8{}-8{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..15],
        &digits[15..18],
        &digits[18..]
    )
}

/// Whether a text has the form of a UUID, of whoever.
pub fn is_uuid(text: &str) -> bool {
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

pub fn meant(text: &str) -> Option<Named> {
    if !is_uuid(text) || !text.is_ascii() {
        return None;
    }
    let text = text.to_ascii_lowercase();
    let (version, variant) = (&text[14..15], &text[19..20]);
    if version != "8" || variant != "8" {
        return None;
    }
    let digits = format!(
        "{}{}{}{}{}",
        &text[..8],
        &text[9..13],
        &text[15..18],
        &text[20..23],
        &text[24..]
    );
    let value = u128::from_str_radix(&digits[5..], 16).ok()?;
    let random: String = (0..CHARS)
        .map(|at| char::from(ALPHABET[(value >> (5 * at) & 31) as usize]))
        .collect();
    match &digits[..5] {
        BUILD => format!("bld_{random}").parse().ok().map(Named::Build),
        VERSION => format!("tpl_{random}").parse().ok().map(Named::Version),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_from_their_uuids() {
        for _ in 0..100 {
            let build = BuildId::random();
            assert_eq!(meant(&of_build(&build)), Some(Named::Build(build)));
            let version = TemplateId::random();
            let text = of_version(&version);
            assert!(is_uuid(&text), "{text}");
            assert_eq!(meant(&text), Some(Named::Version(version)));
        }
        for other in [
            "",
            "00000000-0000-4000-8000-000000000000",
            "00002000-0000-8000-8000-000000000000",
            "0000000-00000-8000-8000-000000000000",
            "é0000000-0000-8000-8000-00000000000",
        ] {
            assert_eq!(meant(other), None, "{other}");
        }
    }
}
