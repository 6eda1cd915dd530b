//! Finds values of secrets in what a server answers, and puts placeholders in their place.
//!
//! A guard against accidents (an error page that repeats the request, an echo service), not against a bound host
//! that means harm: it could send a value in a form that nobody looks for.

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A form of fewer bytes would be found in text that has nothing to do with the secret.
const FORM_BYTES_MIN: usize = 8;
/// What is left as it is in a percent-encoded text.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

pub fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// How a value may be written: as it is, percent-encoded, as JSON writes it, and within base64 of anything.
pub fn forms(value: &str) -> Vec<Vec<u8>> {
    let encoded = percent_encoded(value);
    let mut forms = vec![
        value.to_owned(),
        encoded.clone(),
        lowercase_escapes(&encoded),
    ];
    if let Ok(json) = serde_json::to_string(value) {
        let inner = json[1..json.len() - 1].to_owned();
        forms.push(inner.replace('/', "\\/"));
        forms.push(inner);
    }
    for before in 0..3 {
        let padded = [&[0; 2][..before], value.as_bytes()].concat();
        // Only the characters that no byte beside the value has a part in.
        let first = (8 * before).div_ceil(6);
        let last = 8 * padded.len() / 6;
        for engine in [&STANDARD, &URL_SAFE] {
            let text = engine.encode(&padded);
            forms.push(text.get(first..last).unwrap_or_default().to_owned());
        }
    }
    let mut forms: Vec<Vec<u8>> = forms.into_iter().map(String::into_bytes).collect();
    forms.retain(|form| form.len() >= FORM_BYTES_MIN);
    forms.sort();
    forms.dedup();
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

/// What to look for, and what each becomes. Cheap to share between answers.
pub struct Scrubber {
    searcher: Option<AhoCorasick>,
    patterns: Vec<Vec<u8>>,
    replacements: Vec<Bytes>,
}

impl Scrubber {
    /// Values with the placeholders that take their places.
    pub fn new<'a>(values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut patterns, mut replacements) = (Vec::new(), Vec::new());
        for (value, placeholder) in values {
            for form in forms(value) {
                patterns.push(form);
                replacements.push(Bytes::copy_from_slice(placeholder.as_bytes()));
            }
        }
        let searcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&patterns);
        Self {
            searcher: searcher.ok().filter(|_| !patterns.is_empty()),
            patterns,
            replacements,
        }
    }

    /// `None` when there is nothing to replace.
    pub fn whole(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let searcher = self.searcher.as_ref()?;
        searcher.find(bytes)?;
        Some(searcher.replace_all_bytes(bytes, &self.replacements))
    }

    /// Where a tail of `bytes` begins that could be the start of something to replace.
    fn tail(&self, bytes: &[u8]) -> usize {
        let mut tail = bytes.len();
        for pattern in &self.patterns {
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
        if scrubber.searcher.is_none() {
            return piece;
        }
        let all = match self.held.is_empty() {
            true => piece,
            false => {
                self.held.extend_from_slice(&piece);
                Bytes::from(std::mem::take(&mut self.held))
            }
        };
        let Some(searcher) = &scrubber.searcher else {
            return all;
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
            text.extend_from_slice(&scrubber.replacements[found.pattern().as_usize()]);
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

    const VALUE: &str = "sk/canary+0123456789\"=~x";

    fn cut(bytes: &[u8], at: usize) -> Vec<u8> {
        let scrubber = Scrubber::new([(VALUE, "cove-secret-x")]);
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
    fn other_text_passes_unchanged_and_is_not_held() {
        let scrubber = Scrubber::new([(VALUE, "cove-secret-x")]);
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
