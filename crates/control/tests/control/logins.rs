//! Logins over SSH: who gets in by what, and that nobody stays longer than that is good.

use std::time::Duration;

use cove_control::{
    AddSshKey, Admission, Clock, ControlError, Origin, Principal, Scope, SshEntry, SshTokenRequest,
};
use tokio::time::timeout;

use crate::support::{DEADLINE, Plane};

const PUBLIC: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

async fn token(plane: &Plane, by: &Principal, expires_s: u64, login_s: Option<u64>) -> String {
    let request = SshTokenRequest {
        expires_s: Some(expires_s),
        login_s,
    };
    let made = plane.control.ssh_token(by, "box", request).await;
    made.expect("a token").token
}

async fn log_in(plane: &Plane, token: &str) -> Result<SshEntry, ControlError> {
    let control = &plane.control;
    control
        .ssh_login_by_token("box", token, Origin::default())
        .await
}

async fn ends(admission: Admission) {
    let ended = timeout(DEADLINE, admission.ended()).await;
    ended.expect("whoever is in has to go");
}

/// That `one` has to go and `other` has not.
async fn only(one: Admission, other: &mut std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) {
    tokio::select! {
        biased;
        () = other => panic!("the wrong one had to go"),
        () = ends(one) => {}
    }
}

#[tokio::test]
async fn a_token_lets_in_for_its_time_and_keeps_in_for_its_own() {
    let plane = Plane::new().await;
    plane.sandbox("box").await;
    let long = token(&plane, &plane.root, 3600, Some(60)).await;
    let brief = token(&plane, &plane.root, 60, None).await;
    let (login, stays) = log_in(&plane, &long).await.expect("in time");
    assert_eq!(login.principal.key, plane.root.key);
    assert!(!login.principal.home && !login.principal.allows(Scope::Manage));
    let mut stays: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(stays.ended());
    let (_, goes) = log_in(&plane, &brief).await.expect("in time");
    plane.clock.advance(Duration::from_secs(61));
    assert!(log_in(&plane, &long).await.is_err(), "too late to log in");
    assert!(log_in(&plane, &brief).await.is_err());
    only(goes, &mut stays).await;
    let control = &plane.control;
    control.revoke_ssh_tokens(&plane.root, "box").await.unwrap();
    timeout(DEADLINE, stays).await.expect("taken back");
}

#[tokio::test]
async fn times_and_keys_of_a_token_cannot_be_changed() {
    let plane = Plane::new().await;
    plane.sandbox("box").await;
    let user = plane.key_of(&plane.root.org, Scope::Use).await;
    let made = token(&plane, &user, 3600, Some(60)).await;
    assert!(log_in(&plane, &made).await.is_ok());
    let parts: Vec<&str> = made.split('.').collect();
    assert_eq!(parts.len(), 6, "{made}");
    let root = plane.root.key.as_ref().unwrap().to_string();
    let later = |text: &str| (text.parse::<i64>().unwrap() + 1).to_string();
    for (place, instead) in [
        (1, "-".to_owned()),
        (1, root),
        (2, later(parts[2])),
        (3, later(parts[3])),
        (4, later(parts[4])),
        (5, parts[5][1..].to_owned()),
    ] {
        let mut forged: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        forged[place] = instead;
        let forged = forged.join(".");
        assert!(log_in(&plane, &forged).await.is_err(), "{forged}");
    }
}

#[tokio::test]
async fn logins_end_with_the_key_that_made_their_token_or_that_they_were_by() {
    let plane = Plane::new().await;
    plane.sandbox("box").await;
    let control = &plane.control;
    let user = plane.key_of(&plane.root.org, Scope::Use).await;
    let made = token(&plane, &user, 3600, None).await;
    let (_, by_token) = log_in(&plane, &made).await.unwrap();
    let add = AddSshKey {
        name: "laptop".into(),
        public_key: PUBLIC.into(),
        expires_at: None,
    };
    let key = control.add_ssh_key(&plane.root, add).await.unwrap();
    let by_key = control.ssh_login_by_key("box", &key.fingerprint, Origin::default());
    let (_, by_key) = by_key.await.unwrap();
    let mut by_key: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(by_key.ended());

    let gone = user.key.as_ref().unwrap();
    control.revoke_key(&plane.root, gone).await.unwrap();
    only(by_token, &mut by_key).await;
    assert!(log_in(&plane, &made).await.is_err());

    control.remove_ssh_key(&plane.root, &key.id).await.unwrap();
    timeout(DEADLINE, by_key).await.expect("removed");
    let again = control.ssh_login_by_key("box", &key.fingerprint, Origin::default());
    assert!(again.await.is_err());
}

#[tokio::test]
async fn a_login_by_a_key_that_expires_ends_by_the_clock() {
    let plane = Plane::new().await;
    plane.sandbox("box").await;
    let control = &plane.control;
    let add = AddSshKey {
        name: "laptop".into(),
        public_key: PUBLIC.into(),
        expires_at: Some(plane.clock.now() + Duration::from_secs(60)),
    };
    let key = control.add_ssh_key(&plane.root, add).await.unwrap();
    let login = control.ssh_login_by_key("box", &key.fingerprint, Origin::default());
    let (_, admission) = login.await.unwrap();
    plane.clock.advance(Duration::from_secs(61));
    ends(admission).await;
}
