//! Memory: captured, restored, forked, with real programs in real sandboxes.
#![allow(clippy::unwrap_used)]

mod basics;
mod fixture;
mod programs;
mod streams;
