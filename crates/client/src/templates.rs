//! Templates: named, versioned starting points of sandboxes.

use cove_api::Page;
use cove_api::template::{CreateTemplate, DeleteTemplate, ListTemplates, Template};
use http::Method;

use crate::sandboxes::IDEMPOTENCY_KEY;
use crate::{Client, ClientError, JSON, Outgoing, segment, with_query};

fn template_path(template: &str) -> String {
    format!("/v1/templates/{}", segment(template))
}

fn tag_path(template: &str, tag: &str) -> String {
    format!("{}/tags/{}", template_path(template), segment(tag))
}

impl Client {
    /// `idempotency_key` makes repeats safe: the same key and body get the first answer.
    pub async fn create_template(
        &self,
        create: &CreateTemplate,
        idempotency_key: Option<&str>,
    ) -> Result<Template, ClientError> {
        let mut headers = JSON.to_vec();
        headers.extend(idempotency_key.map(|key| (IDEMPOTENCY_KEY, key)));
        let body = Outgoing::json(create)?;
        self.json(Method::POST, "/v1/templates", &headers, body)
            .await
    }

    pub async fn templates(&self, list: &ListTemplates) -> Result<Page<Template>, ClientError> {
        self.get(&with_query("/v1/templates", list)?).await
    }

    /// `name`, `name:tag`, `name:version` or an id, as below.
    pub async fn template(&self, template: &str) -> Result<Template, ClientError> {
        self.get(&template_path(template)).await
    }

    /// A name alone means its only version, or with `all` all of them.
    pub async fn delete_template(&self, template: &str, all: bool) -> Result<(), ClientError> {
        let path = with_query(&template_path(template), &DeleteTemplate { all })?;
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    pub async fn tag_template(&self, template: &str, tag: &str) -> Result<Template, ClientError> {
        let path = tag_path(template, tag);
        self.json(Method::PUT, &path, &[], Outgoing::empty()).await
    }

    /// A name alone means wherever the tag points, anything else only that version.
    pub async fn untag_template(&self, template: &str, tag: &str) -> Result<(), ClientError> {
        let path = tag_path(template, tag);
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }
}
