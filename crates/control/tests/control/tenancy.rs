//! Two organisations never meet, whatever is called.

use cove_control::testing::{GuestKind, ScriptedGuest};
use cove_control::{
    CommandRequest, ControlConfig, ControlError, CreateKey, CreateSandbox, ErrorCode, GuestAction,
    ImageSource, PageRequest, Period, Principal, Quota, SandboxPatch, Scope,
};
use cove_model::{KeyId, NetworkMode, NetworkPolicy, OrgId};
use time::OffsetDateTime;

use crate::support::{Plane, named};

fn ever() -> Period {
    Period {
        from: OffsetDateTime::UNIX_EPOCH,
        to: OffsetDateTime::from_unix_timestamp(4_000_000_000).unwrap(),
    }
}

/// Every call that names a sandbox, made for `which` by `principal`.
async fn each_call(
    plane: &Plane,
    principal: &Principal,
    which: &str,
) -> Vec<(&'static str, ControlError)> {
    let control = &plane.control;
    let name = SandboxPatch {
        name: Some(Some("stolen".into())),
        ..SandboxPatch::default()
    };
    let mut refused = Vec::new();
    let mut note = |call: &'static str, outcome: Option<ControlError>| {
        let error = outcome.unwrap_or_else(|| panic!("{call} reached {which}"));
        refused.push((call, error));
    };
    note("get", control.get_sandbox(principal, which).await.err());
    note(
        "update",
        control.update_sandbox(principal, which, name).await.err(),
    );
    note(
        "delete",
        control.delete_sandbox(principal, which).await.err(),
    );
    note("start", control.start_sandbox(principal, which).await.err());
    note(
        "stop",
        control.stop_sandbox(principal, which, None).await.err(),
    );
    note(
        "sample",
        control.sample_sandbox(principal, which).await.err(),
    );
    note("usage", control.sandbox_usage(principal, which).await.err());
    note(
        "events",
        control.events(principal, Some(which), None).await.err(),
    );
    note(
        "list events",
        control
            .list_events(principal, Some(which), 0, 10)
            .await
            .err(),
    );
    for action in [
        GuestAction::Exec,
        GuestAction::FileRead,
        GuestAction::PortConnect,
    ] {
        note("guest", control.guest(principal, which, action).await.err());
    }
    let command = CommandRequest::shell("true");
    note("exec", control.exec(principal, which, command).await.err());
    refused
}

#[tokio::test]
async fn another_organisations_sandbox_is_like_one_that_never_was() {
    let plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    let made = plane.create(&ours, named("agent")).await.unwrap().sandbox;
    plane
        .control
        .exec(&ours, "agent", CommandRequest::shell("true"))
        .await
        .unwrap();

    // Also for the organisation that runs the installation: it is a tenant like any other here.
    for stranger in [&theirs, &plane.root] {
        let existing = each_call(&plane, stranger, made.id.as_str()).await;
        let imagined = each_call(&plane, stranger, "sbx_aaaaaaaaaaaaaaaaaaaa").await;
        for ((call, real), (_, unreal)) in existing.iter().zip(&imagined) {
            assert_eq!(real.code, ErrorCode::NotFound, "{call}");
            let hidden = real.message.replace(made.id.as_str(), "X");
            let plain = unreal.message.replace("sbx_aaaaaaaaaaaaaaaaaaaa", "X");
            assert_eq!(hidden, plain, "{call}");
            assert_eq!(
                (&real.hint, real.retry_after_s),
                (&unreal.hint, unreal.retry_after_s)
            );
        }
        for (call, error) in each_call(&plane, stranger, "agent").await {
            assert_eq!(error.code, ErrorCode::NotFound, "{call} by name");
        }
        assert!(plane.all(stranger).await.is_empty());
        assert!(
            plane
                .control
                .list_events(stranger, None, 0, 100)
                .await
                .unwrap()
                .is_empty()
        );
        let used = plane.control.usage(stranger, ever()).await.unwrap();
        assert_eq!(used, cove_control::Usage::default());
        let page = PageRequest::default();
        let by_sandbox = plane.control.usage_by_sandbox(stranger, ever(), &page);
        assert!(by_sandbox.await.unwrap().items.is_empty());
        let audit = plane
            .control
            .audit(stranger, &Default::default())
            .await
            .unwrap();
        assert!(audit.items.iter().all(|record| record.org == stranger.org));
    }
    let still = plane.control.get_sandbox(&ours, "agent").await.unwrap();
    assert_eq!(still.generation, made.generation, "nobody touched it");
    // The same name is free for everybody else.
    plane.create(&theirs, named("agent")).await.unwrap();
}

#[tokio::test]
async fn keys_and_organisations_of_others_cannot_be_reached() {
    let plane = Plane::new().await;
    let (ours, theirs) = (
        plane.tenant("ours", None).await,
        plane.tenant("theirs", None).await,
    );
    let our_key = ours.key.clone().unwrap();
    for id in [our_key.clone(), KeyId::random()] {
        let missing = plane.control.revoke_key(&theirs, &id).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound);
    }
    let listed = plane
        .control
        .list_keys(&theirs, &Default::default())
        .await
        .unwrap();
    assert!(listed.items.iter().all(|key| key.org == theirs.org));
    let foreign = CreateKey {
        name: "mine now".into(),
        scopes: vec![Scope::Admin],
        expires_at: None,
        org: Some(ours.org.clone()),
        sandbox: None,
    };
    let refused = plane
        .control
        .create_key(&theirs, foreign)
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    for id in [&ours.org, &OrgId::random()] {
        let missing = plane
            .control
            .organisation(&theirs, Some(id))
            .await
            .unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound);
        let refused = plane
            .control
            .set_quota(&theirs, id, Quota::default())
            .await
            .unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
    }
    let refused = plane
        .control
        .list_organisations(&theirs, &Default::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    let refused = plane
        .control
        .create_organisation(&theirs, "new", None)
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    assert_eq!(
        plane.control.host(&theirs).await.unwrap_err().code,
        ErrorCode::Forbidden
    );
    let mine = plane.control.organisation(&theirs, None).await.unwrap();
    assert_eq!(mine.id, theirs.org);
}

#[tokio::test]
async fn scopes_open_what_they_say_and_nothing_above() {
    let plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    plane.sandbox("agent").await;
    let key = async |scope| plane.key_of(&plane.root.org, scope).await;
    let code = |outcome: Result<(), ControlError>| outcome.err().map(|error| error.code);
    for scope in Scope::ALL {
        let principal = key(scope).await;
        let control = &plane.control;
        let forbidden = |needed: Scope| (scope < needed).then_some(ErrorCode::Forbidden);
        let read = control.get_sandbox(&principal, "agent").await.map(drop);
        assert_eq!(code(read), forbidden(Scope::Read));
        let usage = control
            .exec(&principal, "agent", CommandRequest::shell("true"))
            .await
            .map(drop);
        assert_eq!(code(usage), forbidden(Scope::Use));
        let start = control.start_sandbox(&principal, "agent").await.map(drop);
        assert_eq!(code(start), forbidden(Scope::Use));
        let manage = plane
            .create(&principal, named(&format!("by-{scope}")))
            .await
            .map(drop);
        assert_eq!(code(manage), forbidden(Scope::Manage));
        let image = control
            .add_image(&principal, ImageSource::Debian)
            .await
            .map(drop);
        assert_eq!(code(image), forbidden(Scope::Manage));
        let admin = control
            .list_keys(&principal, &Default::default())
            .await
            .map(drop);
        assert_eq!(code(admin), forbidden(Scope::Admin));
        assert_eq!(
            code(control.host(&principal).await.map(drop)),
            forbidden(Scope::Admin)
        );
    }
}

#[tokio::test]
async fn networks_of_the_operator_are_not_a_tenants_to_open() {
    let config = ControlConfig {
        tenant_private_ranges: vec!["10.1.0.0/16".parse().unwrap()],
        ..ControlConfig::default()
    };
    let plane = Plane::with(config).await;
    let tenant = plane.tenant("stranger", None).await;
    let create = |who: Principal, name: &str, entry: &str| {
        let mut spec = named(name);
        spec.network = NetworkPolicy {
            mode: NetworkMode::Allowlist,
            allow: Some(vec![entry.parse().unwrap()]),
            ..NetworkPolicy::default()
        };
        let request = CreateSandbox {
            spec,
            ..CreateSandbox::default()
        };
        let control = plane.control.clone();
        async move { control.create_sandbox(&who, request).await }
    };
    for entry in [
        "169.254.169.254",
        "10.0.0.0/8",
        "10.2.0.1:5432",
        "192.168.1.0/24",
    ] {
        let refused = create(tenant.clone(), "box", entry).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden, "{entry}: {refused}");
    }
    assert!(plane.all(&tenant).await.is_empty());
    for (number, entry) in ["10.1.2.0/24", "8.8.8.8", "example.com", "*.example.com:22"]
        .into_iter()
        .enumerate()
    {
        let name = format!("fine-{number}");
        create(tenant.clone(), &name, entry).await.unwrap();
    }
    let patch = SandboxPatch {
        network: Some(NetworkPolicy {
            mode: NetworkMode::Allowlist,
            allow: Some(vec!["10.9.9.9".parse().unwrap()]),
            ..NetworkPolicy::default()
        }),
        ..SandboxPatch::default()
    };
    let refused = plane
        .control
        .update_sandbox(&tenant, "fine-0", patch)
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    // Who owns the host may.
    create(plane.root.clone(), "own", "10.0.0.0/8")
        .await
        .unwrap();
}

#[tokio::test]
async fn registries_beside_the_host_are_not_a_tenants_to_pull_from() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("stranger", None).await;
    let pull = |who: Principal, reference: &str| {
        let source = ImageSource::Registry {
            reference: reference.to_owned(),
            username: None,
            password: None,
        };
        let control = plane.control.clone();
        async move { control.add_image(&who, source).await }
    };
    for reference in [
        "localhost:5000/a",
        "127.0.0.1:5000/a",
        "10.0.0.7/a",
        "169.254.169.254/latest/meta-data",
    ] {
        let refused = pull(tenant.clone(), reference).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden, "{reference}: {refused}");
        pull(plane.root.clone(), reference).await.unwrap();
    }
    for reference in [
        "[::1]:5000/a",
        "[fd00::1]/a",
        "[fe80::1]/a",
        "[::ffff:10.0.0.7]:5000/a",
    ] {
        let refused = pull(tenant.clone(), reference).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden, "{reference}: {refused}");
    }
}
