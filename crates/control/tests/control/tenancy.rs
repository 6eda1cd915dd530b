//! Two organisations never meet, whatever is called.

use cove_control::testing::{GuestKind, ScriptedGuest};
use cove_control::{
    CommandRequest, ControlConfig, ControlError, CreateKey, CreateSandbox, ErrorCode, GuestAction,
    ImageSource, PageRequest, Period, Principal, Quota, SandboxPatch, Scope,
};
use cove_model::{KeyId, NetworkMode, NetworkPolicy, OrgId};
use time::OffsetDateTime;
use tokio::time::timeout;

use crate::support::{DEADLINE, Plane, named};

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
    for id in [&ours.org, &theirs.org, &plane.root.org, &OrgId::random()] {
        let refused = plane.control.remove_organisation(&theirs, id).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
        // A key of the operator's without the scope is as far.
        let manager = plane.key_of(&plane.root.org, Scope::Manage).await;
        let refused = plane.control.remove_organisation(&manager, id).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    }
    plane.control.organisation(&ours, None).await.unwrap();
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

#[tokio::test]
async fn an_organisation_that_has_something_is_not_removed_and_says_what() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("leaving", None).await;
    for name in ["one", "two"] {
        plane.create(&tenant, named(name)).await.unwrap();
    }
    let control = &plane.control;
    let refused = control.remove_organisation(&plane.root, &tenant.org).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InUse);
    assert_eq!(refused.message, "the organisation still has 2 sandboxes");
    let hint = refused.hint.unwrap();
    assert!(
        hint.contains("`cove rm`") && hint.contains(tenant.org.as_str()),
        "{hint}"
    );
    // Its key is as good as before.
    control.delete_sandbox(&tenant, "one").await.unwrap();
    control.delete_sandbox(&tenant, "two").await.unwrap();
    control
        .remove_organisation(&plane.root, &tenant.org)
        .await
        .unwrap();
    let again = control.remove_organisation(&plane.root, &tenant.org).await;
    assert_eq!(again.unwrap_err().code, ErrorCode::NotFound);
}

#[tokio::test]
async fn the_organisation_that_runs_the_installation_stays() {
    let plane = Plane::new().await;
    let home = plane.root.org.clone();
    let refused = plane.control.remove_organisation(&plane.root, &home).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    plane.control.organisation(&plane.root, None).await.unwrap();
    plane.tenant("still-works", None).await;
}

#[tokio::test]
async fn keys_of_a_removed_organisation_end_and_its_name_leads_to_nothing_of_it() {
    let mut plane = Plane::new().await;
    let org = plane.control.create_organisation(&plane.root, "acme", None);
    let org = org.await.unwrap();
    let key = |org: &OrgId| CreateKey {
        name: "admin".into(),
        scopes: vec![Scope::Admin],
        expires_at: None,
        org: Some(org.clone()),
        sandbox: None,
    };
    let old = plane.control.create_key(&plane.root, key(&org.id)).await;
    let old = old.unwrap().token;
    let login = |plane: &Plane, token: &str| {
        let (control, token) = (plane.control.clone(), token.to_owned());
        async move { control.authenticate(&token, Default::default()).await }
    };
    let was = login(&plane, old.reveal()).await.unwrap();
    plane.create(&was, named("agent")).await.unwrap();
    plane.control.delete_sandbox(&was, "agent").await.unwrap();
    let stays = plane.tenant("stays", None).await;
    let others = tokio::spawn(plane.control.admission_of(&stays).ended());
    let leaves = tokio::spawn(plane.control.admission_of(&was).ended());

    let removed = plane.control.remove_organisation(&plane.root, &org.id);
    removed.await.unwrap();
    let ended = timeout(DEADLINE, leaves).await;
    ended.expect("what its key opened ends").unwrap();
    assert!(!others.is_finished());
    others.abort();
    for _ in 0..2 {
        let refused = login(&plane, old.reveal()).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unauthenticated);
        // A request that was admitted before makes nothing any more.
        let late = plane.create(&was, named("late")).await.unwrap_err();
        assert_eq!(late.code, ErrorCode::NotFound);
        let late = plane.control.create_key(&was, key(&org.id)).await;
        assert_eq!(late.unwrap_err().code, ErrorCode::NotFound);
        let late = plane.control.create_key(&plane.root, key(&org.id)).await;
        assert_eq!(late.unwrap_err().code, ErrorCode::NotFound);
        plane.crash().await;
    }

    // Whoever is given the name is somebody else.
    let heir = plane.tenant("acme", None).await;
    assert_ne!(heir.org, org.id);
    let control = &plane.control;
    for which in ["agent", "late"] {
        let missing = control.get_sandbox(&heir, which).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound);
    }
    let page = PageRequest::default();
    let events = control.list_events(&heir, None, 0, 100).await.unwrap();
    assert!(events.is_empty());
    let used = control.usage_by_sandbox(&heir, ever(), &page).await;
    assert!(used.unwrap().items.is_empty());
    let trail = control.audit(&heir, &page).await.unwrap().items;
    assert!(trail.iter().all(|record| record.org == heir.org));
    let keys = control.list_keys(&heir, &page).await.unwrap().items;
    assert_eq!(keys.len(), 1);
    let refused = login(&plane, old.reveal()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unauthenticated);

    // What the old one did is still proven, and who removed it is written down.
    let chains = control
        .verify_audit(&plane.root, &page)
        .await
        .unwrap()
        .items;
    let chain = chains.iter().find(|chain| chain.org == org.id).unwrap();
    assert!(chain.broken.is_none() && chain.verified >= 2, "{chain:?}");
    let trail = control.audit(&plane.root, &page).await.unwrap().items;
    let record = trail
        .iter()
        .find(|record| record.action == "organisation.delete")
        .unwrap();
    assert_eq!(record.target.as_deref(), Some(org.id.as_str()));
    assert_eq!(record.detail.as_deref(), Some("acme"));
    let listed = control.list_organisations(&plane.root, &page).await;
    let mut names: Vec<_> = listed
        .unwrap()
        .items
        .into_iter()
        .map(|org| org.name)
        .collect();
    names.sort();
    assert_eq!(names, ["acme", "default", "stays"]);
}
