//! How long the frames of each wire may be, and what may be in a hello.

/// Host and guest. Data comes in many frames, so that this bounds one listing's part or one command line.
pub const GUEST_FRAME_MAX: usize = 1024 * 1024;
/// Control and runner. Longer lists come in several frames.
pub const RUNNER_FRAME_MAX: usize = 4 * 1024 * 1024;
/// Engine to gateway: every policy of a full host in one table.
pub const GATEWAY_CALL_MAX: usize = 64 * 1024 * 1024;
/// Gateway to engine: a full batch of the longest log lines.
pub const GATEWAY_REPLY_MAX: usize = 4 * 1024 * 1024;
/// Engine and spawner. The cpuinfo text of a large machine is the bulk of it.
pub const SPAWNER_PACKET_MAX: usize = 512 * 1024;
/// Descriptors that come with one message.
pub const DESCRIPTORS_MAX: usize = 24;

/// An encoded hello.
pub const HELLO_BYTES_MAX: usize = 8 * 1024;
/// Features in one hello, and in the needs of one message.
pub const FEATURES_MAX: usize = 64;
/// The name of one feature.
pub const FEATURE_BYTES_MAX: usize = 64;
