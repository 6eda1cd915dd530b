//! From what the control plane, the host and the guests say to the words of the contract.

use cove_api::file::{ChangeKind, FileChange, FileInfo, FileKind, format_mode};
use cove_api::host::{Finding, Metrics, Port, Runner, Tier};
use cove_api::image::{Image, ImageJob, JobError};
use cove_api::process::{Exit, Process, ProcessKind, TerminalSize};
use cove_api::sandbox::Sandbox;
use cove_api::tenancy::{Amount, AuditChain, AuditRecord, Key, Org, UsageFigures};
use cove_api::{Page, Timestamp, event};
use cove_control as control;
use cove_model::OrgId;
use cove_protocol::identity::Identity;
use cove_protocol::message as guest;

pub fn page<T, U>(page: control::Page<T>, convert: impl FnMut(T) -> U) -> Page<U> {
    let page = page.map(convert);
    Page {
        items: page.items,
        next_cursor: page.next_cursor,
    }
}

pub fn everything<T>(items: Vec<T>) -> Page<T> {
    Page {
        items,
        next_cursor: None,
    }
}

pub fn sandbox(sandbox: control::Sandbox) -> Sandbox {
    let mut spec = sandbox.spec;
    let lease = spec.lifecycle.lease.take();
    let accel = spec.accel_in_force();
    Sandbox {
        id: sandbox.id.to_string(),
        name: spec.name,
        state: sandbox.state,
        reason: sandbox.reason,
        image: spec.image,
        image_id: sandbox.image.map(|image| image.to_string()),
        isolation: spec.isolation,
        accel,
        resources: (&sandbox.limits).into(),
        env: spec.env,
        network: (&spec.network).into(),
        lifecycle: (&spec.lifecycle).into(),
        lease: lease.map(Into::into),
        labels: spec.labels,
        user: spec.user,
        workdir: spec.workdir,
        no_new_privs: spec.no_new_privs,
        identity: spec.identity,
        secrets: spec.secrets,
        volumes: spec.volumes.into_iter().map(Into::into).collect(),
        placement: spec.placement,
        created_at: sandbox.created_at.into(),
        updated_at: sandbox.updated_at.into(),
        started_at: sandbox.started_at.map(Timestamp),
        stopped_at: sandbox.stopped_at.map(Timestamp),
        last_active_at: sandbox.last_active_at.into(),
        generation: sandbox.generation,
        from_snapshot: sandbox.origin.map(Into::into),
        head: sandbox.head.map(Into::into),
        warnings: Vec::new(),
    }
}

mod snapshot;

pub use snapshot::{snapshot, timeline};

pub fn template(row: control::TemplateRecord) -> cove_api::template::Template {
    let spec = row.spec;
    let accel = spec.accel_in_force();
    cove_api::template::Template {
        id: row.id.into(),
        name: row.name,
        version: row.version,
        tags: row.tags,
        snapshot: row.snapshot.into(),
        memory: row.memory,
        lost: row.lost,
        created_at: row.created_at.into(),
        isolation: spec.isolation,
        accel,
        resources: (&spec.resources).into(),
        env: spec.env,
        network: (&spec.network).into(),
        lifecycle: (&spec.lifecycle).into(),
        user: spec.user,
        workdir: spec.workdir,
        no_new_privs: spec.no_new_privs,
        volumes: spec.volumes.into_iter().map(Into::into).collect(),
        placement: spec.placement,
        // Written by this program: what of it is in the settings is left out.
        image: row.config.and_then(|text| serde_json::from_str(&text).ok()),
    }
}

pub fn volume(row: control::VolumeRecord) -> cove_api::volume::Volume {
    cove_api::volume::Volume {
        id: row.id.into(),
        name: row.name,
        size_mb: row.size_mb,
        used_bytes: row.used_bytes,
        read_only: row.read_only,
        from: row.origin.map(Into::into),
        created_at: row.created_at.into(),
        used_by: None,
    }
}

pub fn exit(exit: &guest::Exit) -> Exit {
    Exit {
        exit_code: exit.code,
        signal: (exit.signal != 0).then_some(exit.signal),
        oom: exit.oom,
        timed_out: exit.timed_out,
        duration_ms: exit.duration_ms,
        memory_limit_bytes: exit.oom.then_some(exit.memory_limit_bytes),
        memory_peak_bytes: exit.oom.then_some(exit.memory_peak_bytes),
        stdout_bytes: exit.stdout_bytes,
        stderr_bytes: exit.stderr_bytes,
        hint: None,
    }
}

pub fn process(process: guest::Process) -> Process {
    let identity = Identity::of(&process);
    Process {
        id: process.id,
        pid: process.pid,
        argv: process.argv,
        cwd: process.cwd,
        user: process.user,
        pty: process.pty.map(|pty| TerminalSize {
            cols: pty.cols,
            rows: pty.rows,
        }),
        started_at: Timestamp::from_unix_ms(process.started_unix_ms),
        exit: process.exit.as_ref().map(exit),
        stdout_bytes: process.stdout_bytes,
        stderr_bytes: process.stderr_bytes,
        stdout_oldest: process.stdout_oldest,
        stderr_oldest: process.stderr_oldest,
        kind: match identity.kind {
            guest::ProcessKind::Command => ProcessKind::Command,
            guest::ProcessKind::Terminal => ProcessKind::Terminal,
            guest::ProcessKind::CodeContext => ProcessKind::CodeContext,
            guest::ProcessKind::DialectSession => ProcessKind::DialectSession,
            guest::ProcessKind::Service | guest::ProcessKind::Unknown => ProcessKind::Service,
        },
        owner: Some(identity.owner).filter(|owner| !owner.is_empty()),
        tag: Some(identity.tag).filter(|tag| !tag.is_empty()),
        viewers: process.viewers,
        cpu_ms: process.cpu_ms,
        memory_bytes: process.memory_bytes,
    }
}

pub fn file(file: guest::FileInfo) -> FileInfo {
    let kind = match guest::FileType::try_from(file.r#type) {
        Ok(guest::FileType::File) => FileKind::File,
        Ok(guest::FileType::Directory) => FileKind::Directory,
        Ok(guest::FileType::Symlink) => FileKind::Symlink,
        Ok(guest::FileType::Socket) => FileKind::Socket,
        Ok(guest::FileType::Fifo) => FileKind::Fifo,
        Ok(guest::FileType::Device) => FileKind::Device,
        Ok(guest::FileType::Other) | Err(_) => FileKind::Other,
    };
    FileInfo {
        name: file.name,
        path: file.path,
        kind,
        size: file.size,
        mode: format_mode(file.mode),
        uid: file.uid,
        gid: file.gid,
        owner: file.owner,
        group: file.group,
        modified_at: Timestamp::from_unix_ms(file.modified_unix_ms),
        symlink_target: Some(file.symlink_target).filter(|target| !target.is_empty()),
    }
}

/// `None` for a kind of change this server does not know.
pub fn change(change: guest::Change) -> Option<FileChange> {
    let kind = match guest::ChangeKind::try_from(change.kind).ok()? {
        guest::ChangeKind::Ready => ChangeKind::Ready,
        guest::ChangeKind::Created => ChangeKind::Created,
        guest::ChangeKind::Written => ChangeKind::Written,
        guest::ChangeKind::Removed => ChangeKind::Removed,
        guest::ChangeKind::Renamed => ChangeKind::Renamed,
        guest::ChangeKind::Attributes => ChangeKind::Attributes,
        guest::ChangeKind::Overflow => ChangeKind::Overflow,
    };
    Some(FileChange {
        kind,
        path: change.path,
        from: Some(change.from).filter(|from| !from.is_empty()),
        directory: change.directory,
    })
}

pub fn port(port: guest::Port, url: Option<String>, public: bool) -> Port {
    Port {
        url,
        public,
        port: port.port,
        address: port.address,
        pid: (port.pid != 0).then_some(port.pid),
        process: Some(port.process).filter(|process| !process.is_empty()),
    }
}

pub fn image(image: control::ImageView) -> Image {
    Image {
        id: image.id.to_string(),
        names: image.names,
        digest: image.digest,
        size_bytes: image.size_bytes,
        created_at: image.created_at.into(),
        source: image.source,
        in_use_by: image.in_use_by,
    }
}

pub fn image_job(job: control::ImageJob) -> ImageJob {
    ImageJob {
        id: job.id,
        name: job.name,
        state: job.state,
        stage: job.stage,
        done_bytes: job.done_bytes,
        total_bytes: job.total_bytes,
        warnings: job.warnings,
        image: job.image.map(image),
        error: job.error.map(|error| JobError {
            code: error.code(),
            message: error.to_string(),
        }),
    }
}

pub fn metrics(sample: control::Sample) -> Metrics {
    Metrics {
        at: sample.at.into(),
        running: sample.running,
        cpu_usec: sample.cpu_usec,
        memory_bytes: sample.memory_bytes,
        memory_peak_bytes: sample.memory_peak_bytes,
        memory_limit_bytes: sample.memory_limit_bytes,
        pids: sample.pids,
        oom_kills: sample.oom_kills,
        disk_bytes: sample.disk_bytes,
        disk_limit_bytes: sample.disk_limit_bytes,
        network_sent_bytes: sample.network_sent_bytes,
        network_received_bytes: sample.network_received_bytes,
    }
}

pub fn runner(host: control::HostReport) -> Runner {
    Runner {
        name: "local".into(),
        cpus: host.cpus,
        memory_bytes: host.memory_bytes,
        disk_bytes: host.disk_bytes,
        disk_free_bytes: host.disk_free_bytes,
        promised_cpu: host.promised_cpu,
        promised_memory_bytes: host.promised_memory_bytes,
        promised_disk_bytes: host.promised_disk_bytes,
        sandboxes: host.sandboxes,
        running: host.running,
        warm: host.warm,
        tiers: host
            .tiers
            .into_iter()
            .map(|tier| Tier {
                name: tier.name,
                usable: tier.usable,
                capabilities: tier.capabilities,
            })
            .collect(),
        findings: host.findings.into_iter().map(finding).collect(),
    }
}

fn finding(finding: cove_runner_api::Finding) -> Finding {
    Finding {
        name: finding.name,
        level: finding.level,
        message: finding.message,
        fix: finding.fix,
    }
}

pub fn event(stored: control::StoredEvent) -> event::Event {
    let sandbox = stored.sandbox.to_string();
    event::Event {
        id: stored.sequence,
        at: stored.at.into(),
        sandbox,
        kind: stored.kind,
    }
}

pub fn key(key: control::Key) -> Key {
    Key {
        id: key.id.to_string(),
        org: key.org.to_string(),
        name: key.name,
        scopes: key.scopes,
        created_at: key.created_at.into(),
        expires_at: key.expires_at.map(Timestamp),
        revoked_at: key.revoked_at.map(Timestamp),
        last_used_at: key.last_used_at.map(Timestamp),
        root: key.root,
        sandbox: key.sandbox.map(|id| id.to_string()),
    }
}

pub fn org(org: control::Organisation) -> Org {
    Org {
        id: org.id.to_string(),
        name: org.name,
        quota: Amount {
            sandboxes: org.quota.sandboxes,
            cpu: org.quota.cpu_milli as f64 / 1e3,
            memory_mb: org.quota.memory_mb,
            disk_mb: org.quota.disk_mb,
        },
        used: Amount {
            sandboxes: org.used.sandboxes,
            cpu: org.used.cpu_milli as f64 / 1e3,
            memory_mb: org.used.memory_mb,
            disk_mb: org.used.disk_mb,
        },
        tolerations: org.tolerations,
        created_at: org.created_at.into(),
    }
}

pub fn usage(usage: &control::Usage) -> UsageFigures {
    const MS_PER_HOUR: f64 = 3_600_000.0;
    UsageFigures {
        cpu_seconds: usage.cpu_usec as f64 / 1e6,
        memory_gb_seconds: usage.memory_mib_ms as f64 / 1024.0 / 1e3,
        disk_gb_hours: usage.disk_mib_ms as f64 / 1024.0 / MS_PER_HOUR,
        egress_bytes: usage.egress_bytes,
        estimated_seconds: usage.estimated_ms as f64 / 1e3,
    }
}

pub fn audit(record: control::AuditRecord) -> AuditRecord {
    AuditRecord {
        id: record.sequence,
        at: record.at.into(),
        key: record.key.map(|key| key.to_string()),
        action: record.action,
        target: record.target,
        source: record.source,
        result: record.result,
        request_id: record.request_id,
        detail: record.detail,
        hash: record.hash,
    }
}

/// Where a chain begins and ends, before anybody looks whether it holds.
pub fn audit_ends(org: &OrgId, head: control::AuditHead) -> AuditChain {
    AuditChain {
        org: org.to_string(),
        sequence: head.sequence,
        hash: head.hash,
        anchor_sequence: head.anchor_sequence,
        anchor_hash: head.anchor_hash,
        unchained: head.unchained,
        verified: None,
        broken_at: None,
        broken: None,
    }
}

pub fn audit_chain(found: control::AuditChain) -> AuditChain {
    AuditChain {
        verified: Some(found.verified),
        broken_at: found.broken.as_ref().map(|broken| broken.sequence()),
        broken: found.broken.map(|broken| broken.to_string()),
        ..audit_ends(&found.org, found.head)
    }
}
