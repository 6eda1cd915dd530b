//! How many files the server's processes may have open. A login shell gives a thousand, which a few
//! hundred sandboxes use up; the unit file asks for more, and started by hand the server asks itself.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a sandbox may ask for at most, so that the host's limit does not stand in its way.
const WANTED: u64 = 1 << 20;
/// Above this not even root may go.
const HOST_MAX: &str = "/proc/sys/fs/nr_open";

/// Raises the limits of this process and of those it starts as far as it may; one that stays low is reported
/// by `cove doctor`.
pub fn raise() {
    let host_max = std::fs::read_to_string(HOST_MAX)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(WANTED);
    for limit in steps(getrlimit(Resource::Nofile), WANTED.min(host_max)) {
        // A process without the right to raise the hard limit still may go up to it.
        if setrlimit(Resource::Nofile, limit).is_ok() {
            return;
        }
    }
}

/// Limits to try in turn, the best one first; nothing is ever lowered.
fn steps(now: Rlimit, wanted: u64) -> Vec<Rlimit> {
    let at = |limit: Option<u64>| Rlimit {
        current: limit,
        maximum: limit,
    };
    let raised = now.maximum.map(|maximum| maximum.max(wanted));
    let mut steps = vec![at(raised), at(now.maximum)];
    steps.dedup_by(|a, b| a.maximum == b.maximum);
    steps.retain(|step| step.current != now.current || step.maximum != now.maximum);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(current: Option<u64>, maximum: Option<u64>) -> Vec<Option<u64>> {
        let now = Rlimit { current, maximum };
        let steps = steps(now, 5000);
        assert!(steps.iter().all(|step| step.current == step.maximum));
        steps.into_iter().map(|step| step.maximum).collect()
    }

    #[test]
    fn limits_go_up_as_far_as_they_may_and_never_down() {
        assert_eq!(tried(Some(1024), Some(4096)), [Some(5000), Some(4096)]);
        assert_eq!(tried(Some(1024), Some(9000)), [Some(9000)]);
        assert_eq!(tried(Some(1024), None), [None]);
        assert_eq!(tried(Some(9000), Some(9000)), []);
        assert_eq!(tried(None, None), []);
    }
}
