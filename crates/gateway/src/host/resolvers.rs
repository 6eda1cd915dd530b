//! The resolvers that the host itself uses.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::limits::UPSTREAMS_MAX;

const DNS_PORT: u16 = 53;
/// Far above any real one.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// Those named in a `resolv.conf`; none when it cannot be read.
pub fn of(path: &Path) -> Vec<SocketAddr> {
    let text = fs::read_to_string(path).unwrap_or_default();
    parse(text.get(..FILE_BYTES_MAX).unwrap_or(&text))
}

fn parse(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let address = (words.next() == Some("nameserver")).then(|| words.next())??;
            let address: IpAddr = address.parse().ok()?;
            Some(SocketAddr::new(address, DNS_PORT))
        })
        .take(UPSTREAMS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_found_among_the_rest() {
        let text = "# x\nnameserver 10.0.0.1\nsearch a.example\nnameserver fe80::1%eth0\n\
                    options edns0\nnameserver 2001:db8::1\nnameserver\nxnameserver 1.1.1.1\n";
        let expected: Vec<SocketAddr> = vec![
            "10.0.0.1:53".parse().unwrap(),
            "[2001:db8::1]:53".parse().unwrap(),
        ];
        assert_eq!(parse(text), expected);
    }
}
