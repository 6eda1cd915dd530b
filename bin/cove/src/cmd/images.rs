//! Images: listing, fetching with progress, removing.

mod local;

use cove_api::image::{AddImage, Image, ImageJob, JobState};
use cove_client::Client;

use crate::args::{Global, ImageCommand};
use crate::connect;
use crate::output::{self, Facts, Progress, Table};
use crate::report::CliError;
use crate::units;

pub async fn run(
    client: &Client,
    global: &Global,
    command: ImageCommand,
    json: bool,
) -> Result<u8, CliError> {
    match command {
        ImageCommand::Ls => list(client, json).await?,
        ImageCommand::Show { image } => show(&client.image(&image).await?, json)?,
        ImageCommand::Pull {
            reference,
            username,
        } => {
            let password = std::env::var("COVE_REGISTRY_PASSWORD").ok();
            if username.is_some() && password.is_none() {
                return Err(CliError::usage(
                    "the password is expected in COVE_REGISTRY_PASSWORD",
                ));
            }
            let password = password.filter(|_| username.is_some());
            add(
                client,
                &AddImage::Registry {
                    reference,
                    username,
                    password,
                },
                json,
            )
            .await?;
        }
        ImageCommand::Create { name, from } => {
            let snapshot = from;
            add(client, &AddImage::Snapshot { snapshot, name }, json).await?;
        }
        ImageCommand::BuildDebian => add(client, &AddImage::Debian {}, json).await?,
        ImageCommand::BuildCodeInterpreter => {
            add(client, &AddImage::CodeInterpreter {}, json).await?;
        }
        ImageCommand::Import { name, path } => {
            let here = connect::is_local(global)?;
            if !here && (path.is_relative() || path.exists()) {
                return Err(CliError::hinted(
                    format!(
                        "cannot import {}: {} runs on another machine",
                        path.display(),
                        client.url()
                    ),
                    "run the command there; or copy the file into one of its `import_dirs` and give that path",
                ));
            }
            let path = std::path::absolute(&path)
                .map_err(|source| CliError::io("the path cannot be made absolute", source))?;
            let placed = match here {
                true => local::place(&connect::data_dir(global), &path)?,
                false => None,
            };
            let path = placed.as_ref().map_or(path.as_path(), local::Placed::path);
            let path = path.display().to_string();
            add(client, &AddImage::Local { name, path }, json).await?;
        }
        ImageCommand::Rm { images } => {
            for image in images {
                client.remove_image(&image).await?;
                output::done("deleted", &image, json)?;
            }
        }
    }
    Ok(0)
}

pub async fn list(client: &Client, json: bool) -> Result<(), CliError> {
    let images = client.images().await?.items;
    if json {
        return output::json(&images);
    }
    let mut table = Table::new(&["ID", "NAME", "SIZE", "SOURCE", "IN USE", "CREATED"]);
    for image in images {
        table.row([
            image.id,
            image.names.join(", "),
            units::bytes(image.size_bytes),
            image.source,
            image.in_use_by.to_string(),
            units::ago(image.created_at),
        ]);
    }
    table.print()
}

fn show(image: &Image, json: bool) -> Result<(), CliError> {
    if json {
        return output::json(image);
    }
    let mut facts = Facts::new();
    facts
        .add("id", &image.id)
        .add("names", image.names.join(", "))
        .maybe("digest", image.digest.clone())
        .add("size", units::bytes(image.size_bytes))
        .add("source", &image.source)
        .add("in use by", image.in_use_by.to_string())
        .add("created", units::ago(image.created_at));
    facts.print()
}

async fn add(client: &Client, source: &AddImage, json: bool) -> Result<(), CliError> {
    let image = fetch(client, source, json, json).await?;
    match image {
        Some(image) if !json => output::line(image.names.first().unwrap_or(&image.id)),
        _ => Ok(()),
    }
}

/// Adds an image and shows how far it is: on standard error, or with `lines` as lines of JSON on standard
/// output; `quiet` shows nothing on standard error.
pub async fn fetch(
    client: &Client,
    source: &AddImage,
    lines: bool,
    quiet: bool,
) -> Result<Option<Image>, CliError> {
    let mut jobs = client.add_image_live(source).await?;
    let mut progress = Progress::new(quiet);
    let mut stage = String::new();
    let mut last: Option<ImageJob> = None;
    while let Some(job) = jobs.next().await? {
        if lines {
            output::json_line(&job)?;
        } else if quiet {
            // Whoever asked for quiet reads the end only.
        } else if progress.is_on() {
            progress.show(&told(&job));
        } else if job.state == JobState::Running {
            // Into a log goes what is done, not every step of how far it is.
            let words: String = job.stage.chars().filter(|c| !c.is_ascii_digit()).collect();
            if words != stage {
                eprintln!("{}", crate::report::printable(&job.stage));
                stage = words;
            }
        }
        last = Some(job);
    }
    progress.clear();
    // A server that restarts ends the stream early; the job may still be there to ask about.
    let job = match last {
        Some(job) if job.state == JobState::Running => client.image_job(&job.id).await?,
        Some(job) => job,
        None => return Err(CliError::usage("the server reported nothing about the job")),
    };
    for warning in &job.warnings {
        eprintln!("warning: {}", crate::report::printable(warning));
    }
    match (job.state, job.image, job.error) {
        (JobState::Done, image, _) => Ok(image),
        (_, _, Some(error)) => Err(CliError::usage(format!("{}: {}", job.name, error.message))),
        (_, _, None) => Err(CliError::hinted(
            format!("{} is not done yet", job.name),
            "run the same command again to go on watching it",
        )),
    }
}

fn told(job: &ImageJob) -> String {
    match job.total_bytes {
        Some(total) if total > 0 => {
            let percent = job.done_bytes.saturating_mul(100) / total;
            format!(
                "{}: {}  {percent}% of {}",
                job.name,
                job.stage,
                units::bytes(total)
            )
        }
        _ if job.done_bytes > 0 => {
            format!(
                "{}: {}  {}",
                job.name,
                job.stage,
                units::bytes(job.done_bytes)
            )
        }
        _ => format!("{}: {}", job.name, job.stage),
    }
}
