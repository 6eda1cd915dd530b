//! A command that fails because its sandbox has no network usually blames DNS. This notices, and says what
//! to do, once.

use cove_api::process::OutputChunk;
use cove_api::sandbox::NetworkMode;
use cove_client::Client;

/// What resolvers, curl, pip, apt, npm, git and busybox print when no name can be resolved.
const SIGNS: [&str; 8] = [
    "name resolution",
    "Could not resolve",
    "Name or service not known",
    "nodename nor servname",
    "EAI_AGAIN",
    "ENOTFOUND",
    "bad address",
    "Network is unreachable",
];
/// Bytes kept of each chunk for a sign that is cut in two.
const KEPT: usize = 64;

/// Looks at output on its way to the terminal.
#[derive(Default)]
pub struct Watch {
    seen: bool,
    kept: String,
}

impl Watch {
    pub fn look(&mut self, chunk: &OutputChunk) {
        let Some(text) = chunk.text.as_deref().filter(|_| !self.seen) else {
            return;
        };
        self.kept.push_str(text);
        self.seen = SIGNS.iter().any(|sign| self.kept.contains(sign));
        let from = self
            .kept
            .floor_char_boundary(self.kept.len().saturating_sub(KEPT));
        self.kept.drain(..from);
    }

    /// After a failure: says what to do if the output blames the network and the policy is the cause.
    pub async fn explain(&self, client: &Client, sandbox: &str) {
        if !self.seen {
            return;
        }
        let Ok(sandbox) = client.sandbox(sandbox).await else {
            return;
        };
        if sandbox.network.mode == NetworkMode::None {
            let name = sandbox.name.as_deref().unwrap_or(&sandbox.id);
            eprintln!("cove: the network of this sandbox is off");
            eprintln!("  allow package registries: `cove update {name} --allow preset:packages`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_seen_also_when_they_are_cut_in_two() {
        let mut watch = Watch::default();
        watch.look(&OutputChunk::new(0, 0, b"fine\n"));
        assert!(!watch.seen);
        watch.look(&OutputChunk::new(5, 0, b"wget: bad add"));
        watch.look(&OutputChunk::new(18, 0, b"ress 'example.com'\n"));
        assert!(watch.seen);
    }
}
