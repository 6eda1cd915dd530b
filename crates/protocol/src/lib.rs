//! What the host and a guest say to each other.
//!
//! One byte stream carries one call. The host's first frame is an [`message::Open`] with the
//! protocol version and a request; the guest answers with [`message::Reply`] frames until the call
//! is over and then closes. Calls that take input (file writes, archives, port connections, process
//! input) get [`message::Input`] frames after the first. A frame is a little-endian `u32` length and
//! a protobuf message. Where a tier has only one byte stream (a serial port), a multiplexer below
//! this crate supplies the streams; nothing here changes.
//!
//! Back-pressure is the stream's own, cancellation is closing it, and a call survives nothing: work
//! that must outlive a connection is a process, which the guest owns and any later call can attach to.
#![forbid(unsafe_code)]

pub mod brief;
pub mod client;
pub mod frame;
pub mod identity;
pub mod message;
pub mod needs;

/// The version this crate speaks. It grows when a guest of the older version could misread a newer
/// host; new optional fields and new requests do not need it (an unknown request gets
/// [`message::ErrorCode::Unsupported`]). Version 2 added [`message::Open::needs`].
pub const VERSION: u32 = 2;
/// The oldest guest this host still talks to: snapshots keep old guests alive for long.
pub const OLDEST_SUPPORTED: u32 = 1;

/// Where the guest listens, relative to the sandbox's root.
pub const SOCKET_PATH: &str = ".cove/sock";
