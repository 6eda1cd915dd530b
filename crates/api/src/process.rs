//! Commands and processes on the wire: the exec request and its two answers (one piece, or live
//! lines), background processes, and the frames of a WebSocket attach.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Body of `POST …/exec`. Either `command` or `argv`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Exec {
    /// Command line for the user's login shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ARGUMENT_BYTES_MAX))]
    pub command: Option<String>,
    /// Program and arguments, run without a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = cove_limits::ARGV_MAX),
        inner(length(max = cove_limits::ARGUMENT_BYTES_MAX))
    )]
    pub argv: Option<Vec<String>>,
    /// Working directory; default: that of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub cwd: Option<String>,
    /// Environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::ENV_ENTRIES_MAX))]
    pub env: BTreeMap<String, String>,
    /// User name or number, optionally with `:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// The command's whole standard input, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = cove_limits::EXEC_STDIN_MAX))]
    pub stdin: Option<String>,
    /// The same, base64; for bytes that are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Keep its input open for `POST …/stdin`; only with a live answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// Time in milliseconds after which the command's process group is killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::TIMEOUT_MAX_MS))]
    pub timeout_ms: Option<u64>,
    /// Encoding of output in the whole answer: text (bytes that are not UTF-8 are replaced), or
    /// base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Kill the command when this connection is lost. Otherwise it keeps running and can be
    /// followed again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kill_on_disconnect: bool,
    /// A word for listings; it does not change the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::TAG_MAX))]
    pub tag: Option<String>,
}

/// Encoding of output in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    #[default]
    Text,
    Base64,
}

/// Body of `POST …/processes`: as exec, but in the background, with an open input or a terminal.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StartProcess {
    /// Command line for the user's login shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ARGUMENT_BYTES_MAX))]
    pub command: Option<String>,
    /// Program and arguments, run without a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = cove_limits::ARGV_MAX),
        inner(length(max = cove_limits::ARGUMENT_BYTES_MAX))
    )]
    pub argv: Option<Vec<String>>,
    /// Working directory; default: that of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub cwd: Option<String>,
    /// Environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::ENV_ENTRIES_MAX))]
    pub env: BTreeMap<String, String>,
    /// User name or number, optionally with `:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Time in milliseconds after which the command's process group is killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::TIMEOUT_MAX_MS))]
    pub timeout_ms: Option<u64>,
    /// Start it in a terminal of this size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// Keep its input open for `POST …/stdin` and attach. A terminal always has one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// Bytes of each stream that are kept for later readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = cove_limits::RING_MIN, max = cove_limits::RING_MAX))]
    pub ring_bytes: Option<u64>,
    /// A word for listings; it does not change the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::TAG_MAX))]
    pub tag: Option<String>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Columns.
    #[schemars(range(min = 1, max = cove_limits::TERMINAL_SIDE_MAX))]
    pub cols: u32,
    /// Rows.
    #[schemars(range(min = 1, max = cove_limits::TERMINAL_SIDE_MAX))]
    pub rows: u32,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exit {
    /// Exit code; 128 + the signal's number if a signal ended it.
    pub exit_code: i32,
    /// Number of the signal that ended the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The kernel killed it because memory was exhausted.
    pub oom: bool,
    /// The command was killed after its timeout.
    pub timed_out: bool,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// With `oom`: the sandbox's limit and peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// With `oom`: the most memory the sandbox used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Bytes written to standard output, kept or not.
    pub stdout_bytes: u64,
    /// Bytes written to standard error, kept or not.
    pub stderr_bytes: u64,
    /// What to do about a failure, if the server knows; for example that the network of the sandbox
    /// is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The whole answer to exec.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ExecResult {
    #[serde(flatten)]
    pub exit: Exit,
    /// Standard output, from its beginning.
    pub stdout: String,
    /// Standard error, from its beginning.
    pub stderr: String,
    /// How `stdout` and `stderr` are encoded.
    pub encoding: Encoding,
    /// Output was longer than an answer can be; this is its first part.
    pub truncated: bool,
    /// Id of the process, for its record.
    pub process: String,
}

/// One line of a live answer (`Accept: application/x-ndjson`) to exec or output.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputEvent {
    /// The command runs.
    Started {
        /// The process.
        process: Box<Process>,
    },
    /// Some standard output.
    Stdout(OutputChunk),
    /// Some standard error.
    Stderr(OutputChunk),
    /// It ended, and all output before this line was reported.
    Exit(Exit),
    /// The stream ended before the command; continue from the offsets.
    Error {
        /// Why the stream ended.
        error: crate::ErrorDetail,
    },
}

/// Some output. `text` when it is UTF-8, else `data` in base64.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputChunk {
    /// Offset of the first byte in the stream.
    pub offset: u64,
    /// The output, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The output in base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Requested bytes before `offset` that are no longer kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// What to do about something that was refused just now because the network is off; such a line has no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// When it was written, by the sandbox's clock, if that was requested and is known. Sandboxes whose processes were
    /// captured by an earlier version do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl OutputChunk {
    pub fn new(offset: u64, dropped: u64, bytes: &[u8]) -> Self {
        let (text, data) = match std::str::from_utf8(bytes) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(BASE64.encode(bytes))),
        };
        Self {
            offset,
            text,
            data,
            dropped,
            hint: None,
            at: None,
        }
    }

    /// The bytes; `None` when the base64 is broken.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match (self.text, self.data) {
            (Some(text), _) => Some(text.into_bytes()),
            (None, Some(data)) => BASE64.decode(data).ok(),
            (None, None) => Some(Vec::new()),
        }
    }
}

/// What a process is. It follows from the request that started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// A client waits for its end: an exec. Its sandbox is never idle.
    Command,
    /// It has a terminal. Its sandbox is idle while no client is attached.
    Terminal,
    /// The interpreter of a code context.
    CodeContext,
    /// A shell that another interface keeps for the commands of a session.
    DialectSession,
    /// It runs in the background.
    Service,
}

/// The record of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// Id of the process record.
    pub id: String,
    /// Process id inside the sandbox.
    pub pid: i32,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// User that it runs as.
    pub user: String,
    /// Size of its terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// Time when it started.
    pub started_at: Timestamp,
    /// Absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Bytes written to standard output so far.
    pub stdout_bytes: u64,
    /// Bytes written to standard error so far.
    pub stderr_bytes: u64,
    /// Oldest offset of standard output that can still be read.
    pub stdout_oldest: u64,
    /// Oldest offset of standard error that can still be read.
    pub stderr_oldest: u64,
    /// What kind of process it is.
    pub kind: ProcessKind,
    /// The interface that started it, with the name of the session or context if it is of one. Absent where
    /// the sandbox began before owners were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Tag that the caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Connections attached to its output now.
    pub viewers: u32,
    /// CPU time in milliseconds.
    pub cpu_ms: u64,
    /// Memory in use.
    pub memory_bytes: u64,
}

/// Query of `GET …/output` and of attach.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutputQuery {
    /// Offset of standard output to start at; bytes that are no longer kept are reported as
    /// `dropped`.
    pub stdout_from: u64,
    /// Offset of standard error to start at.
    pub stderr_from: u64,
    /// Follow the output until the command ends. Without it, the answer is the output so far.
    pub follow: bool,
    /// Leave out what was written before this time. Output whose time is not known is not left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Report when output was written, in chunks of about the same time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub timestamps: bool,
}

/// Query of attach.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttachQuery {
    /// Offset of standard output to start at.
    pub stdout_from: u64,
    /// Offset of standard error to start at.
    pub stderr_from: u64,
}

/// Query of `POST …/stdin`; its body is the raw input.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StdinQuery {
    /// Close the input after these bytes.
    pub close: bool,
}

/// Body of `POST …/signal`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalProcess {
    /// `TERM`, `SIGTERM` or a number.
    #[schemars(length(min = 1, max = cove_limits::SIGNAL_MAX))]
    pub signal: String,
    /// Send it to the process alone instead of its whole group.
    #[serde(default)]
    pub only_leader: bool,
}

/// A text message of an attached client. Binary messages are input.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum AttachRequest {
    /// Change the size of the terminal.
    Resize { cols: u32, rows: u32 },
    /// Send a signal: `TERM`, `SIGTERM` or a number.
    Signal { signal: String },
    /// Close the process's input.
    CloseStdin,
}

/// A text message to an attached client. Binary messages are output, see [`AttachFrame`].
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AttachEvent {
    /// First message: the process as it is now.
    Attached { process: Box<Process> },
    /// Requested bytes that are no longer kept.
    Dropped { channel: Stream, bytes: u64 },
    /// Last message.
    Exit(Exit),
    /// A request of this client was refused; the connection stays open.
    Refused { message: String },
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A binary message to an attached client: one byte for the stream (1 stdout, 2 stderr), the offset
/// of the first byte as a big-endian 64-bit number, then output.
#[derive(Debug, PartialEq, Eq)]
pub struct AttachFrame<'a> {
    pub stream: Stream,
    pub offset: u64,
    pub data: &'a [u8],
}

impl<'a> AttachFrame<'a> {
    pub const HEADER: usize = 9;

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::HEADER + self.data.len());
        out.push(match self.stream {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        });
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(self.data);
        out
    }

    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (header, data) = bytes.split_first_chunk::<9>()?;
        let (stream, offset) = header.split_first()?;
        let stream = match stream {
            1 => Stream::Stdout,
            2 => Stream::Stderr,
            _ => return None,
        };
        let offset = u64::from_be_bytes(offset.try_into().ok()?);
        Some(Self {
            stream,
            offset,
            data,
        })
    }
}

/// Signals by the names people use.
pub const SIGNALS: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// The number behind `TERM`, `SIGTERM`, `sigterm` or `15`.
pub fn parse_signal(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    SIGNALS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_not_text_travels_as_base64_and_comes_back_whole() {
        for bytes in [&b"plain"[..], &[0xff, 0x00, 0x80], b"", "ü".as_bytes()] {
            let chunk = OutputChunk::new(7, 0, bytes);
            let line = serde_json::to_string(&OutputEvent::Stdout(chunk)).unwrap();
            let OutputEvent::Stdout(back) = serde_json::from_str(&line).unwrap() else {
                panic!("another event came back from {line}");
            };
            assert_eq!(back.offset, 7);
            assert_eq!(back.into_bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn attach_frames_round_trip_and_short_ones_are_refused() {
        let frame = AttachFrame {
            stream: Stream::Stderr,
            offset: 1 << 40,
            data: b"abc",
        };
        let bytes = frame.encode();
        assert_eq!(AttachFrame::decode(&bytes), Some(frame));
        for cut in 0..AttachFrame::HEADER {
            assert_eq!(AttachFrame::decode(&bytes[..cut]), None);
        }
        assert_eq!(AttachFrame::decode(&[9; 12]), None);
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("TERM", 15), ("SIGkill", 9), ("2", 2), ("64", 64)] {
            assert_eq!(parse_signal(text), Some(number), "{text}");
        }
        for text in ["", "0", "65", "-1", "NOPE", "SIG"] {
            assert_eq!(parse_signal(text), None, "{text}");
        }
    }
}
