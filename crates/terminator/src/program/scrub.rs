//! Finds values of secrets in what a server answers, and puts placeholders in their place.
//!
//! A guard against accidents (an error page that repeats the request, an echo service), not against a bound host
//! that means harm: it could send a value in a form that nobody looks for.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A form of fewer bytes would be found in text that has nothing to do with the secret.
const FORM_BYTES_MIN: usize = 8;
/// What is left as it is in a percent-encoded text.
pub const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// What JavaScript's encodeURIComponent leaves besides.
const COMPONENT: &AsciiSet = &UNRESERVED
    .remove(b'!')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*');
/// What forms leave: the tilde is encoded there, the asterisk is not.
const FORM: &AsciiSet = &UNRESERVED.add(b'~').remove(b'*');
/// All bytes that are looked for in one answer. The searcher takes some ten times as much.
const PATTERN_BYTES_MAX: usize = 4 << 20;

pub fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// How a value may be written: as it is, percent-encoded, as JSON and HTML write it, and within base64 of anything.
pub fn forms(value: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![value.to_owned()];
    forms.extend(percent_forms(value));
    forms.extend(json_forms(value));
    forms.extend(html_forms(value));
    for before in 0..3 {
        let padded = [&[0; 2][..before], value.as_bytes()].concat();
        // Only the characters that no byte beside the value has a part in.
        let first = (8 * before).div_ceil(6);
        let last = 8 * padded.len() / 6;
        for engine in [&STANDARD, &URL_SAFE] {
            let text = engine.encode(&padded);
            let text = text.get(first..last).unwrap_or_default();
            forms.push(text.replace('/', "\\/"));
            forms.push(text.replace('+', "\\u002B"));
            let encoded = percent_encoded(text);
            forms.push(lowercase_escapes(&encoded));
            forms.push(encoded);
            forms.push(text.to_owned());
        }
    }
    let mut forms: Vec<Vec<u8>> = forms.into_iter().map(String::into_bytes).collect();
    forms.retain(|form| form.len() >= FORM_BYTES_MIN);
    forms.sort();
    forms.dedup();
    forms
}

/// As the libraries of common languages encode parts of addresses and forms.
fn percent_forms(value: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for set in [UNRESERVED, COMPONENT, FORM] {
        let encoded = utf8_percent_encode(value, set).to_string();
        for text in [
            encoded.replace("%20", "+"),
            encoded.replace("%2F", "/"),
            encoded,
        ] {
            forms.push(lowercase_escapes(&text));
            forms.push(text);
        }
    }
    forms
}

/// Plain, with escaped slashes, and with what encoders escape for the sake of HTML.
fn json_forms(value: &str) -> Vec<String> {
    let Ok(json) = serde_json::to_string(value) else {
        return Vec::new();
    };
    let inner = &json[1..json.len() - 1];
    let escaped = |letters: &[char], upper: bool| {
        let mut text = String::with_capacity(inner.len());
        for letter in inner.chars() {
            match (letters.contains(&letter), upper) {
                (false, _) => text.push(letter),
                (true, true) => text.push_str(&format!("\\u{:04X}", u32::from(letter))),
                (true, false) => text.push_str(&format!("\\u{:04x}", u32::from(letter))),
            }
        }
        text
    };
    let mut forms = vec![inner.replace('/', "\\/")];
    for upper in [false, true] {
        forms.push(escaped(&['&', '<', '>'], upper));
        forms.push(escaped(&['&', '<', '>', '\''], upper));
        forms.push(escaped(&['&', '<', '>', '\'', '+', '`'], upper));
    }
    // Where quotes are escaped by number too.
    let quoted = escaped(&['&', '<', '>', '\'', '+', '`'], true);
    forms.push(quoted.replace("\\\"", "\\u0022"));
    forms.push(inner.to_owned());
    forms
}

fn html_forms(value: &str) -> Vec<String> {
    let some = value.replace('&', "&amp;");
    let some = some.replace('<', "&lt;").replace('>', "&gt;");
    let mut forms = Vec::new();
    for quote in ["\"", "&quot;", "&#34;"] {
        for apostrophe in ["'", "&#39;", "&#x27;", "&#039;", "&apos;"] {
            let text = some.replace('"', quote);
            forms.push(text.replace('\'', apostrophe));
        }
    }
    forms
}

fn lowercase_escapes(encoded: &str) -> String {
    let mut text = String::with_capacity(encoded.len());
    let mut escaped = 0;
    for letter in encoded.chars() {
        match letter {
            '%' => escaped = 2,
            _ if escaped > 0 => {
                escaped -= 1;
                text.push(letter.to_ascii_lowercase());
                continue;
            }
            _ => {}
        }
        text.push(letter);
    }
    text
}

/// What to look for, in the order of secrets. Made once for the same secrets, and shared.
pub struct Searcher {
    found: Option<AhoCorasick>,
    patterns: Vec<Vec<u8>>,
    /// Which secret each pattern is a form of.
    of: Vec<usize>,
}

impl Searcher {
    /// `None` when not all of it can be looked for: then nothing of an answer may be passed on.
    /// Each secret has one value, or parts that are looked for.
    pub fn new<'a, P>(secrets: impl IntoIterator<Item = P>) -> Option<Self>
    where
        P: IntoIterator<Item = &'a str>,
    {
        let (mut patterns, mut of) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        for (index, parts) in secrets.into_iter().enumerate() {
            for form in parts.into_iter().flat_map(forms) {
                bytes += form.len();
                patterns.push(form);
                of.push(index);
            }
            if bytes > PATTERN_BYTES_MAX {
                return None;
            }
        }
        let found = match patterns.is_empty() {
            true => None,
            // Of a size in proportion to the patterns, unlike a table of all transitions.
            false => Some(
                AhoCorasick::builder()
                    .kind(Some(AhoCorasickKind::ContiguousNFA))
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(&patterns)
                    .ok()?,
            ),
        };
        Some(Self {
            found,
            patterns,
            of,
        })
    }
}

/// What to look for, and what each becomes.
pub struct Scrubber {
    searcher: Arc<Searcher>,
    /// By secret.
    placeholders: Vec<Bytes>,
}

impl Scrubber {
    /// Placeholders in the order of the searcher's values.
    pub fn with<'a>(
        searcher: Arc<Searcher>,
        placeholders: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Self {
            searcher,
            placeholders: placeholders.into_iter().map(bytes).collect(),
        }
    }

    /// Values with the placeholders that take their places.
    pub fn new<'a>(values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let (values, placeholders): (Vec<_>, Vec<_>) = values.into_iter().unzip();
        let values = values.into_iter().map(Some);
        Some(Self::with(Arc::new(Searcher::new(values)?), placeholders))
    }

    fn replacement(&self, pattern: usize) -> &[u8] {
        let secret = self.searcher.of.get(pattern);
        let text = secret.and_then(|secret| self.placeholders.get(*secret));
        text.map_or(&[], |text| &text[..])
    }

    /// `None` when there is nothing to replace.
    pub fn whole(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let searcher = self.searcher.found.as_ref()?;
        searcher.find(bytes)?;
        let mut text = Vec::with_capacity(bytes.len());
        searcher.replace_all_with_bytes(bytes, &mut text, |found, _, text| {
            text.extend_from_slice(self.replacement(found.pattern().as_usize()));
            true
        });
        Some(text)
    }

    /// Where a tail of `bytes` begins that could be the start of something to replace.
    fn tail(&self, bytes: &[u8]) -> usize {
        let mut tail = bytes.len();
        for pattern in &self.searcher.patterns {
            let from = bytes.len().saturating_sub(pattern.len() - 1);
            let starts = bytes[from..tail.max(from)].iter();
            let found = starts
                .enumerate()
                .filter(|(_, byte)| **byte == pattern[0])
                .map(|(at, _)| from + at)
                .find(|at| pattern.starts_with(&bytes[*at..]));
            tail = tail.min(found.unwrap_or(tail));
        }
        tail
    }
}

/// One answer's bytes in order. Only a tail that could begin a value is held back.
#[derive(Default)]
pub struct Stream {
    held: Vec<u8>,
}

impl Stream {
    pub fn push(&mut self, scrubber: &Scrubber, piece: Bytes) -> Bytes {
        let Some(searcher) = &scrubber.searcher.found else {
            return piece;
        };
        let all = match self.held.is_empty() {
            true => piece,
            false => {
                self.held.extend_from_slice(&piece);
                Bytes::from(std::mem::take(&mut self.held))
            }
        };
        // A match that ends before the tail is final; one that could still grow begins in the tail.
        let mut end = scrubber.tail(&all);
        let mut changed: Option<Vec<u8>> = None;
        let mut done = 0;
        for found in searcher.find_iter(&all[..]) {
            if found.start() >= end {
                break;
            }
            let text = changed.get_or_insert_with(Vec::new);
            text.extend_from_slice(&all[done..found.start()]);
            text.extend_from_slice(scrubber.replacement(found.pattern().as_usize()));
            done = found.end();
        }
        end = end.max(done);
        self.held = all[end..].to_vec();
        match changed {
            None => all.slice(..end),
            Some(mut text) => {
                text.extend_from_slice(&all[done..end]);
                text.into()
            }
        }
    }

    /// What was held back, when nothing more comes.
    pub fn finish(&mut self, scrubber: &Scrubber) -> Bytes {
        let held = std::mem::take(&mut self.held);
        match scrubber.whole(&held) {
            Some(changed) => changed.into(),
            None => held.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = "sk/canary+0 123<4&56789\"='~x";

    fn cut(bytes: &[u8], at: usize) -> Vec<u8> {
        let scrubber = Scrubber::new([(VALUE, "cove-secret-x")]).unwrap();
        let mut stream = Stream::default();
        let mut out = Vec::new();
        for piece in bytes.chunks(at) {
            out.extend(stream.push(&scrubber, Bytes::copy_from_slice(piece)));
        }
        out.extend(stream.finish(&scrubber));
        out
    }

    #[test]
    fn every_form_is_found_however_it_is_cut() {
        let json = serde_json::to_string(VALUE).unwrap();
        let mut texts = vec![VALUE.to_owned(), percent_encoded(VALUE), json];
        texts.extend(
            [
                // Go's url.QueryEscape and Python's quote_plus, Python's quote, encodeURIComponent, forms.
                "sk%2Fcanary%2B0+123%3C4%2656789%22%3D%27~x",
                "sk/canary%2B0%20123%3C4%2656789%22%3D%27~x",
                "sk%2Fcanary%2B0%20123%3C4%2656789%22%3D'~x",
                "sk%2Fcanary%2B0+123%3C4%2656789%22%3D%27%7Ex",
                "sk%2fcanary%2b0+123%3c4%2656789%22%3d%27~x",
                // Go's JSON and .NET's.
                r#"sk/canary+0 123\u003c4\u002656789\"='~x"#,
                r#"sk/canary\u002B0 123\u003C4\u002656789\u0022=\u0027~x"#,
                // HTML of Go and of Python.
                "sk/canary+0 123&lt;4&amp;56789&#34;=&#39;~x",
                "sk/canary+0 123&lt;4&amp;56789&quot;=&#x27;~x",
            ]
            .map(str::to_owned),
        );
        for before in ["", "u:", "ab:", "user:"] {
            texts.push(STANDARD.encode(format!("{before}{VALUE}")));
            texts.push(URL_SAFE.encode(format!("{before}{VALUE}, and more")));
        }
        for text in texts {
            let body = format!("before {text} after {text}{text}");
            for at in [1, 2, 3, 7, 16, 1000] {
                let out = String::from_utf8(cut(body.as_bytes(), at)).unwrap();
                assert!(!out.contains(&text), "{text} cut at {at}: {out}");
                assert_eq!(
                    out.matches("cove-secret-x").count(),
                    3,
                    "{text} cut at {at}: {out}"
                );
            }
        }
    }

    #[test]
    fn base64_in_json_and_in_addresses_is_found() {
        let value = ">>>???~~~0123456789";
        let scrubber = Scrubber::new([(value, "cove-secret-x")]).unwrap();
        let text = STANDARD.encode(value);
        assert!(text.contains('/') && text.contains('+'), "{text}");
        for text in [
            text.replace('/', "\\/"),
            percent_encoded(&text),
            text.replace('+', "%2b").replace('/', "%2f"),
        ] {
            let out = scrubber.whole(text.as_bytes()).unwrap_or_default();
            let out = String::from_utf8(out).unwrap();
            assert!(out.starts_with("cove-secret-x"), "{text}: {out}");
        }
    }

    #[test]
    fn more_than_can_be_looked_for_is_refused() {
        let values: Vec<String> = (0..64)
            .map(|index| format!("{index}{}", "<&'\"/+ ".repeat(1000)))
            .collect();
        assert!(Searcher::new(values.iter().map(|it| [it.as_str()])).is_none());
        assert!(Searcher::new([[values[0].as_str()]]).is_some());
    }

    #[test]
    fn other_text_passes_unchanged_and_is_not_held() {
        let scrubber = Scrubber::new([(VALUE, "cove-secret-x")]).unwrap();
        let mut stream = Stream::default();
        let event = Bytes::from_static(b"data: {\"delta\":\"hello\"}\n\n");
        assert_eq!(stream.push(&scrubber, event.clone()), event);
        let start = Bytes::from_static(b"ends with sk/can");
        assert_eq!(stream.push(&scrubber, start), "ends with ");
        assert_eq!(
            stream.push(&scrubber, Bytes::from_static(b"dy")),
            "sk/candy"
        );
        for length in [1, 5, 100] {
            let noise: Vec<u8> = (0..2000_u32).map(|n| (n * 31 % 251) as u8).collect();
            assert_eq!(cut(&noise, length), noise);
        }
    }
}
