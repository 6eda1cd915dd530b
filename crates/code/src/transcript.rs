//! One run as its context tells it: a pure fold of both output streams into events.

use std::collections::{BTreeMap, HashMap};

use bytes::{Bytes, BytesMut};
use cove_protocol::message::Channel;
use serde::Deserialize;
use serde_json::value::RawValue;

use cove_limits::{CODE_RESULT_BYTES_MAX, CODE_RESULTS_MAX};

use crate::frames::{Decoder, Frame, Item, Kind};

/// Messages that have begun and not ended at once.
const MESSAGES_OPEN_MAX: usize = 16;
/// Forms of one result, and bytes of a form's name.
const FORMS_MAX: usize = 32;
const FORM_NAME_MAX: usize = 128;
/// Bytes of an error's name.
const ERROR_NAME_MAX: usize = 1024;

/// Something to show, in the forms it has: media type to text, or to base64 where the form is bytes.
/// Kept as it came: parsed, a guest's JSON could take many times its size.
#[derive(Debug, Clone, Deserialize)]
pub struct CodeOutput {
    pub data: BTreeMap<String, Box<RawValue>>,
    /// The value of the code's last expression.
    #[serde(default)]
    pub main: bool,
}

/// What the code threw.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CodeError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

#[derive(Debug, Clone)]
pub enum CodeEvent {
    Stdout(String),
    Stderr(String),
    Result(CodeOutput),
    Error(CodeError),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Ended {
    exit_code: Option<i32>,
}

/// What one run of one context says, as far as it was read.
pub struct Transcript {
    run: String,
    streams: [Stream; 2],
    open: HashMap<u64, BytesMut>,
    open_bytes: usize,
    results: usize,
    /// Something the run said is not in the events.
    pub truncated: bool,
    pub exit_code: Option<i32>,
}

struct Stream {
    decoder: Decoder,
    phase: Phase,
    text: Text,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Before,
    Inside,
    Over,
}

impl Transcript {
    pub fn new(context: &str, run: &str) -> Self {
        let stream = || Stream {
            decoder: Decoder::new(context),
            phase: Phase::Before,
            text: Text::default(),
        };
        Self {
            run: run.to_owned(),
            streams: [stream(), stream()],
            open: HashMap::new(),
            open_bytes: 0,
            results: 0,
            truncated: false,
            exit_code: None,
        }
    }

    /// The run's standard output reported its end.
    pub fn is_over(&self) -> bool {
        self.streams[0].phase == Phase::Over
    }

    /// Nothing of the run is still to come.
    pub fn is_complete(&self) -> bool {
        self.streams
            .iter()
            .all(|stream| stream.phase == Phase::Over)
    }

    pub fn take(&mut self, channel: Channel, data: &[u8], dropped: u64) -> Vec<CodeEvent> {
        let which = channel as usize;
        if dropped > 0 {
            self.streams[which].decoder.gap();
            self.truncated = true;
        }
        let mut events = Vec::new();
        for item in self.streams[which].decoder.feed(data) {
            match item {
                Item::Output(bytes) => {
                    let stream = &mut self.streams[which];
                    if stream.phase == Phase::Inside {
                        let text = stream.text.take(&bytes);
                        events.extend((!text.is_empty()).then(|| said(channel, text)));
                    }
                }
                Item::Frame(frame) if frame.run == self.run => {
                    self.frame(channel, frame, &mut events);
                }
                // Of a run before this one, whose caller did not wait for its end.
                Item::Frame(_) => {}
            }
        }
        events
    }

    fn frame(&mut self, channel: Channel, frame: Frame, events: &mut Vec<CodeEvent>) {
        let stream = &mut self.streams[channel as usize];
        match frame.kind {
            Kind::Begin if stream.phase == Phase::Before => stream.phase = Phase::Inside,
            Kind::End if stream.phase != Phase::Over => {
                let rest = stream.text.end();
                events.extend((!rest.is_empty()).then(|| said(channel, rest)));
                stream.phase = Phase::Over;
                if channel == Channel::Stdout {
                    let ended: Ended = serde_json::from_slice(&frame.payload).unwrap_or_default();
                    self.exit_code = ended.exit_code;
                }
            }
            Kind::Part if stream.phase == Phase::Inside => self.part(frame.message, &frame.payload),
            Kind::Result | Kind::Error if stream.phase == Phase::Inside => {
                let whole = self.whole(frame.message, frame.payload);
                match whole.and_then(|whole| message(frame.kind, &whole)) {
                    Some(event) if self.results < CODE_RESULTS_MAX => {
                        self.results += 1;
                        events.push(event);
                    }
                    _ => self.truncated = true,
                }
            }
            Kind::Begin | Kind::End | Kind::Part | Kind::Result | Kind::Error => {}
        }
    }

    fn part(&mut self, message: u64, payload: &[u8]) {
        let known = self.open.contains_key(&message);
        if (!known && self.open.len() >= MESSAGES_OPEN_MAX)
            || self.open_bytes + payload.len() > CODE_RESULT_BYTES_MAX
        {
            self.truncated = true;
            if let Some(lost) = self.open.remove(&message) {
                self.open_bytes -= lost.len();
            }
            return;
        }
        self.open_bytes += payload.len();
        self.open
            .entry(message)
            .or_default()
            .extend_from_slice(payload);
    }

    fn whole(&mut self, message: u64, last: Bytes) -> Option<Bytes> {
        let Some(mut parts) = self.open.remove(&message) else {
            return Some(last);
        };
        self.open_bytes -= parts.len();
        parts.extend_from_slice(&last);
        Some(parts.freeze())
    }
}

fn said(channel: Channel, text: String) -> CodeEvent {
    match channel {
        Channel::Stdout => CodeEvent::Stdout(text),
        Channel::Stderr => CodeEvent::Stderr(text),
    }
}

fn message(kind: Kind, bytes: &[u8]) -> Option<CodeEvent> {
    if kind == Kind::Error {
        let mut error: CodeError = serde_json::from_slice(bytes).ok()?;
        error
            .name
            .truncate(error.name.floor_char_boundary(ERROR_NAME_MAX));
        return Some(CodeEvent::Error(error));
    }
    let output: CodeOutput = serde_json::from_slice(bytes).ok()?;
    let named = output.data.keys().all(|name| name.len() <= FORM_NAME_MAX);
    (named && output.data.len() <= FORMS_MAX).then_some(CodeEvent::Result(output))
}

/// Text from bytes that may end inside a character.
#[derive(Default)]
struct Text {
    rest: Vec<u8>,
}

impl Text {
    fn take(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let cut = self.rest.len() - unfinished(&self.rest);
        let text = String::from_utf8_lossy(&self.rest[..cut]).into_owned();
        self.rest.drain(..cut);
        text
    }

    fn end(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.rest).into_owned();
        self.rest.clear();
        text
    }
}

/// Bytes at the end that begin a character and do not finish it.
fn unfinished(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let length = match byte {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            0x80..=0xbf => continue,
            _ => return 0,
        };
        return if length > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: &str, run: &str, message: u64, payload: &str) -> Vec<u8> {
        format!(
            "\x1eprc_1 {kind} {run} {message} {}\n{payload}",
            payload.len()
        )
        .into_bytes()
    }

    fn begun() -> Transcript {
        let mut transcript = Transcript::new("prc_1", "r1");
        for channel in [Channel::Stdout, Channel::Stderr] {
            assert!(
                transcript
                    .take(channel, &frame("begin", "r1", 1, ""), 0)
                    .is_empty()
            );
        }
        transcript
    }

    #[test]
    fn what_others_say_is_passed_over_and_the_end_comes_on_both_streams() {
        let mut transcript = Transcript::new("prc_1", "r1");
        let mut stream = b"old".to_vec();
        stream.extend(frame("end", "r0", 9, "{}"));
        stream.extend(b"noise");
        stream.extend(frame("begin", "r1", 1, ""));
        stream.extend("hällo".as_bytes());
        stream.extend(frame("end", "r1", 2, "{\"exit_code\":3}"));
        stream.extend(b"late");
        let events = transcript.take(Channel::Stdout, &stream, 0);
        assert!(matches!(&events[..], [CodeEvent::Stdout(text)] if text == "hällo"));
        assert!(transcript.is_over() && !transcript.is_complete());
        assert_eq!(transcript.exit_code, Some(3));
        transcript.take(Channel::Stderr, &frame("end", "r1", 3, ""), 0);
        assert!(transcript.is_complete() && !transcript.truncated);
    }

    #[test]
    fn long_messages_are_joined_and_characters_are_not_cut() {
        let mut transcript = begun();
        let mut stream = frame("part", "r1", 7, "{\"data\":{\"text/plain\":");
        stream.extend(frame("part", "r1", 8, "{\"name\":\"E\",\"value\":"));
        stream.extend([0xc3]);
        stream.extend(frame("result", "r1", 7, "\"x\"}}"));
        stream.extend(frame("error", "r1", 8, "\"v\",\"traceback\":\"t\"}"));
        stream.extend([0xbc]);
        let events = transcript.take(Channel::Stdout, &stream, 0);
        assert_eq!(events.len(), 3);
        let CodeEvent::Result(output) = &events[0] else {
            panic!("no result in {events:?}");
        };
        assert_eq!(output.data["text/plain"].get(), "\"x\"");
        assert!(matches!(&events[1], CodeEvent::Error(error) if error.value == "v"));
        assert!(matches!(&events[2], CodeEvent::Stdout(text) if text == "ü"));
    }

    #[test]
    fn a_hostile_context_is_cut_short_and_said_to_be() {
        let mut transcript = begun();
        let piece = "x".repeat(4000);
        for _ in 0..CODE_RESULT_BYTES_MAX / 4000 + 2 {
            transcript.take(Channel::Stdout, &frame("part", "r1", 1, &piece), 0);
        }
        assert!(transcript.truncated && transcript.open_bytes <= CODE_RESULT_BYTES_MAX);
        let mut transcript = begun();
        for message in 0..1000 {
            transcript.take(Channel::Stdout, &frame("part", "r1", message, "x"), 0);
        }
        assert!(transcript.truncated && transcript.open.len() <= MESSAGES_OPEN_MAX);
        let mut transcript = begun();
        let many: Vec<u8> = (0..2000)
            .flat_map(|_| frame("result", "r1", 1, "{\"data\":{}}"))
            .collect();
        assert_eq!(
            transcript.take(Channel::Stdout, &many, 0).len(),
            CODE_RESULTS_MAX
        );
        assert!(transcript.truncated);
        let mut transcript = begun();
        for bad in ["", "[]", "{\"data\":3}", "{\"data\":{\"a\":", "\u{0}"] {
            assert!(
                transcript
                    .take(Channel::Stdout, &frame("result", "r1", 1, bad), 0)
                    .is_empty()
            );
        }
        assert!(transcript.truncated && !transcript.is_over());
    }

    #[test]
    fn lost_output_is_said_to_be_lost() {
        let mut transcript = begun();
        transcript.take(Channel::Stdout, b"rest", 100);
        assert!(transcript.truncated);
    }
}
