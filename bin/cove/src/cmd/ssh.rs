//! The local ssh with a fresh token, and public keys that need none.
//!
//! Nothing secret is on a command line or in a file. ssh asks this program for the token, which is in an
//! environment that only the same user can read, and knows the server by a file that has no name and goes
//! away with this process.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

use cove_api::PageQuery;
use cove_api::ssh::{AddSshKey, CreateSshToken, SshAccess, SshKey};
use cove_client::Client;

use super::access::chosen;
use crate::args::{SshArgs, SshKeyCommand};
use crate::output::{self, Table};
use crate::report::CliError;
use crate::units;

/// Where the program that ssh asks for the token finds it.
const TOKEN_VARIABLE: &str = "COVE_SSH_TOKEN";
/// The token is for logging in now; the session may last as long as any.
const LOGIN_S: u64 = 120;
const SESSION_S: u64 = 30 * 86_400;
/// A public key's file is no longer than this.
const KEY_FILE_MAX: u64 = 16 * 1024;
/// What ssh itself ends with when it fails.
const SSH_FAILED: i32 = 255;

/// When ssh has started this program to get the token, that is all it does. ssh gives its question as the
/// one argument, and none of our commands looks like a question.
pub fn answered() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    let asked = match (arguments.next(), arguments.next()) {
        (Some(question), None) => question.to_string_lossy().trim_end().ends_with(':'),
        _ => false,
    };
    let Some(token) = std::env::var(TOKEN_VARIABLE).ok().filter(|_| asked) else {
        return false;
    };
    writeln!(std::io::stdout(), "{token}").is_ok()
}

pub async fn run(client: &Client, args: &SshArgs, json: bool) -> Result<u8, CliError> {
    if args.revoke {
        client.revoke_ssh_tokens(&args.sandbox).await?;
        if json {
            output::done("revoked", &args.sandbox, json)?;
        }
        return Ok(0);
    }
    let create = match args.token {
        true => CreateSshToken {
            expires_s: args.expires,
            login_s: None,
        },
        false => CreateSshToken {
            expires_s: Some(SESSION_S),
            login_s: Some(LOGIN_S),
        },
    };
    let access = client.ssh_token(&args.sandbox, &create).await?;
    if args.token {
        match json {
            true => output::json(&access)?,
            false => {
                eprintln!("{}   (until {})", access.command, access.expires_at);
                output::line(&access.token)?;
            }
        }
        return Ok(0);
    }
    ssh(&access, args)
}

fn ssh(access: &SshAccess, args: &SshArgs) -> Result<u8, CliError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error| CliError::io(what, error)
    };
    let known_hosts =
        anonymous_file(&access.known_hosts).map_err(failed("cannot save the server's key"))?;
    let own = std::env::current_exe().map_err(failed("cannot find the path of this program"))?;
    let user = match &args.user {
        Some(user) => format!("{user}+{}", access.user),
        None => access.user.clone(),
    };
    let hosts = format!(
        "UserKnownHostsFile=/proc/{}/fd/{}",
        std::process::id(),
        known_hosts.as_raw_fd()
    );
    let mut command = Command::new("ssh");
    for option in [
        hosts.as_str(),
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        "CheckHostIP=no",
        "HostKeyAlgorithms=ssh-ed25519",
        "PubkeyAuthentication=no",
        "PreferredAuthentications=keyboard-interactive",
        "NumberOfPasswordPrompts=1",
        "LogLevel=ERROR",
    ] {
        command.args(["-o", option]);
    }
    command
        .args(["-p", &access.port.to_string(), "-l", &user, &access.host])
        .args(&args.arguments)
        .env(TOKEN_VARIABLE, &access.token)
        .env("SSH_ASKPASS", own)
        .env("SSH_ASKPASS_REQUIRE", "force")
        .stdin(Stdio::inherit());
    let status = command.status().map_err(|error| {
        CliError::hinted(
            format!("cannot run ssh: {error}"),
            "install OpenSSH's client, or use `cove shell`",
        )
    })?;
    let code = status.code().unwrap_or(SSH_FAILED);
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

/// A file without a name; ssh opens it through this process.
fn anonymous_file(text: &str) -> std::io::Result<std::fs::File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("known_hosts", flags)?);
    writeln!(file, "{text}")?;
    Ok(file)
}

pub async fn key(client: &Client, command: SshKeyCommand, json: bool) -> Result<(), CliError> {
    match command {
        SshKeyCommand::Ls => list(client, json).await,
        SshKeyCommand::Add {
            name,
            file,
            expires,
        } => {
            let add = AddSshKey {
                name,
                public_key: read_key(&file)?,
                expires_in_s: expires,
            };
            let key = client.add_ssh_key(&add).await?;
            match json {
                true => output::json(&key),
                false => output::line(&key.id),
            }
        }
        SshKeyCommand::Rm { keys } => {
            let known = all(client).await?;
            for key in keys {
                let of_name = known.iter().filter(|one| one.name == key);
                let key = chosen("SSH key", &key, of_name.map(|one| one.id.as_str()))?;
                client.remove_ssh_key(&key).await?;
                output::done("deleted", &key, json)?;
            }
            Ok(())
        }
    }
}

fn read_key(file: &Path) -> Result<String, CliError> {
    let failed = |error| CliError::io(format!("cannot read {}", file.display()), error);
    let reader: Box<dyn Read> = match file == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    let mut text = String::new();
    reader
        .take(KEY_FILE_MAX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.contains("PRIVATE KEY") {
        return Err(CliError::hinted(
            format!("{} is a private key", file.display()),
            "give its public half, the file that ends in .pub",
        ));
    }
    Ok(text.trim().to_owned())
}

async fn all(client: &Client) -> Result<Vec<SshKey>, CliError> {
    let mut query = PageQuery::default();
    let mut all = Vec::new();
    loop {
        let page = client.ssh_keys(&query).await?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(all),
        }
    }
}

async fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let all = all(client).await?;
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&["ID", "NAME", "FINGERPRINT", "CREATED", "EXPIRES"]);
    for key in all {
        table.row([
            key.id,
            key.name,
            key.fingerprint,
            units::ago(key.created_at),
            key.expires_at
                .map_or_else(|| "never".into(), |at| at.to_string()),
        ]);
    }
    table.print()
}
