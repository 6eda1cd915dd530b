//! Memory: captured, restored, forked, with real programs in real sandboxes.
#![allow(clippy::unwrap_used)]

mod attacks;
mod basics;
mod fixture;
mod generations;
mod identity;
mod kernel;
mod limits;
#[path = "../../../../tests/src/needs.rs"]
mod needs;
mod outside;
mod programs;
mod refusals;
mod streams;
mod terminals;
#[path = "../fixtures/tier.rs"]
mod tier;
