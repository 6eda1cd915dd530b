//! One message of each kind that control and a runner exchange, with every field set, against what was
//! recorded of version 0.

use cove_model::{
    BootTime, Event, EventKind, NetworkPolicy, Resources, ResourcesPatch, SandboxId, SandboxSpec,
    SnapshotId, State,
};
use time::OffsetDateTime;

use super::Request;
use crate::*;

pub fn sandbox() -> SandboxId {
    "sbx_abcdefghijklmnopqrst".parse().expect("an id")
}

fn snapshot() -> SnapshotId {
    "snap_abcdefghijklmnopqrst".parse().expect("an id")
}

fn other_snapshot() -> SnapshotId {
    "snap_bbbbbbbbbbbbbbbbbbbb".parse().expect("an id")
}

fn image() -> cove_model::ImageId {
    "img_abcdefghijklmnopqrst".parse().expect("an id")
}

fn at() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_700_000_000).expect("a date")
}

/// A policy as JSON of version 0 says it.
pub fn policy() -> NetworkPolicy {
    let text = r#"{"mode":"allowlist","allow":["example.com","*.example.org:8443","10.1.0.0/16:22"],
        "bandwidth_up_mbit":10,"bandwidth_down_mbit":20}"#;
    serde_json::from_str(text).expect("a policy")
}

fn resources() -> Resources {
    Resources {
        cpu: 1.5,
        memory_mb: 512,
        memory_max_mb: Some(1024),
        disk_mb: 2048,
        pids: 100,
        open_files: 4096,
        io_read_mb_s: Some(50),
        io_write_mb_s: Some(40),
    }
}

pub fn spec() -> SandboxSpec {
    let text = r#"{"image":"debian","name":"box","isolation":"container","env":{"A":"1"},
        "lifecycle":{"freeze_after_s":60,"pause_after_s":120,"stop_after_s":180,"delete_after_s":240,
            "max_lifetime_s":3600,"auto_resume":false,
            "auto_snapshot":{"every_s":600,"before_exec":true,"keep":3}},
        "labels":{"team":"blue"},"user":"agent","workdir":"/home","no_new_privs":true}"#;
    SandboxSpec {
        resources: resources(),
        network: policy(),
        ..serde_json::from_str(text).expect("a spec")
    }
}

fn owner() -> SandboxOwner {
    SandboxOwner {
        org: "org_abcdefghijklmnopqrst".into(),
        home: true,
    }
}

fn tenant() -> ImageOwner {
    ImageOwner::Tenant {
        org: "org_abcdefghijklmnopqrst".parse().expect("an id"),
        room_bytes: 1 << 30,
    }
}

pub fn requests() -> Vec<(&'static str, Request)> {
    vec![
        (
            "create",
            Request::Create {
                request: Box::new(CreateRequest {
                    id: sandbox(),
                    owner: Some(owner()),
                    spec: spec(),
                    from: Some(FromSnapshot {
                        snapshot: snapshot(),
                        memory: true,
                    }),
                }),
            },
        ),
        ("get", Request::Get { id: sandbox() }),
        ("list", Request::List),
        ("start", Request::Start { id: sandbox() }),
        (
            "stop",
            Request::Stop {
                id: sandbox(),
                grace_ms: 1500,
            },
        ),
        ("delete", Request::Delete { id: sandbox() }),
        (
            "reinstate",
            Request::Reinstate {
                request: Box::new(Reinstate {
                    id: sandbox(),
                    owner: Some(owner()),
                    spec: spec(),
                    image: image(),
                    parent: Some(snapshot()),
                    created_at: at(),
                }),
            },
        ),
        (
            "resize",
            Request::Resize {
                id: sandbox(),
                patch: ResourcesPatch {
                    cpu: Some(2.0),
                    memory_mb: Some(256),
                    memory_max_mb: Some(512),
                    disk_mb: Some(4096),
                    pids: Some(50),
                },
            },
        ),
        ("sample", Request::Sample { id: sandbox() }),
        ("samples", Request::Samples),
        ("connect", Request::Connect { id: sandbox() }),
        (
            "events",
            Request::Events {
                after: 17,
                wait_ms: 1000,
            },
        ),
        ("freeze", Request::Freeze { id: sandbox() }),
        ("pause", Request::Pause { id: sandbox() }),
        ("resume", Request::Resume { id: sandbox() }),
        (
            "snapshot",
            Request::Snapshot {
                request: SnapshotRequest {
                    id: snapshot(),
                    sandbox: sandbox(),
                    memory: true,
                    unless_unchanged: true,
                },
            },
        ),
        ("snapshots", Request::Snapshots),
        ("get-snapshot", Request::GetSnapshot { id: snapshot() }),
        (
            "delete-snapshot",
            Request::DeleteSnapshot { id: snapshot() },
        ),
        (
            "rollback",
            Request::Rollback {
                request: RollbackRequest {
                    sandbox: sandbox(),
                    to: snapshot(),
                    keep: other_snapshot(),
                    memory: true,
                },
            },
        ),
        (
            "export-snapshot",
            Request::ExportSnapshot {
                id: snapshot(),
                plain: false,
            },
        ),
        (
            "import-snapshot",
            Request::ImportSnapshot { id: snapshot() },
        ),
        (
            "image-from-snapshot",
            Request::ImageFromSnapshot {
                id: snapshot(),
                name: "built".into(),
                owner: tenant(),
            },
        ),
        (
            "set-network",
            Request::SetNetwork {
                id: sandbox(),
                policy: policy(),
            },
        ),
        (
            "egress",
            Request::Egress {
                query: EgressQuery {
                    sandbox: sandbox(),
                    after: 3,
                    limit: 10,
                    wait_ms: 100,
                    verdict: Some(EgressVerdict::Denied),
                },
            },
        ),
        ("images", Request::Images),
        (
            "add-image",
            Request::AddImage {
                source: ImageSource::Registry {
                    reference: "registry.example/app:1".into(),
                    username: Some("robot".into()),
                    password: Some("secret".into()),
                },
                owner: tenant(),
            },
        ),
        (
            "add-image-debian",
            Request::AddImage {
                source: ImageSource::Debian,
                owner: ImageOwner::Operator,
            },
        ),
        (
            "add-image-local",
            Request::AddImage {
                source: ImageSource::Local {
                    name: "local".into(),
                    path: "/srv/image.tar".into(),
                },
                owner: ImageOwner::Operator,
            },
        ),
        ("image-job", Request::ImageJob { id: "job-1".into() }),
        (
            "remove-image",
            Request::RemoveImage {
                id: "debian".into(),
            },
        ),
        ("check", Request::Check),
        ("host", Request::Host),
    ]
}

fn view() -> SandboxView {
    SandboxView {
        id: sandbox(),
        state: State::Running,
        reason: Some("resumed".into()),
        spec: spec(),
        limits: resources(),
        image: image(),
        image_env: vec![("PATH".into(), "/bin".into())],
        image_user: Some("agent".into()),
        image_workdir: Some("/home".into()),
        created_at: at(),
        started_at: Some(at()),
        placeholders: Default::default(),
        set_aside: true,
    }
}

fn snapshot_view() -> SnapshotView {
    SnapshotView {
        id: snapshot(),
        sandbox: sandbox(),
        parent: Some(other_snapshot()),
        memory: true,
        image: image(),
        spec: spec(),
        created_at: at(),
        exclusive_bytes: 1,
        shared_bytes: 2,
        counted_bytes: 3,
        memory_bytes: 4,
        stopped_us: 5,
        unfit: Some("another CPU".into()),
        set_aside: Some("damaged".into()),
    }
}

fn boot_time() -> BootTime {
    BootTime {
        boot: "b".into(),
        micros: 99,
    }
}

fn sample() -> Sample {
    Sample {
        at: at(),
        boot_time: Some(boot_time()),
        running: true,
        running_us: Some(7),
        cpu_usec: 1,
        memory_bytes: 2,
        memory_peak_bytes: 3,
        memory_limit_bytes: 4,
        pids: 5,
        oom_kills: 6,
        disk_bytes: 7,
        disk_limit_bytes: 8,
        network_sent_bytes: 9,
        network_received_bytes: 10,
    }
}

fn image_view() -> ImageView {
    ImageView {
        id: image(),
        names: vec!["debian".into()],
        digest: Some("sha256:00".into()),
        size_bytes: 5,
        created_at: at(),
        source: "registry".into(),
        in_use_by: 2,
        config: ImageConfig::default(),
    }
}

fn job() -> ImageJob {
    ImageJob {
        id: "job-1".into(),
        name: "debian".into(),
        state: JobState::Failed,
        stage: "unpacking".into(),
        done_bytes: 3,
        total_bytes: Some(4),
        warnings: vec!["odd".into()],
        image: Some(image_view()),
        error: Some(RunnerError::Internal {
            message: "broken".into(),
        }),
    }
}

fn host() -> HostReport {
    HostReport {
        cpus: 2,
        memory_bytes: 3,
        disk_bytes: 4,
        disk_free_bytes: 5,
        promised_cpu: 1.5,
        promised_memory_bytes: 6,
        promised_disk_bytes: 7,
        sandboxes: 8,
        running: 9,
        warm: 10,
        tiers: vec![TierReport {
            name: "container".into(),
            usable: true,
            capabilities: vec!["memory".into()],
        }],
        findings: vec![Finding {
            name: "cgroups".into(),
            level: Level::Warning,
            message: "version 1".into(),
            fix: Some("use version 2".into()),
        }],
    }
}

fn events() -> EventBatch {
    let kinds = [
        EventKind::State {
            state: State::Stopped,
            reason: Some("asked".into()),
        },
        EventKind::Oom {
            kills: 1,
            limit_mb: 2,
            peak_mb: 3,
        },
        EventKind::MemoryGrown {
            from_mb: 1,
            to_mb: 2,
        },
        EventKind::DiskHeld { limit_mb: 5 },
        EventKind::DiskReleased,
        EventKind::Resized,
        EventKind::NetworkChanged,
        EventKind::Adopted,
        EventKind::Snapshotted {
            snapshot: snapshot(),
            memory: true,
        },
        EventKind::CaptureFailed {
            reason: "busy".into(),
        },
        EventKind::RolledBack {
            to: snapshot(),
            kept: other_snapshot(),
        },
    ];
    let event = |(sequence, kind)| Event {
        sequence,
        at: at(),
        boot_time: Some(boot_time()),
        sandbox: sandbox(),
        kind,
        restated: Some(cove_model::Restated {
            started_at: Some(at()),
        }),
    };
    EventBatch {
        events: (1..).zip(kinds).map(event).collect(),
        next: 12,
        lost: true,
        life: "life".into(),
    }
}

fn egress() -> EgressBatch {
    EgressBatch {
        entries: vec![EgressEntry {
            sequence: 4,
            at: at(),
            protocol: EgressProtocol::Tcp,
            name: Some("example.com".into()),
            address: Some("192.0.2.1".parse().expect("an address")),
            port: Some(443),
            verdict: EgressVerdict::Allowed,
            rule: "example.com".into(),
            sent_bytes: 10,
            received_bytes: 20,
        }],
        next: 5,
        lost: true,
    }
}

fn errors() -> Vec<(&'static str, RunnerError)> {
    let message = || String::from("why");
    vec![
        (
            "error-not-found",
            RunnerError::NotFound {
                what: "sandbox".into(),
                id: "x".into(),
            },
        ),
        (
            "error-already-exists",
            RunnerError::AlreadyExists {
                what: "sandbox".into(),
                id: "x".into(),
            },
        ),
        ("error-invalid", RunnerError::Invalid { message: message() }),
        (
            "error-conflict",
            RunnerError::Conflict {
                request: "freeze".into(),
                state: State::Stopped,
            },
        ),
        ("error-in-use", RunnerError::InUse { message: message() }),
        ("error-unchanged", RunnerError::Unchanged),
        (
            "error-uncapturable",
            RunnerError::Uncapturable {
                process: "p".into(),
                reason: "r".into(),
            },
        ),
        ("error-unfit", RunnerError::Unfit { message: message() }),
        (
            "error-no-capacity",
            RunnerError::NoCapacity {
                resource: "memory".into(),
                message: message(),
            },
        ),
        (
            "error-unsupported",
            RunnerError::Unsupported { message: message() },
        ),
        (
            "error-guest-unreachable",
            RunnerError::GuestUnreachable { message: message() },
        ),
        (
            "error-unreachable",
            RunnerError::Unreachable { message: message() },
        ),
        (
            "error-internal",
            RunnerError::Internal { message: message() },
        ),
    ]
}

/// Every type that is answered with.
pub fn answers() -> Vec<(&'static str, super::frame::Kind, Said)> {
    use super::frame::Kind;
    let mut all = vec![
        ("done-sandbox", Kind::Done, Said::Sandbox(view())),
        ("done-nothing", Kind::Done, Said::Nothing),
        ("done-sample", Kind::Done, Said::Sample(sample())),
        ("done-events", Kind::Done, Said::Events(events())),
        ("done-snapshot", Kind::Done, Said::Snapshot(snapshot_view())),
        (
            "done-rolled-back",
            Kind::Done,
            Said::RolledBack(RolledBack {
                sandbox: view(),
                kept: snapshot_view(),
            }),
        ),
        (
            "done-imported",
            Kind::Done,
            Said::Imported(Imported {
                snapshot: snapshot_view(),
                memory_refused: Some("another CPU".into()),
            }),
        ),
        ("done-egress", Kind::Done, Said::Egress(egress())),
        ("done-image-job", Kind::Done, Said::ImageJob(job())),
        ("done-host", Kind::Done, Said::Host(host())),
        ("more-sandboxes", Kind::More, Said::Sandboxes(vec![view()])),
        (
            "more-samples",
            Kind::More,
            Said::Samples(vec![(sandbox(), sample())]),
        ),
        (
            "done-snapshots",
            Kind::Done,
            Said::Snapshots(vec![snapshot_view()]),
        ),
        ("done-images", Kind::Done, Said::Images(vec![image_view()])),
        ("descriptor", Kind::Descriptor, Said::Nothing),
        ("relay", Kind::Relay, Said::Nothing),
    ];
    let errors = errors().into_iter();
    all.extend(errors.map(|(name, error)| (name, Kind::Error, Said::Error(error))));
    all
}

macro_rules! said {
    ($($variant:ident($type:ty)),* $(,)?) => {
        #[derive(Debug, serde::Serialize)]
        #[serde(untagged)]
        #[allow(clippy::large_enum_variant, reason = "a test makes a few of them")]
        pub enum Said {
            Nothing,
            $($variant($type)),*
        }

        impl Said {
            /// What these bytes say, read as what this is.
            pub fn read_alike(&self, content: &[u8]) -> std::io::Result<Self> {
                Ok(match self {
                    Self::Nothing => {
                        super::frame::parse::<()>(content)?;
                        Self::Nothing
                    }
                    $(Self::$variant(_) => Self::$variant(super::frame::parse(content)?)),*
                })
            }
        }
    };
}

said!(
    Sandbox(SandboxView),
    Sample(Sample),
    Events(EventBatch),
    Snapshot(SnapshotView),
    RolledBack(RolledBack),
    Imported(Imported),
    Egress(EgressBatch),
    ImageJob(ImageJob),
    Host(HostReport),
    Sandboxes(Vec<SandboxView>),
    Samples(Vec<(SandboxId, Sample)>),
    Snapshots(Vec<SnapshotView>),
    Images(Vec<ImageView>),
    Error(RunnerError),
);

#[cfg(test)]
mod tests {
    use cove_wire::frame::RUNNER;
    use cove_wire::recorded;

    use super::super::frame::{self, Kind};
    use super::*;

    const VERSION_0: &str = include_str!("../../../wire/fixtures/v0/runner.txt");

    /// Kind and content of the one frame that the bytes are.
    fn frame_of(bytes: &[u8]) -> (Kind, &[u8]) {
        let head = RUNNER.announced(bytes).expect("a header").expect("whole");
        let (kind, length) = frame::announced(head).expect("a kind");
        let content = &bytes[frame::HEADER..];
        assert_eq!(content.len(), length);
        (kind, content)
    }

    #[test]
    fn requests_of_version_0_mean_what_they_meant() {
        let recorded = recorded::read(VERSION_0);
        for (name, expected) in requests() {
            let (_, bytes) = recorded.iter().find(|(it, _)| *it == name).expect(name);
            let (kind, content) = frame_of(bytes);
            assert_eq!(kind, Kind::Request, "{name}");
            let read: Request = frame::parse(content).expect(name);
            assert_eq!(read, expected, "{name}");
        }
        let known = requests().len() + answers().len();
        assert_eq!(recorded.len(), known, "one is compared with nothing");
    }

    #[test]
    fn answers_of_version_0_mean_what_they_meant() {
        let recorded = recorded::read(VERSION_0);
        for (name, expected_kind, expected) in answers() {
            let (_, bytes) = recorded.iter().find(|(it, _)| *it == name).expect(name);
            let (kind, content) = frame_of(bytes);
            assert_eq!(kind, expected_kind, "{name}");
            let read = expected.read_alike(content).expect(name);
            assert_eq!(format!("{read:?}"), format!("{expected:?}"), "{name}");
        }
    }

    #[test]
    fn fields_that_inform_are_ignored_and_fields_that_restrict_are_refused() {
        let id = sandbox();
        let informed = format!(r#"{{"call":"get","id":"{id}","traced_by":"somebody"}}"#);
        let read: Request = frame::parse(informed.as_bytes()).expect("it only informs");
        assert_eq!(read, Request::Get { id: id.clone() });
        for restricting in [
            format!(r#"{{"call":"set_network","id":"{id}","policy":{{"mode":"open","new":1}}}}"#),
            format!(r#"{{"call":"resize","id":"{id}","patch":{{"cpu":1,"new":1}}}}"#),
            format!(r#"{{"call":"create","request":{{"id":"{id}","spec":{{"new":1}}}}}}"#),
            r#"{"call":"add_image","source":{"type":"debian"},"owner":{"type":"tenant",
                "org":"org_abcdefghijklmnopqrst","room_bytes":1,"new":1}}"#
                .to_owned(),
        ] {
            let read = frame::parse::<Request>(restricting.as_bytes());
            assert!(read.is_err(), "{restricting}");
        }
    }
}
