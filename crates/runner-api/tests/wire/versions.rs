//! A control side that is newer than the runner: what the runner cannot enforce is refused with the feature's name,
//! and nothing is done.

use cove_model::{NetworkMode, Resources};
use cove_runner_api::wire::needs::{self, FEATURES, SIDE};
use cove_wire::{Feature, Hello, Side};

use super::*;

impl Served {
    fn lacking(missing: Feature) -> Self {
        let rest: Vec<Feature> = FEATURES
            .iter()
            .copied()
            .filter(|it| *it != missing)
            .collect();
        let side = Side {
            features: rest.leak(),
            ..SIDE
        };
        Self::serving(
            side,
            Fake::default(),
            vec![rustix::process::getuid().as_raw()],
        )
    }
}

fn request(spec: SandboxSpec, owner: bool) -> CreateRequest {
    CreateRequest {
        id: SandboxId::random(),
        owner: owner.then(|| SandboxOwner {
            org: "org".into(),
            home: false,
        }),
        spec,
        from: None,
    }
}

/// A spec that needs every feature of a sandbox.
fn full_spec() -> SandboxSpec {
    SandboxSpec {
        resources: Resources {
            memory_max_mb: Some(4096),
            io_read_mb_s: Some(10),
            ..Resources::default()
        },
        network: policy(),
        no_new_privs: true,
        isolation: cove_model::VM_ISOLATION.into(),
        accel: Some(cove_model::Accel::Software),
        identity: Some(cove_model::IdentitySpec::default()),
        secrets: vec![cove_model::secret::SecretGrant {
            name: "token".into(),
            env: Some("TOKEN".into()),
            file: None,
            exposed: false,
        }],
        volumes: vec![cove_model::VolumeMount {
            volume: cove_model::VolumeId::random(),
            path: "/data".into(),
            read_only: false,
        }],
        ..SandboxSpec::default()
    }
}

fn policy() -> NetworkPolicy {
    NetworkPolicy {
        mode: NetworkMode::Open,
        bandwidth_up_mbit: Some(10),
        ..NetworkPolicy::default()
    }
}

fn tenant() -> ImageOwner {
    ImageOwner::Tenant {
        org: cove_model::OrgId::random(),
        room_bytes: 1,
    }
}

fn pull(password: Option<String>) -> ImageSource {
    ImageSource::Registry {
        reference: "registry.example/app".into(),
        username: password.clone(),
        password,
    }
}

fn reinstated() -> Reinstate {
    Reinstate {
        id: SandboxId::random(),
        owner: request(full_spec(), true).owner,
        spec: full_spec(),
        image: cove_model::ImageId::random(),
        parent: None,
        created_at: time::OffsetDateTime::UNIX_EPOCH,
    }
}

/// One secret of an organisation.
async fn secrets(client: &Client, ask: bool, limits: &[&str]) -> cove_model::secret::OrgSecrets {
    let org = cove_model::OrgId::random();
    let binding = cove_model::secret::SecretBinding {
        hosts: vec!["api.example".parse().unwrap()],
        usage: "bearer".parse().unwrap(),
        ask,
        limits: limits.iter().map(|text| text.parse().unwrap()).collect(),
    };
    let secret = cove_model::secret::SealedSecret {
        id: cove_model::SecretId::random(),
        name: "token".into(),
        version: 1,
        binding,
        sealed: "AAAA".into(),
    };
    cove_model::secret::OrgSecrets {
        keys: client.make_secret_keys(&org).await.unwrap(),
        secrets: vec![secret],
    }
}

#[tokio::test]
async fn every_call_that_restricts_is_refused_by_a_runner_that_lacks_the_feature() {
    for missing in FEATURES.iter().copied() {
        let served = Served::lacking(missing);
        let client = served.client();
        let id = SandboxId::random();
        let mut refusals = Vec::new();
        let elsewhere = [
            needs::IMAGE_OWNER,
            needs::REGISTRY_SECRET,
            needs::APPROVALS,
            needs::BUDGETS,
        ];
        let of_sandbox = !elsewhere.contains(&missing);
        if of_sandbox {
            let created = client.create(request(full_spec(), true)).await;
            refusals.push(("create", created.err()));
            let reinstated = client.reinstate(reinstated()).await;
            refusals.push(("reinstate", reinstated.err()));
        }
        if [needs::NETWORK_POLICY, needs::BANDWIDTH].contains(&missing) {
            let set = client.set_network(&id, policy()).await;
            refusals.push(("set network", set.err()));
        }
        if [needs::LIMITS, needs::MEMORY_GROWTH].contains(&missing) {
            let patch = ResourcesPatch {
                memory_max_mb: Some(100),
                ..ResourcesPatch::default()
            };
            refusals.push(("resize", client.resize(&id, patch).await.err()));
        }
        if missing == needs::BUDGETS {
            let secrets = secrets(&client, false, &["requests=1/day"]).await;
            refusals.push(("set secrets", client.set_secrets(secrets).await.err()));
            refusals.push(("budgets wanted", client.budgets_wanted(0).await.err()));
            let granted = client.grant_budgets(Vec::new()).await;
            refusals.push(("grant budgets", granted.err()));
        }
        if missing == needs::APPROVALS {
            let secrets = secrets(&client, true, &[]).await;
            let org = secrets.keys.org.clone();
            refusals.push(("set secrets", client.set_secrets(secrets).await.err()));
            refusals.push(("approvals", client.approvals(&org).await.err()));
            let id = cove_model::ApprovalId::random();
            let decision = cove_model::approval::Decision::Once;
            let decided = client.decide_approval(&org, &id, decision).await;
            refusals.push(("decide", decided.err()));
        }
        if missing == needs::VOLUMES {
            let volume = cove_runner_api::VolumeRequest {
                id: cove_model::VolumeId::random(),
                owner: "org".into(),
                size_mb: 16,
                from: None,
                read_only: false,
            };
            let made = client.create_volume(volume).await;
            refusals.push(("create volume", made.err()));
        }
        if missing == needs::REGISTRY_SECRET {
            let source = pull(Some("secret".into()));
            let added = client.add_image(source, ImageOwner::Operator).await;
            refusals.push(("add image", added.err()));
        }
        if missing == needs::IMAGE_OWNER {
            let added = client.add_image(pull(None), tenant()).await;
            refusals.push(("add image", added.err()));
            let snapshot = SnapshotId::random();
            let made = client.image_from_snapshot(&snapshot, "x", tenant()).await;
            refusals.push(("image from snapshot", made.err()));
        }
        assert!(!refusals.is_empty(), "{missing:?} is needed by nothing");
        for (call, refusal) in refusals {
            let features = vec![missing.name().to_owned()];
            let expected = Some(RunnerError::MissingFeature { features });
            assert_eq!(refusal, expected, "{call} without {missing:?}");
        }
        let made = served.fake.sandboxes.lock().unwrap().len();
        assert_eq!(made, 0, "something was done without {missing:?}");
        // What needs nothing of it goes on.
        client.check().await.unwrap();
        assert_eq!(client.list().await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_sandbox_that_needs_less_is_made_by_a_runner_that_has_less() {
    for missing in [needs::BANDWIDTH, needs::IO_LIMITS, needs::MEMORY_GROWTH] {
        let served = Served::lacking(missing);
        let plain = request(SandboxSpec::default(), false);
        served.client().create(plain).await.unwrap();
    }
}

/// Sends one frame of this kind; the answer's kind and JSON.
async fn ask(served: &Served, kind: u8, content: &[u8]) -> (u8, String) {
    let mut frame = (content.len() as u32).to_le_bytes().to_vec();
    frame.push(kind);
    frame.extend_from_slice(content);
    let mut stream = UnixStream::connect(served.path()).await.unwrap();
    stream.write_all(&frame).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    (
        answer[4],
        String::from_utf8_lossy(&answer[5..]).into_owned(),
    )
}

const REQUEST: u8 = 0;
const DONE: u8 = 1;
const ERROR: u8 = 3;
const OPENING: u8 = 6;

#[tokio::test]
async fn a_policy_with_a_feature_of_the_future_is_refused_before_it_is_read() {
    let served = Served::new(Fake::default());
    let id = served.create().await;
    let before = served.client().get(&id).await.unwrap();
    let hello = Hello {
        needs: vec!["network-policy".into(), "terminate-tls".into()],
        ..SIDE.hello(&cove_wire::Needs::default())
    };
    let mut opening = Vec::new();
    hello.put(&mut opening).unwrap();
    opening.extend(b"\xff what only a later version can read");
    let (kind, answer) = ask(&served, OPENING, &opening).await;
    assert_eq!(kind, ERROR, "{answer}");
    let refusal: RunnerError = serde_json::from_str(&answer).unwrap();
    let features = vec!["terminate-tls".to_owned()];
    assert_eq!(refusal, RunnerError::MissingFeature { features });
    assert_eq!(served.client().get(&id).await.unwrap(), before);
}

#[tokio::test]
async fn a_request_in_the_form_of_a_later_version_is_refused_with_the_versions_there_are() {
    let served = Served::new(Fake::default());
    let mut hello = SIDE.hello(&cove_wire::Needs::default());
    hello.version += 1;
    let mut opening = Vec::new();
    hello.put(&mut opening).unwrap();
    let (kind, answer) = ask(&served, OPENING, &opening).await;
    assert_eq!(kind, ERROR);
    assert!(answer.contains("runner wire"), "{answer}");
    opening.truncate(5);
    let (kind, answer) = ask(&served, OPENING, &opening).await;
    assert_eq!(kind, ERROR);
    assert!(answer.contains("could not be read"), "{answer}");
}

#[tokio::test]
async fn a_request_of_version_0_is_served_and_held_to_what_the_runner_can_enforce() {
    let served = Served::lacking(needs::BANDWIDTH);
    let id = served.create().await;
    let get = format!(r#"{{"call":"get","id":"{id}"}}"#);
    assert_eq!(ask(&served, REQUEST, get.as_bytes()).await.0, DONE);
    let policy = r#"{"mode":"open","bandwidth_up_mbit":5}"#;
    let set = format!(r#"{{"call":"set_network","id":"{id}","policy":{policy}}}"#);
    let (kind, answer) = ask(&served, REQUEST, set.as_bytes()).await;
    assert_eq!(kind, ERROR);
    assert!(answer.contains(r#""code":"missing_feature""#), "{answer}");
}

#[tokio::test]
async fn a_runner_says_which_version_and_features_it_has() {
    let served = Served::new(Fake::default());
    let hello = served.client().hello().await.unwrap();
    assert_eq!(hello, SIDE.hello(&cove_wire::Needs::default()));
}

#[tokio::test]
async fn a_refusal_of_a_later_version_is_told_in_its_own_words() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("runner.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let later = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        let content = br#"{"code":"moved_away","message":"it is on host 2","host":2}"#;
        let mut frame = (content.len() as u32).to_le_bytes().to_vec();
        frame.push(ERROR);
        frame.extend_from_slice(content);
        stream.write_all(&frame).await.unwrap();
        stream.shutdown().await.unwrap();
        // Whatever else was asked is read, so that the answer is not lost.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let refused = Client::new(path).check().await.unwrap_err();
    let RunnerError::Internal { message } = &refused else {
        panic!("{refused:?}");
    };
    assert!(message.contains("moved_away") && message.contains("it is on host 2"));
    later.await.unwrap();
}
