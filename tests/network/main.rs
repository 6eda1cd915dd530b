//! Network policies against guests that try to get around them.
//!
//! Everything happens in network namespaces made here: a *host* in which the engine's network lives, an
//! *internet* behind it with servers of its own, and sandboxes. `reach`, `attacks`, `identity` and
//! `changes` take the network alone (see `bare`); `policy`, `names`, `closed`, `forks`, `secrets` and `left` go through the
//! engine (see `stage`), with root inside a sandbox. `packages` alone leaves the machine, for the
//! registries that this host itself uses.

mod attacks;
mod bare;
mod canaries;
mod changes;
mod clients;
mod closed;
mod forks;
mod gvisor;
mod identity;
mod left;
mod names;
mod packages;
mod packets;
mod policy;
mod reach;
mod secrets;
mod signing;
mod stage;
mod world;
