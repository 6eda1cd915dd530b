//! What a dialect gets from the server it is mounted in.
//!
//! A dialect is a router of its own over the control plane: it has its own paths, its own errors and
//! its own way to carry a key. What must be the same everywhere is here: who is asking and how that is
//! written down, how much of a request and its answer is held in
//! memory and who pays for it, and how many streams an organisation holds open. The server makes one [`Front`] and puts [`RequestId`], [`Peer`], [`Seen`], [`Tab`] and [`Wire`]
//! into every request.
#![forbid(unsafe_code)]

mod answer;
mod asking;
mod body;
mod code;
mod front;
pub mod network;
mod output;
pub mod refused;
mod streams;
mod tab;
mod wire;
pub mod wording;

pub use answer::{JsonAnswer, Said};
pub use asking::{Peer, RequestId, Seen};
pub use body::{BODY_COPIES, BodyError, Pieces};
pub use code::LiveCode;
pub use cove_control::{FollowError, Following};
pub use front::{Front, PreviewPlace, SshAddress};
pub use output::Output;
pub use streams::{Kind, Slot, StreamPermit, Streams};
pub use tab::Tab;
pub use wire::{READ_BUFFER, Wire};
