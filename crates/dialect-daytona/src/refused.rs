//! What Daytona's SDKs can ask for and this server does not do, each with its reason. All of it needs a
//! valid key: what a server can do is not for callers without one.

use axum::Router;
use axum::routing::any;
use cove_dialect::Front;

use crate::asking::Caller;
use crate::refusal::Refusal;

const SSH: &str = "ssh access is not part of this interface yet; use process.exec, a PTY session or a preview link";
const VOLUMES: &str = "volumes are managed by Cove's own API and tools (cove volume); a sandbox made from a snapshot mounts those of the snapshot";
const SECRETS: &str =
    "secrets are managed by Cove's own API and tools (cove secret); pass other values as env_vars";
const WARM: &str = "there are no warm pools to manage here: sandboxes start within milliseconds";
const BUILDS: &str = "images are not built here: name one that is on the server, run commands in a sandbox and take a snapshot of it";
const TELEMETRY: &str =
    "this server keeps no telemetry of sandboxes; get_metrics_latest returns the present figures";
const BACKUPS: &str = "there are no backups to make here; take a snapshot";

const SIGNED_FILES: &str =
    "files have no signed links here; use fs.download_file and fs.upload_file with a key";
const TREE: &str =
    "how sandboxes descend from each other is shown by the native interface, as their timeline";
const ACTIVE: &str = "a snapshot that is there is active; delete it when it is no longer needed";

const API: &[(&str, &str)] = &[
    ("/sandbox/{sandbox}/ssh-access", SSH),
    ("/sandbox/ssh-access/validate", SSH),
    ("/sandbox/{sandbox}/secrets", SECRETS),
    ("/sandbox/{sandbox}/backup", BACKUPS),
    ("/sandbox/{sandbox}/build-logs", BUILDS),
    ("/sandbox/{sandbox}/build-logs-url", BUILDS),
    ("/sandbox/{sandbox}/telemetry/{*what}", TELEMETRY),
    ("/sandbox/{sandbox}/signing-key", SIGNED_FILES),
    ("/sandbox/{sandbox}/signing-key/rotate", SIGNED_FILES),
    ("/sandbox/{sandbox}/forks", TREE),
    ("/sandbox/{sandbox}/parent", TREE),
    ("/sandbox/{sandbox}/ancestors", TREE),
    ("/snapshots/{snapshot}/deactivate", ACTIVE),
    ("/snapshots/{snapshot}/build-logs", BUILDS),
    ("/snapshots/{snapshot}/build-logs-url", BUILDS),
    ("/volumes", VOLUMES),
    ("/volumes/{*what}", VOLUMES),
    ("/secret", SECRETS),
    ("/secret/{*what}", SECRETS),
    ("/warm-pools", WARM),
    ("/warm-pools/{*what}", WARM),
    ("/object-storage/push-access", BUILDS),
];

const LSP: &str =
    "language servers are not part of this interface; start one with process.exec or a session";
const SCREEN: &str = "sandboxes have no screen here, so there is no computer use";
const ENTRYPOINT: &str =
    "sandboxes have no entrypoint here: nothing runs in one but what is asked for";

const ENV: &str = "the environment is set when the sandbox is made (env_vars) or for each command (env); it is not changed afterwards";

const TOOLBOX: &[(&str, &str)] = &[
    ("/env", ENV),
    ("/lsp/{*what}", LSP),
    ("/computeruse", SCREEN),
    ("/computeruse/{*what}", SCREEN),
    ("/process/session/entrypoint", ENTRYPOINT),
    ("/process/session/entrypoint/logs", ENTRYPOINT),
];

/// Snapshots are taken of sandboxes; from images they would be built.
pub async fn build(_: Caller) -> Refusal {
    Refusal::unsupported(BUILDS)
}

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
