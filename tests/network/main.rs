//! Network policies against guests that try to get around them.
//!
//! Everything happens in network namespaces made here: a *host* in which the engine's network lives, an
//! *internet* behind it with servers of its own, and sandboxes. `reach`, `attacks`, `identity` and
//! `changes` take the network alone (see `bare`); `policy` goes through the engine, with root inside a
//! sandbox.

mod attacks;
mod bare;
mod changes;
mod identity;
mod packets;
mod policy;
mod reach;
mod world;
