//! The program as a whole: archives go in, files or a typed refusal come out, and nothing outside
//! the target is touched.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod attacks;
mod cell;
mod layers;
mod random;
mod semantics;
mod tarball;
