//! The code interpreter.

use cove_api::code::{CodeError, CodeEvent, CodeOutput, Language, RunCode};
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::output::Kept;
use crate::answer::{self, Outcome, Refusal};
use crate::call::{Call, PROGRESS_EVERY};

/// Code that runs longer is interrupted, unless the caller says otherwise.
const TIMEOUT_DEFAULT_S: u64 = 45;
/// Bytes of each stream in one answer.
const OUTPUT_MAX: usize = 32 * 1024;
/// Bytes of one result's text.
const RESULT_TEXT_MAX: usize = 32 * 1024;
/// Bytes of all results in one answer.
const RESULTS_BYTES_MAX: usize = 1024 * 1024;
/// What is counted for each result besides its text or picture.
const RESULT_BYTES_MIN: usize = 256;
/// Bytes of an error's message and of its traceback.
const ERROR_MAX: usize = 32 * 1024;
/// What a run holds in memory: one event as it comes and as it is read, and what is kept of all.
pub const HOLDS: usize = 12 * 1024 * 1024;
/// Forms of results that are shown as pictures.
const PICTURES: [&str; 3] = ["image/png", "image/jpeg", "image/webp"];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// Name or id of the sandbox.
    sandbox: String,
    /// The code to run.
    code: String,
    /// Its language. Default: python.
    language: Option<Language>,
    /// Interrupt the code after this many seconds; its variables are kept. Default 45.
    timeout_s: Option<u64>,
}

pub async fn run(call: Call, code: Code) -> Outcome {
    let asked = RunCode {
        code: code.code,
        language: code.language,
        context: None,
        timeout_ms: Some(
            code.timeout_s
                .unwrap_or(TIMEOUT_DEFAULT_S)
                .saturating_mul(1000),
        ),
    };
    let mut events = call.client.run_code(&code.sandbox, &asked).await?;
    let (mut stdout, mut stderr) = (Kept::new(0, OUTPUT_MAX), Kept::new(0, OUTPUT_MAX));
    let mut results = Results::default();
    let (mut thrown, mut end, mut context) = (None, None, String::new());
    let mut ticks = interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            event = events.next() => match event? {
                None => break,
                Some(CodeEvent::Started { context: begun }) => context = begun.id,
                Some(CodeEvent::Stdout { text }) => stdout.push_text(&text),
                Some(CodeEvent::Stderr { text }) => stderr.push_text(&text),
                Some(CodeEvent::Result { result }) => results.push(&result),
                Some(CodeEvent::Error { error }) => thrown = Some(cut(error)),
                Some(CodeEvent::End(ended)) => end = Some(ended),
                Some(CodeEvent::Failed { error }) => return Err(Refusal::new(error.message)),
            },
            () = call.cancelled() => {
                call.client.interrupt_code(&code.sandbox, &context).await?;
                return Err(Refusal::new("cancelled; the code was interrupted"));
            }
            _ = ticks.tick() => call.progress(&stdout.last_line()).await,
        }
    }
    let mut text = stdout.text();
    if !results.text.is_empty() {
        text.push_str(&format!("{}{}", gap(&text), results.text));
    }
    if results.left_out > 0 {
        text.push_str(&format!(
            "{}[{} results left out: an answer has at most {RESULTS_BYTES_MAX} bytes of them; write large ones \
             to files]",
            gap(&text),
            results.left_out
        ));
    }
    let warnings = stderr.text();
    if !warnings.is_empty() {
        text.push_str(&format!("{}[stderr]\n{warnings}", gap(&text)));
    }
    if let Some(error) = &thrown {
        text.push_str(&format!("{}{}", gap(&text), error.traceback));
    }
    let timed_out = end.as_ref().is_some_and(|end| end.timed_out);
    if timed_out {
        text.push_str(&format!(
            "{}[interrupted: timeout_s was reached]",
            gap(&text)
        ));
    }
    if text.is_empty() {
        text.push_str("[no output]");
    }
    let structured = json!({
        "stdout": stdout.text(),
        "stderr": warnings,
        "results": results.shown,
        "results_left_out": results.left_out,
        "error": thrown,
        "timed_out": timed_out,
        "context_ended": end.as_ref().is_some_and(|end| end.context_ended),
    });
    let structured = answer::once(&text, structured, &["stdout", "stderr", "results", "error"]);
    let mut content = results.pictures;
    content.insert(0, ContentBlock::text(text));
    answer::blocks(content, structured)
}

fn gap(text: &str) -> &'static str {
    if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    }
}

/// An error within what an answer has room for.
fn cut(mut error: CodeError) -> CodeError {
    for text in [&mut error.name, &mut error.value, &mut error.traceback] {
        if text.len() > ERROR_MAX {
            let mut kept = Kept::new(0, ERROR_MAX);
            kept.push_text(text);
            *text = kept.text();
        }
    }
    error
}

/// What is kept of the results as they come. Sandboxes say how many there are and how large, so what is beyond
/// the limit is only counted.
#[derive(Default)]
struct Results {
    pictures: Vec<ContentBlock>,
    text: String,
    shown: Vec<Value>,
    bytes: usize,
    left_out: usize,
}

impl Results {
    /// Keeps the best form of a result: a picture as a picture, else its text.
    fn push(&mut self, result: &CodeOutput) {
        for kind in PICTURES {
            if let Some(data) = result.data.get(kind).and_then(|form| form.text()) {
                if self.has_room(data.len()) {
                    self.pictures.push(ContentBlock::image(data, kind));
                    self.shown.push(json!({ "type": kind }));
                }
                return;
            }
        }
        let Some(mut plain) = result.data.get("text/plain").and_then(|form| form.text()) else {
            if self.has_room(result.data.keys().map(String::len).sum()) {
                let kinds: Vec<_> = result.data.keys().collect();
                self.shown.push(json!({ "type": kinds }));
            }
            return;
        };
        plain.truncate(plain.floor_char_boundary(RESULT_TEXT_MAX));
        plain.shrink_to_fit();
        if self.has_room(2 * plain.len()) {
            self.text.push_str(gap(&self.text));
            self.text.push_str(&plain);
            self.shown
                .push(json!({ "type": "text/plain", "text": plain }));
        }
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        let bytes = self.bytes + RESULT_BYTES_MIN + bytes;
        if bytes > RESULTS_BYTES_MAX {
            self.left_out += 1;
            return false;
        }
        self.bytes = bytes;
        true
    }
}
