//! The resolver: questions from sandboxes, answers from the host's resolvers, the policy between.

pub mod cache;
pub mod resolve;
pub mod server;
pub mod upstream;
pub mod wire;
