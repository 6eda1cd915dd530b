//! What somebody gets who took the control side over: everything it may ask of the runner, with its user id,
//! and nothing that the operator's settings close.

use cove_runner_api::wire::Client;
use cove_runner_api::{CreateRequest, RunnerApi, RunnerError, SandboxOwner};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::harness::Cove;

/// Runs with the user id of the control side, on a thread of its own.
fn as_control<T, F>(cove: &Cove, work: impl FnOnce(Client) -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let data = cove.data_dir();
    let uid = std::fs::metadata(data.join("control")).unwrap().uid();
    let thread = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        // What root alone reads stays closed.
        let refused = std::fs::read(data.join("root.key")).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work(Client::new(data.join("runner.sock"))))
    });
    thread.join().unwrap()
}

fn request(change: serde_json::Value) -> CreateRequest {
    let mut spec = serde_json::json!({
        "image": "busybox",
        "resources": {"cpu": 0.5, "memory_mb": 64, "disk_mb": 256},
    });
    let (Some(spec_fields), Some(changes)) = (spec.as_object_mut(), change.as_object()) else {
        panic!("{change}");
    };
    for (key, value) in changes {
        spec_fields.insert(key.clone(), value.clone());
    }
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let last = char::from(b'a' + NEXT.fetch_add(1, Relaxed) % 26);
    let before = char::from(b'a' + NEXT.load(Relaxed) / 26);
    let id = format!("sbx_{}{before}{last}", "b".repeat(18));
    serde_json::from_value(serde_json::json!({"id": id, "spec": spec})).unwrap()
}

#[test]
fn the_runner_closes_what_the_settings_close_whoever_asks() {
    let cove = Cove::start_with(&["--private-ranges", "10.77.0.0/16"]);
    let allow =
        |entry: &str| serde_json::json!({"network": {"mode": "allowlist", "allow": [entry]}});
    let closed = [
        allow("169.254.169.254"),
        allow("192.168.0.0/16"),
        allow("10.0.0.0/8"),
        allow("10.76.255.0/24:443"),
    ];
    as_control(&cove, move |runner| async move {
        let made = runner.create(request(allow("10.77.3.0/24"))).await.unwrap();
        for policy in closed {
            let wanted = request(policy);
            let refused = runner.create(wanted.clone()).await.unwrap_err();
            assert!(refused.to_string().contains("private_ranges"), "{refused}");
            let changed = runner.set_network(&made.id, wanted.spec.network).await;
            assert!(
                matches!(changed, Err(RunnerError::Unsupported { .. })),
                "{changed:?}"
            );
        }
        let shown = runner.get(&made.id).await.unwrap();
        assert_eq!(shown.spec, made.spec, "nothing was changed");
        let unknown = runner.create(request(allow("preset:nobodys"))).await;
        assert!(unknown.is_err(), "{unknown:?}");
        runner.delete(&made.id).await.unwrap();
        assert_eq!(runner.list().await.unwrap(), []);
    });
}

#[test]
fn presets_with_private_addresses_are_the_home_organisations_unless_they_are_marked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("presets");
    std::fs::write(&file, "[ours]\ndb.example\n10.77.0.0/16:5432\n").unwrap();
    let cove = Cove::start_with(&["--network-presets", file.to_str().unwrap()]);
    let doctor = cove.run(["doctor"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("[ours tenants]"), "{doctor}");
    assert!(cove.log().contains("[ours tenants]"), "{}", cove.log());
    let (home, tenant) = as_control(&cove, |runner| async move {
        let policy =
            serde_json::json!({"network": {"mode": "allowlist", "allow": ["preset:ours"]}});
        let of = |home: bool, change: &serde_json::Value| CreateRequest {
            owner: Some(SandboxOwner {
                org: "org_somebody".into(),
                home,
            }),
            ..request(change.clone())
        };
        let home = runner.create(of(true, &policy)).await.unwrap();
        let refused = runner.create(of(false, &policy)).await.unwrap_err();
        assert!(refused.to_string().contains("10.77.0.0/16"), "{refused}");
        let tenant = runner.create(of(false, &serde_json::json!({}))).await;
        let tenant = tenant.unwrap();
        let wanted = home.spec.network.clone();
        let refused = runner.set_network(&tenant.id, wanted).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("[ours tenants]"), "{refused}");
        let shown = runner.get(&tenant.id).await.unwrap();
        assert_eq!(shown.spec, tenant.spec, "nothing was changed");
        (home, tenant)
    });
    std::fs::write(&file, "[ours tenants]\n10.77.0.0/16:5432\n").unwrap();
    as_control(&cove, move |runner| async move {
        let wanted = home.spec.network.clone();
        runner.set_network(&tenant.id, wanted).await.unwrap();
        for id in [&home.id, &tenant.id] {
            runner.delete(id).await.unwrap();
        }
    });
}

#[test]
fn the_runner_keeps_the_operators_tiers_whoever_asks() {
    let careful = "org_cccccccccccccccccccc";
    let rule = format!("{careful}=gvisor");
    let cove = Cove::start_with(&["--isolation", "container", "--isolation-of", &rule]);
    as_control(&cove, move |runner| async move {
        let of = |org: Option<&str>, isolation: &str| CreateRequest {
            owner: org.map(|org| SandboxOwner {
                org: org.into(),
                home: false,
            }),
            ..request(serde_json::json!({
                "isolation": isolation,
                "resources": {"cpu": 0.5, "memory_mb": 128, "disk_mb": 256},
            }))
        };
        let other = "org_dddddddddddddddddddd";
        for (org, allowed, refused) in [
            (Some(careful), "gvisor", "container"),
            (Some(other), "container", "gvisor"),
            (Some("nonsense"), "container", "gvisor"),
            (None, "container", "gvisor"),
        ] {
            let error = runner.create(of(org, refused)).await.unwrap_err();
            assert!(error.to_string().contains("isolation_of"), "{error}");
            let mut emulated = of(org, "vm");
            emulated.spec.accel = Some(cove_model::Accel::Software);
            emulated.spec.resources.memory_mb = 256;
            let error = runner.create(emulated).await.unwrap_err();
            assert!(error.to_string().contains("isolation_of"), "{error}");
            assert_eq!(runner.list().await.unwrap(), []);
            // What control makes of `auto` is its own affair; here it means nothing.
            runner.create(of(org, "auto")).await.unwrap_err();
            let made = runner.create(of(org, allowed)).await.unwrap();
            assert_eq!(made.spec.isolation, allowed);
            runner.delete(&made.id).await.unwrap();
        }
    });
}

#[test]
fn auto_with_a_runsc_that_does_not_work_is_refused_and_makes_no_container() {
    // One is there and runs, but starts no sandbox; the other cannot be executed.
    for runsc in ["/bin/true", "/etc/passwd"] {
        auto_is_refused_with(runsc);
    }
}

fn auto_is_refused_with(runsc: &str) {
    let cove = Cove::start_with(&["--runsc", runsc]);
    let refused = cove.run(["create", "--image", "busybox", "--isolation", "auto"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    let listed = cove.run(["ls", "--json"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(!listed.contains("sbx_"), "{listed}");
    let made = cove.run(["create", "--image", "busybox", "--isolation", "container"]);
    assert!(made.status.success(), "{made:?}");
    let doctor = cove.run(["doctor"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.contains("sandboxes cannot have isolation gvisor"),
        "{doctor}"
    );
}

#[test]
fn the_runner_keeps_the_hosts_limits_whoever_asks() {
    let cove = Cove::start_with(&["--sandboxes-max", "2", "--warm", "0"]);
    let long = "x".repeat(5000);
    let resources = |change: serde_json::Value| {
        let mut resources = serde_json::json!({"cpu": 0.5, "memory_mb": 64, "disk_mb": 256});
        let fields = resources.as_object_mut().unwrap();
        fields.extend(change.as_object().unwrap().clone());
        serde_json::json!({"resources": resources})
    };
    let too_much = [
        resources(serde_json::json!({"cpu": 1024.0})),
        resources(serde_json::json!({"memory_mb": 16 * 1024 * 1024})),
        resources(serde_json::json!({"disk_mb": 64 * 1024 * 1024})),
        resources(serde_json::json!({"pids": 4_000_000})),
        resources(serde_json::json!({"open_files": 1u64 << 40})),
        serde_json::json!({"name": "../../etc"}),
        serde_json::json!({"name": long}),
        serde_json::json!({"image": long}),
        serde_json::json!({"user": long}),
        serde_json::json!({"workdir": "relative"}),
        serde_json::json!({"isolation": "none"}),
        serde_json::json!({"env": {"A": "x".repeat(200_000)}}),
        serde_json::json!({"env": {"A=B": "x"}}),
        serde_json::json!({"labels": {long.as_str(): "x"}}),
        serde_json::json!({"lifecycle": {"stop_after_s": u64::MAX}}),
        serde_json::json!({"network": {"allow": vec!["example.org"; 300]}}),
    ];
    as_control(&cove, move |runner| async move {
        for spec in too_much {
            let refused = runner.create(request(spec.clone())).await;
            assert!(refused.is_err(), "{spec} was accepted");
        }
        assert_eq!(runner.list().await.unwrap(), []);
        let first = runner.create(request(serde_json::json!({}))).await.unwrap();
        let patch = serde_json::from_value(serde_json::json!({"pids": 4_000_000})).unwrap();
        let refused = runner.resize(&first.id, patch).await.unwrap_err();
        assert!(
            matches!(refused, RunnerError::Unsupported { .. }),
            "{refused}"
        );
        runner.create(request(serde_json::json!({}))).await.unwrap();
        let third = runner
            .create(request(serde_json::json!({})))
            .await
            .unwrap_err();
        assert!(matches!(third, RunnerError::NoCapacity { .. }), "{third}");
    });
}
