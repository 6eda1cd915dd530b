//! Ports inside: sharing their previews, and connections to them.

use async_recursion::async_recursion as boxed;
use cove_api::port::{PortShare, SharePort};
use http::{Method, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;

use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError, Outgoing};

/// A connection to a port inside. Each direction ends by itself.
pub type PortConnection = TokioIo<Upgraded>;

impl Client {
    #[boxed]
    pub async fn share_port(
        &self,
        id: &str,
        port: u16,
        share: &SharePort,
    ) -> Result<PortShare, ClientError> {
        let path = sandbox_path(id, &format!("/ports/{port}/share"));
        self.post(&path, share).await
    }

    /// Takes back all links and makes the port private.
    #[boxed]
    pub async fn unshare_port(&self, id: &str, port: u16) -> Result<(), ClientError> {
        let path = sandbox_path(id, &format!("/ports/{port}/share"));
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    /// Returns once the connection inside stands.
    #[boxed]
    pub async fn connect_port(&self, id: &str, port: u16) -> Result<PortConnection, ClientError> {
        let path = sandbox_path(id, &format!("/ports/{port}/tcp"));
        let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "tcp")];
        let mut response = self
            .call(Method::GET, &path, &headers, Outgoing::empty())
            .await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(ClientError::Protocol(
                "the server did not switch to a connection",
            ));
        }
        let upgraded = hyper::upgrade::on(&mut response)
            .await
            .map_err(ClientError::Http)?;
        Ok(TokioIo::new(upgraded))
    }
}
