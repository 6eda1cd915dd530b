//! What a sandbox may reach, as other platforms write it.

use cove_model::network::Entry;
use cove_model::network::address::{Cidr, CidrError};
use cove_model::spec::SpecError;

/// The entries of an allow list. A block may have bits below its prefix, as it does elsewhere; they are cleared.
pub fn entries(texts: &[impl AsRef<str>]) -> Result<Vec<Entry>, SpecError> {
    let texts: Vec<String> = texts.iter().map(|text| cleared(text.as_ref())).collect();
    Entry::list(texts)
}

/// The same entry without the bits of a host.
pub fn cleared(text: &str) -> String {
    let (block, port) = match text.split_once(':') {
        Some((block, port)) => (block, Some(port)),
        None => (text, None),
    };
    match (block.parse::<Cidr>(), port) {
        (Err(CidrError::HostBits(block)), None) => block.to_string(),
        (Err(CidrError::HostBits(block)), Some(port)) => format!("{block}:{port}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lose_the_bits_of_a_host_and_nothing_else_changes() {
        for (given, meant) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("192.168.1.77/24:443", "192.168.1.0/24:443"),
            ("203.0.113.9/0", "0.0.0.0/0"),
            ("203.0.113.9", "203.0.113.9"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("a.example:80", "a.example:80"),
            ("10.1.2.3/33", "10.1.2.3/33"),
            ("10.1.2/8", "10.1.2/8"),
        ] {
            assert_eq!(cleared(given), meant);
        }
        assert!(entries(&["10.1.2.3/8", "b.example"]).is_ok());
        assert!(entries(&["10.1.2.3/33"]).is_err());
    }
}
