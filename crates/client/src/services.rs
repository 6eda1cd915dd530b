//! Services of a sandbox.

use async_recursion::async_recursion as boxed;
use cove_api::Page;
use cove_api::service::{Service, StartService};
use http::Method;

use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError, Outgoing, segment};

impl Client {
    #[boxed]
    pub async fn start_service(
        &self,
        id: &str,
        start: &StartService,
    ) -> Result<Service, ClientError> {
        self.post(&sandbox_path(id, "/services"), start).await
    }

    #[boxed]
    pub async fn services(&self, id: &str) -> Result<Page<Service>, ClientError> {
        self.get(&sandbox_path(id, "/services")).await
    }

    #[boxed]
    pub async fn remove_service(&self, id: &str, name: &str) -> Result<(), ClientError> {
        let path = sandbox_path(id, &format!("/services/{}", segment(name)));
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }
}
