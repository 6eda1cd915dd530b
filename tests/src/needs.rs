//! What a test needs of its host beside a kernel. What is missing is a failure, unless whoever runs the tests
//! said that it may be missing: `COVE_TEST_WITHOUT=criu,tmux make test`. Included by the tests of other crates.

const WITHOUT: &str = "COVE_TEST_WITHOUT";
/// Every name that can be opted out of; `scripts/test` has the same list.
pub const KNOWN: [&str; 8] = [
    "browser", "cgroup", "criu", "kubectl", "node", "qemu", "rsync", "tmux",
];

/// Whether a test can go on. Ends it with a failure when something is missing that was not opted out of.
pub fn has(what: &str, found: bool) -> bool {
    assert!(KNOWN.contains(&what), "{what} is not among {KNOWN:?}");
    if found {
        return true;
    }
    let without = std::env::var(WITHOUT).unwrap_or_default();
    assert!(
        without.split(',').any(|word| word.trim() == what),
        "{what} is missing or does not work; `scripts/setup test` installs it, and {WITHOUT}={what} tests without it"
    );
    eprintln!("skipped: {WITHOUT} has {what}");
    false
}
