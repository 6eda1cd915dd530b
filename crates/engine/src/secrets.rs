//! The host's key, and the keys of organisations that it wraps.

use cove_model::OrgId;
use cove_model::secret::OrgKeys;
use cove_runner_api::RunnerError;
use cove_vault::{HostKeys, VaultError};
use tokio::task::spawn_blocking;

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::{chain, internal};

/// Where the host's key comes from. It is read when it is needed and not held in between.
#[derive(Debug, Clone)]
pub enum HostKeySource {
    /// Made when it is missing.
    File(std::path::PathBuf),
    /// Prints it.
    Command(Vec<String>),
}

impl HostKeySource {
    pub fn of(config: &EngineConfig) -> Self {
        match config.secret_key_command.is_empty() {
            true => Self::File(match &config.secret_key_file {
                Some(path) => path.clone(),
                None => config.data_dir.join("secret.key"),
            }),
            false => Self::Command(config.secret_key_command.clone()),
        }
    }

    fn read(&self) -> Result<HostKeys, VaultError> {
        match self {
            Self::File(path) => HostKeys::load_or_make(path),
            Self::Command(command) => HostKeys::from_command(command),
        }
    }
}

impl Engine {
    pub(crate) async fn new_secret_keys(&self, org: &OrgId) -> Result<OrgKeys, RunnerError> {
        let org = org.clone();
        self.with_host_keys(move |host| cove_vault::make_keys(&org, host))
            .await
    }

    pub(crate) async fn rewrapped_secret_keys(
        &self,
        keys: OrgKeys,
    ) -> Result<OrgKeys, RunnerError> {
        self.with_host_keys(move |host| cove_vault::rewrap_keys(&keys, host))
            .await
    }

    async fn with_host_keys<T: Send + 'static>(
        &self,
        act: impl FnOnce(&HostKeys) -> Result<T, VaultError> + Send + 'static,
    ) -> Result<T, RunnerError> {
        let source = HostKeySource::of(&self.inner.config);
        let done = spawn_blocking(move || source.read().and_then(|host| act(&host))).await;
        done.map_err(internal)?
            .map_err(|error| internal(chain(&error)))
    }
}
