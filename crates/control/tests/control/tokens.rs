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
        let found = control.token_that(PURPOSE, |other| other == token).await;
        assert_eq!(found.unwrap(), Some((id.clone(), token)));
    }
    let token = control.access_token(&user, &one.id, "another").unwrap();
    let found = control.token_that(PURPOSE, |other| other == token).await;
    assert_eq!(found.unwrap(), None);
}
