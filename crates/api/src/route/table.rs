//! The table itself, in the order of the API guide.

use super::Operation as Op;
use super::{BYTES, MARKDOWN, NDJSON, PROMETHEUS, Route, SSE, TAR, Verb};
use crate::egress::{EgressLine, EgressList, EgressQuery};
use crate::event::{Event, EventsQuery};
use crate::tenancy::Scope::{Admin, Manage, Read, Use};
use crate::{
    NoQuery, Page, PageQuery, approval, build, code, file, host, identity, image, lifecycle, node,
    port, process, quarantine, sandbox, secret, service, snapshot, ssh, template, tenancy, volume,
};

const fn get(
    op: Op,
    path: &'static str,
    scope: crate::tenancy::Scope,
    summary: &'static str,
) -> Route {
    Route::new(op, Verb::Get, path, scope, summary).query::<NoQuery>()
}

const fn post(
    op: Op,
    path: &'static str,
    scope: crate::tenancy::Scope,
    summary: &'static str,
) -> Route {
    Route::new(op, Verb::Post, path, scope, summary).query::<NoQuery>()
}

const fn put(
    op: Op,
    path: &'static str,
    scope: crate::tenancy::Scope,
    summary: &'static str,
) -> Route {
    Route::new(op, Verb::Put, path, scope, summary).query::<NoQuery>()
}

const fn patch(
    op: Op,
    path: &'static str,
    scope: crate::tenancy::Scope,
    summary: &'static str,
) -> Route {
    Route::new(op, Verb::Patch, path, scope, summary).query::<NoQuery>()
}

const fn delete(
    op: Op,
    path: &'static str,
    scope: crate::tenancy::Scope,
    summary: &'static str,
) -> Route {
    Route::new(op, Verb::Delete, path, scope, summary).query::<NoQuery>()
}

pub const ROUTES: &[Route] = &[
    post(
        Op::CreateSandbox,
        "/v1/sandboxes",
        Manage,
        "Create a sandbox; returns when it runs",
    )
    .body::<sandbox::CreateSandbox>()
    .reply::<sandbox::Sandbox>(201)
    .idempotent(),
    get(Op::ListSandboxes, "/v1/sandboxes", Read, "List sandboxes")
        .query::<sandbox::ListSandboxes>()
        .reply::<Page<sandbox::Sandbox>>(200)
        .bound(),
    get(
        Op::GetSandbox,
        "/v1/sandboxes/{id}",
        Read,
        "Show a sandbox, by id or name",
    )
    .reply::<sandbox::Sandbox>(200)
    .bound(),
    patch(
        Op::PatchSandbox,
        "/v1/sandboxes/{id}",
        Manage,
        "Change name, labels, lifecycle or limits",
    )
    .body::<sandbox::PatchSandbox>()
    .reply::<sandbox::Sandbox>(200),
    delete(
        Op::DeleteSandbox,
        "/v1/sandboxes/{id}",
        Manage,
        "Delete a sandbox and everything in it",
    )
    .query::<lifecycle::HolderQuery>()
    .bound(),
    put(
        Op::TakeLease,
        "/v1/sandboxes/{id}/lease",
        Manage,
        "Begin a lease, or take it over from its holder",
    )
    .body::<lifecycle::LeaseRequest>()
    .reply::<sandbox::Sandbox>(200),
    delete(
        Op::EndLease,
        "/v1/sandboxes/{id}/lease",
        Manage,
        "End a lease: the sandbox stays until it is deleted",
    )
    .query::<lifecycle::HolderQuery>(),
    post(
        Op::RenewLeases,
        "/v1/leases/renew",
        Manage,
        "Renew the leases of a holder; not recorded in the audit log",
    )
    .body::<lifecycle::RenewLeases>()
    .reply::<lifecycle::RenewedLeases>(200),
    post(
        Op::StartSandbox,
        "/v1/sandboxes/{id}/start",
        Use,
        "Start a stopped sandbox",
    )
    .reply::<sandbox::Sandbox>(200)
    .bound(),
    post(
        Op::StopSandbox,
        "/v1/sandboxes/{id}/stop",
        Manage,
        "Stop a sandbox: end its processes and keep its disk",
    )
    .optional_body::<sandbox::StopSandbox>()
    .reply::<sandbox::Sandbox>(200)
    .bound(),
    post(
        Op::FreezeSandbox,
        "/v1/sandboxes/{id}/freeze",
        Manage,
        "Freeze a sandbox: suspend its processes and keep them in memory",
    )
    .reply::<sandbox::Sandbox>(200)
    .bound(),
    post(
        Op::PauseSandbox,
        "/v1/sandboxes/{id}/pause",
        Manage,
        "Pause a sandbox: save its memory to disk and free CPU and memory",
    )
    .reply::<sandbox::Sandbox>(200)
    .bound(),
    post(
        Op::ResumeSandbox,
        "/v1/sandboxes/{id}/resume",
        Use,
        "Resume a frozen or paused sandbox",
    )
    .reply::<sandbox::Sandbox>(200)
    .bound(),
    post(
        Op::TakeSnapshot,
        "/v1/sandboxes/{id}/snapshots",
        Manage,
        "Take a snapshot of a sandbox; returns when it is on disk",
    )
    .optional_body::<snapshot::TakeSnapshot>()
    .reply::<snapshot::Snapshot>(201)
    .idempotent(),
    get(
        Op::SandboxSnapshots,
        "/v1/sandboxes/{id}/snapshots",
        Read,
        "List the snapshots of a sandbox",
    )
    .query::<PageQuery>()
    .reply::<Page<snapshot::Snapshot>>(200),
    post(
        Op::ForkSandbox,
        "/v1/sandboxes/{id}/fork",
        Manage,
        "Fork a sandbox: create copies of it",
    )
    .optional_body::<snapshot::Fork>()
    .reply::<Vec<snapshot::Forked>>(200)
    .idempotent(),
    post(
        Op::RollbackSandbox,
        "/v1/sandboxes/{id}/rollback",
        Manage,
        "Roll a sandbox back to a snapshot; its previous state is saved",
    )
    .body::<snapshot::Rollback>()
    .reply::<snapshot::RolledBack>(200),
    get(
        Op::SandboxTimeline,
        "/v1/sandboxes/{id}/timeline",
        Read,
        "Show the snapshots, forks and rollbacks of a sandbox",
    )
    .reply::<snapshot::Timeline>(200),
    get(
        Op::SandboxMetrics,
        "/v1/sandboxes/{id}/metrics",
        Read,
        "Show the resource usage of a sandbox",
    )
    .reply::<host::Metrics>(200)
    .bound(),
    get(
        Op::SandboxEvents,
        "/v1/sandboxes/{id}/events",
        Read,
        "List the events of a sandbox",
    )
    .query::<EventsQuery>()
    .reply::<Page<Event>>(200)
    .or_stream::<Event>(SSE)
    .bound(),
    get(
        Op::SandboxEgress,
        "/v1/sandboxes/{id}/egress",
        Read,
        "List decisions of a sandbox's network policy",
    )
    .query::<EgressQuery>()
    .reply::<EgressList>(200)
    .or_stream::<EgressLine>(NDJSON)
    .bound(),
    post(
        Op::Exec,
        "/v1/sandboxes/{id}/exec",
        Use,
        "Run a command and wait for its end, or follow it live",
    )
    .exec_body::<process::Exec>()
    .reply::<process::ExecResult>(200)
    .or_stream::<process::OutputEvent>(NDJSON)
    .bound(),
    post(
        Op::StartProcess,
        "/v1/sandboxes/{id}/processes",
        Use,
        "Start a command in the background",
    )
    .exec_body::<process::StartProcess>()
    .reply::<process::Process>(201)
    .bound(),
    get(
        Op::ListProcesses,
        "/v1/sandboxes/{id}/processes",
        Use,
        "List commands, including ended ones",
    )
    .reply::<Page<process::Process>>(200)
    .bound(),
    get(
        Op::GetProcess,
        "/v1/sandboxes/{id}/processes/{process}",
        Use,
        "Show a command",
    )
    .reply::<process::Process>(200)
    .bound(),
    get(
        Op::ProcessOutput,
        "/v1/sandboxes/{id}/processes/{process}/output",
        Use,
        "Read the output of a command from given offsets, or follow it live",
    )
    .query::<process::OutputQuery>()
    .stream::<process::OutputEvent>(NDJSON)
    .bound(),
    post(
        Op::ProcessStdin,
        "/v1/sandboxes/{id}/processes/{process}/stdin",
        Use,
        "Write to a command's input",
    )
    .query::<process::StdinQuery>()
    .stdin_body()
    .bound(),
    post(
        Op::SignalProcess,
        "/v1/sandboxes/{id}/processes/{process}/signal",
        Use,
        "Send a signal",
    )
    .body::<process::SignalProcess>()
    .bound(),
    post(
        Op::ResizeProcess,
        "/v1/sandboxes/{id}/processes/{process}/resize",
        Use,
        "Change a terminal's size",
    )
    .body::<process::TerminalSize>()
    .bound(),
    get(
        Op::AttachProcess,
        "/v1/sandboxes/{id}/processes/{process}/attach",
        Use,
        "Attach to a command over a WebSocket",
    )
    .query::<process::AttachQuery>()
    .upgrade()
    .bound(),
    post(
        Op::StartService,
        "/v1/sandboxes/{id}/services",
        Use,
        "Start a service, which comes back with its sandbox",
    )
    .body::<service::StartService>()
    .reply::<service::Service>(201)
    .bound(),
    get(
        Op::ListServices,
        "/v1/sandboxes/{id}/services",
        Use,
        "List services",
    )
    .reply::<Page<service::Service>>(200)
    .bound(),
    delete(
        Op::RemoveService,
        "/v1/sandboxes/{id}/services/{service}",
        Use,
        "End a service and remove it",
    )
    .bound(),
    get(
        Op::ReadFile,
        "/v1/sandboxes/{id}/files",
        Use,
        "Read a file, whole or a range",
    )
    .query::<file::ReadFile>()
    .raw(BYTES)
    .bound(),
    put(
        Op::WriteFile,
        "/v1/sandboxes/{id}/files",
        Use,
        "Write a file",
    )
    .query::<file::WriteFile>()
    .upload(BYTES)
    .reply::<file::Written>(200)
    .bound(),
    delete(
        Op::RemoveFile,
        "/v1/sandboxes/{id}/files",
        Use,
        "Remove a file or directory",
    )
    .query::<file::RemoveFile>()
    .bound(),
    get(
        Op::ListFiles,
        "/v1/sandboxes/{id}/files/list",
        Use,
        "List a directory",
    )
    .query::<file::ListFiles>()
    .reply::<file::Listing>(200)
    .bound(),
    get(
        Op::StatFile,
        "/v1/sandboxes/{id}/files/stat",
        Use,
        "Describe a path",
    )
    .query::<file::StatFile>()
    .reply::<file::FileInfo>(200)
    .bound(),
    get(
        Op::WatchFiles,
        "/v1/sandboxes/{id}/files/watch",
        Use,
        "Follow changes below a directory",
    )
    .query::<file::WatchFiles>()
    .stream::<file::FileChange>(NDJSON)
    .bound(),
    post(
        Op::MakeDirectory,
        "/v1/sandboxes/{id}/files/mkdir",
        Use,
        "Create a directory",
    )
    .body::<file::MakeDirectory>()
    .bound(),
    post(
        Op::MoveFile,
        "/v1/sandboxes/{id}/files/move",
        Use,
        "Move or rename",
    )
    .body::<file::MoveFile>()
    .bound(),
    post(
        Op::ChangeMode,
        "/v1/sandboxes/{id}/files/chmod",
        Use,
        "Change mode or owner",
    )
    .body::<file::ChangeMode>()
    .bound(),
    get(
        Op::ReadArchive,
        "/v1/sandboxes/{id}/files/archive",
        Use,
        "Download a directory as a tar archive",
    )
    .query::<file::ReadArchive>()
    .raw(TAR)
    .bound(),
    put(
        Op::WriteArchive,
        "/v1/sandboxes/{id}/files/archive",
        Use,
        "Upload a tar archive and unpack it below a directory",
    )
    .query::<file::WriteArchive>()
    .upload(TAR)
    .reply::<file::Written>(200)
    .bound(),
    get(
        Op::ListPorts,
        "/v1/sandboxes/{id}/ports",
        Use,
        "List the ports that programs in a sandbox listen on",
    )
    .reply::<Page<host::Port>>(200)
    .bound(),
    post(
        Op::CreateCodeContext,
        "/v1/sandboxes/{id}/code/contexts",
        Use,
        "Start a code context",
    )
    .body::<code::CreateCodeContext>()
    .reply::<code::CodeContext>(201)
    .bound(),
    get(
        Op::ListCodeContexts,
        "/v1/sandboxes/{id}/code/contexts",
        Use,
        "List running code contexts",
    )
    .reply::<Page<code::CodeContext>>(200)
    .bound(),
    delete(
        Op::RemoveCodeContext,
        "/v1/sandboxes/{id}/code/contexts/{context}",
        Use,
        "End a context",
    )
    .bound(),
    post(
        Op::InterruptCode,
        "/v1/sandboxes/{id}/code/contexts/{context}/interrupt",
        Use,
        "Interrupt the code that a context runs",
    )
    .bound(),
    post(
        Op::RunCode,
        "/v1/sandboxes/{id}/code/run",
        Use,
        "Run code in a context and wait for its end, or follow it live",
    )
    .exec_body::<code::RunCode>()
    .reply::<code::CodeResult>(200)
    .or_stream::<code::CodeEvent>(NDJSON)
    .bound(),
    post(
        Op::SharePort,
        "/v1/sandboxes/{id}/ports/{port}/share",
        Use,
        "Sign a link to a port's preview, or make it public",
    )
    .optional_body::<port::SharePort>()
    .reply::<port::PortShare>(201)
    .bound(),
    delete(
        Op::UnsharePort,
        "/v1/sandboxes/{id}/ports/{port}/share",
        Use,
        "Revoke all links to a port's preview and make it private",
    )
    .bound(),
    get(
        Op::ConnectPort,
        "/v1/sandboxes/{id}/ports/{port}/tcp",
        Use,
        "Connect to a port in a sandbox, after `Upgrade: tcp`",
    )
    .upgrade()
    .bound(),
    post(
        Op::SshToken,
        "/v1/sandboxes/{id}/ssh",
        Use,
        "Create a token for SSH logins",
    )
    .optional_body::<ssh::CreateSshToken>()
    .reply::<ssh::SshAccess>(201)
    .bound(),
    delete(
        Op::RevokeSsh,
        "/v1/sandboxes/{id}/ssh",
        Use,
        "Revoke all SSH tokens of a sandbox",
    )
    .bound(),
    post(
        Op::IdentityToken,
        "/v1/sandboxes/{id}/identity",
        Use,
        "Create an identity token of a sandbox",
    )
    .body::<identity::CreateIdentityToken>()
    .reply::<identity::IdentityToken>(201),
    post(
        Op::RotateIdentity,
        "/v1/identity/rotate",
        Admin,
        "Replace the key that signs identity tokens",
    )
    .optional_body::<identity::RotateIdentityKeys>()
    .reply::<identity::IdentityKeys>(200),
    get(
        Op::IdentityDiscovery,
        "/.well-known/openid-configuration",
        Read,
        "The issuer of identity tokens",
    )
    .reply::<identity::OpenIdConfiguration>(200)
    .public(),
    get(
        Op::IdentityKeys,
        "/.well-known/jwks.json",
        Read,
        "The public keys that check identity tokens",
    )
    .reply::<identity::IdentityKeys>(200)
    .public(),
    get(
        Op::SshHost,
        "/v1/ssh",
        Read,
        "Show the address and the host key of the SSH gateway",
    )
    .reply::<ssh::SshHost>(200)
    .bound(),
    get(Op::ListImages, "/v1/images", Read, "List images").reply::<Page<image::Image>>(200),
    post(
        Op::AddImage,
        "/v1/images",
        Manage,
        "Pull or build an image; returns the job",
    )
    .body::<image::AddImage>()
    .reply::<image::ImageJob>(202)
    .or_stream::<image::ImageJob>(NDJSON),
    get(
        Op::GetImageJob,
        "/v1/images/jobs/{job}",
        Read,
        "Show the progress of an image job, or follow it live",
    )
    .reply::<image::ImageJob>(200)
    .or_stream::<image::ImageJob>(NDJSON),
    get(
        Op::GetImage,
        "/v1/images/{image}",
        Read,
        "Show an image, by id or name",
    )
    .reply::<image::Image>(200),
    delete(
        Op::RemoveImage,
        "/v1/images/{image}",
        Manage,
        "Remove an image that no sandbox uses",
    ),
    post(
        Op::CreateVolume,
        "/v1/volumes",
        Manage,
        "Create a volume, empty or as a copy of another",
    )
    .body::<volume::CreateVolume>()
    .reply::<volume::Volume>(201)
    .idempotent(),
    get(Op::ListVolumes, "/v1/volumes", Read, "List volumes")
        .query::<PageQuery>()
        .reply::<Page<volume::Volume>>(200),
    get(
        Op::GetVolume,
        "/v1/volumes/{volume}",
        Read,
        "Show a volume, by id or name, and the sandboxes that mount it",
    )
    .reply::<volume::Volume>(200),
    delete(
        Op::DeleteVolume,
        "/v1/volumes/{volume}",
        Manage,
        "Delete a volume that no sandbox mounts, with everything in it",
    ),
    get(
        Op::ReadVolumeFile,
        "/v1/volumes/{volume}/files",
        Use,
        "Read a file of a volume, whole or a range",
    )
    .query::<file::ReadFile>()
    .raw(BYTES),
    put(
        Op::WriteVolumeFile,
        "/v1/volumes/{volume}/files",
        Use,
        "Write a file of a volume",
    )
    .query::<file::WriteFile>()
    .upload(BYTES)
    .reply::<file::Written>(200),
    delete(
        Op::RemoveVolumeFile,
        "/v1/volumes/{volume}/files",
        Use,
        "Remove a file or directory of a volume",
    )
    .query::<file::RemoveFile>(),
    get(
        Op::ListVolumeFiles,
        "/v1/volumes/{volume}/files/list",
        Use,
        "List a directory of a volume",
    )
    .query::<file::ListFiles>()
    .reply::<file::Listing>(200),
    get(
        Op::StatVolumeFile,
        "/v1/volumes/{volume}/files/stat",
        Use,
        "Describe a path of a volume",
    )
    .query::<file::StatFile>()
    .reply::<file::FileInfo>(200),
    post(
        Op::MakeVolumeDirectory,
        "/v1/volumes/{volume}/files/mkdir",
        Use,
        "Create a directory in a volume",
    )
    .body::<file::MakeDirectory>(),
    post(
        Op::MoveVolumeFile,
        "/v1/volumes/{volume}/files/move",
        Use,
        "Rename or move a path of a volume",
    )
    .body::<file::MoveFile>(),
    post(
        Op::ChangeVolumeMode,
        "/v1/volumes/{volume}/files/chmod",
        Use,
        "Change mode or owner of a path of a volume",
    )
    .body::<file::ChangeMode>(),
    get(Op::ListSnapshots, "/v1/snapshots", Read, "List snapshots")
        .query::<PageQuery>()
        .reply::<Page<snapshot::Snapshot>>(200),
    post(
        Op::ImportSnapshot,
        "/v1/snapshots/import",
        Manage,
        "Import an exported snapshot",
    )
    .query::<snapshot::ImportSnapshot>()
    .upload(BYTES)
    .reply::<snapshot::Imported>(201),
    get(
        Op::GetSnapshot,
        "/v1/snapshots/{snapshot}",
        Read,
        "Show a snapshot, by id or name",
    )
    .reply::<snapshot::Snapshot>(200),
    delete(
        Op::DeleteSnapshot,
        "/v1/snapshots/{snapshot}",
        Manage,
        "Delete a snapshot; sandboxes and snapshots made from it stay",
    ),
    post(
        Op::ForkSnapshot,
        "/v1/snapshots/{snapshot}/fork",
        Manage,
        "Create sandboxes from a snapshot",
    )
    .optional_body::<snapshot::Fork>()
    .reply::<Vec<snapshot::Forked>>(200)
    .idempotent(),
    get(
        Op::ExportSnapshot,
        "/v1/snapshots/{snapshot}/export",
        Use,
        "Export a snapshot as one file",
    )
    .raw(BYTES),
    post(
        Op::CreateTemplate,
        "/v1/templates",
        Manage,
        "Create a new version of a template from a snapshot",
    )
    .body::<template::CreateTemplate>()
    .reply::<template::Template>(201)
    .idempotent(),
    get(
        Op::ListTemplates,
        "/v1/templates",
        Read,
        "List versions of templates",
    )
    .query::<template::ListTemplates>()
    .reply::<Page<template::Template>>(200),
    get(
        Op::GetTemplate,
        "/v1/templates/{template}",
        Read,
        "Show a version: `name`, `name:tag`, `name:version` or its id",
    )
    .reply::<template::Template>(200),
    delete(
        Op::DeleteTemplate,
        "/v1/templates/{template}",
        Manage,
        "Delete a version, or with a name alone its only one or all; sandboxes and snapshots stay",
    )
    .query::<template::DeleteTemplate>(),
    put(
        Op::TagTemplate,
        "/v1/templates/{template}/tags/{tag}",
        Manage,
        "Point a tag at a version",
    )
    .reply::<template::Template>(200),
    delete(
        Op::UntagTemplate,
        "/v1/templates/{template}/tags/{tag}",
        Manage,
        "Remove a tag of a template",
    ),
    post(
        Op::CreateBuild,
        "/v1/builds",
        Manage,
        "Create a build of a template from a Dockerfile; it starts when its context arrives",
    )
    .body::<build::CreateBuild>()
    .reply::<build::Build>(201),
    put(
        Op::SendBuildContext,
        "/v1/builds/{build}/context",
        Manage,
        "Send the context of a build as a tar archive, and start the build",
    )
    .context(),
    get(
        Op::ListBuilds,
        "/v1/builds",
        Read,
        "List builds, newest first",
    )
    .reply::<build::Builds>(200),
    get(Op::GetBuild, "/v1/builds/{build}", Read, "Show a build").reply::<build::Build>(200),
    get(
        Op::BuildLog,
        "/v1/builds/{build}/log",
        Read,
        "Follow the log of a build, from its beginning to its end",
    )
    .stream::<build::BuildLogEvent>(NDJSON),
    delete(
        Op::CancelBuild,
        "/v1/builds/{build}",
        Manage,
        "Cancel a build; a build that has ended is not changed",
    )
    .reply::<build::Build>(200),
    delete(
        Op::ClearBuildCache,
        "/v1/build-cache",
        Manage,
        "Delete the cached build steps of the organisation",
    )
    .reply::<build::BuildCacheCleared>(200),
    get(Op::ListKeys, "/v1/keys", Admin, "List API keys")
        .query::<PageQuery>()
        .reply::<Page<tenancy::Key>>(200),
    post(
        Op::CreateKey,
        "/v1/keys",
        Admin,
        "Create an API key; its token is shown once",
    )
    .body::<tenancy::CreateKey>()
    .reply::<tenancy::NewKey>(201),
    delete(Op::RevokeKey, "/v1/keys/{key}", Admin, "Revoke an API key"),
    get(
        Op::ListSshKeys,
        "/v1/ssh-keys",
        Admin,
        "List public keys that may log in over SSH",
    )
    .query::<PageQuery>()
    .reply::<Page<ssh::SshKey>>(200),
    post(
        Op::AddSshKey,
        "/v1/ssh-keys",
        Admin,
        "Add a public key that may log in to all sandboxes over SSH",
    )
    .body::<ssh::AddSshKey>()
    .reply::<ssh::SshKey>(201),
    delete(
        Op::RemoveSshKey,
        "/v1/ssh-keys/{key}",
        Admin,
        "Remove a public key",
    ),
    get(
        Op::ListSecrets,
        "/v1/secrets",
        Manage,
        "List secrets, without values",
    )
    .query::<PageQuery>()
    .reply::<Page<secret::Secret>>(200),
    post(
        Op::SetSecret,
        "/v1/secrets",
        Admin,
        "Store a secret, or a new value of one",
    )
    .body::<secret::SetSecret>()
    .reply::<secret::Secret>(201),
    post(
        Op::RotateSecretKeys,
        "/v1/secret-keys/rotate",
        Admin,
        "Wrap the keys of all organisations with the newest host key",
    )
    .reply::<secret::RotatedSecretKeys>(200),
    delete(
        Op::RemoveSecret,
        "/v1/secrets/{secret}",
        Admin,
        "Remove a secret and close connections that used it",
    )
    .reply::<secret::RemovedSecret>(200),
    get(
        Op::SecretUses,
        "/v1/secrets/{secret}/uses",
        Manage,
        "List sandboxes that used a secret, the latest first",
    )
    .reply::<Page<secret::SecretUser>>(200),
    get(
        Op::ListApprovals,
        "/v1/approvals",
        Manage,
        "List requests that wait for an approval, and decided ones",
    )
    .reply::<Page<approval::Approval>>(200),
    post(
        Op::DecideApproval,
        "/v1/approvals/{approval}",
        Admin,
        "Approve or deny a request with a secret",
    )
    .body::<approval::DecideApproval>(),
    get(Op::ListOrgs, "/v1/orgs", Admin, "List organisations")
        .query::<PageQuery>()
        .reply::<Page<tenancy::Org>>(200),
    post(Op::CreateOrg, "/v1/orgs", Admin, "Create an organisation")
        .body::<tenancy::CreateOrg>()
        .reply::<tenancy::Org>(201),
    patch(
        Op::PatchOrg,
        "/v1/orgs/{org}",
        Admin,
        "Change an organisation's quota",
    )
    .body::<tenancy::PatchOrg>()
    .reply::<tenancy::Org>(200),
    delete(
        Op::DeleteOrg,
        "/v1/orgs/{org}",
        Admin,
        "Delete an organisation that has nothing any more",
    ),
    get(
        Op::Usage,
        "/v1/usage",
        Read,
        "Show the usage of the organisation",
    )
    .query::<tenancy::UsageQuery>()
    .reply::<tenancy::Usage>(200),
    get(
        Op::Audit,
        "/v1/audit",
        Admin,
        "List audit records: who changed what",
    )
    .query::<PageQuery>()
    .reply::<Page<tenancy::AuditRecord>>(200)
    .or_stream::<tenancy::AuditLine>(NDJSON),
    get(
        Op::AuditChain,
        "/v1/audit/chain",
        Admin,
        "Check whether audit records were changed or removed",
    )
    .query::<PageQuery>()
    .reply::<Page<tenancy::AuditChain>>(200),
    get(
        Op::Events,
        "/v1/events",
        Read,
        "List the events of all sandboxes",
    )
    .query::<EventsQuery>()
    .reply::<Page<Event>>(200)
    .or_stream::<Event>(SSE),
    get(
        Op::ListRunners,
        "/v1/runners",
        Admin,
        "Show the hosts, their features and problems",
    )
    .reply::<Page<host::Runner>>(200),
    post(
        Op::CreateJoinToken,
        "/v1/nodes/tokens",
        Admin,
        "Create a join token for one host",
    )
    .body::<node::CreateJoinToken>()
    .reply::<node::JoinToken>(201),
    post(
        Op::JoinNode,
        "/v1/nodes/join",
        Admin,
        "Join the fleet with a join token; used by `cove node join`",
    )
    .body::<node::JoinNode>()
    .reply::<node::JoinedNode>(201)
    .public(),
    get(Op::ListNodes, "/v1/nodes", Admin, "List nodes").reply::<Page<node::Node>>(200),
    get(
        Op::GetNode,
        "/v1/nodes/{node}",
        Admin,
        "Show a node, by name or id",
    )
    .reply::<node::Node>(200),
    patch(
        Op::PatchNode,
        "/v1/nodes/{node}",
        Admin,
        "Cordon or uncordon a node, or change its zone, labels and taints",
    )
    .body::<node::PatchNode>()
    .reply::<node::Node>(200),
    delete(
        Op::DeleteNode,
        "/v1/nodes/{node}",
        Admin,
        "Remove a node that has no sandboxes, snapshots or volumes",
    )
    .query::<node::DeleteNode>(),
    get(
        Op::ListQuarantine,
        "/v1/quarantine",
        Admin,
        "List what is in quarantine",
    )
    .reply::<Page<quarantine::Quarantined>>(200),
    post(
        Op::AdoptQuarantined,
        "/v1/quarantine/{id}/adopt",
        Admin,
        "Give a quarantined sandbox or snapshot to an organisation",
    )
    .body::<quarantine::AdoptQuarantined>(),
    delete(
        Op::DeleteQuarantined,
        "/v1/quarantine/{id}",
        Admin,
        "Delete a quarantined sandbox or snapshot and everything in it",
    ),
    get(
        Op::PrometheusMetrics,
        "/metrics",
        Admin,
        "Metrics for Prometheus",
    )
    .raw(PROMETHEUS),
    get(Op::Health, "/healthz", Read, "Liveness: the server answers")
        .reply::<host::Health>(200)
        .public(),
    get(
        Op::Ready,
        "/readyz",
        Read,
        "Readiness: the server and its host can take work",
    )
    .reply::<host::Health>(200)
    .public(),
    get(Op::OpenApi, "/openapi.json", Read, "This contract")
        .reply::<serde_json::Value>(200)
        .public(),
    get(
        Op::ErrorPage,
        "/docs/errors/{code}",
        Read,
        "The documentation page of an error code",
    )
    .public()
    .raw(MARKDOWN),
];
