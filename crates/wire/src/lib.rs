//! What the private wires between Cove's processes share: how messages are framed and how long they may be, how
//! descriptors come along, and what both sides say about their version and features.
//!
//! ```text
//! control ── runner      little-endian length, kind, JSON          hello before the request, in its frame
//! host ───── guest       little-endian length, protobuf            version and needs in `Open`
//! engine ─── gateway     big-endian length, JSON or fixed layout   version and needs in `Request`
//! engine ─── spawner     one packet, postcard                      hello as the first packet
//! ```
//!
//! The messages themselves are the crates' own. The rules about versions are in
//! `docs/decisions/0016-wires-with-versions.md`: what a message restricts names a [`Feature`], and a side that
//! lacks it refuses the message ([`Side::accept`]).
#![forbid(unsafe_code)]

pub mod blocking;
pub mod descriptor;
pub mod feature;
pub mod frame;
pub mod hello;
pub mod limits;
#[cfg(feature = "packet")]
pub mod packet;
#[cfg(feature = "recorded")]
pub mod recorded;
#[cfg(feature = "stream")]
pub mod stream;

pub use feature::{Feature, Missing, Needs};
pub use frame::{FrameError, Layout, Oversize};
pub use hello::{BadHello, Hello, Refusal, Side};
