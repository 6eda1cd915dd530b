//! Telling the world that the server is up: a log line, and the service manager where there is one.

use std::io::{IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use cove_client::{Client, ClientConfig};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Waits until the server answers that it is ready. The caller decides how long to wait.
pub async fn wait(url: &str, ca_pem: Option<Vec<u8>>) {
    let mut config = ClientConfig::new(url, None);
    config.ca_pem = ca_pem;
    let Ok(client) = Client::new(config) else {
        return;
    };
    while client.ready().await.is_err() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Says so to the service manager that started us, if one did.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let Ok(socket) = UnixDatagram::unbound() else {
        return;
    };
    let sent = match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            std::os::unix::net::SocketAddr::from_abstract_name(name)
                .and_then(|address| socket.send_to_addr(state.as_bytes(), &address))
        }
        None => socket.send_to(state.as_bytes(), &path),
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// Shows a person who started the server by hand what to do next.
pub fn greet(url: &str, key_file: &Path) {
    let mut out = std::io::stdout().lock();
    if !out.is_terminal() {
        return;
    }
    let data_dir = key_file.parent().unwrap_or(key_file);
    let option = match data_dir == Path::new(crate::connect::DEFAULT_DATA_DIR) {
        true => String::new(),
        false => format!(" --data-dir {}", data_dir.display()),
    };
    // Where nobody reads, nothing is lost.
    let _ = writeln!(
        out,
        "\n  address   {url}\n  key       {}\n  next      cove{option} create --name mine\n",
        key_file.display()
    );
}
