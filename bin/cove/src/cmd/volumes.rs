//! Volumes: directories that outlive sandboxes.

use std::path::Path;

use cove_api::PageQuery;
use cove_api::file::{ListFiles, ReadFile, WriteFile};
use cove_api::volume::{CreateVolume, Volume};
use cove_client::{Client, Outgoing, Upload};
use tokio::io::AsyncWriteExt;

use super::copy::meter::Meter;
use super::copy::{End, parse, stdin_reader};
use crate::args::VolumeCommand;
use crate::output::{self, Facts, Table};
use crate::report::{self, CliError, printable};
use crate::units;

pub async fn run(client: &Client, command: VolumeCommand, json: bool) -> Result<(), CliError> {
    match command {
        VolumeCommand::Create {
            name,
            size,
            from,
            read_only,
            host,
        } => {
            let create = CreateVolume {
                name,
                size_mb: size,
                from,
                read_only,
                placement: host.placement(),
            };
            let made = client.create_volume(&create, None).await?;
            match json {
                true => output::json(&made),
                false => output::line(&made.name),
            }
        }
        VolumeCommand::Ls { quiet } => list(client, quiet, json).await,
        VolumeCommand::Show { volume } => show(&client.volume(&volume).await?, json),
        VolumeCommand::Rm { volumes } => remove(client, &volumes, json).await,
        VolumeCommand::Files { volume, path } => files(client, &volume, path, json).await,
        VolumeCommand::Cp { source, target } => copy(client, &source, &target, json).await,
    }
}

async fn list(client: &Client, quiet: bool, json: bool) -> Result<(), CliError> {
    let mut all = Vec::new();
    let mut query = PageQuery::default();
    loop {
        let page = client.volumes(&query).await?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    if quiet {
        return output::ids(all.iter().map(|one| one.id.as_str()), json);
    }
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&["ID", "NAME", "USED", "SIZE", "ACCESS", "CREATED"]);
    for one in &all {
        table.row([
            one.id.clone(),
            one.name.clone(),
            units::bytes(one.used_bytes),
            units::bytes(one.size_mb << 20),
            access(one).to_owned(),
            units::ago(one.created_at),
        ]);
    }
    table.print()
}

fn access(volume: &Volume) -> &'static str {
    match volume.read_only {
        true => "read-only",
        false => "read-write",
    }
}

fn show(one: &Volume, json: bool) -> Result<(), CliError> {
    if json {
        return output::json(one);
    }
    let users = one.used_by.as_deref().unwrap_or_default();
    let mut facts = Facts::new();
    facts
        .add("id", &one.id)
        .add("name", &one.name)
        .add("used", units::bytes(one.used_bytes))
        .add("size", units::bytes(one.size_mb << 20))
        .add("access", access(one))
        .maybe("copy of", one.from.clone())
        .maybe("mounted in", (!users.is_empty()).then(|| users.join(", ")))
        .add(
            "created",
            format!("{} ({})", one.created_at, units::ago(one.created_at)),
        );
    facts.print()
}

async fn remove(client: &Client, volumes: &[String], json: bool) -> Result<(), CliError> {
    let mut failed = None;
    for volume in volumes {
        match client.delete_volume(volume).await {
            Ok(()) if json => output::json_line(&serde_json::json!({ "deleted": volume }))?,
            Ok(()) => output::line(volume)?,
            // The others are removed all the same; the last failure is reported.
            Err(error) => {
                if let Some(earlier) = failed.replace(CliError::from(error)) {
                    report::print(&earlier, json);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn files(client: &Client, volume: &str, path: String, json: bool) -> Result<(), CliError> {
    let list = ListFiles {
        path,
        user: None,
        depth: None,
        limit: None,
    };
    let listing = client.list_volume_files(volume, &list).await?;
    if json {
        return output::json(&listing);
    }
    let mut table = Table::new(&["MODE", "OWNER", "SIZE", "MODIFIED", "NAME"]);
    for file in &listing.items {
        table.row([
            file.mode.clone(),
            format!("{}:{}", file.uid, file.gid),
            units::bytes(file.size),
            units::ago(file.modified_at),
            printable(&file.name),
        ]);
    }
    table.print()
}

async fn copy(client: &Client, source: &str, target: &str, json: bool) -> Result<(), CliError> {
    let moved = match (parse(source), parse(target)) {
        (End::Here(from), End::There { sandbox, path }) => {
            let failed = |error| CliError::io(format!("cannot read {}", from.display()), error);
            let file = tokio::fs::File::open(&from).await.map_err(failed)?;
            let found = file.metadata().await.map_err(failed)?;
            if !found.is_file() {
                return Err(CliError::hinted(
                    format!("{} is not a file", from.display()),
                    "mount the volume in a sandbox to copy directories, with `cove cp`",
                ));
            }
            up(client, file, Some(found.len()), &sandbox, path, json).await?
        }
        (End::Stdio, End::There { sandbox, path }) => {
            up(client, stdin_reader(), None, &sandbox, path, json).await?
        }
        (End::There { sandbox, path }, End::Here(to)) => down(client, &sandbox, path, &to).await?,
        (End::There { .. }, End::Stdio) if json => {
            return Err(CliError::no_json("cove volume cp to standard output"));
        }
        (End::There { sandbox, path }, End::Stdio) => {
            let read = ReadFile { path, user: None };
            let mut stream = client.read_volume_file(&sandbox, &read, None).await?;
            while let Some(chunk) = stream.next().await? {
                output::write(&chunk)?;
            }
            return Ok(());
        }
        _ => {
            return Err(CliError::hinted(
                "one end must be in a volume and the other here",
                "write the volume's as NAME:PATH",
            ));
        }
    };
    match json {
        true => output::json(&serde_json::json!({ "bytes": moved })),
        false => Ok(()),
    }
}

async fn up(
    client: &Client,
    source: impl tokio::io::AsyncRead + Send + 'static,
    length: Option<u64>,
    volume: &str,
    path: String,
    quiet: bool,
) -> Result<u64, CliError> {
    let meter = Meter::new(quiet, length);
    let write = WriteFile {
        path,
        parents: true,
        ..WriteFile::default()
    };
    let body = Outgoing::Upload(Upload::new(meter.reader(source), length));
    let written = meter
        .watch(client.write_volume_file(volume, &write, body))
        .await?;
    Ok(written.bytes)
}

async fn down(client: &Client, volume: &str, path: String, to: &Path) -> Result<u64, CliError> {
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let to = match to.is_dir() {
        true => to.join(name),
        false => to.to_owned(),
    };
    let read = ReadFile { path, user: None };
    let mut stream = client.read_volume_file(volume, &read, None).await?;
    let failed = |error| CliError::io(format!("cannot write {}", to.display()), error);
    let mut file = tokio::fs::File::create(&to).await.map_err(failed)?;
    let mut count = 0;
    while let Some(chunk) = stream.next().await? {
        count += chunk.len() as u64;
        file.write_all(&chunk).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    Ok(count)
}
