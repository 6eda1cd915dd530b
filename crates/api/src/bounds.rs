//! Every limit of the HTTP surface, in one place. Bytes and counts beyond them are refused before
//! anything is done with them.

/// A JSON body, unless its route says otherwise.
pub const JSON_BODY_MAX: usize = 1024 * 1024;
/// An exec or process body: it may carry the command's whole standard input.
pub const EXEC_BODY_MAX: usize = 16 * 1024 * 1024;
/// Bytes of one `POST …/stdin` call.
pub const STDIN_BODY_MAX: usize = 16 * 1024 * 1024;
/// A file or archive upload. Streamed, so only the sandbox's disk feels its size.
pub const UPLOAD_BODY_MAX: usize = 64 * 1024 * 1024 * 1024;
/// All headers of a request together.
pub const HEADERS_MAX_BYTES: usize = 32 * 1024;
/// Headers of a request.
pub const HEADERS_MAX: usize = 64;
/// Path and query of a request.
pub const URI_MAX: usize = 8 * 1024;
/// An `Idempotency-Key`.
pub const IDEMPOTENCY_KEY_MAX: usize = 128;
/// Items of a list page when the caller does not say.
pub const PAGE_DEFAULT: u32 = 100;
pub const PAGE_MAX: u32 = 1000;
pub const CURSOR_MAX: usize = 512;
/// Arguments of a command.
pub const ARGV_MAX: usize = 4096;
/// All bytes of a command line together.
pub const COMMAND_BYTES_MAX: usize = 256 * 1024;
/// Output of one stream kept for an exec answered in one piece; live exec has no such limit.
pub const EXEC_OUTPUT_MAX: usize = 8 * 1024 * 1024;
/// The longest timeout a command can have: a week.
pub const TIMEOUT_MAX_MS: u64 = 7 * 86_400 * 1000;
/// Terminal columns and rows.
pub const TERMINAL_SIDE_MAX: u32 = 4096;
/// Depth and entries of a directory listing.
pub const LIST_DEPTH_MAX: u32 = 32;
pub const LIST_ENTRIES_MAX: u32 = 10_000;
/// One WebSocket message from a client.
pub const WS_MESSAGE_MAX: usize = 1024 * 1024;
/// A path inside a sandbox.
pub const PATH_MAX: usize = 4096;
/// The grace time a stop may ask for.
pub const STOP_GRACE_MAX_MS: u64 = 10 * 60 * 1000;
pub const STOP_GRACE_DEFAULT_MS: u64 = 10_000;
/// Names of keys and organisations.
pub const TITLE_MAX: usize = 128;
