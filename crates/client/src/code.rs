//! The code interpreter.

use async_recursion::async_recursion as boxed;
use cove_api::Page;
use cove_api::code::{CodeContext, CodeEvent, CreateCodeContext, RunCode};
use cove_api::route::NDJSON;
use http::{Method, header};

use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError, JSON, Lines, Outgoing, segment};

impl Client {
    #[boxed]
    pub async fn create_code_context(
        &self,
        id: &str,
        request: &CreateCodeContext,
    ) -> Result<CodeContext, ClientError> {
        self.post(&sandbox_path(id, "/code/contexts"), request)
            .await
    }

    #[boxed]
    pub async fn code_contexts(&self, id: &str) -> Result<Page<CodeContext>, ClientError> {
        self.get(&sandbox_path(id, "/code/contexts")).await
    }

    #[boxed]
    pub async fn remove_code_context(&self, id: &str, context: &str) -> Result<(), ClientError> {
        let path = sandbox_path(id, &format!("/code/contexts/{}", segment(context)));
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    #[boxed]
    pub async fn interrupt_code(&self, id: &str, context: &str) -> Result<(), ClientError> {
        let path = sandbox_path(
            id,
            &format!("/code/contexts/{}/interrupt", segment(context)),
        );
        self.nothing(Method::POST, &path, Outgoing::empty()).await
    }

    /// Runs code and follows it.
    #[boxed]
    pub async fn run_code(&self, id: &str, run: &RunCode) -> Result<Lines<CodeEvent>, ClientError> {
        let headers = [JSON[0].clone(), (header::ACCEPT, NDJSON)];
        let path = sandbox_path(id, "/code/run");
        Ok(Lines::new(
            self.call(Method::POST, &path, &headers, Outgoing::json(run)?)
                .await?,
        ))
    }
}
