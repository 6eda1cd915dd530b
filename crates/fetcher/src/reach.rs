//! Which addresses may be dialled for whom: decided for each address at the moment it is dialled, for
//! the registry, its token service and every redirect alike.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use cove_model::network::{AddressClass, Cidr};

/// What may be reached for one pull. Comes from the settings of the privileged side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reachable {
    /// Every address: the pull is the operator's own.
    pub anywhere: bool,
    /// Private ranges that the operator opened to everybody.
    pub open: Vec<Cidr>,
    /// Registries (`host` or `host:port`) the operator gave to everybody, wherever they are.
    pub exempt: Vec<String>,
}

impl Reachable {
    pub fn anywhere() -> Self {
        Self {
            anywhere: true,
            ..Self::default()
        }
    }

    /// `host` and `port` are what a URL names; `address` is what is about to be dialled.
    pub fn permits(&self, host: &str, port: u16, address: IpAddr) -> bool {
        if self.anywhere || self.is_exempt(host, port) {
            return true;
        }
        match address.to_canonical() {
            IpAddr::V4(address) => self.permits_v4(address),
            IpAddr::V6(address) => self.permits_v6(address),
        }
    }

    fn is_exempt(&self, host: &str, port: u16) -> bool {
        self.exempt.iter().any(|one| {
            *one == format!("{host}:{port}") || (port == HTTPS_PORT && one.as_str() == host)
        })
    }

    fn permits_v4(&self, address: Ipv4Addr) -> bool {
        let own = AddressClass::of(address) != AddressClass::Public || is_this_host(address.into());
        !own || self.open.iter().any(|range| range.contains(address))
    }

    /// Only global unicast, and of that nothing that stands for an IPv4 address that is refused.
    fn permits_v6(&self, address: Ipv6Addr) -> bool {
        let segments = address.segments();
        let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
        if segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
            // NAT64: the IPv4 address is in the last four bytes.
            return self.permits_v4(v4(segments[6], segments[7]));
        }
        let global = segments[0] & 0xe000 == 0x2000;
        // Documentation, Teredo and other special blocks of 2001::/23.
        let special = segments[0] == 0x2001 && (segments[1] < 0x200 || segments[1] == 0xdb8);
        // 6to4: the IPv4 address of the router is in it.
        let six_to_four = segments[0] == 0x2002;
        global
            && !special
            && (!six_to_four || self.permits_v4(v4(segments[1], segments[2])))
            && !is_this_host(address.into())
    }
}

const HTTPS_PORT: u16 = 443;

/// The kernel sends from an address of ours to reach it exactly when it is ours; nothing is sent.
fn is_this_host(address: IpAddr) -> bool {
    let any: SocketAddr = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let asked = UdpSocket::bind(any)
        .and_then(|socket| socket.connect((address, HTTPS_PORT)).map(|()| socket))
        .and_then(|socket| socket.local_addr());
    asked.is_ok_and(|from| from.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(reachable: &Reachable, address: &str) -> bool {
        reachable.permits("r.example", 443, address.parse().unwrap())
    }

    #[test]
    fn a_tenant_reaches_public_addresses_only_in_every_spelling() {
        let tenant = Reachable::default();
        for refused in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001::1",
            "2001:db8::1",
            "fe80::1",
            "fec0::1",
            "fd00:ec2::254",
            "ff02::1",
            "100::1",
        ] {
            assert!(!permits(&tenant, refused), "{refused}");
            assert!(permits(&Reachable::anywhere(), refused), "{refused}");
        }
        for fine in [
            "1.1.1.1",
            "::ffff:1.1.1.1",
            "2606:4700::1",
            "64:ff9b::101:101",
        ] {
            assert!(permits(&tenant, fine), "{fine}");
        }
    }

    #[test]
    fn the_operator_opens_ranges_and_registries() {
        let tenant = Reachable {
            open: vec!["10.1.0.0/16".parse().unwrap()],
            exempt: vec!["registry.internal:5000".to_owned()],
            ..Reachable::default()
        };
        assert!(permits(&tenant, "10.1.2.3"));
        assert!(permits(&tenant, "::ffff:10.1.2.3"));
        assert!(!permits(&tenant, "10.2.0.1"));
        let address = "10.2.0.1".parse().unwrap();
        assert!(tenant.permits("registry.internal", 5000, address));
        assert!(!tenant.permits("registry.internal", 22, address));
        assert!(!tenant.permits("other.internal", 5000, address));
    }
}
