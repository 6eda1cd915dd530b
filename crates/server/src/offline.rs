//! A command that fails because its sandbox has no network usually blames DNS. The exit of such a command says
//! what to do.
//!
//! The guest reports what was refused (`guest/src/refusals.rs`). One that cannot, because it is of an earlier build, has
//! an interface or a kernel of its own, leaves what the command printed last, which is looked at if it failed.

use cove_api::process::Exit;
use cove_control::{GuestAccess, Seen};
use cove_protocol::message::{Channel, Refusals};

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

    /// What to do, if the command failed and something was refused, or its output blames the network.
    pub fn hint(&self, exit: &Exit, seen: &Seen) -> Option<String> {
        if exit.exit_code == 0 {
            return None;
        }
        match &seen.first {
            Some(refusals) => Some(self.explain(refusals)),
            None => (!seen.all && self.blames()).then(|| self.advise("")),
        }
    }

    /// What to do about a refusal.
    pub fn explain(&self, refusals: &Refusals) -> String {
        match refusals.names.first() {
            Some(refused) => self.advise(&format!("; {} was refused", refused.name)),
            None => self.advise("; connections by address were refused"),
        }
    }

    fn advise(&self, what: &str) -> String {
        format!(
            "the network of this sandbox is off{what}; allow package registries: `cove update {} --allow preset:packages`",
            self.name
        )
    }

    fn blames(&self) -> bool {
        self.kept.iter().any(|kept| {
            let text = String::from_utf8_lossy(kept);
            SIGNS.iter().any(|sign| text.contains(sign))
        })
    }
}

#[cfg(test)]
mod tests {
    use cove_protocol::message::RefusedName;

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
    fn what_the_guest_reports_decides() {
        let mut watch = offline();
        let first = |refusals| Seen {
            all: true,
            first: Some(refusals),
        };
        let named = first(Refusals {
            names: vec![RefusedName {
                name: "pypi.org".into(),
                queries: 1,
            }],
            ..Refusals::default()
        });
        let hint = watch.hint(&failed(1), &named).unwrap();
        assert!(
            hint.contains("is off; pypi.org was refused; allow"),
            "{hint}"
        );
        assert_eq!(watch.hint(&failed(0), &named), None);
        let by_address = first(Refusals {
            addresses: 2,
            ..Refusals::default()
        });
        let hint = watch.hint(&failed(1), &by_address).unwrap();
        assert!(hint.contains("by address were refused; allow"), "{hint}");
        watch.take(Channel::Stderr, b"Could not resolve host");
        let nothing = Seen {
            all: true,
            first: None,
        };
        assert_eq!(watch.hint(&failed(1), &nothing), None, "only text says so");
    }

    #[test]
    fn where_the_guest_sees_nothing_a_failure_that_blames_dns_is_explained() {
        let mut watch = offline();
        let unseen = Seen::default();
        watch.take(Channel::Stderr, b"wget: bad add");
        assert_eq!(watch.hint(&failed(1), &unseen), None);
        watch.take(Channel::Stderr, b"ress 'example.com'\n");
        let hint = watch.hint(&failed(1), &unseen).unwrap();
        assert!(hint.contains("cove update box"), "{hint}");
        let success = watch.hint(&failed(0), &unseen);
        assert_eq!(success, None, "a success needs no hint");
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
        assert_eq!(watch.hint(&failed(1), &Seen::default()), None);
    }
}
