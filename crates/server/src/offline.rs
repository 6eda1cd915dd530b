//! A command that fails because its sandbox has no network usually blames DNS. The exit of such a command says
//! what to do.
//!
//! A sandbox whose network is off has no interface, so that nothing outside of it sees the attempts. What the command
//! printed last is looked at instead, and only if it failed.

use cove_api::process::Exit;
use cove_control::GuestAccess;
use cove_protocol::message::Channel;

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
/// Bytes kept of the end of each stream.
const KEPT: usize = 4 * 1024;

/// The end of a command's output, in a sandbox whose network is off.
pub struct Offline {
    name: String,
    kept: [Vec<u8>; 2],
}

impl Offline {
    /// `None` where the sandbox has a network.
    pub fn of(access: &GuestAccess) -> Option<Self> {
        let name = access.without_network()?.to_owned();
        Some(Self {
            name,
            kept: [Vec::new(), Vec::new()],
        })
    }

    pub fn take(&mut self, channel: Channel, data: &[u8]) {
        let kept = &mut self.kept[channel as usize];
        let data = &data[data.len().saturating_sub(KEPT)..];
        let over = (kept.len() + data.len()).saturating_sub(KEPT);
        kept.drain(..over);
        kept.extend_from_slice(data);
    }

    /// What to do, if the command failed and its output blames the network.
    pub fn hint(&self, exit: &Exit) -> Option<String> {
        if exit.exit_code == 0 {
            return None;
        }
        let blamed = self.kept.iter().any(|kept| {
            let text = String::from_utf8_lossy(kept);
            SIGNS.iter().any(|sign| text.contains(sign))
        });
        blamed.then(|| {
            format!(
                "the network of this sandbox is off; allow package registries: `cove update {} --allow preset:packages`",
                self.name
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: i32) -> Exit {
        Exit {
            exit_code: code,
            signal: None,
            oom: false,
            timed_out: false,
            duration_ms: 1,
            memory_limit_bytes: None,
            memory_peak_bytes: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            hint: None,
        }
    }

    fn offline() -> Offline {
        Offline {
            name: "box".into(),
            kept: [Vec::new(), Vec::new()],
        }
    }

    #[test]
    fn a_failure_that_blames_dns_is_explained() {
        let mut watch = offline();
        watch.take(Channel::Stderr, b"wget: bad add");
        assert_eq!(watch.hint(&failed(1)), None);
        watch.take(Channel::Stderr, b"ress 'example.com'\n");
        assert!(watch.hint(&failed(1)).unwrap().contains("cove update box"));
        assert_eq!(watch.hint(&failed(0)), None, "a success needs no hint");
    }

    #[test]
    fn only_the_end_of_the_output_is_kept() {
        let mut watch = offline();
        watch.take(Channel::Stdout, b"bad address");
        for _ in 0..10 {
            watch.take(Channel::Stdout, &[b'x'; 3000]);
            assert!(watch.kept[0].len() <= KEPT);
        }
        watch.take(Channel::Stdout, &[b'y'; 3 * KEPT]);
        assert_eq!(watch.kept[0], vec![b'y'; KEPT]);
        assert_eq!(watch.hint(&failed(1)), None);
    }
}
