//! `cove login` and `cove context`: servers on other machines.

use std::io::{BufRead, IsTerminal};

use clap::{Args, Subcommand};
use cove_api::{ErrorCode, PageQuery};
use cove_client::{Client, ClientConfig, ClientError};

use crate::args::Global;
use crate::contexts::{Context, Contexts, check_name};
use crate::output::{self, Table};
use crate::report::CliError;
use crate::terminal;

#[derive(Debug, Args)]
pub struct LoginArgs {
    /// The server: https://cove.example.com
    #[arg(value_name = "URL")]
    pub server: String,
    /// Name of the context [default: the host name]
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List contexts
    #[command(visible_alias = "list")]
    Ls,
    /// Use this server by default
    Use { name: String },
    /// Remove a context and its key
    #[command(visible_alias = "delete")]
    Rm { name: String },
}

/// Asks the server whether it takes the key, and keeps both. Nothing is kept when it does not.
pub async fn login(args: &LoginArgs, global: &Global) -> Result<(), CliError> {
    // Both would be ignored; a variable that names a server also wins over what a login keeps.
    for (given, variable) in [
        (global.url.is_some(), "--url or COVE_URL"),
        (global.context.is_some(), "--context or COVE_CONTEXT"),
    ] {
        if given {
            return Err(CliError::hinted(
                format!("cove login takes no {variable}"),
                "give the server as the argument, `cove login URL`, and unset the variable",
            ));
        }
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => host(&args.server).to_owned(),
    };
    check_name(&name)?;
    let ca_pem = match &global.ca_file {
        Some(path) => {
            let failed = |error| CliError::io(format!("cannot read {}", path.display()), error);
            Some(std::fs::read_to_string(path).map_err(failed)?)
        }
        None => None,
    };
    let api_key = match &global.api_key {
        Some(key) => key.clone(),
        None => read_key()?,
    };
    if api_key.is_empty() {
        return Err(CliError::hinted(
            "no API key was given",
            "`cove key create NAME` on the server makes one; pass it on standard input or in COVE_API_KEY",
        ));
    }
    let mut config = ClientConfig::new(&args.server, Some(api_key.clone()));
    config.ca_pem = ca_pem.clone().map(String::into_bytes);
    let client = Client::new(config)?;
    let version = client.health().await?.version;
    check_key(&client).await?;
    if is_readable_on_the_way(&args.server) {
        eprintln!(
            "cove: warning: {} is not https; the key and all data can be read on the way",
            args.server
        );
    }
    let mut contexts = Contexts::load()?;
    let context = Context {
        url: args.server.clone(),
        api_key,
        ca_pem,
    };
    contexts.contexts.insert(name.clone(), context);
    contexts.current = Some(name.clone());
    contexts.save()?;
    if global.json {
        let kept = serde_json::json!({ "name": name, "url": args.server, "server": version, "current": true });
        return output::json(&kept);
    }
    output::line(&format!(
        "logged in to {} ({version}) as context {name}",
        args.server
    ))
}

/// A key may be valid and still not be allowed to list.
async fn check_key(client: &Client) -> Result<(), CliError> {
    let query = PageQuery {
        limit: Some(1),
        ..PageQuery::default()
    };
    match client.snapshots(None, &query).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(ErrorCode::Forbidden) => Ok(()),
        Err(ClientError::Refused { detail, .. }) if detail.code == ErrorCode::Unauthenticated => {
            Err(CliError::hinted(
                "the server does not accept this key",
                "`cove key create NAME` on the server makes a new one",
            ))
        }
        Err(error) => Err(error.into()),
    }
}

fn read_key() -> Result<String, CliError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(terminal::hidden_line("API key: ")?.trim().to_owned());
    }
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    read.map_err(|error| CliError::io("cannot read the key", error))?;
    Ok(line.trim().to_owned())
}

fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default()
}

/// Without port and brackets.
fn host(url: &str) -> &str {
    let authority = authority(url);
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

fn is_readable_on_the_way(url: &str) -> bool {
    let host = host(url);
    let address = host.parse::<std::net::IpAddr>();
    let loopback = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    url.starts_with("http://") && !loopback
}

pub fn context(command: &ContextCommand, json: bool) -> Result<(), CliError> {
    let mut contexts = Contexts::load()?;
    match command {
        ContextCommand::Ls => list(&contexts, json),
        ContextCommand::Use { name } => {
            contexts.get(name)?;
            contexts.current = Some(name.clone());
            contexts.save()?;
            match json {
                true => output::json(&serde_json::json!({ "name": name, "current": true })),
                false => output::line(name),
            }
        }
        ContextCommand::Rm { name } => {
            contexts.get(name)?;
            contexts.contexts.remove(name);
            if contexts.current.as_ref() == Some(name) {
                contexts.current = None;
            }
            contexts.save()?;
            match json {
                true => output::json(&serde_json::json!({ "name": name, "removed": true })),
                false => output::line(name),
            }
        }
    }
}

/// Keys are never shown.
fn list(contexts: &Contexts, json: bool) -> Result<(), CliError> {
    let is_current = |name: &String| contexts.current.as_ref() == Some(name);
    if json {
        let all: Vec<_> = contexts
            .contexts
            .iter()
            .map(|(name, context)| {
                serde_json::json!({ "name": name, "url": context.url, "current": is_current(name) })
            })
            .collect();
        return output::json(&all);
    }
    let mut table = Table::new(&["CURRENT", "NAME", "URL"]);
    for (name, context) in &contexts.contexts {
        let mark = if is_current(name) { "*" } else { "" };
        table.row([mark.to_owned(), name.clone(), context.url.clone()]);
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_its_name() {
        for (url, expected) in [
            ("https://cove.example.com", "cove.example.com"),
            ("https://cove.example.com:7070/prefix", "cove.example.com"),
            ("http://127.0.0.1:7070", "127.0.0.1"),
            ("https://[::1]:7070", "::1"),
        ] {
            assert_eq!(host(url), expected, "{url}");
        }
        assert!(is_readable_on_the_way("http://cove.example.com"));
        assert!(!is_readable_on_the_way("http://127.0.0.1:7070"));
        assert!(!is_readable_on_the_way("https://cove.example.com"));
    }
}
