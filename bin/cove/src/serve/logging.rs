//! The log: lines on standard error, for people or for programs.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use super::ServeError;
use super::settings::Settings;

pub fn start(settings: &Settings) -> Result<(), ServeError> {
    let filter = EnvFilter::try_new(&settings.log).map_err(|error| ServeError::Settings {
        message: format!("log is not a filter: {error}"),
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match settings.log_format.as_str() {
        "json" => lines.json().flatten_event(true).try_init(),
        _ => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
    started.map_err(|error| ServeError::Start {
        message: format!("cannot log: {error}"),
        hint: None,
    })
}
