//! Snapshots, forks, rollbacks, timelines, and sandboxes at rest.

use async_recursion::async_recursion as boxed;
use cove_api::route::BYTES;
use cove_api::sandbox::Sandbox;
use cove_api::snapshot::{
    Fork, Forked, ImportSnapshot, Imported, Rollback, RolledBack, Snapshot, TakeSnapshot, Timeline,
};
use cove_api::{Page, PageQuery};
use http::{Method, header};

use crate::sandboxes::{IDEMPOTENCY_KEY, sandbox_path};
use crate::{ByteStream, Client, ClientError, JSON, Outgoing, document, segment, with_query};

fn snapshot_path(id: &str, rest: &str) -> String {
    format!("/v1/snapshots/{}{rest}", segment(id))
}

impl Client {
    async fn rest(&self, id: &str, how: &str) -> Result<Sandbox, ClientError> {
        let path = sandbox_path(id, how);
        self.json(Method::POST, &path, &[], Outgoing::empty()).await
    }

    #[boxed]
    pub async fn freeze_sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.rest(id, "/freeze").await
    }

    #[boxed]
    pub async fn pause_sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.rest(id, "/pause").await
    }

    #[boxed]
    pub async fn resume_sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.rest(id, "/resume").await
    }

    /// `idempotency_key` makes repeats safe: the same key and body get the first answer.
    #[boxed]
    pub async fn take_snapshot(
        &self,
        id: &str,
        take: &TakeSnapshot,
        idempotency_key: Option<&str>,
    ) -> Result<Snapshot, ClientError> {
        let mut headers = JSON.to_vec();
        headers.extend(idempotency_key.map(|key| (IDEMPOTENCY_KEY, key)));
        let path = sandbox_path(id, "/snapshots");
        self.json(Method::POST, &path, &headers, Outgoing::json(take)?)
            .await
    }

    /// Of one sandbox, or of all.
    #[boxed]
    pub async fn snapshots(
        &self,
        sandbox: Option<&str>,
        page: &PageQuery,
    ) -> Result<Page<Snapshot>, ClientError> {
        let path = match sandbox {
            Some(id) => sandbox_path(id, "/snapshots"),
            None => "/v1/snapshots".into(),
        };
        self.get(&with_query(&path, page)?).await
    }

    #[boxed]
    pub async fn snapshot(&self, id: &str) -> Result<Snapshot, ClientError> {
        self.get(&snapshot_path(id, "")).await
    }

    #[boxed]
    pub async fn delete_snapshot(&self, id: &str) -> Result<(), ClientError> {
        self.nothing(Method::DELETE, &snapshot_path(id, ""), Outgoing::empty())
            .await
    }

    #[boxed]
    pub async fn fork_sandbox(
        &self,
        id: &str,
        fork: &Fork,
        idempotency_key: Option<&str>,
    ) -> Result<Vec<Forked>, ClientError> {
        self.fork(&sandbox_path(id, "/fork"), fork, idempotency_key)
            .await
    }

    #[boxed]
    pub async fn fork_snapshot(
        &self,
        id: &str,
        fork: &Fork,
        idempotency_key: Option<&str>,
    ) -> Result<Vec<Forked>, ClientError> {
        self.fork(&snapshot_path(id, "/fork"), fork, idempotency_key)
            .await
    }

    async fn fork(
        &self,
        path: &str,
        fork: &Fork,
        idempotency_key: Option<&str>,
    ) -> Result<Vec<Forked>, ClientError> {
        let mut headers = JSON.to_vec();
        headers.extend(idempotency_key.map(|key| (IDEMPOTENCY_KEY, key)));
        self.json(Method::POST, path, &headers, Outgoing::json(fork)?)
            .await
    }

    #[boxed]
    pub async fn rollback_sandbox(
        &self,
        id: &str,
        rollback: &Rollback,
    ) -> Result<RolledBack, ClientError> {
        self.post(&sandbox_path(id, "/rollback"), rollback).await
    }

    #[boxed]
    pub async fn timeline(&self, id: &str) -> Result<Timeline, ClientError> {
        self.get(&sandbox_path(id, "/timeline")).await
    }

    /// The whole of a snapshot as one file.
    #[boxed]
    pub async fn export_snapshot(&self, id: &str) -> Result<ByteStream, ClientError> {
        let path = snapshot_path(id, "/export");
        Ok(ByteStream::new(
            self.call(Method::GET, &path, &[], Outgoing::empty())
                .await?,
        ))
    }

    /// Takes in a file that an export made. As with all uploads, it takes as long as it takes.
    #[boxed]
    pub async fn import_snapshot(
        &self,
        import: &ImportSnapshot,
        file: Outgoing,
    ) -> Result<Imported, ClientError> {
        let path = with_query("/v1/snapshots/import", import)?;
        let headers = [(header::CONTENT_TYPE, BYTES)];
        let response = self.call(Method::POST, &path, &headers, file).await?;
        serde_json::from_slice(&document(response).await?).map_err(ClientError::Answer)
    }
}
