//! Images end to end, against real pools: every test has a data directory of its own.

mod bootstrap;
mod import;
mod world;
