//! What a sandbox's network policy decided.

use async_recursion::async_recursion as boxed;
use cove_api::egress::{EgressLine, EgressList, EgressQuery};
use cove_api::route::NDJSON;
use http::{Method, header};

use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError, Lines, Outgoing, with_query};

impl Client {
    /// What is kept now.
    #[boxed]
    pub async fn egress(&self, id: &str, query: &EgressQuery) -> Result<EgressList, ClientError> {
        let query = EgressQuery {
            follow: false,
            ..query.clone()
        };
        self.get(&with_query(&sandbox_path(id, "/egress"), &query)?)
            .await
    }

    /// What is kept, and then decisions as they are taken.
    #[boxed]
    pub async fn follow_egress(
        &self,
        id: &str,
        query: &EgressQuery,
    ) -> Result<Lines<EgressLine>, ClientError> {
        let query = EgressQuery {
            follow: true,
            ..query.clone()
        };
        let path = with_query(&sandbox_path(id, "/egress"), &query)?;
        let headers = [(header::ACCEPT, NDJSON)];
        Ok(Lines::new(
            self.call(Method::GET, &path, &headers, Outgoing::empty())
                .await?,
        ))
    }
}
