//! `cove template build`: a Dockerfile and its context to the server, and the log back.

use std::io::Write;
use std::path::{Path, PathBuf};

use cove_api::build::{Build, BuildLogEvent, BuildState, BuildStepState};
use cove_client::{Client, Outgoing, Upload};
use cove_template::ignore::Ignore;

use super::copy::packed;
use crate::args::BuildArgs;
use crate::output::{self, Table};
use crate::report::{self, CliError};
use crate::units;

fn read(path: &Path) -> Result<String, CliError> {
    let text = std::fs::read_to_string(path);
    text.map_err(|error| CliError::io(format!("cannot read {}", path.display()), error))
}

/// The file's own list where there is one, else the context's.
fn ignored(file: &Path, context: &Path) -> Result<String, CliError> {
    let mut own = file.as_os_str().to_owned();
    own.push(".dockerignore");
    for path in [PathBuf::from(own), context.join(".dockerignore")] {
        if path.exists() {
            return read(&path);
        }
    }
    Ok(String::new())
}

/// Paths relative to the context that are sent, parents first.
fn files(context: &Path, ignore: &Ignore) -> Result<Vec<String>, CliError> {
    let failed =
        |path: &Path, error| CliError::io(format!("cannot read {}", path.display()), error);
    let mut found = Vec::new();
    let mut pending = vec![String::new()];
    while let Some(directory) = pending.pop() {
        let path = context.join(&directory);
        for entry in std::fs::read_dir(&path).map_err(|error| failed(&path, error))? {
            let entry = entry.map_err(|error| failed(&path, error))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                return Err(CliError::usage(format!(
                    "{} is not UTF-8",
                    entry.path().display()
                )));
            };
            let relative = match directory.is_empty() {
                true => name.to_owned(),
                false => format!("{directory}/{name}"),
            };
            let kind = entry.file_type().map_err(|error| failed(&path, error))?;
            let out = ignore.leaves_out(&relative);
            if kind.is_dir() && (!out || ignore.may_keep_below()) {
                pending.push(relative.clone());
            }
            if !out && (kind.is_dir() || kind.is_file() || kind.is_symlink()) {
                found.push(relative);
            }
        }
    }
    found.sort();
    Ok(found)
}

pub async fn run(client: &Client, args: &BuildArgs, json: bool) -> Result<(), CliError> {
    let file = args
        .file
        .clone()
        .unwrap_or_else(|| args.directory.join("Dockerfile"));
    let dockerfile = read(&file)?;
    let ignore = ignored(&file, &args.directory)?;
    let rules = Ignore::parse(&ignore).map_err(CliError::usage)?;
    let sent = files(&args.directory, &rules)?;
    let build = client
        .create_build(&args.request(dockerfile, ignore))
        .await?;
    let context = args.directory.clone();
    let tar = packed(move |builder| {
        for path in &sent {
            builder.append_path_with_name(context.join(path), path)?;
        }
        Ok(())
    });
    let body = Outgoing::Upload(Upload::new(tar, None));
    client.send_build_context(&build.id, body).await?;
    let follow = follow(client, &build.id, args.quiet || json);
    let ended = tokio::select! {
        ended = follow => ended?,
        _ = tokio::signal::ctrl_c() => {
            client.cancel_build(&build.id).await?;
            return Err(CliError::usage(format!("cancelled the build {}", build.id)));
        }
    };
    match (&ended.state, &ended.template) {
        (BuildState::Done, Some(template)) => {
            let made = client.template(template).await?;
            match json {
                true => output::json(&made),
                false => output::line(&format!("{}:{}", made.name, made.version)),
            }
        }
        (BuildState::Cancelled, _) => Err(CliError::usage("the build was cancelled")),
        _ => Err(CliError::usage(lines(
            ended.error.as_deref().unwrap_or("the build failed"),
        ))),
    }
}

async fn follow(client: &Client, id: &str, quiet: bool) -> Result<Build, CliError> {
    loop {
        let mut log = client.build_log(id).await?;
        while let Some(event) = log.next().await? {
            match event {
                BuildLogEvent::End { build } => return Ok(*build),
                _ if quiet => {}
                event => show(&event),
            }
        }
        // The server was restarted: what became of it stands in its row.
        let build = client.build(id).await?;
        if build.finished_at.is_some() {
            return Ok(build);
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

/// Progress goes to standard error, so that standard output has the template alone.
fn show(event: &BuildLogEvent) {
    let text = match event {
        BuildLogEvent::Step {
            number,
            total,
            text,
            state,
            ms,
            ..
        } => {
            let text = report::printable(text);
            let seconds = format!("{}.{:01}s", ms / 1000, ms % 1000 / 100);
            match state {
                BuildStepState::Started => format!("[{number}/{total}] {text}\n"),
                BuildStepState::Cached => format!("[{number}/{total}] {text}: cached\n"),
                BuildStepState::Done => format!("[{number}/{total}] done in {seconds}\n"),
                BuildStepState::Failed => format!("[{number}/{total}] failed after {seconds}\n"),
            }
        }
        BuildLogEvent::Output { text, .. } => lines(text),
        BuildLogEvent::Note { text } => format!("{}\n", report::printable(text)),
        BuildLogEvent::Dropped { bytes } => format!("({bytes} bytes of the log are gone)\n"),
        BuildLogEvent::End { .. } => return,
    };
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Output of commands: tabs stay, and each carriage return begins a new line.
fn lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let parts = text.split('\t').map(report::printable);
    parts.collect::<Vec<_>>().join("\t")
}

pub async fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let builds = client.builds().await?.items;
    if json {
        return output::json(&builds);
    }
    let mut table = Table::new(&["BUILD", "TEMPLATE", "STATE", "STEPS", "CACHED", "CREATED"]);
    for build in &builds {
        table.row([
            build.id.clone(),
            build.name.clone(),
            build.state.as_str().to_owned(),
            build.steps.to_string(),
            build.cached.to_string(),
            units::ago(build.created_at),
        ]);
    }
    table.print()
}

pub async fn cancel(client: &Client, id: &str, json: bool) -> Result<(), CliError> {
    let build = client.cancel_build(id).await?;
    match json {
        true => output::json(&build),
        false => output::line(&build.id),
    }
}

pub async fn prune(client: &Client, json: bool) -> Result<(), CliError> {
    let cleared = client.clear_build_cache().await?;
    match json {
        true => output::json(&cleared),
        false => output::line(&format!("{} steps", cleared.steps)),
    }
}
