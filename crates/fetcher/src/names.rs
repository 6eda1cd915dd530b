//! From a host in a URL to addresses: literal ones, those of `/etc/hosts`, those of the host's
//! resolvers. The C library is not asked: it would take numbers in every base for addresses, and a
//! confined process could not load what it needs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cove_gateway::dns::upstream::Upstreams;
use cove_gateway::dns::wire::{A, AAAA, WireName};
use cove_model::network::Name;

/// Addresses of one name that are looked at.
const ADDRESSES_MAX: usize = 16;
const DNS_PORT: u16 = 53;

pub struct Names {
    hosts: Vec<(Name, IpAddr)>,
    upstreams: Upstreams,
}

impl Names {
    /// `resolv` counts where no resolvers are given.
    pub fn new(hosts: &[u8], resolv: &[u8], resolvers: &[SocketAddr]) -> Self {
        let resolvers = match resolvers {
            [] => parse_resolv(&String::from_utf8_lossy(resolv)),
            given => given.to_vec(),
        };
        Self {
            hosts: parse_hosts(&String::from_utf8_lossy(hosts)),
            upstreams: Upstreams::new(resolvers),
        }
    }

    /// Every address of the host, those for IPv4 first. `Err` says why there is none.
    pub async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        let bare = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if let Some(inside) = bare {
            let address: Ipv6Addr = inside
                .parse()
                .map_err(|_| format!("'{host}' is not an IPv6 address"))?;
            return Ok(vec![address.into()]);
        }
        // Four decimal numbers and nothing else: not one, and not in another base.
        if let Ok(address) = host.parse::<Ipv4Addr>() {
            return Ok(vec![address.into()]);
        }
        let name = Name::from_ascii(host.as_bytes())
            .map_err(|error| format!("'{host}' is not a valid name: {error}"))?;
        let listed = self.hosts.iter().filter(|(other, _)| *other == name);
        let mut addresses: Vec<IpAddr> = listed.map(|(_, address)| *address).collect();
        if addresses.is_empty() {
            addresses = self.ask(&name).await?;
        }
        addresses.truncate(ADDRESSES_MAX);
        Ok(addresses)
    }

    async fn ask(&self, name: &Name) -> Result<Vec<IpAddr>, String> {
        let wire = WireName::from_name(name);
        let (four, six) = tokio::join!(
            self.upstreams.ask(&wire, A),
            self.upstreams.ask(&wire, AAAA)
        );
        let mut addresses = Vec::new();
        let mut failure = None;
        for answer in [four, six] {
            match answer {
                Ok(answer) => addresses.extend(answer.records.iter().filter_map(|record| {
                    let four = <[u8; 4]>::try_from(&record.data[..]).map(IpAddr::from);
                    let six = <[u8; 16]>::try_from(&record.data[..]).map(IpAddr::from);
                    four.or(six).ok()
                })),
                Err(error) => failure = Some(error.to_string()),
            }
        }
        match failure {
            _ if !addresses.is_empty() => Ok(addresses),
            Some(error) => Err(format!(
                "the name {} cannot be looked up: {error}",
                name.as_str()
            )),
            None => Err(format!("the name {} has no address", name.as_str())),
        }
    }
}

fn parse_resolv(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let address = line.trim_start().strip_prefix("nameserver")?;
        let address: IpAddr = address.split_ascii_whitespace().next()?.parse().ok()?;
        Some(SocketAddr::new(address, DNS_PORT))
    });
    servers.collect()
}

fn parse_hosts(text: &str) -> Vec<(Name, IpAddr)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else {
            continue;
        };
        let names = words.filter_map(|word| Name::from_ascii(word.as_bytes()).ok());
        found.extend(names.map(|name| (name, address)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(host: &str) -> Result<Vec<IpAddr>, String> {
        let hosts =
            "127.0.0.1 localhost box # x\n::1 localhost\nnonsense a\n10.0.0.1 Upper.Example\n";
        Names::new(hosts.as_bytes(), b"", &[]).addresses(host).await
    }

    #[tokio::test]
    async fn addresses_have_one_spelling() {
        assert_eq!(of("10.1.2.3").await, Ok(vec!["10.1.2.3".parse().unwrap()]));
        assert_eq!(of("[::1]").await, Ok(vec!["::1".parse().unwrap()]));
        for odd in [
            "2130706433",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "127.1",
            "127.0.0.01",
            "127.0.0.1.",
            "[fe80::1%eth0]",
            "[::1",
            "",
            "a..b",
        ] {
            assert!(of(odd).await.is_err(), "{odd}");
        }
    }

    #[test]
    fn name_servers_are_found_among_the_rest() {
        let text = "# x\nnameserver 10.0.0.1\nsearch a.example\nnameserver fe80::1%eth0\n\
                    options edns0\nnameserver 2001:db8::1\nnameserver\nxnameserver 1.1.1.1\n";
        let expected: [SocketAddr; 2] = [
            "10.0.0.1:53".parse().unwrap(),
            "[2001:db8::1]:53".parse().unwrap(),
        ];
        assert_eq!(parse_resolv(text), expected);
    }

    #[tokio::test]
    async fn the_hosts_file_is_read() {
        let both = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        assert_eq!(of("localhost").await, Ok(both.to_vec()));
        assert_eq!(
            of("upper.example").await,
            Ok(vec!["10.0.0.1".parse().unwrap()])
        );
        assert!(
            of("other.example")
                .await
                .unwrap_err()
                .contains("no resolver")
        );
    }
}
