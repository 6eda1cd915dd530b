//! Dials for a sandbox, and never where no sandbox may go.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;

use cove_model::network::Name;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Refusal, Route, prepare};
use crate::policy::{Denied, Policy};
use crate::state::{Sandbox, Ticket, World};

/// Addresses of one name that are tried.
const TRIES_MAX: usize = 3;

pub struct Dialled {
    pub stream: TcpStream,
    pub ticket: Ticket,
    pub name: Option<Name>,
    pub address: Ipv4Addr,
    pub port: u16,
}

pub(super) async fn dial(
    world: &World,
    sandbox: &Arc<Sandbox>,
    route: Route,
    port: u16,
) -> Result<Dialled, Refusal> {
    let Route {
        ticket,
        name,
        addresses,
    } = route;
    let mut last = Refusal::Policy(Denied::NotListed);
    for address in addresses.into_iter().take(TRIES_MAX) {
        if let Err(denied) = may_dial(world, &sandbox.policy(), address, port) {
            last = Refusal::Policy(denied);
            continue;
        }
        if let Err(denied) = ticket.leads_to(address) {
            last = Refusal::Policy(denied);
            continue;
        }
        let target = SocketAddr::from((address, port));
        let connecting = timeout(world.limits.dial(), TcpStream::connect(target));
        let connected = tokio::select! {
            connected = connecting => connected,
            () = ticket.cut.wait() => return Err(Refusal::Policy(Denied::NotListed)),
        };
        match connected {
            Ok(Ok(stream)) => {
                prepare(&stream);
                return Ok(Dialled {
                    stream,
                    ticket,
                    name,
                    address,
                    port,
                });
            }
            Ok(Err(error)) => {
                last = Refusal::Undialled(format!("{address} cannot be reached: {error}"));
            }
            Err(_) => last = Refusal::Undialled(format!("{address} does not answer")),
        }
    }
    Err(last)
}

fn may_dial(world: &World, policy: &Policy, address: Ipv4Addr, port: u16) -> Result<(), Denied> {
    if world.is_reserved(address) {
        return Err(Denied::Never);
    }
    policy.may_carry_to(address, port)?;
    match is_this_host(address) {
        Ok(false) => Ok(()),
        Ok(true) if policy.names_address(address, port) => Ok(()),
        Ok(true) => Err(Denied::Private),
        // No route, or an address that is not one machine's: the dial would fail as well.
        Err(_) => Err(Denied::Never),
    }
}

/// The kernel sends from an address of ours to reach it exactly when it is ours. Nothing is sent:
/// connecting a datagram socket only looks the route up.
fn is_this_host(address: Ipv4Addr) -> io::Result<bool> {
    const ANY_PORT: u16 = 9;
    let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(SocketAddrV4::new(address, ANY_PORT))?;
    Ok(socket.local_addr()?.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_knows_itself() {
        assert!(is_this_host(Ipv4Addr::LOCALHOST).unwrap());
    }
}
