//! Every route of the API as data: the server builds its router from this table, the OpenAPI
//! document is written from it, and tests walk it.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::tenancy::Scope;
use cove_limits::{
    BUILD_CONTEXT_MAX, EXEC_BODY_MAX, JSON_BODY_MAX, STDIN_BODY_MAX, UPLOAD_BODY_MAX,
};

mod table;

pub use table::ROUTES;

pub const JSON: &str = "application/json";
pub const NDJSON: &str = "application/x-ndjson";
pub const SSE: &str = "text/event-stream";
pub const BYTES: &str = "application/octet-stream";
pub const TAR: &str = "application/x-tar";
pub const MARKDOWN: &str = "text/markdown; charset=utf-8";
pub const PROMETHEUS: &str = "text/plain; version=0.0.4";

pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    pub const ALL: [Verb; 5] = [Verb::Get, Verb::Post, Verb::Put, Verb::Patch, Verb::Delete];

    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
        }
    }
}

/// Who may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody, without a key.
    Public,
    /// A key with at least this scope.
    Key(Scope),
}

#[derive(Debug, Clone, Copy)]
pub enum Body {
    None,
    Json(SchemaOf),
    /// JSON, or nothing at all.
    OptionalJson(SchemaOf),
    /// Raw bytes of this media type, or of any.
    Raw(&'static str),
}

/// One form a successful answer can take.
#[derive(Debug, Clone, Copy)]
pub struct Content {
    pub media_type: &'static str,
    /// Of the whole body, or of one line or message where it is a stream.
    pub schema: Option<SchemaOf>,
}

#[derive(Debug, Clone, Copy)]
pub struct Route {
    pub operation: Operation,
    pub verb: Verb,
    pub path: &'static str,
    pub summary: &'static str,
    pub access: Access,
    pub query: Option<SchemaOf>,
    pub body: Body,
    pub body_max: usize,
    /// Status of a success.
    pub status: u16,
    /// What a success carries; several where `Accept` chooses.
    pub content: [Option<Content>; 2],
    /// Takes an `Idempotency-Key`.
    pub idempotent: bool,
    /// A key that is bound to one sandbox may call it: it is about the sandbox in its path, or shows no other.
    pub bound: bool,
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Route {
    const fn new(
        operation: Operation,
        verb: Verb,
        path: &'static str,
        scope: Scope,
        summary: &'static str,
    ) -> Self {
        Self {
            operation,
            verb,
            path,
            summary,
            access: Access::Key(scope),
            query: None,
            body: Body::None,
            body_max: 0,
            status: 204,
            content: [None, None],
            idempotent: false,
            bound: false,
        }
    }

    const fn bound(mut self) -> Self {
        self.bound = true;
        self
    }

    const fn public(mut self) -> Self {
        self.access = Access::Public;
        self
    }

    const fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(schema_of::<T>);
        self
    }

    const fn body<T: JsonSchema>(mut self) -> Self {
        self.body = Body::Json(schema_of::<T>);
        self.body_max = JSON_BODY_MAX;
        self
    }

    const fn optional_body<T: JsonSchema>(mut self) -> Self {
        self.body = Body::OptionalJson(schema_of::<T>);
        self.body_max = JSON_BODY_MAX;
        self
    }

    const fn exec_body<T: JsonSchema>(mut self) -> Self {
        self.body = Body::Json(schema_of::<T>);
        self.body_max = EXEC_BODY_MAX;
        self
    }

    const fn stdin_body(mut self) -> Self {
        self.body = Body::Raw(BYTES);
        self.body_max = STDIN_BODY_MAX;
        self
    }

    const fn upload(mut self, media_type: &'static str) -> Self {
        self.body = Body::Raw(media_type);
        self.body_max = UPLOAD_BODY_MAX;
        self
    }

    const fn context(mut self) -> Self {
        self.body = Body::Raw(TAR);
        self.body_max = BUILD_CONTEXT_MAX;
        self
    }

    const fn reply<T: JsonSchema>(mut self, status: u16) -> Self {
        self.status = status;
        self.content[0] = Some(Content {
            media_type: JSON,
            schema: Some(schema_of::<T>),
        });
        self
    }

    /// A second form, chosen by `Accept`.
    const fn or_stream<T: JsonSchema>(mut self, media_type: &'static str) -> Self {
        self.content[1] = Some(Content {
            media_type,
            schema: Some(schema_of::<T>),
        });
        self
    }

    const fn stream<T: JsonSchema>(mut self, media_type: &'static str) -> Self {
        self.status = 200;
        self.content[0] = Some(Content {
            media_type,
            schema: Some(schema_of::<T>),
        });
        self
    }

    const fn raw(mut self, media_type: &'static str) -> Self {
        self.status = 200;
        self.content[0] = Some(Content {
            media_type,
            schema: None,
        });
        self
    }

    const fn upgrade(mut self) -> Self {
        self.status = 101;
        self
    }

    const fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Whether a success may change something.
    pub fn mutates(&self) -> bool {
        self.verb != Verb::Get
    }

    /// The names between braces in the path.
    pub fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| {
            part.strip_prefix('{')
                .and_then(|part| part.strip_suffix('}'))
        })
    }
}

/// Routes the design names that have nothing behind them yet. They answer `unsupported` with this
/// text to callers with a valid key, and are not in the OpenAPI document.
pub const PLANNED: &[(Verb, &str, &str)] = &[];

macro_rules! operations {
    ($($name:ident = $text:literal,)*) => {
        /// One per route; the server's router matches on it, so none can be forgotten.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Operation { $($name,)* }

        impl Operation {
            pub const ALL: &'static [Operation] = &[$(Operation::$name,)*];

            /// Its name in the OpenAPI document, the logs and the audit trail.
            pub fn as_str(self) -> &'static str {
                match self { $(Operation::$name => $text,)* }
            }
        }
    };
}

operations! {
    CreateSandbox = "sandbox.create",
    ListSandboxes = "sandbox.list",
    GetSandbox = "sandbox.get",
    PatchSandbox = "sandbox.update",
    DeleteSandbox = "sandbox.delete",
    TakeLease = "lease.take",
    EndLease = "lease.end",
    RenewLeases = "lease.renew",
    StartSandbox = "sandbox.start",
    StopSandbox = "sandbox.stop",
    FreezeSandbox = "sandbox.freeze",
    PauseSandbox = "sandbox.pause",
    ResumeSandbox = "sandbox.resume",
    ForkSandbox = "sandbox.fork",
    RollbackSandbox = "sandbox.rollback",
    SandboxTimeline = "sandbox.timeline",
    TakeSnapshot = "snapshot.create",
    SandboxSnapshots = "sandbox.snapshots",
    SandboxMetrics = "sandbox.metrics",
    SandboxEvents = "sandbox.events",
    SandboxEgress = "sandbox.egress",
    Exec = "exec",
    StartProcess = "process.start",
    ListProcesses = "process.list",
    GetProcess = "process.get",
    ProcessOutput = "process.output",
    ProcessStdin = "process.stdin",
    SignalProcess = "process.signal",
    ResizeProcess = "process.resize",
    AttachProcess = "process.attach",
    StartService = "service.start",
    ListServices = "service.list",
    RemoveService = "service.remove",
    ReadFile = "file.read",
    WriteFile = "file.write",
    RemoveFile = "file.remove",
    ListFiles = "file.list",
    StatFile = "file.stat",
    WatchFiles = "file.watch",
    MakeDirectory = "file.mkdir",
    MoveFile = "file.move",
    ChangeMode = "file.chmod",
    ReadArchive = "file.archive_read",
    WriteArchive = "file.archive_write",
    ListPorts = "port.list",
    CreateCodeContext = "code.context_create",
    ListCodeContexts = "code.context_list",
    RemoveCodeContext = "code.context_remove",
    InterruptCode = "code.interrupt",
    RunCode = "code.run",
    SharePort = "port.share",
    UnsharePort = "port.unshare",
    ConnectPort = "port.connect",
    IdentityToken = "identity.token",
    RotateIdentity = "identity.rotate",
    IdentityDiscovery = "identity.discovery",
    IdentityKeys = "identity.keys",
    SshToken = "ssh.token",
    RevokeSsh = "ssh.revoke",
    SshHost = "ssh.host",
    ListSshKeys = "ssh_key.list",
    AddSshKey = "ssh_key.add",
    RemoveSshKey = "ssh_key.remove",
    ListSecrets = "secret.list",
    SetSecret = "secret.set",
    RotateSecretKeys = "secret.rotate",
    RemoveSecret = "secret.remove",
    SecretUses = "secret.uses",
    ListApprovals = "approval.list",
    DecideApproval = "approval.decide",
    ListImages = "image.list",
    AddImage = "image.add",
    GetImage = "image.get",
    RemoveImage = "image.remove",
    GetImageJob = "image.job",
    ListSnapshots = "snapshot.list",
    GetSnapshot = "snapshot.get",
    DeleteSnapshot = "snapshot.delete",
    ForkSnapshot = "snapshot.fork",
    ExportSnapshot = "snapshot.export",
    ImportSnapshot = "snapshot.import",
    CreateTemplate = "template.create",
    ListTemplates = "template.list",
    GetTemplate = "template.get",
    DeleteTemplate = "template.delete",
    TagTemplate = "template.tag",
    UntagTemplate = "template.untag",
    CreateBuild = "build.create",
    SendBuildContext = "build.context",
    ListBuilds = "build.list",
    GetBuild = "build.get",
    BuildLog = "build.log",
    CancelBuild = "build.cancel",
    ClearBuildCache = "build.cache_clear",
    CreateVolume = "volume.create",
    ListVolumes = "volume.list",
    GetVolume = "volume.get",
    DeleteVolume = "volume.delete",
    ReadVolumeFile = "volume.file_read",
    WriteVolumeFile = "volume.file_write",
    RemoveVolumeFile = "volume.file_remove",
    ListVolumeFiles = "volume.file_list",
    StatVolumeFile = "volume.file_stat",
    MakeVolumeDirectory = "volume.file_mkdir",
    MoveVolumeFile = "volume.file_move",
    ChangeVolumeMode = "volume.file_chmod",
    ListKeys = "key.list",
    CreateKey = "key.create",
    RevokeKey = "key.revoke",
    ListOrgs = "org.list",
    CreateOrg = "org.create",
    PatchOrg = "org.update",
    DeleteOrg = "org.delete",
    Usage = "usage",
    Audit = "audit",
    AuditChain = "audit.chain",
    Events = "events",
    ListRunners = "runner.list",
    CreateJoinToken = "node.token",
    JoinNode = "node.join",
    ListNodes = "node.list",
    GetNode = "node.get",
    PatchNode = "node.update",
    DeleteNode = "node.delete",
    ListQuarantine = "quarantine.list",
    AdoptQuarantined = "quarantine.adopt",
    DeleteQuarantined = "quarantine.delete",
    PrometheusMetrics = "metrics",
    Health = "health",
    Ready = "ready",
    OpenApi = "openapi",
    ErrorPage = "error.page",
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_operation_has_exactly_one_route_and_no_route_is_there_twice() {
        let named: HashSet<_> = ROUTES.iter().map(|route| route.operation).collect();
        assert_eq!(named.len(), ROUTES.len());
        assert_eq!(named, Operation::ALL.iter().copied().collect());
        let places = ROUTES.iter().map(|r| (r.verb, r.path));
        let planned = PLANNED.iter().map(|(verb, path, _)| (*verb, *path));
        let mut seen = HashSet::new();
        for place in places.chain(planned) {
            assert!(seen.insert(place), "{place:?} is there twice");
        }
    }

    #[test]
    fn only_health_joining_the_contract_and_the_keys_of_the_issuer_are_public() {
        let public: Vec<_> = ROUTES
            .iter()
            .filter(|r| r.access == Access::Public)
            .map(|r| r.path)
            .collect();
        let expected = [
            "/.well-known/openid-configuration",
            "/.well-known/jwks.json",
            // A host that joins has no key; it proves that it has a join token.
            "/v1/nodes/join",
            "/healthz",
            "/readyz",
            "/openapi.json",
            "/docs/errors/{code}",
        ];
        assert_eq!(public, expected);
    }

    #[test]
    fn reading_scopes_change_nothing() {
        for route in ROUTES {
            if route.mutates() {
                assert_ne!(route.access, Access::Key(Scope::Read), "{}", route.path);
            }
        }
    }
}
