//! Sandboxes, images and the host.

use async_recursion::async_recursion as boxed;
use cove_api::event::{Event, EventsQuery};
use cove_api::host::{Health, Metrics, Port, Runner};
use cove_api::image::{AddImage, Image, ImageJob};
use cove_api::lifecycle::{LeaseRequest, RenewLeases, RenewedLeases};
use cove_api::node::{
    CreateJoinToken, DeleteNode, JoinNode, JoinToken, JoinedNode, Node, PatchNode,
};
use cove_api::quarantine::{AdoptQuarantined, Quarantined};
use cove_api::route::{NDJSON, SSE};
use cove_api::sandbox::{CreateSandbox, ListSandboxes, PatchSandbox, Sandbox, StopSandbox};
use cove_api::{NoQuery, Page};
use http::{HeaderName, Method, header};

use crate::{
    Client, ClientError, JSON, Lines, Outgoing, ServerEvents, document, segment, with_query,
};

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

pub(crate) fn sandbox_path(id: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{}{rest}", segment(id))
}

impl Client {
    /// `idempotency_key` makes repeats safe: the same key and body get the first answer.
    #[boxed]
    pub async fn create_sandbox(
        &self,
        create: &CreateSandbox,
        idempotency_key: Option<&str>,
    ) -> Result<Sandbox, ClientError> {
        let mut headers = JSON.to_vec();
        headers.extend(idempotency_key.map(|key| (IDEMPOTENCY_KEY, key)));
        self.json(
            Method::POST,
            "/v1/sandboxes",
            &headers,
            Outgoing::json(create)?,
        )
        .await
    }

    #[boxed]
    pub async fn list_sandboxes(
        &self,
        query: &ListSandboxes,
    ) -> Result<Page<Sandbox>, ClientError> {
        self.get(&with_query("/v1/sandboxes", query)?).await
    }

    #[boxed]
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.get(&sandbox_path(id, "")).await
    }

    #[boxed]
    pub async fn patch_sandbox(
        &self,
        id: &str,
        patch: &PatchSandbox,
    ) -> Result<Sandbox, ClientError> {
        self.json(
            Method::PATCH,
            &sandbox_path(id, ""),
            &JSON,
            Outgoing::json(patch)?,
        )
        .await
    }

    #[boxed]
    pub async fn delete_sandbox(&self, id: &str) -> Result<(), ClientError> {
        self.nothing(Method::DELETE, &sandbox_path(id, ""), Outgoing::empty())
            .await
    }

    /// Begins a lease, or takes it over from its holder.
    #[boxed]
    pub async fn take_lease(&self, id: &str, lease: &LeaseRequest) -> Result<Sandbox, ClientError> {
        let body = Outgoing::json(lease)?;
        self.json(Method::PUT, &sandbox_path(id, "/lease"), &JSON, body)
            .await
    }

    /// The sandbox then stays until it is deleted.
    #[boxed]
    pub async fn end_lease(&self, id: &str) -> Result<(), ClientError> {
        let path = sandbox_path(id, "/lease");
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    #[boxed]
    pub async fn renew_leases(&self, leases: &RenewLeases) -> Result<RenewedLeases, ClientError> {
        let body = Outgoing::json(leases)?;
        self.json(Method::POST, "/v1/leases/renew", &JSON, body)
            .await
    }

    #[boxed]
    pub async fn start_sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.json(
            Method::POST,
            &sandbox_path(id, "/start"),
            &[],
            Outgoing::empty(),
        )
        .await
    }

    #[boxed]
    pub async fn stop_sandbox(&self, id: &str, stop: &StopSandbox) -> Result<Sandbox, ClientError> {
        self.post(&sandbox_path(id, "/stop"), stop).await
    }

    #[boxed]
    pub async fn metrics(&self, id: &str) -> Result<Metrics, ClientError> {
        self.get(&sandbox_path(id, "/metrics")).await
    }

    #[boxed]
    pub async fn ports(&self, id: &str) -> Result<Page<Port>, ClientError> {
        self.get(&sandbox_path(id, "/ports")).await
    }

    /// Events so far; of one sandbox, or of all.
    #[boxed]
    pub async fn events(
        &self,
        id: Option<&str>,
        after: Option<u64>,
    ) -> Result<Page<Event>, ClientError> {
        let query = EventsQuery {
            after,
            follow: false,
        };
        self.get(&with_query(&events_path(id), &query)?).await
    }

    /// Events after `after`, and then as they happen.
    #[boxed]
    pub async fn follow_events(
        &self,
        id: Option<&str>,
        after: Option<u64>,
    ) -> Result<ServerEvents<Event>, ClientError> {
        let query = EventsQuery {
            after,
            follow: true,
        };
        let path = with_query(&events_path(id), &query)?;
        let headers = [(header::ACCEPT, SSE)];
        Ok(ServerEvents::new(
            self.call(Method::GET, &path, &headers, Outgoing::empty())
                .await?,
        ))
    }

    #[boxed]
    pub async fn images(&self) -> Result<Page<Image>, ClientError> {
        self.get("/v1/images").await
    }

    #[boxed]
    pub async fn image(&self, id: &str) -> Result<Image, ClientError> {
        self.get(&format!("/v1/images/{}", segment(id))).await
    }

    #[boxed]
    pub async fn remove_image(&self, id: &str) -> Result<(), ClientError> {
        self.nothing(
            Method::DELETE,
            &format!("/v1/images/{}", segment(id)),
            Outgoing::empty(),
        )
        .await
    }

    #[boxed]
    pub async fn add_image(&self, source: &AddImage) -> Result<ImageJob, ClientError> {
        self.post("/v1/images", source).await
    }

    /// Adds an image and follows its progress; the last line says how it ended.
    #[boxed]
    pub async fn add_image_live(&self, source: &AddImage) -> Result<Lines<ImageJob>, ClientError> {
        let headers = [JSON[0].clone(), (header::ACCEPT, NDJSON)];
        let body = Outgoing::json(source)?;
        Ok(Lines::new(
            self.call(Method::POST, "/v1/images", &headers, body)
                .await?,
        ))
    }

    #[boxed]
    pub async fn image_job(&self, id: &str) -> Result<ImageJob, ClientError> {
        self.get(&format!("/v1/images/jobs/{}", segment(id))).await
    }

    #[boxed]
    pub async fn runners(&self) -> Result<Page<Runner>, ClientError> {
        self.get("/v1/runners").await
    }

    #[boxed]
    pub async fn create_join_token(
        &self,
        create: &CreateJoinToken,
    ) -> Result<JoinToken, ClientError> {
        self.post("/v1/nodes/tokens", create).await
    }

    /// Needs no key.
    #[boxed]
    pub async fn join_node(&self, join: &JoinNode) -> Result<JoinedNode, ClientError> {
        self.post("/v1/nodes/join", join).await
    }

    #[boxed]
    pub async fn nodes(&self) -> Result<Page<Node>, ClientError> {
        self.get("/v1/nodes").await
    }

    #[boxed]
    pub async fn node(&self, node: &str) -> Result<Node, ClientError> {
        self.get(&format!("/v1/nodes/{}", segment(node))).await
    }

    #[boxed]
    pub async fn patch_node(&self, node: &str, patch: &PatchNode) -> Result<Node, ClientError> {
        let path = format!("/v1/nodes/{}", segment(node));
        self.json(Method::PATCH, &path, &JSON, Outgoing::json(patch)?)
            .await
    }

    #[boxed]
    pub async fn delete_node(&self, node: &str, lost: bool) -> Result<(), ClientError> {
        let path = format!("/v1/nodes/{}", segment(node));
        let path = with_query(&path, &DeleteNode { lost })?;
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    #[boxed]
    pub async fn quarantine(&self) -> Result<Page<Quarantined>, ClientError> {
        self.get("/v1/quarantine").await
    }

    #[boxed]
    pub async fn adopt_quarantined(
        &self,
        id: &str,
        adopt: &AdoptQuarantined,
    ) -> Result<(), ClientError> {
        let path = format!("/v1/quarantine/{}/adopt", segment(id));
        self.nothing(Method::POST, &path, Outgoing::json(adopt)?)
            .await
    }

    #[boxed]
    pub async fn delete_quarantined(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("/v1/quarantine/{}", segment(id));
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    #[boxed]
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.get(&with_query("/healthz", &NoQuery {})?).await
    }

    #[boxed]
    pub async fn ready(&self) -> Result<Health, ClientError> {
        self.get("/readyz").await
    }

    /// The text Prometheus would read.
    #[boxed]
    pub async fn prometheus(&self) -> Result<String, ClientError> {
        let response = self
            .call(Method::GET, "/metrics", &[], Outgoing::empty())
            .await?;
        let bytes = document(response).await?;
        String::from_utf8(bytes.into())
            .map_err(|_| ClientError::Protocol("the metrics are not text"))
    }
}

fn events_path(id: Option<&str>) -> String {
    match id {
        Some(id) => sandbox_path(id, "/events"),
        None => "/v1/events".into(),
    }
}
