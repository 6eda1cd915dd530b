//! Ports inside, and links to them.

use cove_api::port::SharePort;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{self, Outcome};
use crate::call::Call;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Name or id of the sandbox.
    sandbox: String,
}

pub async fn list(call: Call, list: List) -> Outcome {
    let page = call.client.ports(&list.sandbox).await?;
    answer::json(json!({ "ports": page.items }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Name or id of the sandbox.
    sandbox: String,
    /// The port that a program in the sandbox listens on.
    port: u16,
    /// Seconds for which the link is valid. Default 3600.
    expires_s: Option<u64>,
}

pub async fn share(call: Call, share: Share) -> Outcome {
    let asked = SharePort {
        expires_s: share.expires_s,
        public: false,
    };
    let link = call
        .client
        .share_port(&share.sandbox, share.port, &asked)
        .await?;
    answer::json(link)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unshare {
    /// Name or id of the sandbox.
    sandbox: String,
    /// The port.
    port: u16,
}

pub async fn unshare(call: Call, unshare: Unshare) -> Outcome {
    call.client
        .unshare_port(&unshare.sandbox, unshare.port)
        .await?;
    answer::json(json!({ "unshared": unshare.port }))
}
