//! Names in the one form that policies, questions, hellos and hosts are compared in.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Limits of the domain name system, without the trailing dot.
pub const NAME_BYTES_MAX: usize = cove_limits::DOMAIN_NAME_MAX;
pub const LABEL_BYTES_MAX: usize = 63;

/// A host name in canonical form: lowercase ASCII labels, no trailing dot, never an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty")]
    Empty,
    #[error("the name is longer than {NAME_BYTES_MAX} bytes")]
    Long,
    #[error("a label is empty (two dots in a row, or one at an end)")]
    EmptyLabel,
    #[error("a label is longer than {LABEL_BYTES_MAX} bytes")]
    LongLabel,
    #[error("a label starts or ends with a dash")]
    Dash,
    #[error("a character is not a letter, a digit, a dash or an underscore")]
    Character,
    #[error("the name is not valid internationalised text")]
    Unicode,
    #[error("its last label is a number, so programs would read it as an address")]
    Number,
}

impl Name {
    /// From bytes as a guest sends them: ASCII only, at most one trailing dot.
    pub fn from_ascii(bytes: &[u8]) -> Result<Self, NameError> {
        let bytes = bytes.strip_suffix(b".").unwrap_or(bytes);
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameError::Long);
        }
        let mut last: &[u8] = &[];
        for label in bytes.split(|&b| b == b'.') {
            check_label(label)?;
            last = label;
        }
        if is_number(last) {
            return Err(NameError::Number);
        }
        let text = bytes.iter().map(|b| b.to_ascii_lowercase() as char);
        Ok(Self(text.collect()))
    }

    /// From text as a person writes it: other scripts become their ASCII form, strictly.
    pub fn from_text(text: &str) -> Result<Self, NameError> {
        if text.is_ascii() && !text.to_ascii_lowercase().contains("xn--") {
            return Self::from_ascii(text.as_bytes());
        }
        if text.len() > 4 * NAME_BYTES_MAX {
            return Err(NameError::Long);
        }
        let ascii = idna::domain_to_ascii_strict(text).map_err(|_| NameError::Unicode)?;
        Self::from_ascii(ascii.as_bytes())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part of this name above `suffix`, when it lies below it: `a.b` of `a.b.example.com`.
    pub fn above<'a>(&'a self, suffix: &Name) -> Option<&'a str> {
        let rest = self.0.strip_suffix(&suffix.0)?;
        let rest = rest.strip_suffix('.')?;
        (!rest.is_empty()).then_some(rest)
    }
}

fn check_label(label: &[u8]) -> Result<(), NameError> {
    if label.is_empty() {
        return Err(NameError::EmptyLabel);
    }
    if label.len() > LABEL_BYTES_MAX {
        return Err(NameError::LongLabel);
    }
    if !label
        .iter()
        .all(|&b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    {
        return Err(NameError::Character);
    }
    if label.starts_with(b"-") || label.ends_with(b"-") {
        return Err(NameError::Dash);
    }
    Ok(())
}

/// Decimal, octal and hexadecimal last labels are what resolvers of programs take for addresses.
fn is_number(label: &[u8]) -> bool {
    let hexadecimal = label
        .strip_prefix(b"0x")
        .or_else(|| label.strip_prefix(b"0X"))
        .is_some_and(|rest| rest.iter().all(u8::is_ascii_hexdigit));
    hexadecimal || label.iter().all(u8::is_ascii_digit)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::from_ascii(text.as_bytes())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_name_has_one_form() {
        for text in ["Example.COM", "example.com.", "EXAMPLE.com"] {
            assert_eq!(Name::from_text(text).unwrap().as_str(), "example.com");
        }
        let wide = Name::from_text("B\u{fc}cher.example").unwrap();
        assert_eq!(wide.as_str(), "xn--bcher-kva.example");
        assert_eq!(Name::from_text("xn--bcher-kva.example").unwrap(), wide);
        // Full-width letters and dots are the same name to a browser, so they are to us.
        let full = Name::from_text("\u{ff45}xample\u{3002}com").unwrap();
        assert_eq!(full.as_str(), "example.com");
    }

    #[test]
    fn tricks_with_bytes_and_dots_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a..",
            "a\0.com",
            "a.com\0",
            "a b.com",
            "a/b.com",
            "a%00.com",
            "-a.com",
            "a-.com",
            "a:b",
            "[::1]",
            "a\r\n.com",
        ] {
            assert!(Name::from_text(bad).is_err(), "{bad:?} was accepted");
            assert!(
                Name::from_ascii(bad.as_bytes()).is_err(),
                "{bad:?} was accepted"
            );
        }
        assert!(Name::from_text(&"a".repeat(64)).is_err());
        assert!(Name::from_text(&["abc"; 64].join(".")).is_err());
        assert!(Name::from_text("xn--\u{fc}.com").is_err());
        assert!(Name::from_text("xn--a.com").is_err());
    }

    #[test]
    fn every_spelling_of_an_address_is_refused_as_a_name() {
        for address in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "1.2.3.4.",
            "0x",
            "a.0x7F",
            "::ffff:127.0.0.1",
        ] {
            assert!(
                Name::from_text(address).is_err(),
                "{address:?} was accepted"
            );
        }
        Name::from_text("4chan.example").unwrap();
        Name::from_text("127.0.0.1.example").unwrap();
    }

    #[test]
    fn above_needs_a_whole_label() {
        let suffix = Name::from_text("example.com").unwrap();
        let above = |text: &str| {
            Name::from_text(text)
                .unwrap()
                .above(&suffix)
                .map(str::to_owned)
        };
        assert_eq!(above("a.b.example.com").as_deref(), Some("a.b"));
        assert_eq!(above("example.com"), None);
        assert_eq!(above("evilexample.com"), None);
        assert_eq!(above("example.com.evil"), None);
    }

    proptest! {
        #[test]
        fn canonical_names_stay_as_they_are(text in "\\PC{0,80}") {
            if let Ok(name) = Name::from_text(&text) {
                prop_assert_eq!(Name::from_ascii(name.as_str().as_bytes()), Ok(name.clone()));
                prop_assert_eq!(Name::from_text(name.as_str()), Ok(name.clone()));
                prop_assert!(name.as_str().bytes().all(|b| !b.is_ascii_uppercase() && b.is_ascii_graphic()));
            }
        }

        #[test]
        fn any_bytes_are_refused_or_become_a_short_name(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(name) = Name::from_ascii(&bytes) {
                prop_assert!(name.as_str().len() <= NAME_BYTES_MAX);
                prop_assert!(name.as_str().parse::<std::net::IpAddr>().is_err());
            }
        }
    }
}
