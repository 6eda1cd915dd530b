//! What Daytona's SDKs can ask for and this server does not do, each with its reason. All of it needs a
//! valid key: what a server can do is not for callers without one.

use axum::Router;
use axum::routing::any;
use cove_dialect::Front;

use crate::asking::Caller;
use crate::refusal::Refusal;

const SECRETS: &str = "secrets are made with `cove secret` or the native API and given to sandboxes there; see docs/secrets.md; pass other values as env_vars";
const WARM: &str = "there are no warm pools to manage here: sandboxes start within milliseconds; see docs/daytona.md, Refused";
const TELEMETRY: &str = "this server keeps no telemetry of sandboxes; get_metrics_latest returns the present figures; see docs/daytona.md, Refused";
const BACKUPS: &str =
    "there are no backups to make here; take a snapshot; see docs/daytona.md, Refused";
const TREE: &str = "how sandboxes descend from each other is shown by the native interface, as their timeline; see docs/time-travel.md";
const ACTIVE: &str = "every snapshot is active; delete it when it is no longer needed";

const API: &[(&str, &str)] = &[
    ("/sandbox/{sandbox}/secrets", SECRETS),
    ("/sandbox/{sandbox}/backup", BACKUPS),
    ("/sandbox/{sandbox}/telemetry/{*what}", TELEMETRY),
    ("/sandbox/{sandbox}/forks", TREE),
    ("/sandbox/{sandbox}/parent", TREE),
    ("/sandbox/{sandbox}/ancestors", TREE),
    ("/snapshots/{snapshot}/deactivate", ACTIVE),
    ("/secret", SECRETS),
    ("/secret/{*what}", SECRETS),
    ("/warm-pools", WARM),
    ("/warm-pools/{*what}", WARM),
    ("/object-storage/push-access", crate::images::NO_CONTEXT),
];

const LSP: &str = "language servers are not part of this interface; start one with process.exec or a session; see docs/daytona.md, Refused";
const SCREEN: &str =
    "sandboxes have no screen here, so there is no computer use; see docs/daytona.md, Refused";

const TOOLBOX: &[(&str, &str)] = &[
    ("/lsp/{*what}", LSP),
    ("/computeruse", SCREEN),
    ("/computeruse/{*what}", SCREEN),
];

fn table(rows: &'static [(&str, &str)]) -> Router<Front> {
    rows.iter().fold(Router::new(), |router, (path, reason)| {
        let refuse = move |_: Caller| async move { Refusal::unsupported(*reason) };
        router.route(path, any(refuse))
    })
}

pub fn api() -> Router<Front> {
    table(API)
}

pub fn toolbox() -> Router<Front> {
    table(TOOLBOX)
}
