//! Snapshots and what is made of them; sandboxes at rest.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use cove_api::PageQuery;
use cove_api::snapshot::{
    Fork, Forked, ImportSnapshot, ObjectCopy, Rollback, Snapshot, TakeSnapshot,
};
use cove_client::{Client, Outgoing, Upload};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::copy::meter::Meter;
use super::sandboxes::told;
use crate::args::{ForkArgs, RollbackArgs, SnapshotArgs, SnapshotCommand};
use crate::output::{self, Facts, Table, waiting};
use crate::report::{self, CliError, printable};
use crate::units;

#[derive(Debug, Clone, Copy)]
pub enum Rest {
    Freeze,
    Pause,
    Resume,
}

pub async fn rest(
    client: &Client,
    how: Rest,
    sandboxes: &[String],
    json: bool,
) -> Result<(), CliError> {
    for sandbox in sandboxes {
        let what = |verb: &str| format!("{verb} {sandbox}");
        let after = match how {
            Rest::Freeze => {
                waiting(json, &what("freezing"), client.freeze_sandbox(sandbox)).await?
            }
            Rest::Pause => waiting(json, &what("pausing"), client.pause_sandbox(sandbox)).await?,
            Rest::Resume => {
                waiting(json, &what("resuming"), client.resume_sandbox(sandbox)).await?
            }
        };
        told(&after, sandbox, json)?;
    }
    Ok(())
}

pub async fn snapshot(client: &Client, args: SnapshotArgs, json: bool) -> Result<(), CliError> {
    match args.command {
        None => {
            let Some(sandbox) = args.sandbox else {
                return Err(CliError::usage("name a sandbox"));
            };
            let take = TakeSnapshot {
                name: args.name,
                memory: args.memory,
                durable: args.durable,
            };
            let what = format!("taking a snapshot of {sandbox}");
            let taken = waiting(json, &what, client.take_snapshot(&sandbox, &take, None)).await?;
            if json {
                return output::json(&taken);
            }
            output::line(taken.name.as_deref().unwrap_or(&taken.id))
        }
        Some(SnapshotCommand::Ls { sandbox, quiet }) => {
            list(client, sandbox.as_deref(), quiet, json).await
        }
        Some(SnapshotCommand::Show { snapshot }) => show(&client.snapshot(&snapshot).await?, json),
        Some(SnapshotCommand::Rm { snapshots }) => remove(client, &snapshots, json).await,
        Some(SnapshotCommand::Export { snapshot, file }) => {
            export(client, &snapshot, &file, json).await
        }
        Some(SnapshotCommand::Import { file, name }) => import(client, &file, name, json).await,
    }
}

pub async fn list(
    client: &Client,
    sandbox: Option<&str>,
    quiet: bool,
    json: bool,
) -> Result<(), CliError> {
    let mut all = Vec::new();
    let mut query = PageQuery::default();
    loop {
        let page = client.snapshots(sandbox, &query).await?;
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
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "SANDBOX",
        "KIND",
        "MEMORY",
        "EXCLUSIVE",
        "SHARED",
        "CREATED",
    ]);
    for one in all {
        table.row([
            one.id,
            one.name.unwrap_or_default(),
            one.sandbox.unwrap_or_default(),
            one.kind.as_str().into(),
            if one.memory { "yes" } else { "" }.into(),
            units::bytes(one.exclusive_bytes),
            units::bytes(one.shared_bytes),
            units::ago(one.created_at),
        ]);
    }
    table.print()
}

/// Where a snapshot is.
pub fn place(one: &Snapshot) -> &'static str {
    match (
        one.on_host.unwrap_or(true),
        one.object_storage.unwrap_or_default(),
    ) {
        (_, ObjectCopy::None) => "on the host",
        (_, ObjectCopy::Uploading) => "on the host, being uploaded to object storage",
        (true, ObjectCopy::Stored) => "on the host and in object storage",
        (false, ObjectCopy::Stored) => "in object storage",
    }
}

fn show(one: &Snapshot, json: bool) -> Result<(), CliError> {
    if json {
        return output::json(one);
    }
    let mut facts = Facts::new();
    facts
        .add("id", &one.id)
        .maybe("name", one.name.clone())
        .add("kind", one.kind.as_str())
        .maybe("sandbox", one.sandbox.clone())
        .maybe("grew from", one.parent.clone())
        .maybe("before rolling back to", one.rolled_back_to.clone())
        .maybe("image", one.image_id.clone())
        .add("memory", if one.memory { "yes" } else { "no" })
        .maybe("memory cannot be restored here", one.unfit.clone())
        .add("kept", place(one))
        .maybe("without its volumes at", places(one))
        .add("exclusive", units::bytes(one.exclusive_bytes))
        .add("shared", units::bytes(one.shared_bytes))
        .add(
            "stood still",
            format!("{:.1} ms", one.stopped_us as f64 / 1e3),
        )
        .add(
            "created",
            format!("{} ({})", one.created_at, units::ago(one.created_at)),
        );
    facts.print()
}

/// Where volumes were whose content is not in the snapshot.
fn places(one: &Snapshot) -> Option<String> {
    let volumes = one.volumes_not_included.iter();
    let paths: Vec<&str> = volumes.map(|mount| mount.path.as_str()).collect();
    (!paths.is_empty()).then(|| paths.join(", "))
}

async fn remove(client: &Client, snapshots: &[String], json: bool) -> Result<(), CliError> {
    let mut failed = None;
    for snapshot in snapshots {
        // The others are removed all the same; the last failure is reported.
        match client.delete_snapshot(snapshot).await {
            Ok(()) if json => output::json_line(&serde_json::json!({ "deleted": snapshot }))?,
            Ok(()) => output::line(snapshot)?,
            Err(error) => {
                if let Some(earlier) = failed.replace(CliError::from(error)) {
                    report::print(&earlier, json);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// The file appears under its name only once it is whole.
async fn export(client: &Client, snapshot: &str, file: &Path, json: bool) -> Result<(), CliError> {
    if file == Path::new("-") && json {
        return Err(CliError::no_json("cove snapshot export to standard output"));
    }
    let mut stream = client.export_snapshot(snapshot).await?;
    if file == Path::new("-") {
        let mut out = own(std::io::stdout().as_fd())?;
        return pour(&mut stream, &mut out, &Meter::new(true, None)).await;
    }
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let failed = |what: &str, source| CliError::io(format!("{}: {what}", file.display()), source);
    let mut out = tokio::fs::File::create(&part)
        .await
        .map_err(|source| failed("cannot be written", source))?;
    let meter = Meter::new(json, stream.length());
    let poured = meter.watch(pour(&mut stream, &mut out, &meter)).await;
    let kept = match poured {
        Ok(()) => out.sync_all().await,
        Err(error) => {
            tokio::fs::remove_file(&part).await.ok();
            return Err(error);
        }
    };
    kept.map_err(|source| failed("cannot be written", source))?;
    tokio::fs::rename(&part, file)
        .await
        .map_err(|source| failed("cannot be renamed", source))?;
    if json {
        let (file, bytes) = (file.display().to_string(), meter.count());
        return output::json(&serde_json::json!({ "file": file, "bytes": bytes }));
    }
    output::line(&file.display().to_string())
}

/// A descriptor of this process as a file that can be waited for.
fn own(descriptor: BorrowedFd<'_>) -> Result<tokio::fs::File, CliError> {
    let owned = descriptor.try_clone_to_owned();
    let owned = owned.map_err(|source| CliError::io("cannot use the standard streams", source))?;
    Ok(tokio::fs::File::from_std(owned.into()))
}

async fn pour(
    stream: &mut cove_client::ByteStream,
    out: &mut (impl AsyncWrite + Unpin),
    meter: &Meter,
) -> Result<(), CliError> {
    while let Some(bytes) = stream.next().await? {
        out.write_all(&bytes).await.map_err(output::closed)?;
        meter.add(bytes.len() as u64);
    }
    out.flush().await.map_err(output::closed)
}

async fn import(
    client: &Client,
    file: &Path,
    name: Option<String>,
    json: bool,
) -> Result<(), CliError> {
    let (meter, upload) = if file == Path::new("-") {
        let meter = Meter::new(true, None);
        let source = own(std::io::stdin().as_fd())?;
        let upload = Upload::new(meter.reader(source), None);
        (meter, upload)
    } else {
        let failed = |source| CliError::io(format!("{}: cannot be read", file.display()), source);
        let source = tokio::fs::File::open(file).await.map_err(failed)?;
        let length = source.metadata().await.map_err(failed)?.len();
        let meter = Meter::new(json, Some(length));
        let upload = Upload::new(meter.reader(source), Some(length));
        (meter, upload)
    };
    let query = ImportSnapshot { name };
    let imported = meter
        .watch(client.import_snapshot(&query, Outgoing::Upload(upload)))
        .await?;
    if json {
        return output::json(&imported);
    }
    if let Some(reason) = &imported.memory_refused {
        eprintln!("cove: imported without its memory: {}", printable(reason));
    }
    let snapshot = imported.snapshot;
    output::line(snapshot.name.as_deref().unwrap_or(&snapshot.id))
}

/// Fails when any of the copies could not be made; the others are reported all the same.
pub async fn fork(client: &Client, args: &ForkArgs, json: bool) -> Result<u8, CliError> {
    let fork = Fork {
        count: Some(args.count),
        memory: args.memory,
        name: args.name.clone(),
        labels: args.label.iter().cloned().collect(),
        lease: None,
    };
    let source = &args.source;
    let what = format!("forking {source}");
    let made = if source.starts_with("snap_") {
        waiting(json, &what, client.fork_snapshot(source, &fork, None)).await?
    } else {
        waiting(json, &what, client.fork_sandbox(source, &fork, None)).await?
    };
    let failed = made.iter().any(|one| matches!(one, Forked::Error(_)));
    if json {
        output::json(&made)?;
    } else {
        for one in made {
            match one {
                Forked::Sandbox(sandbox) => {
                    output::line(sandbox.name.as_deref().unwrap_or(&sandbox.id))?;
                }
                Forked::Error(error) => {
                    eprintln!("cove: {}", printable(&error.message));
                    if let Some(hint) = &error.hint {
                        eprintln!("  {}", printable(hint));
                    }
                }
            }
        }
    }
    Ok(if failed { report::FAILED } else { 0 })
}

pub async fn rollback(client: &Client, args: &RollbackArgs, json: bool) -> Result<(), CliError> {
    let rollback = Rollback {
        snapshot: args.snapshot.clone(),
        memory: args.memory,
    };
    let what = format!("rolling back {} to {}", args.sandbox, args.snapshot);
    let work = client.rollback_sandbox(&args.sandbox, &rollback);
    let done = waiting(json, &what, work).await?;
    if json {
        return output::json(&done);
    }
    eprintln!(
        "previous state saved; undo: `cove rollback {} {}`",
        args.sandbox, done.kept.id
    );
    output::line(&args.sandbox)
}
