//! Tokens for one sandbox: good for what they were made for, and as long as the key that asked for them.

use cove_control::{ErrorCode, GuestAction, Origin, Scope};

use crate::support::Plane;

const PURPOSE: &str = "test";

#[tokio::test]
async fn a_token_opens_one_sandbox_for_one_purpose() {
    let plane = Plane::new().await;
    let (one, two) = (plane.sandbox("one").await, plane.sandbox("two").await);
    let control = &plane.control;
    let token = control.access_token(&plane.root, &one.id, PURPOSE).unwrap();
    let again = control.access_token(&plane.root, &one.id, PURPOSE).unwrap();
    assert_eq!(token, again);

    let holder = control.token_holder(&one.id, &token, PURPOSE, Origin::default());
    let holder = holder.await.unwrap();
    assert_eq!(
        (&holder.org, &holder.key),
        (&plane.root.org, &plane.root.key)
    );
    // An admin's key, but what it gave away lets nobody manage anything.
    assert!(holder.allows(Scope::Use) && !holder.allows(Scope::Manage) && !holder.home);
    let refused = control.delete_sandbox(&holder, one.id.as_str()).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);

    let (key, tag) = token.split_once('.').unwrap();
    let other = if tag.starts_with('A') { 'B' } else { 'A' };
    let forged = format!("{key}.{other}{}", &tag[1..]);
    let borrowed = format!("key_aaaaaaaaaaaaaaaaaaaa.{tag}");
    for (id, shown, purpose) in [
        (&two.id, token.as_str(), PURPOSE),
        (&one.id, token.as_str(), "another"),
        (&one.id, forged.as_str(), PURPOSE),
        (&one.id, borrowed.as_str(), PURPOSE),
        (&one.id, tag, PURPOSE),
        (&one.id, "", PURPOSE),
        (&one.id, &"x.".repeat(500), PURPOSE),
    ] {
        let refused = control.token_holder(id, shown, purpose, Origin::default());
        let error = refused.await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unauthenticated, "{shown} for {id}");
    }
}

#[tokio::test]
async fn a_token_ends_with_its_key_and_with_its_sandbox() {
    let plane = Plane::new().await;
    let one = plane.sandbox("one").await;
    let control = &plane.control;
    let user = plane.key_of(&plane.root.org, Scope::Use).await;
    let token = control.access_token(&user, &one.id, PURPOSE).unwrap();
    let holder = || control.token_holder(&one.id, &token, PURPOSE, Origin::default());
    let asked = holder().await.unwrap();
    control
        .guest(&asked, one.id.as_str(), GuestAction::FileRead)
        .await
        .unwrap();

    let key = user.key.clone().unwrap();
    control.revoke_key(&plane.root, &key).await.unwrap();
    assert_eq!(holder().await.unwrap_err().code, ErrorCode::Unauthenticated);

    let token = control.access_token(&plane.root, &one.id, PURPOSE).unwrap();
    control
        .delete_sandbox(&plane.root, one.id.as_str())
        .await
        .unwrap();
    let gone = control.token_holder(&one.id, &token, PURPOSE, Origin::default());
    assert_eq!(gone.await.unwrap_err().code, ErrorCode::NotFound);
}

#[tokio::test]
async fn readers_are_given_no_token() {
    let plane = Plane::new().await;
    let one = plane.sandbox("one").await;
    let reader = plane.key_of(&plane.root.org, Scope::Read).await;
    let refused = plane.control.access_token(&reader, &one.id, PURPOSE);
    assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
}

#[tokio::test]
async fn what_was_made_with_a_token_is_found_among_all_there_are() {
    let plane = Plane::new().await;
    let (one, two) = (plane.sandbox("one").await, plane.sandbox("two").await);
    let control = &plane.control;
    let user = plane.key_of(&plane.root.org, Scope::Use).await;
    for (id, holder) in [(&one.id, &plane.root), (&two.id, &user)] {
        let token = control.access_token(holder, id, PURPOSE).unwrap();
        let at = control.token_at(id, PURPOSE, |other| other == token).await;
        assert_eq!(at.unwrap(), Some(token.clone()));
        let found = found(control, &token).await;
        assert_eq!(found.unwrap(), Some((id.clone(), token)));
    }
    let token = control.access_token(&user, &one.id, "another").unwrap();
    let at = control.token_at(&one.id, PURPOSE, |other| other == token);
    assert_eq!(at.await.unwrap(), None);
    assert_eq!(found(control, &token).await.unwrap(), None);
}

async fn found(
    control: &cove_control::Control,
    token: &str,
) -> Result<Option<(cove_model::SandboxId, String)>, cove_control::ControlError> {
    let origin = Origin::default();
    let fits = |other: &str| other == token;
    control
        .token_that(PURPOSE, token.as_bytes(), &origin, fits)
        .await
}

#[tokio::test]
async fn a_link_that_was_found_or_names_its_sandbox_costs_the_same_however_many_there_are() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let plane = Plane::new().await;
    let control = &plane.control;
    let mut compared = Vec::new();
    for count in [1, 30] {
        let mut last = None;
        for number in 0..count {
            last = Some(plane.sandbox(&format!("box-{count}-{number}")).await);
        }
        let last = last.unwrap();
        let token = control
            .access_token(&plane.root, &last.id, PURPOSE)
            .unwrap();
        let asked = AtomicUsize::new(0);
        let fits = |other: &str| {
            asked.fetch_add(1, Relaxed);
            other == token
        };
        let named = control.token_at(&last.id, PURPOSE, fits).await.unwrap();
        assert_eq!(named.as_ref(), Some(&token));
        let by_name = asked.swap(0, Relaxed);
        let origin = Origin::default();
        let search = async || {
            control
                .token_that(PURPOSE, token.as_bytes(), &origin, fits)
                .await
        };
        assert!(search().await.unwrap().is_some());
        asked.store(0, Relaxed);
        assert!(search().await.unwrap().is_some());
        compared.push((by_name, asked.load(Relaxed)));
    }
    assert_eq!(compared[0], compared[1], "named, and found before");
}

#[tokio::test]
async fn an_address_that_guesses_links_is_put_off_and_others_are_not() {
    let plane = Plane::new().await;
    plane.sandbox("one").await;
    let from = |source: &str| Origin {
        source: Some(source.into()),
        request_id: None,
    };
    let guess = async |source: &str, number: u32| {
        let mark = number.to_be_bytes();
        let origin = from(source);
        plane
            .control
            .token_that(PURPOSE, &mark, &origin, |_| false)
            .await
    };
    let mut refused = None;
    for number in 0..100 {
        if let Err(error) = guess("192.0.2.1", number).await {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused.unwrap().code, ErrorCode::RateLimited);
    assert_eq!(guess("192.0.2.2", 1000).await.unwrap(), None);
}
