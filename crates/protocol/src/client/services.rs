//! Calls about services.

use async_recursion::async_recursion as boxed;

use super::{Guest, GuestError};
use crate::message::{
    Empty, Environment, ReplyKind, Request, ServiceRef, ServiceStatus, StartService,
};

impl Guest {
    /// Starts a service and has it kept. It runs when this returns.
    #[boxed]
    pub async fn start_service(&self, start: StartService) -> Result<ServiceStatus, GuestError> {
        let mut services = self.ask_services(Request::StartService(start)).await?;
        services
            .pop()
            .ok_or(GuestError::Unexpected("wanted a service"))
    }

    /// At most [`cove_limits::SERVICES_MAX`].
    #[boxed]
    pub async fn services(&self) -> Result<Vec<ServiceStatus>, GuestError> {
        self.ask_services(Request::Services(Empty {})).await
    }

    /// Ends a service for good. Returns once its process has ended.
    #[boxed]
    pub async fn remove_service(&self, name: String) -> Result<(), GuestError> {
        let request = Request::RemoveService(ServiceRef { name });
        self.ask_done(request).await.map(drop)
    }

    /// Says what commands get, and has the services on the disk started that were not yet.
    #[boxed]
    pub async fn begin_services(&self, environment: Environment) -> Result<(), GuestError> {
        let request = Request::BeginServices(environment);
        self.ask_done(request).await.map(drop)
    }

    async fn ask_services(&self, request: Request) -> Result<Vec<ServiceStatus>, GuestError> {
        match self.ask(request).await? {
            ReplyKind::Services(found) => Ok(found.services),
            _ => Err(GuestError::Unexpected("wanted services")),
        }
    }
}
