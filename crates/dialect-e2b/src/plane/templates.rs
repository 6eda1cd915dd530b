//! Templates, as far as there is something to say: which names can be begun from.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use cove_control::ControlError;
use serde_json::json;

use super::{Answer, Caller, with_status};
use crate::{Dialect, naming};

/// Whether a sandbox can be made from this name: an image or a snapshot.
pub async fn alias(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Path(alias): Path<String>,
) -> Answer {
    let control = &dialect.front.control;
    let image = naming::image_of(&alias);
    let images = control.list_images(&principal).await?;
    let is_image = images
        .iter()
        .any(|one| one.names.iter().any(|name| name == image) || one.id.as_str() == image);
    if !is_image && control.get_snapshot(&principal, &alias).await.is_err() {
        return Err(ControlError::not_found("template", &alias).into());
    }
    with_status(
        StatusCode::OK,
        json!({"templateID": alias, "public": false}),
    )
}
