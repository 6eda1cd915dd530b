//! The program as a whole: archives go in, files or a typed refusal come out, and nothing outside
//! the target is touched.

mod attacks;
mod cell;
mod layers;
mod random;
mod semantics;
mod tarball;
