//! What a dialect gets from the server it is mounted in.
//!
//! A dialect is a router of its own over the control plane: it has its own paths, its own errors and
//! its own way to carry a key. What must be the same everywhere is here: who is asking and how that is
//! written down, how much of a request is held in memory, how many streams an organisation holds open, and output that goes on while a sandbox rests.
//! The server makes one [`Front`] and puts [`RequestId`], [`Peer`] and [`Seen`] into every request.
#![forbid(unsafe_code)]

mod asking;
mod body;
mod following;
mod front;
mod streams;

pub use asking::{Peer, RequestId, Seen};
pub use body::{BodyError, Held, Pieces};
pub use following::{FollowError, Following};
pub use front::{BUFFER_UNIT, Front, PreviewPlace};
pub use streams::{Kind, Seat, Slot, Streams};
