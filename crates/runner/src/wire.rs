//! The runner interface over a unix socket; written next.
