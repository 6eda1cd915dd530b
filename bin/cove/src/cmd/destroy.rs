//! `cove destroy`: ends what a stopped server left running, and removes its data.

use std::fs;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::Path;

use cove_engine::{Engine, EngineError};

use super::doctor::lock;
use crate::args::Global;
use crate::output;
use crate::report::{CliError, chain};

#[derive(Debug, clap::Args)]
pub struct DestroyArgs {
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    /// Only end all sandboxes and unmount the storage; keep the data
    #[arg(long)]
    keep_data: bool,
    /// Succeed if there is no data directory
    #[arg(long)]
    if_any: bool,
}

pub async fn run(global: &Global, args: &DestroyArgs) -> Result<u8, CliError> {
    let mut settings = crate::serve::settings(global)?;
    settings.warm = 0;
    let data_dir = settings.data_dir.clone();
    let shown = data_dir.display();
    // A directory that a typing mistake named is left alone.
    if !data_dir.join("engine").is_dir() && !data_dir.join("root.key").is_file() {
        if args.if_any && !data_dir.exists() {
            if global.json {
                output::message("there is no data directory", true)?;
            }
            return Ok(0);
        }
        return Err(CliError::hinted(
            format!("{shown} is not a server's data directory; nothing was deleted"),
            "name it with --data-dir",
        ));
    }
    let Some(_lock) = lock(&data_dir)? else {
        return Err(CliError::hinted(
            format!("a server is running with {shown}; nothing was deleted"),
            "stop it first: systemctl stop cove",
        ));
    };
    if !args.yes && !args.keep_data && !confirmed(&data_dir)? {
        return Err(CliError::usage("nothing was deleted"));
    }
    let failed = |error: EngineError| {
        CliError::hinted(
            format!("cannot end the sandboxes in {shown}: {}", chain(&error)),
            "the rest is still there; repeat the command once the cause is gone",
        )
    };
    let engine = Engine::open(settings.engine(), settings.tiers())
        .await
        .map_err(failed)?;
    if args.keep_data {
        let ended = engine.end_all().await;
        ended.map_err(|error| CliError::usage(format!("cannot end all sandboxes: {error}")))?;
        engine.detach().await.map_err(failed)?;
        let told = format!("ended every sandbox of {shown}; its data is kept");
        output::message(&told, global.json)?;
        return Ok(0);
    }
    engine.destroy().await.map_err(failed)?;
    remove(&data_dir)?;
    let told = format!("deleted {shown} and everything that ran from it");
    output::message(&told, global.json)?;
    if !settings.database.is_empty() {
        output::message(
            "the PostgreSQL database was not touched; drop it with dropdb",
            global.json,
        )?;
    }
    Ok(0)
}

fn confirmed(data_dir: &Path) -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::hinted(
            "this deletes every sandbox, snapshot and key; nothing was deleted",
            "repeat with --yes",
        ));
    }
    let failed = |source| CliError::io("cannot ask", source);
    let mut terminal = std::io::stderr();
    write!(
        terminal,
        "This deletes every sandbox, snapshot, image and key in {}. Continue? [y/N] ",
        data_dir.display()
    )
    .map_err(failed)?;
    terminal.flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The directory itself stays where it is a mount point.
fn remove(data_dir: &Path) -> Result<(), CliError> {
    let failed = |source| CliError::io(format!("cannot delete {}", data_dir.display()), source);
    for entry in fs::read_dir(data_dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_directory = fs::symlink_metadata(&path).map_err(failed)?.is_dir();
        match is_directory {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        }
        .map_err(failed)?;
    }
    match fs::remove_dir(data_dir) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(()),
        done => done.map_err(failed),
    }
}
