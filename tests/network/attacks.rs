//! From inside, with every right in the namespace: none of it gets out, or to anybody.

use std::net::{Ipv4Addr, UdpSocket};

use cove_model::NetworkMode;

use crate::bare::{Bare, Sandbox};
use crate::packets::{self, Header, datagram, packet, send_frame};
use crate::world::*;

/// Listens where packets must not come; the first to arrive has to be the honest one sent last.
struct Trap {
    socket: UdpSocket,
    port: u16,
}

impl Trap {
    fn at(namespace: &Namespace, address: Ipv4Addr) -> Self {
        let socket = namespace.enter(|| UdpSocket::bind((address, 0)).expect("a port is free"));
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout can be set");
        let port = socket.local_addr().expect("it is bound").port();
        Self { socket, port }
    }

    /// Fails when anything but `honest` came first.
    fn first_is(&self, honest: &str) {
        let mut buffer = [0; 256];
        let (read, from) = self
            .socket
            .recv_from(&mut buffer)
            .expect("the honest one comes");
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        assert_eq!(text, honest, "something came through, from {from}");
    }
}

fn forged(sandbox: &Sandbox<'_>, from: Ipv4Addr, to: Ipv4Addr, port: u16) {
    let header = Header {
        from,
        to,
        id: 7,
        fragment: 0,
    };
    packets::send(
        &sandbox.inside,
        to,
        &packet(&header, &datagram(4444, port, b"forged")),
    );
}

#[test]
fn forged_sources_go_nowhere() {
    let bare = Bare::new();
    let (sandbox, neighbour) = (bare.open_sandbox(), bare.open_sandbox());
    let trap = Trap::at(&bare.world.internet, PUBLIC);
    for from in [
        neighbour.outer(),
        sandbox.outer(),
        sandbox.gateway(),
        HOST,
        PUBLIC,
        PRIVATE,
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::BROADCAST,
    ] {
        forged(&sandbox, from, PUBLIC, trap.port);
    }
    sandbox
        .inside
        .udp()
        .send_to(b"honest", (PUBLIC, trap.port))
        .expect("it leaves");
    trap.first_is("honest");
}

#[test]
fn a_neighbours_address_taken_inside_does_not_help() {
    let bare = Bare::new();
    let (sandbox, neighbour) = (bare.open_sandbox(), bare.open_sandbox());
    let trap = Trap::at(&bare.world.internet, PUBLIC);
    sandbox
        .inside
        .ip(&format!("addr add {}/32 dev eth0", neighbour.outer()));
    let taken = sandbox
        .inside
        .enter(|| UdpSocket::bind((neighbour.outer(), 0)).expect("the address is there"));
    taken
        .send_to(b"stolen", (PUBLIC, trap.port))
        .expect("it leaves");
    sandbox
        .inside
        .udp()
        .send_to(b"honest", (PUBLIC, trap.port))
        .expect("it leaves");
    trap.first_is("honest");
    // And what is for the neighbour still goes to it.
    assert!(echo(&neighbour.inside.udp(), PUBLIC, ECHO, "mine").is_ok());
}

#[test]
fn neighbours_cannot_be_reached_by_any_address_nor_by_routes_of_ones_own() {
    let bare = Bare::new();
    let (sandbox, neighbour) = (bare.open_sandbox(), bare.open_sandbox());
    let _servers = Servers::echo(&neighbour.inside, &[neighbour.inner()], 99);
    sandbox.inside.ip("route add 198.18.0.0/15 dev eth0");
    sandbox.inside.ip("route add 10.0.0.0/8 dev eth0");
    sandbox.set(NetworkMode::Open, &["198.18.0.0/15", "10.0.0.0/8"]);
    // Refused at once, rather than left waiting.
    let refused = sandbox.inside.connect(neighbour.outer(), 99).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let refused = echo(&sandbox.inside.udp(), neighbour.outer(), 99, "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::HostUnreachable);
    let mut stream = neighbour
        .inside
        .connect(neighbour.inner(), 99)
        .expect("it does listen");
    exchange(&mut stream, "x").unwrap();
}

#[test]
fn nothing_of_the_host_can_be_reached_even_when_listed() {
    let bare = Bare::new();
    let sandbox = bare.sandbox();
    let everywhere = ["7.7.7.0/24", "198.18.0.0/15", "10.0.0.0/8"];
    let local = Trap::at(&bare.world.host, Ipv4Addr::LOCALHOST);
    let any = Trap::at(&bare.world.host, Ipv4Addr::UNSPECIFIED);
    for mode in [NetworkMode::Open, NetworkMode::Allowlist] {
        sandbox.set(mode, &everywhere);
        for address in [HOST, sandbox.gateway(), sandbox.outer()] {
            assert!(
                sandbox.inside.connect(address, ECHO).is_err(),
                "{mode:?} {address}"
            );
            assert!(
                echo(&sandbox.inside.udp(), address, ECHO, "x").is_err(),
                "{mode:?} {address}"
            );
            forged(&sandbox, sandbox.inner(), address, any.port);
        }
        // Loopback and broadcast addresses on the wire, which only hand-made packets have.
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(7, 7, 7, 255)] {
            forged(&sandbox, sandbox.inner(), address, local.port);
            forged(&sandbox, sandbox.inner(), address, any.port);
        }
        frame_to(&sandbox, Ipv4Addr::LOCALHOST, local.port);
        frame_to(&sandbox, Ipv4Addr::BROADCAST, any.port);
        frame_to(&sandbox, Ipv4Addr::new(224, 0, 0, 1), any.port);
    }
    for trap in [local, any] {
        let from_host = bare.world.host.udp();
        from_host
            .send_to(b"honest", (Ipv4Addr::LOCALHOST, trap.port))
            .expect("it leaves");
        trap.first_is("honest");
    }
}

const MAC: [u8; 6] = [0x02, 0xc0, 0x5e, 0x00, 0x00, 0x01];

fn frame(to: [u8; 6], from: [u8; 6], kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = to.to_vec();
    bytes.extend(from);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Past the sender's own routing; length and checksum are right, since nobody fills them in.
fn frame_to(sandbox: &Sandbox<'_>, to: Ipv4Addr, port: u16) {
    let header = Header {
        from: sandbox.inner(),
        to,
        id: 9,
        fragment: 0,
    };
    let mut bytes = packet(&header, &datagram(4444, port, b"framed"));
    let length = u16::try_from(bytes.len()).expect("short");
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    let sum = bytes[..20].chunks(2).fold(0u32, |sum, pair| {
        sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]))
    });
    let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&folded.to_be_bytes());
    for hardware in [MAC, [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        send_frame(&sandbox.inside, &frame(hardware, MAC, 0x0800, &bytes));
        send_frame(
            &sandbox.inside,
            &frame(hardware, [2, 0, 0, 0, 0, 9], 0x0800, &bytes),
        );
    }
}

#[test]
fn hardware_addresses_and_arp_teach_the_host_nothing() {
    let bare = Bare::new();
    let (sandbox, neighbour) = (bare.open_sandbox(), bare.open_sandbox());
    // Claims to be the neighbour and the upstream router, as question and as answer.
    for (operation, claimed) in [(1u16, neighbour.outer()), (2, Ipv4Addr::new(7, 7, 7, 2))] {
        let mut arp = vec![0, 1, 8, 0, 6, 4];
        arp.extend(operation.to_be_bytes());
        arp.extend([2, 0, 0, 0, 0, 9]);
        arp.extend(claimed.octets());
        arp.extend([0; 6]);
        arp.extend(HOST.octets());
        send_frame(
            &sandbox.inside,
            &frame([0xff; 6], [2, 0, 0, 0, 0, 9], 0x0806, &arp),
        );
    }
    sandbox.inside.ip("link set eth0 arp on");
    assert!(echo(&neighbour.inside.udp(), PUBLIC, ECHO, "x").is_ok());
    let (_, known) = bare.world.host.program("ip -4 neigh show");
    assert!(!known.contains("02:00:00:00:00:09"), "{known}");
}

#[test]
fn there_is_no_ipv6_even_for_those_who_turn_it_on() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    let (_, addresses) = sandbox.inside.program("ip -6 addr show dev eth0");
    assert_eq!(addresses.trim(), "");
    let (_, routes) = sandbox.inside.program("ip -6 route show default");
    assert_eq!(routes.trim(), "");
    bare.world.host.ip("-6 addr add fd77::1/64 dev up0 nodad");
    let host = bare
        .world
        .host
        .enter(|| UdpSocket::bind("[::]:0").expect("a port is free"));
    host.set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    let port = host.local_addr().expect("it is bound").port();
    // Also where somebody on the host turns it on for every interface.
    let switch = format!("/proc/sys/net/ipv6/conf/cv{}/disable_ipv6", sandbox.index);
    bare.world
        .host
        .enter(|| std::fs::write(switch, "0"))
        .expect("it can be turned on");
    sandbox.inside.enter(|| {
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0");
    });
    sandbox.inside.ip("-6 addr add fd77::2/64 dev eth0 nodad");
    sandbox.inside.ip("-6 route add default dev eth0");
    sandbox.inside.enter(|| {
        let socket = UdpSocket::bind("[fd77::2]:0").expect("the address is there");
        for to in ["fd77::1", "fd77::9", "2001:db8::1"] {
            let _ = socket.send_to(b"six", (to, port));
        }
    });
    // A packet as such, to the host's own address and to everybody on the link.
    for to in ["fd77::1", "ff02::1"] {
        let to: std::net::Ipv6Addr = to.parse().expect("an address");
        let body = datagram(4444, port, b"six");
        let mut bytes = vec![0x60, 0, 0, 0, 0, body.len() as u8, packets::UDP, 64];
        bytes.extend(
            "fd77::2"
                .parse::<std::net::Ipv6Addr>()
                .expect("an address")
                .octets(),
        );
        bytes.extend(to.octets());
        bytes.extend(body);
        send_frame(&sandbox.inside, &frame(MAC, MAC, 0x86dd, &bytes));
    }
    let honest = bare
        .world
        .host
        .enter(|| UdpSocket::bind("[::1]:0").expect("a port is free"));
    honest.send_to(b"honest", ("::1", port)).expect("it leaves");
    let mut buffer = [0; 64];
    let (read, from) = host.recv_from(&mut buffer).expect("the honest one comes");
    assert_eq!(&buffer[..read], b"honest", "from {from}");
}

#[test]
fn interfaces_and_tunnels_made_inside_lead_nowhere() {
    let bare = Bare::new();
    let sandbox = bare.sandbox();
    sandbox
        .inside
        .ip("link add extra0 type veth peer name extra1");
    sandbox.inside.ip("addr add 203.0.113.1/24 dev extra0");
    sandbox.inside.ip("link set extra0 up");
    assert!(sandbox.inside.connect(PUBLIC, ECHO).is_err());
    let trap = Trap::at(&bare.world.internet, PUBLIC);
    forged(&sandbox, Ipv4Addr::new(203, 0, 113, 1), PUBLIC, trap.port);
    frame_to(&sandbox, PUBLIC, trap.port);
    // Protocols that carry others: IP in IP, GRE, ESP, SCTP.
    for protocol in [4u8, 47, 50, 132] {
        let header = Header {
            from: sandbox.inner(),
            to: PUBLIC,
            id: 3,
            fragment: 0,
        };
        let mut bytes = packet(&header, &datagram(4444, trap.port, b"tunnel"));
        bytes[9] = protocol;
        packets::send(&sandbox.inside, PUBLIC, &bytes);
    }
    let honest = bare.world.host.udp();
    honest
        .send_to(b"honest", (PUBLIC, trap.port))
        .expect("it leaves");
    trap.first_is("honest");
}

#[test]
fn nobody_on_the_host_or_beyond_opens_a_connection_to_a_sandbox() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    let _servers = Servers::echo(&sandbox.inside, &[sandbox.inner()], 99);
    let trap = Trap::at(&sandbox.inside, sandbox.inner());
    bare.world
        .internet
        .ip(&format!("route add 198.18.0.0/15 via {HOST}"));
    for from in [&bare.world.host, &bare.world.internet] {
        let _ = from
            .udp()
            .send_to(b"intruder", (sandbox.outer(), trap.port));
    }
    let refused = bare
        .world
        .host
        .enter(|| std::net::TcpStream::connect_timeout(&(sandbox.outer(), 99).into(), SILENCE));
    assert!(refused.is_err());
    let honest = sandbox.inside.udp();
    honest
        .send_to(b"honest", (sandbox.inner(), trap.port))
        .expect("it leaves");
    trap.first_is("honest");
}

#[test]
fn one_sandbox_cannot_fill_the_hosts_table_of_connections() {
    let bare = Bare::new();
    let (greedy, neighbour) = (bare.open_sandbox(), bare.open_sandbox());
    let socket = greedy.inside.udp();
    let mut refused = false;
    // A busy machine loses some, so that more are sent than there may be.
    for port in 1..4 * cove_network::CONNECTIONS_MAX as u16 / 2 {
        // Nobody listens there; each is a connection to the kernel all the same.
        let _ = socket.send_to(b"x", (PUBLIC, port));
        let _ = socket.send_to(b"x", (OTHER_PUBLIC, port));
        if port % 500 == 0 && greedy.inside.connect(PUBLIC, ECHO).is_err() {
            refused = true;
            break;
        }
    }
    assert!(refused, "there is no limit");
    let mut stream = neighbour
        .inside
        .connect(PUBLIC, ECHO)
        .expect("others have their own");
    exchange(&mut stream, "x").unwrap();
}

#[test]
fn nobody_but_sandboxes_and_the_host_itself_reaches_the_gateways_address() {
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    let trap = Trap::at(&bare.world.host, sandbox.gateway());
    let gateway = sandbox.gateway();
    bare.world
        .internet
        .ip(&format!("route add {gateway}/32 via {HOST}"));
    for _ in 0..3 {
        let stranger = bare.world.internet.udp();
        stranger
            .send_to(b"stranger", (gateway, trap.port))
            .expect("it leaves");
    }
    let host = bare.world.host.udp();
    host.send_to(b"honest", (gateway, trap.port))
        .expect("it leaves");
    trap.first_is("honest");
}

#[test]
fn packets_of_no_connection_do_not_leave_with_an_address_of_ours() {
    const TCP: u8 = 6;
    const SYN: u8 = 2;
    let bare = Bare::new();
    let sandbox = bare.open_sandbox();
    // Hears every segment that arrives, however odd.
    let heard = bare.world.internet.enter(|| {
        let (kind, protocol) = (rustix::net::SocketType::RAW, rustix::net::ipproto::TCP);
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, kind, Some(protocol));
        UdpSocket::from(socket.expect("root of the namespace may"))
    });
    heard
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    // Without a checksum the kernel takes a segment for nobody's, and translates no address of it.
    let mut segment = Vec::new();
    segment.extend(4444u16.to_be_bytes());
    segment.extend(ECHO.to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, SYN, 255, 255, 0, 0, 0, 0]);
    let header = Header {
        from: sandbox.inner(),
        to: PUBLIC,
        id: 5,
        fragment: 0,
    };
    let mut bytes = packet(&header, &segment);
    bytes[9] = TCP;
    for _ in 0..3 {
        packets::send(&sandbox.inside, PUBLIC, &bytes);
    }
    sandbox.inside.connect(PUBLIC, ECHO).expect("it is open");
    let mut buffer = [0; 256];
    let (read, _) = heard.recv_from(&mut buffer).expect("the honest one comes");
    let from = buffer[..read].get(12..16).expect("a packet has a source");
    assert_eq!(from, HOST.octets(), "something left as it was");
}
