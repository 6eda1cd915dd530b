//! Builds of templates from Dockerfiles.

use cove_api::build::{Build, BuildCacheCleared, BuildLogEvent, Builds, CreateBuild};
use cove_api::route::TAR;
use http::{Method, header};

use crate::{Client, ClientError, JSON, Lines, Outgoing, segment};

fn build_path(build: &str, rest: &str) -> String {
    format!("/v1/builds/{}{rest}", segment(build))
}

impl Client {
    pub async fn create_build(&self, create: &CreateBuild) -> Result<Build, ClientError> {
        let body = Outgoing::json(create)?;
        self.json(Method::POST, "/v1/builds", &JSON, body).await
    }

    /// A tar archive; the build begins with it.
    pub async fn send_build_context(&self, build: &str, tar: Outgoing) -> Result<(), ClientError> {
        let headers = [(header::CONTENT_TYPE, TAR)];
        let path = build_path(build, "/context");
        self.call(Method::PUT, &path, &headers, tar).await.map(drop)
    }

    /// From its beginning; the last one is the build's end.
    pub async fn build_log(&self, build: &str) -> Result<Lines<BuildLogEvent>, ClientError> {
        let path = build_path(build, "/log");
        let answer = self.call(Method::GET, &path, &[], Outgoing::empty());
        Ok(Lines::new(answer.await?))
    }

    pub async fn builds(&self) -> Result<Builds, ClientError> {
        self.get("/v1/builds").await
    }

    pub async fn build(&self, build: &str) -> Result<Build, ClientError> {
        self.get(&build_path(build, "")).await
    }

    pub async fn cancel_build(&self, build: &str) -> Result<Build, ClientError> {
        let path = build_path(build, "");
        self.json(Method::DELETE, &path, &[], Outgoing::empty())
            .await
    }

    /// Forgets the states of steps that builds keep.
    pub async fn clear_build_cache(&self) -> Result<BuildCacheCleared, ClientError> {
        let path = "/v1/build-cache";
        self.json(Method::DELETE, path, &[], Outgoing::empty())
            .await
    }
}
