//! What a dialect gets from the server it is mounted in.
//!
//! A dialect is a router of its own over the control plane: it has its own paths, its own errors and
//! its own way to carry a key. What must be the same everywhere is here: who is asking and how that is
//! written down, how much of a request and its answer is held in
//! memory and who pays for it, how many streams an organisation holds open, and output that goes on while
//! a sandbox rests. The server makes one [`Front`] and puts [`RequestId`], [`Peer`], [`Seen`] and [`Tab`]
//! into every request.
#![forbid(unsafe_code)]

mod answer;
mod asking;
mod body;
mod following;
mod front;
mod output;
mod streams;
mod tab;

pub use answer::{JsonAnswer, Said};
pub use asking::{Peer, RequestId, Seen};
pub use body::{BODY_COPIES, BodyError, Pieces};
pub use following::{FollowError, Following};
pub use front::{Front, PreviewPlace};
pub use output::{Output, PIECE};
pub use streams::{Kind, Seat, Slot, Streams};
pub use tab::Tab;
