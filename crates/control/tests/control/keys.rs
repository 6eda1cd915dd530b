//! Keys, rate limits, audit.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use cove_control::{
    ApiToken, Clock, ControlConfig, CreateKey, ErrorCode, Origin, RateLimit, SandboxPatch, Scope,
};

use crate::support::{Plane, named, quick, wait};

fn request(scopes: Vec<Scope>) -> CreateKey {
    CreateKey {
        name: "ci".into(),
        scopes,
        expires_at: None,
        org: None,
        sandbox: None,
    }
}

#[tokio::test]
async fn a_key_works_until_it_is_revoked() {
    let plane = Plane::new().await;
    let new = plane
        .control
        .create_key(&plane.root, request(vec![Scope::Use, Scope::Use]))
        .await
        .unwrap();
    assert_eq!(new.key.scopes, [Scope::Use]);
    let principal = plane
        .control
        .authenticate(new.token.reveal(), Origin::default())
        .await
        .unwrap();
    assert_eq!(principal.key.as_ref(), Some(&new.key.id));
    assert!(principal.allows(Scope::Read) && !principal.allows(Scope::Manage));
    let listed = plane
        .control
        .list_keys(&plane.root, &Default::default())
        .await
        .unwrap();
    let text = serde_json::to_string(&listed.items).unwrap();
    assert!(!text.contains(new.token.reveal()) && !text.contains(new.token.hash().as_str()));
    plane
        .control
        .revoke_key(&plane.root, &new.key.id)
        .await
        .unwrap();
    let refused = plane
        .control
        .authenticate(new.token.reveal(), Origin::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unauthenticated);
}

#[tokio::test]
async fn wrong_expired_and_revoked_keys_get_the_same_answer() {
    let plane = Plane::new().await;
    let soon = CreateKey {
        expires_at: Some(plane.clock.now() + Duration::from_secs(60)),
        ..request(vec![Scope::Read])
    };
    let expiring = plane.control.create_key(&plane.root, soon).await.unwrap();
    let login = async |token: &str| plane.control.authenticate(token, Origin::default()).await;
    login(expiring.token.reveal()).await.unwrap();
    plane.clock.advance(Duration::from_secs(60));
    let expired = login(expiring.token.reveal()).await.unwrap_err();
    let unknown = login(ApiToken::random().reveal()).await.unwrap_err();
    let garbage = login("'; DROP TABLE api_keys; --").await.unwrap_err();
    for refused in [&expired, &unknown, &garbage] {
        assert_eq!(refused.code, ErrorCode::Unauthenticated);
        assert_eq!(refused.to_string(), expired.to_string());
    }
}

#[tokio::test]
async fn odd_keys_are_refused() {
    let plane = Plane::new().await;
    let past = CreateKey {
        expires_at: Some(plane.clock.now()),
        ..request(vec![Scope::Read])
    };
    let nameless = CreateKey {
        name: String::new(),
        ..request(vec![Scope::Read])
    };
    let long = CreateKey {
        name: "x".repeat(1000),
        ..request(vec![Scope::Read])
    };
    for bad in [request(Vec::new()), past, nameless, long] {
        let refused = plane
            .control
            .create_key(&plane.root, bad)
            .await
            .unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest);
    }
}

#[tokio::test]
async fn each_key_has_its_own_rate() {
    let limit = RateLimit {
        per_second: 2.0,
        burst: 3.0,
    };
    let plane = Plane::with(ControlConfig {
        rate_limit: limit,
        ..quick()
    })
    .await;
    let one = plane
        .control
        .create_key(&plane.root, request(vec![Scope::Read]))
        .await
        .unwrap();
    let two = plane
        .control
        .create_key(&plane.root, request(vec![Scope::Read]))
        .await
        .unwrap();
    let login = async |token: &ApiToken| {
        plane
            .control
            .authenticate(token.reveal(), Origin::default())
            .await
    };
    for _ in 0..3 {
        login(&one.token).await.unwrap();
    }
    let limited = login(&one.token).await.unwrap_err();
    assert_eq!(limited.code, ErrorCode::RateLimited);
    assert_eq!(limited.retry_after_s, Some(1));
    login(&two.token).await.unwrap();
    plane.clock.advance(Duration::from_millis(500));
    login(&one.token).await.unwrap();
}

#[tokio::test]
async fn every_change_is_on_record_with_who_and_where_refused_ones_too() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("tenant", None).await;
    let reader = plane.key_of(&tenant.org, Scope::Read).await;
    let made = plane.create(&tenant, named("agent")).await.unwrap().sandbox;
    plane.create(&tenant, named("agent")).await.unwrap_err();
    plane.create(&reader, named("more")).await.unwrap_err();
    let patch = SandboxPatch {
        name: Some(Some("b".into())),
        ..SandboxPatch::default()
    };
    plane
        .control
        .update_sandbox(&tenant, "agent", patch)
        .await
        .unwrap();
    plane
        .control
        .stop_sandbox(&tenant, "b", None)
        .await
        .unwrap();
    plane.control.start_sandbox(&tenant, "b").await.unwrap();
    plane
        .control
        .delete_sandbox(&tenant, "missing")
        .await
        .unwrap_err();
    plane.control.delete_sandbox(&tenant, "b").await.unwrap();
    let mut trail = plane.audit(&tenant).await;
    trail.reverse();
    let expected = [
        ("sandbox.create", "ok"),
        ("sandbox.create", "already_exists"),
        ("sandbox.create", "forbidden"),
        ("sandbox.update", "ok"),
        ("sandbox.stop", "ok"),
        ("sandbox.start", "ok"),
        ("sandbox.delete", "not_found"),
        ("sandbox.delete", "ok"),
    ];
    assert_eq!(
        trail,
        expected.map(|(action, result)| (action.to_owned(), result.to_owned()))
    );
    let records = plane
        .control
        .audit(&tenant, &Default::default())
        .await
        .unwrap()
        .items;
    let first = records.last().unwrap();
    assert_eq!(first.target.as_deref(), Some(made.id.as_str()));
    assert_eq!(first.source.as_deref(), Some("192.0.2.1"));
    assert_eq!(first.request_id.as_deref(), Some("req-1"));
    assert_eq!(first.key, tenant.key);
    let of_operator = plane.audit(&plane.root).await;
    assert!(of_operator.contains(&("organisation.create".into(), "ok".into())));
    assert!(of_operator.contains(&("key.create".into(), "ok".into())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_at_once_leave_as_many_records() {
    let plane = Plane::new().await;
    let calls: Vec<_> = (0..60)
        .map(|number| {
            let (control, root) = (plane.control.clone(), plane.root.clone());
            tokio::spawn(async move {
                let request = cove_control::CreateSandbox {
                    spec: named(&format!("n{number}")),
                    idempotency_key: None,
                    ..cove_control::CreateSandbox::default()
                };
                control.create_sandbox(&root, request).await.unwrap();
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    let created = plane.audit(&plane.root).await;
    assert_eq!(
        created
            .iter()
            .filter(|(action, _)| action == "sandbox.create")
            .count(),
        60
    );
}

/// Lets a call go on until it was woken `times` times, then gives it up.
async fn cut_off(call: impl Future, times: usize) {
    let mut call = pin!(call);
    let mut polls = 0;
    poll_fn(|cx| {
        let over = call.as_mut().poll(cx).is_ready() || polls == times;
        polls += 1;
        if over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_callers_go_away_are_on_record_once() {
    let plane = Plane::new().await;
    // Refused at once, so that the first thing to wait for is the record.
    let reader = plane.key_of(&plane.root.org, Scope::Read).await;
    let mut names = Vec::new();
    for round in 0..20 {
        for times in 0..3 {
            let name = format!("cut-{round}-{times}");
            let call = plane.control.create_key(
                &reader,
                CreateKey {
                    name: name.clone(),
                    ..request(vec![Scope::Read])
                },
            );
            cut_off(call, times).await;
            names.push(name);
        }
        // More refusals in one minute would only be counted.
        plane.clock.advance(Duration::from_secs(60));
    }
    let page = cove_control::PageRequest {
        limit: 1000,
        cursor: None,
    };
    let targets = async || {
        let found = plane.control.audit(&plane.root, &page).await.unwrap();
        let targets = found.items.into_iter().filter_map(|record| record.target);
        targets.collect::<Vec<_>>()
    };
    wait(|| async {
        let targets = targets().await;
        names
            .iter()
            .all(|name| targets.contains(name))
            .then_some(())
    })
    .await;
    // What a call left behind would be written with the next one.
    plane.create(&reader, named("last")).await.unwrap_err();
    let targets = targets().await;
    for name in &names {
        let records = targets.iter().filter(|target| *target == name);
        assert_eq!(records.count(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_bound_key_visits_ports_of_its_own_sandbox_only() {
    let plane = Plane::new().await;
    let (own, other) = (plane.sandbox("own").await, plane.sandbox("other").await);
    let bound = CreateKey {
        sandbox: Some("own".into()),
        ..request(vec![Scope::Use])
    };
    let new = plane.control.create_key(&plane.root, bound).await.unwrap();
    let token = new.token.reveal();
    let visit = |id| {
        let pass = cove_control::Pass::Key(token);
        plane.control.visit(id, 80, pass, Origin::default())
    };
    assert!(visit(&own.id).await.is_ok());
    let refused = visit(&other.id).await.map(drop).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound, "{refused:?}");
    // What does not ask for bound keys does not get them.
    let asked = plane.control.authenticate(token, Origin::default()).await;
    assert_eq!(asked.unwrap_err().code, ErrorCode::Forbidden);
}
