//! The hosts an address names, one by one. The driver tries them in turn, but lets one that accepts a
//! connection and then says nothing keep it from the next; here each has its own time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::{Client, Config, Connection, Socket};

use super::tls::{Protected, Tls};
use super::unreachable;
use crate::StoreError;

/// How long one host may take to let us in, the handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// When a silent connection is asked whether its other end is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

pub struct Hosts {
    each: Vec<Config>,
    tls: Tls,
    /// The one that answered last is asked first.
    first: AtomicUsize,
}

pub type Established = (Client, Connection<Socket, Protected<Socket>>);

impl Hosts {
    pub fn new(config: &Config, tls: Tls) -> Result<Self, StoreError> {
        let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
        let count = hosts.len().max(addresses.len());
        if count == 0 {
            return Err(StoreError::Address("it names no host".into()));
        }
        if !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len() {
            return Err(StoreError::Address(
                "the numbers of hosts and of host addresses differ".into(),
            ));
        }
        let ports = config.get_ports();
        if ports.len() > 1 && ports.len() != count {
            return Err(StoreError::Address(
                "the numbers of hosts and of ports differ".into(),
            ));
        }
        let each = (0..count)
            .map(|index| {
                let mut one = common(config);
                match hosts.get(index) {
                    Some(Host::Tcp(name)) => drop(one.host(name)),
                    Some(Host::Unix(path)) => drop(one.host_path(path)),
                    None => {}
                }
                if let Some(address) = addresses.get(index) {
                    one.hostaddr(*address);
                }
                if let Some(port) = ports.get(index).or_else(|| ports.first()) {
                    one.port(*port);
                }
                one
            })
            .collect();
        Ok(Self {
            each,
            tls,
            first: AtomicUsize::new(0),
        })
    }

    /// The first host that lets us in and takes writes.
    pub async fn connect(&self) -> Result<Established, StoreError> {
        let first = self.first.load(Ordering::Relaxed);
        let mut told: Option<StoreError> = None;
        for offset in 0..self.each.len() {
            let index = (first + offset) % self.each.len();
            let connecting = self.each[index].connect(self.tls.clone());
            let error = match timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(established)) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(established);
                }
                Ok(Err(error)) => unreachable(error),
                Err(_) => StoreError::Unavailable(
                    format!("no answer within {} ms", CONNECT_TIMEOUT.as_millis()).into(),
                ),
            };
            // That one of them is read-only tells more than that another one is down.
            told = match told {
                Some(StoreError::ReadOnly) => told,
                _ => Some(error),
            };
        }
        Err(told.unwrap_or(StoreError::Unavailable("the address names no host".into())))
    }
}

/// Everything but hosts and ports.
fn common(config: &Config) -> Config {
    let mut one = Config::new();
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(name) = config.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .application_name("cove")
        .connect_timeout(CONNECT_TIMEOUT)
        .keepalives_idle(KEEPALIVE_IDLE)
        // A standby answers questions with the past and takes no writes.
        .target_session_attrs(TargetSessionAttrs::ReadWrite);
    one
}
