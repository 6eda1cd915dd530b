//! What a tier can do on this host.

use serde::{Deserialize, Serialize};

/// What a tier can do; a request beyond it is refused by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// CPUs that its machines can use between them.
    pub cpus: u32,
    pub live_resize: bool,
    pub elastic_memory: bool,
    pub io_read_limit: bool,
    pub io_write_limit: bool,
    pub no_new_privs: bool,
    /// Processes and their memory can be captured and brought back.
    pub memory: bool,
}

impl Capabilities {
    /// Their names, for reports.
    pub fn names(&self) -> Vec<String> {
        [
            ("live_resize", self.live_resize),
            ("elastic_memory", self.elastic_memory),
            ("io_read_limit", self.io_read_limit),
            ("io_write_limit", self.io_write_limit),
            ("no_new_privs", self.no_new_privs),
            ("memory", self.memory),
        ]
        .into_iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| name.to_owned())
        .collect()
    }
}
