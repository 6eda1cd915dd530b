//! The router, built from the table of routes.

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use cove_api::ErrorCode;
use cove_api::route::{Operation as Op, PLANNED, ROUTES, Route, Verb};

use crate::extract::Caller;
use crate::failure::Failure;
use crate::guard;
use crate::handler::{
    approvals, attach, builds, code, egress, events, exec, files, host, identity, images, nodes,
    ports, processes, quarantine, sandboxes, secrets, services, snapshots, ssh, templates, tenancy,
    tree, volumes,
};
use crate::mcp;
use crate::state::App;

/// Everything the server answers, errors of routing included.
pub fn router(app: App) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let layer = from_fn_with_state(route, guard::route);
        router = router.route(route.path, handler(route).layer(layer));
    }
    for (verb, path, what) in PLANNED {
        let refuse = move |_: Caller| async move { planned(what) };
        router = router.route(path, on(filter(*verb), refuse));
    }
    let daytona = cove_dialect_daytona::router(app.front.clone()).layer(from_fn(guard::dialect));
    let e2b = cove_dialect_e2b::router(app.front.clone()).layer(from_fn(guard::dialect));
    let signed = cove_dialect_e2b::signed_files(app.front.clone()).layer(from_fn(guard::dialect));
    let native = router
        .nest_service(cove_dialect_daytona::MOUNT, daytona)
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app.clone());
    let all = native
        .merge(signed)
        .nest("/e2b", e2b)
        .layer(from_fn_with_state(app.clone(), guard::around));
    // Its tools are requests to all the rest.
    let mcp = mcp::router(app.clone(), all.clone()).layer(from_fn(guard::dialect));
    all.merge(mcp.layer(from_fn_with_state(app, guard::around)))
}

fn filter(verb: Verb) -> MethodFilter {
    match verb {
        Verb::Get => MethodFilter::GET,
        Verb::Post => MethodFilter::POST,
        Verb::Put => MethodFilter::PUT,
        Verb::Patch => MethodFilter::PATCH,
        Verb::Delete => MethodFilter::DELETE,
    }
}

fn handler(route: &Route) -> MethodRouter<App> {
    let verb = filter(route.verb);
    match route.operation {
        Op::CreateSandbox => on(verb, sandboxes::create),
        Op::ListSandboxes => on(verb, sandboxes::list),
        Op::GetSandbox => on(verb, sandboxes::get),
        Op::PatchSandbox => on(verb, sandboxes::patch),
        Op::DeleteSandbox => on(verb, sandboxes::delete),
        Op::TakeLease => on(verb, sandboxes::take_lease),
        Op::EndLease => on(verb, sandboxes::end_lease),
        Op::RenewLeases => on(verb, sandboxes::renew_leases),
        Op::StartSandbox => on(verb, sandboxes::start),
        Op::StopSandbox => on(verb, sandboxes::stop),
        Op::FreezeSandbox => on(verb, sandboxes::freeze),
        Op::PauseSandbox => on(verb, sandboxes::pause),
        Op::ResumeSandbox => on(verb, sandboxes::resume),
        Op::ForkSandbox => on(verb, snapshots::fork),
        Op::RollbackSandbox => on(verb, snapshots::rollback),
        Op::SandboxTimeline => on(verb, snapshots::timeline),
        Op::TakeSnapshot => on(verb, snapshots::take),
        Op::SandboxSnapshots => on(verb, snapshots::of_sandbox),
        Op::ListSnapshots => on(verb, snapshots::list),
        Op::GetSnapshot => on(verb, snapshots::get),
        Op::DeleteSnapshot => on(verb, snapshots::delete),
        Op::ForkSnapshot => on(verb, snapshots::fork_snapshot),
        Op::ExportSnapshot => on(verb, snapshots::export),
        Op::ImportSnapshot => on(verb, snapshots::import),
        Op::CreateTemplate => on(verb, templates::create),
        Op::ListTemplates => on(verb, templates::list),
        Op::GetTemplate => on(verb, templates::get),
        Op::DeleteTemplate => on(verb, templates::delete),
        Op::TagTemplate => on(verb, templates::tag),
        Op::UntagTemplate => on(verb, templates::untag),
        Op::CreateBuild => on(verb, builds::create),
        Op::SendBuildContext => on(verb, builds::context),
        Op::ListBuilds => on(verb, builds::list),
        Op::GetBuild => on(verb, builds::get),
        Op::BuildLog => on(verb, builds::log),
        Op::CancelBuild => on(verb, builds::cancel),
        Op::ClearBuildCache => on(verb, builds::clear_cache),
        Op::CreateVolume => on(verb, volumes::create),
        Op::ListVolumes => on(verb, volumes::list),
        Op::GetVolume => on(verb, volumes::get),
        Op::DeleteVolume => on(verb, volumes::delete),
        Op::ReadVolumeFile => on(verb, volumes::read_file),
        Op::WriteVolumeFile => on(verb, volumes::write_file),
        Op::RemoveVolumeFile => on(verb, volumes::remove_file),
        Op::ListVolumeFiles => on(verb, volumes::list_files),
        Op::StatVolumeFile => on(verb, volumes::stat_file),
        Op::MakeVolumeDirectory => on(verb, volumes::make_directory),
        Op::MoveVolumeFile => on(verb, volumes::move_file),
        Op::ChangeVolumeMode => on(verb, volumes::change_mode),
        Op::SandboxMetrics => on(verb, sandboxes::metrics),
        Op::SandboxEvents => on(verb, events::of_sandbox),
        Op::SandboxEgress => on(verb, egress::of_sandbox),
        Op::Exec => on(verb, exec::exec),
        Op::StartProcess => on(verb, exec::start),
        Op::ListProcesses => on(verb, processes::list),
        Op::GetProcess => on(verb, processes::get),
        Op::ProcessOutput => on(verb, processes::output),
        Op::ProcessStdin => on(verb, processes::stdin),
        Op::SignalProcess => on(verb, processes::signal),
        Op::ResizeProcess => on(verb, processes::resize),
        Op::AttachProcess => on(verb, attach::attach),
        Op::StartService => on(verb, services::start),
        Op::ListServices => on(verb, services::list),
        Op::RemoveService => on(verb, services::remove),
        Op::ReadFile => on(verb, files::read),
        Op::WriteFile => on(verb, files::write),
        Op::ReadArchive => on(verb, files::read_archive),
        Op::WriteArchive => on(verb, files::write_archive),
        Op::RemoveFile => on(verb, tree::remove),
        Op::ListFiles => on(verb, tree::list),
        Op::StatFile => on(verb, tree::stat),
        Op::WatchFiles => on(verb, tree::watch),
        Op::MakeDirectory => on(verb, tree::mkdir),
        Op::MoveFile => on(verb, tree::rename),
        Op::ChangeMode => on(verb, tree::chmod),
        Op::ListPorts => on(verb, ports::list),
        Op::SharePort => on(verb, ports::share),
        Op::UnsharePort => on(verb, ports::unshare),
        Op::ConnectPort => on(verb, ports::connect),
        Op::IdentityToken => on(verb, identity::token),
        Op::RotateIdentity => on(verb, identity::rotate),
        Op::IdentityDiscovery => on(verb, identity::discovery),
        Op::IdentityKeys => on(verb, identity::keys),
        Op::SshToken => on(verb, ssh::token),
        Op::RevokeSsh => on(verb, ssh::revoke),
        Op::SshHost => on(verb, ssh::host),
        Op::ListSshKeys => on(verb, ssh::list_keys),
        Op::AddSshKey => on(verb, ssh::add_key),
        Op::RemoveSshKey => on(verb, ssh::remove_key),
        Op::ListSecrets => on(verb, secrets::list),
        Op::SetSecret => on(verb, secrets::set),
        Op::RotateSecretKeys => on(verb, secrets::rotate),
        Op::RemoveSecret => on(verb, secrets::remove),
        Op::SecretUses => on(verb, secrets::uses),
        Op::ListApprovals => on(verb, approvals::list),
        Op::DecideApproval => on(verb, approvals::decide),
        Op::CreateCodeContext => on(verb, code::create),
        Op::ListCodeContexts => on(verb, code::list),
        Op::RemoveCodeContext => on(verb, code::remove),
        Op::InterruptCode => on(verb, code::interrupt),
        Op::RunCode => on(verb, code::run),
        Op::ListImages => on(verb, images::list),
        Op::AddImage => on(verb, images::add),
        Op::GetImage => on(verb, images::get),
        Op::RemoveImage => on(verb, images::remove),
        Op::GetImageJob => on(verb, images::job),
        Op::ListKeys => on(verb, tenancy::list_keys),
        Op::CreateKey => on(verb, tenancy::create_key),
        Op::RevokeKey => on(verb, tenancy::revoke_key),
        Op::ListOrgs => on(verb, tenancy::list_orgs),
        Op::CreateOrg => on(verb, tenancy::create_org),
        Op::PatchOrg => on(verb, tenancy::patch_org),
        Op::DeleteOrg => on(verb, tenancy::delete_org),
        Op::Usage => on(verb, tenancy::usage),
        Op::Audit => on(verb, tenancy::audit),
        Op::AuditChain => on(verb, tenancy::audit_chain),
        Op::Events => on(verb, events::of_all),
        Op::ListRunners => on(verb, host::runners),
        Op::CreateJoinToken => on(verb, nodes::token),
        Op::JoinNode => on(verb, nodes::join),
        Op::ListNodes => on(verb, nodes::list),
        Op::GetNode => on(verb, nodes::get),
        Op::PatchNode => on(verb, nodes::patch),
        Op::DeleteNode => on(verb, nodes::delete),
        Op::ListQuarantine => on(verb, quarantine::list),
        Op::AdoptQuarantined => on(verb, quarantine::adopt),
        Op::DeleteQuarantined => on(verb, quarantine::delete),
        Op::PrometheusMetrics => on(verb, host::prometheus),
        Op::Health => on(verb, host::health),
        Op::Ready => on(verb, host::ready),
        Op::OpenApi => on(verb, host::openapi),
        Op::ErrorPage => on(verb, host::error_page),
    }
}

fn planned(what: &str) -> Failure {
    Failure::new(
        ErrorCode::Unsupported,
        format!("{what}: this server cannot do that yet"),
    )
}

async fn nowhere(State(_): State<App>, uri: Uri) -> Response {
    let path: String = uri.path().chars().take(128).collect();
    Failure::new(
        ErrorCode::NotFound,
        format!("there is no route '{}'", path.escape_debug()),
    )
    .hint("GET /openapi.json lists all routes")
    .into_response()
}

async fn wrong_method() -> Response {
    Failure::new(
        ErrorCode::MethodNotAllowed,
        "this route does not take this method",
    )
    .hint("GET /openapi.json lists what each route takes")
    .into_response()
}
