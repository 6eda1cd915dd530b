//! Which server, and with which key. On the server's own machine neither need be given: the key the
//! server made at its first start is there for root to read, and beside it where it listens.

use std::path::{Path, PathBuf};

use cove_client::{Client, ClientConfig};

use crate::args::Global;
use crate::contexts;
use crate::report::CliError;

pub const DEFAULT_DATA_DIR: &str = "/var/lib/cove";
pub const DEFAULT_URL: &str = "http://127.0.0.1:7070";
/// The first key, readable by root alone.
pub const ROOT_KEY_FILE: &str = "root.key";
/// Where the server of this data directory is reached, written when it starts.
pub const URL_FILE: &str = "url";

/// Where `cove image import` puts what the server of this data directory is to import.
pub fn import_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("import")
}

pub fn data_dir(global: &Global) -> PathBuf {
    global
        .data_dir
        .clone()
        .unwrap_or_else(|| DEFAULT_DATA_DIR.into())
}

pub fn client(global: &Global) -> Result<Client, CliError> {
    if let Some(context) = contexts::chosen(global)? {
        let key = global.api_key.clone().unwrap_or(context.api_key);
        let mut config = ClientConfig::new(context.url, Some(key));
        config.ca_pem = match &global.ca_file {
            Some(path) => Some(read_ca(path)?),
            None => context.ca_pem.map(String::into_bytes),
        };
        return Ok(Client::new(config)?);
    }
    let data_dir = data_dir(global);
    let local_url = read_word(&data_dir.join(URL_FILE));
    let url = match (&global.url, &local_url) {
        (Some(url), _) => url.clone(),
        (None, Some(url)) => url.clone(),
        (None, None) => DEFAULT_URL.into(),
    };
    // The root key belongs to the server of this machine and is not shown to any other.
    let is_local = global.url.is_none() || local_url.as_deref() == Some(url.as_str());
    let token = match &global.api_key {
        Some(key) => Some(key.clone()),
        None if is_local => read_word(&data_dir.join(ROOT_KEY_FILE)),
        None => None,
    };
    let mut config = ClientConfig::new(url, token);
    if let Some(path) = &global.ca_file {
        config.ca_pem = Some(read_ca(path)?);
    }
    Ok(Client::new(config)?)
}

/// Whether commands go to the server of this machine's data directory.
pub fn is_local(global: &Global) -> Result<bool, CliError> {
    if contexts::chosen(global)?.is_some() {
        return Ok(false);
    }
    let local = read_word(&data_dir(global).join(URL_FILE));
    Ok(match &global.url {
        Some(url) => local.as_ref() == Some(url),
        None => true,
    })
}

fn read_ca(path: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path)
        .map_err(|error| CliError::io(format!("cannot read {}", path.display()), error))
}

fn read_word(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|word| !word.is_empty())
}
