//! Making a sandbox, and whatever has to come first: an image that is not there is fetched, and what the
//! server is busy with is shown.

use std::time::Duration;

use cove_api::ErrorCode;
use cove_api::image::AddImage;
use cove_api::sandbox::{CreateSandbox, ListSandboxes, Sandbox, State};
use cove_client::{Client, ClientError};

use super::images;
use crate::output::Progress;
use crate::report::CliError;

/// A create that takes longer says what the server does.
const SLOW: Duration = Duration::from_secs(1);

/// An image that was named on the command line.
pub struct Wanted {
    pub image: String,
    /// It is fetched when it is missing. A bare word may be a typing error, or meant as the sandbox's name.
    pub certain: bool,
    /// The word may have been meant as the name of the sandbox.
    pub maybe_name: bool,
}

impl Wanted {
    /// `python:3.12` and `ghcr.io/a/b` can only be images.
    pub fn is_reference(image: &str) -> bool {
        image.contains([':', '/', '@'])
    }
}

pub async fn make(
    client: &Client,
    create: &CreateSandbox,
    wanted: Option<&Wanted>,
    quiet: bool,
) -> Result<Sandbox, CliError> {
    let error = match watched(client, create, quiet).await {
        Ok(sandbox) => return Ok(sandbox),
        Err(error) => error,
    };
    let Some(wanted) = wanted.filter(|_| is_missing_image(&error)) else {
        return Err(error.into());
    };
    if !wanted.certain {
        return Err(suggest(error, wanted).into());
    }
    let source = AddImage::Registry {
        reference: wanted.image.clone(),
        username: None,
        password: None,
    };
    images::fetch(client, &source, false, quiet).await?;
    Ok(watched(client, create, quiet).await?)
}

fn is_missing_image(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { detail, .. }
        if detail.code == ErrorCode::NotFound && detail.message.contains("image"))
}

fn suggest(error: ClientError, wanted: &Wanted) -> ClientError {
    let word = &wanted.image;
    let name = match wanted.maybe_name {
        true => format!("`cove create --name {word}` makes a sandbox of that name; "),
        false => String::new(),
    };
    match error {
        ClientError::Refused {
            status,
            mut detail,
            retry_after_s,
        } => {
            detail.hint = Some(format!(
                "{name}`cove image pull {word}` fetches an image of that name; `cove image ls` lists images"
            ));
            ClientError::Refused {
                status,
                detail,
                retry_after_s,
            }
        }
        other => other,
    }
}

/// Creates, and shows the reason that the server gives for taking long.
async fn watched(
    client: &Client,
    create: &CreateSandbox,
    quiet: bool,
) -> Result<Sandbox, ClientError> {
    let mut progress = Progress::new(quiet);
    let making = client.create_sandbox(create, None);
    tokio::pin!(making);
    let mut told = String::new();
    loop {
        tokio::select! {
            made = &mut making => {
                progress.clear();
                return made;
            }
            () = tokio::time::sleep(SLOW), if !quiet => {}
        }
        let query = ListSandboxes {
            state: Some(State::Creating),
            name: create.name.clone(),
            ..ListSandboxes::default()
        };
        let reason = tokio::select! {
            made = &mut making => {
                progress.clear();
                return made;
            }
            page = client.list_sandboxes(&query) => {
                page.ok().and_then(|page| page.items.into_iter().find_map(|one| one.reason))
            }
        };
        let Some(reason) = reason else { continue };
        if progress.is_on() {
            progress.show(&reason);
        } else if reason != told {
            eprintln!("{}", crate::report::printable(&reason));
            told = reason;
        }
    }
}
