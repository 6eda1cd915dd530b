//! A client's channel to a port inside.

use cove_control::{Control, GuestAction, SshLogin};
use russh::server::{ChannelOpenHandle, Msg};
use russh::{ChannelOpenFailure, ChannelWriteHalf};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio_util::sync::CancellationToken;

use crate::inbox::Outlet;

/// Read from the port at once.
const BUFFER: usize = 32 * 1024;
/// Names of the sandbox itself. Others would make the gateway a way to somewhere else.
const OWN_NAMES: [&str; 4] = ["localhost", "ip6-localhost", "0.0.0.0", "::"];

/// The port inside that is meant; `None` when it is not one of the sandbox's own.
pub fn port_inside(host: &str, port: u32) -> Option<u16> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |host: &str| {
        host.parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
    };
    let own = OWN_NAMES.iter().any(|name| host.eq_ignore_ascii_case(name)) || is_loopback(host);
    u16::try_from(port).ok().filter(|port| own && *port != 0)
}

pub struct Forward {
    pub control: Control,
    pub login: SshLogin,
    pub port: u16,
    pub write: ChannelWriteHalf<Msg>,
    pub inbox: Outlet,
    pub cancel: CancellationToken,
}

impl Forward {
    /// Connects, answers the client, and carries bytes until both sides have ended.
    pub async fn run(mut self, reply: ChannelOpenHandle) {
        let connected = async {
            let which = self.login.sandbox.as_str();
            let action = GuestAction::PortConnect;
            let principal = &self.login.principal;
            let access = self.control.guest(principal, which, action).await.ok()?;
            let stream = access.guest().connect_port(self.port).await.ok()?;
            Some((access, stream))
        };
        let connected = tokio::select! {
            connected = connected => connected,
            () = self.cancel.cancelled() => None,
        };
        let Some((access, stream)) = connected else {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
            return;
        };
        reply.accept().await;
        let (mut from_port, mut to_port) = split(stream);
        let store = self.inbox.store();
        let inbox = &mut self.inbox;
        let inwards = async {
            while let Some(piece) = inbox.recv().await {
                if to_port.write_all(&piece.data).await.is_err() || to_port.flush().await.is_err() {
                    break;
                }
            }
            to_port.shutdown().await.ok();
            // What comes after a port that takes no more is let go, so that it holds nothing up.
            inbox.close();
        };
        let write = &self.write;
        let outwards = async {
            let mut buffer = vec![0; BUFFER];
            loop {
                match from_port.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => {
                        let data = bytes::Bytes::copy_from_slice(&buffer[..count]);
                        if store.sending(write.data_bytes(data)).await.is_err() {
                            break;
                        }
                    }
                }
            }
            write.eof().await.ok();
        };
        tokio::select! {
            _ = async { tokio::join!(inwards, outwards) } => {}
            () = self.cancel.cancelled() => {}
        }
        self.write.close().await.ok();
        drop(access);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sandbox_itself_is_reached() {
        for own in [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "[::1]",
            "0.0.0.0",
        ] {
            assert_eq!(port_inside(own, 80), Some(80), "{own}");
        }
        for other in [
            "",
            "10.0.0.1",
            "169.254.169.254",
            "example.org",
            "localhost.example.org",
            "::ffff:10.0.0.1",
            "0177.0.0.1",
            "2130706433",
        ] {
            assert_eq!(port_inside(other, 80), None, "{other}");
        }
        assert_eq!(port_inside("localhost", 0), None);
        assert_eq!(port_inside("localhost", 65_536), None);
    }
}
