//! Network policies against guests that try to get around them.
//!
//! Everything happens in network namespaces made here: a *host* in which the engine's network lives, an
//! *internet* behind it with servers of its own, and sandboxes. `bare` takes the network alone, with
//! attackers that have every right in their namespace, as a virtual machine's guest would; `policy` goes
//! through the engine, with root inside a sandbox.

mod bare;
mod policy;
mod world;
