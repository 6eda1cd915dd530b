//! JSON answers with collected output in them, written as their reader takes them.
//!
//! A byte of output may take six in JSON. Large output is therefore never encoded as a whole: the pieces
//! of [`Output`] are encoded one by one, and each is let go as soon as it was.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Serialize;

use crate::output::Output;

/// Answers with less output than this are written in one piece, with their length.
const SMALL: usize = 64 * 1024;
/// Bytes encoded at once.
const STEP: usize = 16 * 1024;

/// How bytes are said in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// What is not UTF-8 is replaced.
    Text,
    Base64,
    /// It is JSON already.
    Json,
}

enum Part {
    Written(Vec<u8>),
    Output(Output, Said),
}

/// A JSON object, from its first field on.
pub struct JsonAnswer {
    parts: VecDeque<Part>,
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("answers are always JSON")
}

impl JsonAnswer {
    /// Begins with the fields of `head`, which must be an object.
    pub fn new(head: &impl Serialize) -> Self {
        let mut text = json(head);
        debug_assert_eq!(text.last(), Some(&b'}'));
        text.pop();
        Self {
            parts: VecDeque::from([Part::Written(text)]),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        match self.parts.back_mut() {
            Some(Part::Written(text)) => text.extend_from_slice(bytes),
            _ => self.parts.push_back(Part::Written(bytes.to_vec())),
        }
    }

    fn name(&mut self, name: &str) {
        let empty = matches!(self.parts.back(), Some(Part::Written(text)) if text.ends_with(b"{"));
        if !empty {
            self.write(b",");
        }
        self.write(&json(&name));
        self.write(b":");
    }

    #[must_use]
    pub fn field(mut self, name: &str, value: &impl Serialize) -> Self {
        self.name(name);
        self.write(&json(value));
        self
    }

    #[must_use]
    pub fn output(self, name: &str, output: Output, said: Said) -> Self {
        self.output_and(name, output, said, "")
    }

    /// Output, and something of the server's own behind it.
    #[must_use]
    pub fn output_and(mut self, name: &str, output: Output, said: Said, remark: &str) -> Self {
        self.name(name);
        if said == Said::Json {
            self.parts.push_back(Part::Output(output, said));
            self.write(remark.as_bytes());
            return self;
        }
        self.write(b"\"");
        self.parts.push_back(Part::Output(output, said));
        let remark = json(&remark);
        self.write(&remark[1..]);
        self
    }

    fn written(mut self, all: &mut Vec<u8>) {
        while let Some(part) = self.parts.pop_front() {
            match part {
                Part::Written(text) => all.extend_from_slice(&text),
                Part::Output(mut output, said) => {
                    let mut encoder = Encoder::new(said);
                    while let Some(piece) = output.next_piece() {
                        encoder.push(&piece, all);
                    }
                    encoder.finish(all);
                }
            }
        }
    }

    fn into_body(mut self) -> Body {
        self.write(b"}");
        let output: usize = self.parts.iter().map(Part::output_bytes).sum();
        if output <= SMALL {
            let mut all = Vec::new();
            self.written(&mut all);
            return Body::from(all);
        }
        let writing = Writing {
            parts: self.parts,
            current: None,
        };
        Body::from_stream(futures_util::stream::unfold(writing, |mut writing| async {
            let bytes = writing.next()?;
            Some((Ok::<_, Infallible>(bytes), writing))
        }))
    }
}

impl Part {
    fn output_bytes(&self) -> usize {
        match self {
            Self::Written(_) => 0,
            Self::Output(output, _) => output.len(),
        }
    }
}

impl IntoResponse for JsonAnswer {
    fn into_response(self) -> Response {
        let mut response = self.into_body().into_response();
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

/// Output that is being written: what is left, the piece at hand and how far it was written.
struct Current {
    output: Output,
    encoder: Encoder,
    piece: Vec<u8>,
    at: usize,
}

struct Writing {
    parts: VecDeque<Part>,
    current: Option<Current>,
}

impl Writing {
    fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(current) = &mut self.current {
                let mut text = Vec::new();
                if current.at >= current.piece.len() {
                    match current.output.next_piece() {
                        Some(piece) => (current.piece, current.at) = (piece, 0),
                        None => {
                            current.encoder.finish(&mut text);
                            self.current = None;
                        }
                    }
                }
                if let Some(current) = &mut self.current {
                    let end = current.piece.len().min(current.at + STEP);
                    current
                        .encoder
                        .push(&current.piece[current.at..end], &mut text);
                    current.at = end;
                }
                // A step may hold nothing but the beginning of a character.
                if text.is_empty() {
                    continue;
                }
                return Some(text.into());
            }
            match self.parts.pop_front()? {
                Part::Written(text) => return Some(text.into()),
                Part::Output(output, said) => {
                    self.current = Some(Current {
                        output,
                        encoder: Encoder::new(said),
                        piece: Vec::new(),
                        at: 0,
                    });
                }
            }
        }
    }
}

/// Writes bytes into a JSON string, whatever the pieces they come in.
struct Encoder {
    said: Said,
    /// The beginning of a character, or of three bytes, whose rest is in the next piece.
    carried: Vec<u8>,
}

impl Encoder {
    fn new(said: Said) -> Self {
        Self {
            said,
            carried: Vec::new(),
        }
    }

    fn push(&mut self, data: &[u8], into: &mut Vec<u8>) {
        let joined;
        let mut data = data;
        if !self.carried.is_empty() {
            self.carried.extend_from_slice(data);
            joined = std::mem::take(&mut self.carried);
            data = &joined;
        }
        match self.said {
            Said::Json => into.extend_from_slice(data),
            Said::Base64 => {
                let (whole, rest) = data.split_at(data.len() - data.len() % 3);
                into.extend_from_slice(BASE64.encode(whole).as_bytes());
                self.carried = rest.to_vec();
            }
            Said::Text => loop {
                match std::str::from_utf8(data) {
                    Ok(text) => return escape(text, into),
                    Err(error) => {
                        let (good, rest) = data.split_at(error.valid_up_to());
                        escape(std::str::from_utf8(good).unwrap_or_default(), into);
                        let Some(bad) = error.error_len() else {
                            self.carried = rest.to_vec();
                            return;
                        };
                        escape("\u{fffd}", into);
                        data = &rest[bad..];
                    }
                }
            },
        }
    }

    fn finish(&mut self, into: &mut Vec<u8>) {
        let rest = std::mem::take(&mut self.carried);
        if rest.is_empty() {
            return;
        }
        match self.said {
            Said::Base64 => into.extend_from_slice(BASE64.encode(rest).as_bytes()),
            Said::Text => escape("\u{fffd}", into),
            Said::Json => {}
        }
    }
}

/// The text as it stands between the quotes of a JSON string.
fn escape(text: &str, into: &mut Vec<u8>) {
    let quoted = json(&text);
    into.extend_from_slice(&quoted[1..quoted.len() - 1]);
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use serde_json::Value;

    use super::*;
    use crate::output::tests::account;

    async fn collected(body: Body) -> (usize, usize, Value) {
        let (mut all, mut pieces, mut largest) = (Vec::new(), 0, 0);
        let mut stream = body.into_data_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.expect("it does not fail");
            (pieces, largest) = (pieces + 1, largest.max(piece.len()));
            all.extend_from_slice(&piece);
        }
        let value = serde_json::from_slice(&all).expect("it is JSON");
        (pieces, largest, value)
    }

    fn hard_to_say(length: usize) -> Vec<u8> {
        let mix = ["a", "ü", "\u{1}", "😀", "\"", "€"].concat().into_bytes();
        let broken = [0xff, 0xe2, 0x82, 0xf0, 0x9f, b'x'];
        let mut all: Vec<u8> = mix.into_iter().chain(broken).cycle().take(length).collect();
        all.push(0xe2);
        all
    }

    #[tokio::test]
    async fn large_output_is_written_in_small_pieces_and_reads_as_if_it_were_whole() {
        for (length, said) in [
            (10, Said::Text),
            (10, Said::Base64),
            (300_000, Said::Text),
            (300_001, Said::Base64),
        ] {
            let (budget, account) = account(16 * 1024 * 1024);
            let bytes = hard_to_say(length);
            let mut output = Output::new(&account, usize::MAX);
            for part in bytes.chunks(1013) {
                output.take(part);
            }
            let answer = JsonAnswer::new(&serde_json::json!({"code": 7}))
                .output("out", output, said)
                .output_and("rest", Output::new(&account, 1), said, "re\"mark")
                .field("more", &[1, 2]);
            let (pieces, largest, value) = collected(answer.into_body()).await;
            let expected = match said {
                Said::Text => String::from_utf8_lossy(&bytes).into_owned(),
                Said::Base64 | Said::Json => BASE64.encode(&bytes),
            };
            assert_eq!(value["out"], expected, "{length} {said:?}");
            assert_eq!(
                (&value["code"], &value["rest"]),
                (&7.into(), &"re\"mark".into())
            );
            assert_eq!(value["more"][1], 2);
            assert!(largest <= 6 * STEP + 64, "{largest}");
            assert_eq!(pieces == 1, length <= SMALL);
            assert_eq!(budget.held(), 0, "all of it was let go");
        }
    }

    #[tokio::test]
    async fn an_object_without_other_fields_has_no_stray_comma() {
        let (_, account) = account(1024);
        let answer = JsonAnswer::new(&serde_json::json!({}));
        let answer = answer.output("a", Output::new(&account, 1), Said::Text);
        let (_, _, value) = collected(answer.into_body()).await;
        assert_eq!(value, serde_json::json!({"a": ""}));
    }
}
