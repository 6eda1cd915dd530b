//! Ports of this machine that lead into a sandbox: every connection here becomes one inside.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cove_client::Client;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::output;
use crate::report::CliError;

/// Connections carried at once over one port; further ones wait.
const CONNECTIONS_MAX: usize = 1024;
/// For each direction of a connection.
const BUFFER: usize = 64 * 1024;
/// Pause after a failed accept, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A port here and the one inside it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    pub local: u16,
    pub inside: u16,
}

/// `PORT` or `LOCAL:PORT`.
pub fn pair(text: &str) -> Result<Pair, String> {
    let number = |text: &str| {
        text.parse::<u16>()
            .map_err(|_| format!("'{text}' is not a port"))
    };
    let (local, inside) = match text.split_once(':') {
        Some((local, inside)) => (number(local)?, number(inside)?),
        None => (number(text)?, number(text)?),
    };
    match inside {
        0 => Err("the port inside must be between 1 and 65535".into()),
        inside => Ok(Pair { local, inside }),
    }
}

pub async fn run(
    client: &Client,
    sandbox: &str,
    pairs: &[Pair],
    bind: IpAddr,
    json: bool,
) -> Result<(), CliError> {
    // A wrong name is reported now, not at the first connection.
    client.sandbox(sandbox).await?;
    let listening = listen(pairs, bind).await?;
    for (address, inside) in listening.places() {
        match json {
            true => output::json_line(&serde_json::json!({
                "local": address.to_string(), "port": inside,
            }))?,
            false => output::line(&format!("{address} leads to port {inside} of {sandbox}"))?,
        }
    }
    let mut serving = listening.serve(client, sandbox);
    // Until interrupted.
    while serving.join_next().await.is_some() {}
    Ok(())
}

/// Ports that are this program's already; the sandbox may come later.
pub struct Listening(Vec<(TcpListener, SocketAddr, u16)>);

pub async fn listen(pairs: &[Pair], bind: IpAddr) -> Result<Listening, CliError> {
    let mut listeners = Vec::new();
    for pair in pairs {
        let address = SocketAddr::new(bind, pair.local);
        let failed = |error| CliError::io(format!("cannot listen at {address}"), error);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        listeners.push((listener, address, pair.inside));
    }
    Ok(Listening(listeners))
}

impl Listening {
    /// Each address here with the port inside.
    pub fn places(&self) -> impl Iterator<Item = (SocketAddr, u16)> + '_ {
        let all = self.0.iter();
        all.map(|(_, address, inside)| (*address, *inside))
    }

    /// Accepts connections until the set is dropped.
    pub fn serve(self, client: &Client, sandbox: &str) -> JoinSet<()> {
        let mut serving = JoinSet::new();
        for (listener, _, inside) in self.0 {
            serving.spawn(accept(client.clone(), sandbox.to_owned(), listener, inside));
        }
        serving
    }
}

async fn accept(client: Client, sandbox: String, listener: TcpListener, inside: u16) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (client, sandbox) = (client.clone(), sandbox.clone());
                tokio::spawn(async move {
                    carry(&client, &sandbox, stream, inside).await;
                    drop(place);
                });
            }
            Err(error) => {
                eprintln!("cove: cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One that cannot be made inside is closed here, and the reason reported; the others go on.
async fn carry(client: &Client, sandbox: &str, mut stream: TcpStream, inside: u16) {
    stream.set_nodelay(true).ok();
    match client.connect_port(sandbox, inside).await {
        Ok(mut connection) => {
            // Whoever broke it off knows.
            let _ =
                copy_bidirectional_with_sizes(&mut stream, &mut connection, BUFFER, BUFFER).await;
        }
        Err(error) => eprintln!("cove: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_a_pair() {
        let both = |local, inside| Ok(Pair { local, inside });
        assert_eq!(pair("80"), both(80, 80));
        assert_eq!(pair("0:80"), both(0, 80));
        for bad in ["", "0", "80:0", "x", "80:", ":80", "65536", "1:2:3"] {
            assert!(pair(bad).is_err(), "{bad}");
        }
    }
}
