//! Making a sandbox. The server pulls an image that it lacks; what it is busy with is shown, and a pull that takes longer
//! than a create waits is followed to its end.

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

pub async fn make(
    client: &Client,
    create: &CreateSandbox,
    quiet: bool,
) -> Result<Sandbox, CliError> {
    let error = match watched(client, create, quiet).await {
        Ok(sandbox) => return Ok(sandbox),
        Err(error) => error,
    };
    let Some(image) = create.image.as_ref().filter(|_| is_unfinished_pull(&error)) else {
        return Err(error.into());
    };
    let source = AddImage::Registry {
        reference: image.clone(),
        username: None,
        password: None,
    };
    // The same job as the create's, with its progress.
    images::fetch(client, &source, false, quiet).await?;
    Ok(watched(client, create, quiet).await?)
}

fn is_unfinished_pull(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { detail, .. }
        if detail.code == ErrorCode::TimedOut && detail.message.starts_with("pulling the image"))
}

fn tell_warnings(made: &Sandbox) {
    for warning in &made.warnings {
        eprintln!("warning: {}", crate::report::printable(warning));
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
                return made.inspect(tell_warnings);
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
                return made.inspect(tell_warnings);
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
