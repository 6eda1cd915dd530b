//! Services: commands that a sandbox's guest keeps running, and starts again with the sandbox.
//!
//! The guest keeps them on the sandbox's disk, with what their caller gave and nothing else. What the sandbox gives to
//! its commands (image, secrets, its own variables) is sent to the guest after each start, fork and rollback, before
//! the first request is let in. Services begin with it.

use std::collections::BTreeMap;
use std::time::Duration;

use cove_limits::SERVICE_BYTES_MAX;
use cove_model::spec::check_name;
use cove_model::{ProcessId, State};
use cove_protocol::client::GuestError;
use cove_protocol::identity::owner;
use cove_protocol::message::{
    ErrorCode as GuestCode, Restart, Service, ServiceStatus, StartService,
};
use cove_store::SandboxRecord;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::guest::{CommandLine, CommandRequest, GuestAccess, environment};

/// How long a guest may take to begin with its services.
const PATIENCE: Duration = Duration::from_secs(10);

/// A service as a caller asks for it.
#[derive(Debug, Clone)]
pub struct ServiceRequest {
    pub name: String,
    pub command: CommandLine,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub restart: Restart,
}

impl ServiceRequest {
    fn into_service(self) -> Result<Service, ControlError> {
        check_name(&self.name).map_err(|error| ControlError::invalid(error.to_string()))?;
        let command = CommandRequest {
            cwd: self.cwd,
            env: self.env,
            user: self.user,
            ..CommandRequest::new(owner::SERVICE, self.command)
        };
        command.check()?;
        let (argv, shell) = match command.command {
            CommandLine::Shell(text) => (Vec::new(), text),
            CommandLine::Argv(argv) => (argv, String::new()),
        };
        let env: Vec<String> = command
            .env
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let texts = argv.iter().chain(&env).chain([&shell]);
        let bytes: usize = texts.map(|text| text.len() + 1).sum();
        if bytes > SERVICE_BYTES_MAX {
            return Err(ControlError::invalid(format!(
                "command and environment of a service have at most {SERVICE_BYTES_MAX} bytes"
            ))
            .hint("write a script into the sandbox and run that"));
        }
        Ok(Service {
            name: self.name,
            argv,
            shell,
            cwd: command.cwd.unwrap_or_default(),
            env,
            user: command.user.unwrap_or_default(),
            restart: self.restart as i32,
        })
    }
}

impl GuestAccess {
    /// The guest's own request for this service, with the id of its process.
    pub fn service(&self, request: ServiceRequest) -> Result<StartService, ControlError> {
        Ok(StartService {
            service: Some(request.into_service()?),
            id: ProcessId::random().into(),
            environment: Some(self.environment()),
        })
    }

    pub async fn services(&self) -> Result<Vec<ServiceStatus>, GuestError> {
        self.guest().services().await
    }
}

impl Control {
    /// Whether the sandbox's guest knows what commands get.
    pub(crate) fn services_begun(&self, record: &SandboxRecord) -> Result<bool, ControlError> {
        let host = self.host_of(&record.host)?;
        Ok(host.furnished.begun.lock().contains(&record.id))
    }

    /// What was just made from an image has no services on its disk.
    pub(crate) fn note_services_begun(&self, record: &SandboxRecord) {
        if let Ok(host) = self.host_of(&record.host) {
            host.furnished.begun.lock().insert(record.id.clone());
        }
    }

    /// Sends what commands get now, so that the guest starts the services that it has not started yet. What fails is
    /// tried again with the next request for the sandbox.
    pub(crate) async fn begin_services(&self, record: &SandboxRecord) {
        let Ok(host) = self.host_of(&record.host) else {
            return;
        };
        host.furnished.begun.lock().remove(&record.id);
        let begun = async {
            let inside = self.furnish(record).await?;
            let trust = self.add_authorities(record, inside.as_ref()).await?;
            let with = environment(
                &record.facts,
                inside.as_deref(),
                trust.as_deref(),
                &record.spec,
            );
            let guest = self.guest_of(record).within(PATIENCE);
            match guest.begin_services(with).await {
                // It is older than services, so it has none.
                Err(error) if is_older(&error) => Ok(()),
                outcome => outcome.map_err(ControlError::from),
            }
        };
        // Processes of captured memory may answer in the guest's place as slowly as they like.
        let begun = tokio::time::timeout(PATIENCE, begun).await;
        let begun = begun.unwrap_or_else(|_| {
            Err(ControlError::new(
                ErrorCode::GuestUnreachable,
                "the guest does not answer",
            ))
        });
        match begun {
            Ok(()) => {
                host.furnished.begun.lock().insert(record.id.clone());
            }
            Err(error) => {
                tracing::warn!(sandbox = %record.id, %error, "cannot start the services of a sandbox; retrying with its next request");
            }
        }
    }

    /// The same for a sandbox that runs with other variables than before.
    pub(crate) async fn renew_services(&self, before: &SandboxRecord, now: &SandboxRecord) {
        if before.spec.env == now.spec.env {
            return;
        }
        if let Ok(host) = self.host_of(&now.host) {
            host.furnished.begun.lock().remove(&now.id);
        }
        if now.state == State::Running {
            self.begin_services(now).await;
        }
    }
}

fn is_older(error: &GuestError) -> bool {
    matches!(
        error.code(),
        Some(GuestCode::Unsupported | GuestCode::MissingFeature | GuestCode::VersionMismatch)
    )
}
