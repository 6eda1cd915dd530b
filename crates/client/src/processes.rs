//! Commands and processes.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use cove_api::Page;
use cove_api::process::{
    AttachQuery, Exec, ExecResult, OutputEvent, OutputQuery, Process, SignalProcess, StartProcess,
    StdinQuery, TerminalSize,
};
use cove_api::route::{BYTES, NDJSON};
use http::{Method, header};

use crate::sandboxes::sandbox_path;
use crate::{
    Attachment, Client, ClientError, JSON, Lines, Outgoing, attach, document, segment, with_query,
};

fn process_path(sandbox: &str, process: &str, rest: &str) -> String {
    sandbox_path(sandbox, &format!("/processes/{}{rest}", segment(process)))
}

impl Client {
    /// Runs a command and waits for its end, however long that is.
    #[boxed]
    pub async fn exec(&self, id: &str, exec: &Exec) -> Result<ExecResult, ClientError> {
        let path = sandbox_path(id, "/exec");
        let response = self
            .call(Method::POST, &path, &JSON, Outgoing::json(exec)?)
            .await?;
        let bytes = document(response).await?;
        serde_json::from_slice(&bytes).map_err(ClientError::Answer)
    }

    /// Runs a command and follows it.
    #[boxed]
    pub async fn exec_live(
        &self,
        id: &str,
        exec: &Exec,
    ) -> Result<Lines<OutputEvent>, ClientError> {
        let headers = [JSON[0].clone(), (header::ACCEPT, NDJSON)];
        let path = sandbox_path(id, "/exec");
        Ok(Lines::new(
            self.call(Method::POST, &path, &headers, Outgoing::json(exec)?)
                .await?,
        ))
    }

    #[boxed]
    pub async fn start_process(
        &self,
        id: &str,
        start: &StartProcess,
    ) -> Result<Process, ClientError> {
        self.post(&sandbox_path(id, "/processes"), start).await
    }

    #[boxed]
    pub async fn processes(&self, id: &str) -> Result<Page<Process>, ClientError> {
        self.get(&sandbox_path(id, "/processes")).await
    }

    #[boxed]
    pub async fn process(&self, id: &str, process: &str) -> Result<Process, ClientError> {
        self.get(&process_path(id, process, "")).await
    }

    #[boxed]
    pub async fn output(
        &self,
        id: &str,
        process: &str,
        query: &OutputQuery,
    ) -> Result<Lines<OutputEvent>, ClientError> {
        let path = with_query(&process_path(id, process, "/output"), query)?;
        Ok(Lines::new(
            self.call(Method::GET, &path, &[], Outgoing::empty())
                .await?,
        ))
    }

    #[boxed]
    pub async fn write_stdin(
        &self,
        id: &str,
        process: &str,
        bytes: Bytes,
        close: bool,
    ) -> Result<(), ClientError> {
        let path = with_query(&process_path(id, process, "/stdin"), &StdinQuery { close })?;
        let headers = [(header::CONTENT_TYPE, BYTES)];
        let response = self
            .call(Method::POST, &path, &headers, Outgoing::bytes(bytes))
            .await?;
        document(response).await.map(drop)
    }

    #[boxed]
    pub async fn signal(&self, id: &str, process: &str, signal: &str) -> Result<(), ClientError> {
        let body = SignalProcess {
            signal: signal.to_owned(),
            only_leader: false,
        };
        let path = process_path(id, process, "/signal");
        self.nothing(Method::POST, &path, Outgoing::json(&body)?)
            .await
    }

    #[boxed]
    pub async fn resize(
        &self,
        id: &str,
        process: &str,
        size: TerminalSize,
    ) -> Result<(), ClientError> {
        let path = process_path(id, process, "/resize");
        self.nothing(Method::POST, &path, Outgoing::json(&size)?)
            .await
    }

    /// A WebSocket to a running command; output begins at the given offsets.
    #[boxed]
    pub async fn attach(
        &self,
        id: &str,
        process: &str,
        from: &AttachQuery,
    ) -> Result<Attachment, ClientError> {
        let path = with_query(&process_path(id, process, "/attach"), from)?;
        attach::open(self, &path).await
    }
}
