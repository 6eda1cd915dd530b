//! One example of every body that a request can have. A test reads each as the type of its route.

use serde_json::{Value, json};

use crate::route::Operation as Op;

/// The body of a request; `None` where the operation takes none.
pub fn request(operation: Op) -> Option<Value> {
    Some(match operation {
        Op::CreateSandbox => json!({
            "image": "debian",
            "name": "agent-7",
            "resources": {"cpu": 1.0, "memory_mb": 512, "disk_mb": 2048},
            "network": {"mode": "allowlist", "allow": ["preset:packages"]},
            "lifecycle": {"pause_after_s": 600},
            "labels": {"team": "research"},
        }),
        Op::PatchSandbox => {
            json!({"resources": {"memory_mb": 1024}, "labels": {"team": "research"}})
        }
        Op::TakeLease => json!({"holder": "worker-3", "renew_within_s": 300}),
        Op::RenewLeases => {
            json!({"holder": "worker-3", "sandboxes": ["sbx_abcdefghijklmnop2345"]})
        }
        Op::StopSandbox => json!({"grace_ms": 5000}),
        Op::TakeSnapshot => json!({"name": "before", "memory": true}),
        Op::ForkSandbox | Op::ForkSnapshot => json!({"count": 2, "name": "copy"}),
        Op::RollbackSandbox => json!({"snapshot": "before"}),
        Op::Exec => json!({"command": "echo $((6 * 7))", "timeout_ms": 10_000}),
        Op::StartProcess => json!({"argv": ["python3", "-m", "http.server", "8000"]}),
        Op::StartService => json!({
            "name": "web", "argv": ["python3", "-m", "http.server", "8000"], "restart": "always",
        }),
        Op::SignalProcess => json!({"signal": "TERM"}),
        Op::ResizeProcess => json!({"cols": 80, "rows": 24}),
        Op::MakeDirectory | Op::MakeVolumeDirectory => {
            json!({"path": "/srv/data", "parents": true})
        }
        Op::MoveFile | Op::MoveVolumeFile => json!({"from": "/srv/old", "to": "/srv/new"}),
        Op::ChangeMode | Op::ChangeVolumeMode => json!({"path": "/srv/run.sh", "mode": "0755"}),
        Op::CreateCodeContext => json!({"language": "python"}),
        Op::RunCode => json!({"code": "1 + 1", "language": "python"}),
        Op::SharePort => json!({"expires_s": 3600}),
        Op::SshToken => json!({"expires_s": 3600}),
        Op::IdentityToken => json!({"audience": "sts.amazonaws.com"}),
        Op::RotateIdentity => json!({"at_once": false}),
        Op::AddImage => json!({"type": "registry", "reference": "docker.io/library/python:3.12"}),
        Op::CreateVolume => json!({"name": "cache", "size_mb": 2048}),
        Op::CreateTemplate => json!({"name": "python", "snapshot": "before"}),
        Op::CreateBuild => json!({
            "name": "python",
            "dockerfile": "FROM debian\nRUN apt-get update && apt-get install -y ripgrep\n",
        }),
        Op::CreateKey => json!({"name": "ci", "scopes": ["use"], "expires_in_s": 2_592_000}),
        Op::AddSshKey => json!({
            "name": "laptop",
            "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJvb2tzaGVsZmJvb2tzaGVsZmJvb2tzaGVsZmJvb2tz",
        }),
        Op::SetSecret => json!({
            "name": "github", "value": "ghp_example", "hosts": ["api.github.com"], "use": "bearer",
        }),
        Op::DecideApproval => json!({"decision": "approve", "for_seconds": 3600}),
        Op::CreateOrg => json!({"name": "research", "quota": {"sandboxes": 50}}),
        Op::PatchOrg => json!({"quota": {"sandboxes": 100}}),
        Op::CreateJoinToken => json!({"valid_s": 3600}),
        Op::JoinNode => json!({
            "token": "0123456789abcdef", "host": "host_0123456789abcdef0123", "name": "node-2",
            "address": "192.0.2.12:7071", "public_key": "04…", "proof": "…",
        }),
        Op::PatchNode => json!({
            "zone": "eu-1", "labels": {"gpu": "h100", "old": null}, "taints": {"research": true}
        }),
        Op::AdoptQuarantined => json!({}),
        _ => return None,
    })
}

/// Of a schema of the document, by its name.
pub fn schema(name: &str) -> Option<Value> {
    Some(match name {
        "ErrorBody" => json!({"error": {
            "code": "not_found",
            "message": "there is no sandbox 'agent-7'",
            "hint": "`cove ls` lists sandboxes",
            "request_id": "req_0123456789abcdef",
            "docs": "/docs/errors/not_found",
        }}),
        "ExecResult" => json!({
            "exit_code": 0, "oom": false, "timed_out": false, "duration_ms": 3,
            "stdout_bytes": 3, "stderr_bytes": 0, "stdout": "42\n", "stderr": "",
            "encoding": "text", "truncated": false, "process": "prc_abcdefghijklmnop2345",
        }),
        _ => return None,
    })
}
