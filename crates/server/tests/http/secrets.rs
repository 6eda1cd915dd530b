//! Secrets, as the API takes them in and shows them.

use cove_api::PageQuery;
use cove_api::secret::SetSecret;

use super::harness::{Server, refused};

const CANARY: &str = "sk-canary-0123456789";

fn set(name: &str, value: &str, hosts: &[&str], usage: &str) -> SetSecret {
    SetSecret {
        name: name.into(),
        value: value.into(),
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        usage: usage.into(),
        ask: false,
        limits: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_has_a_value() {
    let server = Server::bare().await;
    let client = &server.client;
    let first = set(
        "github",
        CANARY,
        &["API.example:443", "git.example:8443"],
        "bearer",
    );
    let kept = client.set_secret(&first).await.unwrap();
    assert_eq!(kept.hosts, ["api.example", "git.example:8443"]);
    assert_eq!((kept.version, kept.uses, kept.last_used_at), (1, 0, None));
    let again = client.set_secret(&first).await.unwrap();
    assert_eq!((again.version, &again.id), (2, &kept.id));
    let listed = client.secrets(&PageQuery::default()).await.unwrap();
    assert_eq!(listed.items, std::slice::from_ref(&again));
    let shown = serde_json::to_string(&(kept, listed)).unwrap();
    assert!(!shown.contains(CANARY), "{shown}");
    client.remove_secret("github").await.unwrap();
    let (status, _) = refused(client.remove_secret("github").await);
    assert_eq!(status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_enforced_is_refused_and_changes_nothing() {
    let server = Server::bare().await;
    let client = &server.client;
    let long = "x".repeat(cove_limits::SECRET_VALUE_MAX + 1);
    let many: Vec<String> = (0..17).map(|number| format!("h{number}.example")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let hosts = ["api.example"].as_slice();
    for bad in [
        set("", CANARY, hosts, "bearer"),
        set("a/b", CANARY, hosts, "bearer"),
        set("a", "short", hosts, "bearer"),
        set("a", "line\r\nend-0123", hosts, "bearer"),
        set("a", &long, hosts, "bearer"),
        set("a", CANARY, &[], "bearer"),
        set("a", CANARY, &many, "bearer"),
        set("a", CANARY, &["api.example", "API.example"], "bearer"),
        set("a", CANARY, &["*.example"], "bearer"),
        set("a", CANARY, &["10.0.0.1"], "bearer"),
        set("a", CANARY, &["https://api.example"], "bearer"),
        set("a", CANARY, hosts, "cookie"),
        set("a", CANARY, hosts, "header:host"),
        set("a", CANARY, hosts, "header:x\r\ny"),
    ] {
        let (status, error) = refused(client.set_secret(&bad).await);
        assert_eq!(status, 422, "{bad:?}: {error:?}");
        assert!(!format!("{error:?}").contains(CANARY), "{error:?}");
    }
    let listed = client.secrets(&PageQuery::default()).await.unwrap();
    assert!(listed.items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_in_the_environment_are_warned_of_and_exposed_secrets_are_marked() {
    let server = Server::bare().await;
    let client = &server.client;
    let mut create = cove_api::sandbox::CreateSandbox::default();
    let key = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";
    create.env.insert("GITHUB_TOKEN".into(), key.into());
    create.env.insert("STAGE".into(), "production".into());
    let made = client.create_sandbox(&create, None).await.unwrap();
    let [warning] = &made.warnings[..] else {
        panic!("{:?}", made.warnings);
    };
    for part in [
        "GITHUB_TOKEN",
        "a GitHub token",
        "--secret NAME=GITHUB_TOKEN",
    ] {
        assert!(warning.contains(part), "{warning}");
    }
    assert!(!warning.contains(key), "{warning}");
    let shown = client.sandbox(&made.id).await.unwrap();
    assert_eq!(shown.warnings, Vec::<String>::new());
    let kept = set("plain", CANARY, &[], "exposed");
    assert_eq!(client.set_secret(&kept).await.unwrap().usage, "exposed");
    let exposed = cove_api::sandbox::SecretGrant {
        name: "plain".into(),
        env: Some("PLAIN".into()),
        file: None,
        exposed: true,
    };
    let create = cove_api::sandbox::CreateSandbox {
        secrets: vec![exposed.clone()],
        ..Default::default()
    };
    let made = client.create_sandbox(&create, None).await.unwrap();
    assert_eq!(made.secrets, [exposed]);
    let text = serde_json::to_string(&made).unwrap();
    assert!(
        text.contains("\"exposed\":true") && !text.contains(CANARY),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_asks_is_shown_as_such_and_decisions_are_the_admins() {
    use cove_api::approval::{ApprovalDecision, DecideApproval};
    let server = Server::bare().await;
    let client = &server.client;
    let asks = SetSecret {
        ask: true,
        ..set("payments", CANARY, &["api.example"], "bearer")
    };
    assert!(client.set_secret(&asks).await.unwrap().ask);
    let listed = client.secrets(&PageQuery::default()).await.unwrap();
    assert!(listed.items[0].ask);
    let exposed = SetSecret {
        ask: true,
        ..set("plain", CANARY, &[], "exposed")
    };
    assert_eq!(refused(client.set_secret(&exposed).await).0, 422);
    // An entry of a policy cannot ask.
    let asking = serde_json::json!({"network": {"mode": "allowlist", "allow": ["api.example"], "ask": true}});
    assert!(serde_json::from_value::<cove_api::sandbox::CreateSandbox>(asking).is_err());
    assert!(client.approvals().await.unwrap().items.is_empty());
    let approve = |for_seconds| DecideApproval {
        decision: ApprovalDecision::Approve,
        for_seconds,
    };
    for forged in ["apr_aaaaaaaaaaaaaaaaaaaa", "apr_", "nonsense"] {
        let decided = client.decide_approval(forged, &approve(None)).await;
        assert_eq!(refused(decided).0, 404, "{forged}");
    }
    let id = "apr_aaaaaaaaaaaaaaaaaaaa";
    for wrong in [
        approve(Some(0)),
        approve(Some(cove_limits::APPROVAL_FOR_MAX_S + 1)),
        DecideApproval {
            decision: ApprovalDecision::Deny,
            for_seconds: Some(60),
        },
    ] {
        let decided = client.decide_approval(id, &wrong).await;
        assert_eq!(refused(decided).0, 422, "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_shown_with_what_was_used_and_bad_ones_change_nothing() {
    use cove_api::secret::{BudgetScope, SecretLimit};
    let server = Server::bare().await;
    let client = &server.client;
    let limits = |texts: &[&str]| -> Vec<SecretLimit> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let with = |limits| SetSecret {
        limits,
        ..set("metered", CANARY, &["api.example"], "bearer")
    };
    let texts = ["requests=5/day", "bytes=9/sandbox", "bytes=7/organisation"];
    let kept = client.set_secret(&with(limits(&texts))).await.unwrap();
    let shown: Vec<_> = kept.budgets.iter().map(|it| (it.max, it.used)).collect();
    assert_eq!(shown, [(5, Some(0)), (9, None), (7, Some(0))]);
    let renews = |it: &&cove_api::secret::SecretBudget| it.renews_at.is_some();
    let renewing: Vec<_> = kept
        .budgets
        .iter()
        .filter(renews)
        .map(|it| it.per)
        .collect();
    assert_eq!(renewing, [BudgetScope::Day]);
    let zero = SecretLimit {
        max: 0,
        ..limits(&["requests=1/day"])[0]
    };
    let large = SecretLimit {
        max: cove_limits::SECRET_LIMIT_MAX + 1,
        ..zero
    };
    let exposed = SetSecret {
        limits: limits(&["requests=1/day"]),
        ..set("metered", CANARY, &[], "exposed")
    };
    for bad in [
        with(vec![zero]),
        with(vec![large]),
        with(limits(&["requests=1/day", "requests=2/day"])),
        exposed,
    ] {
        assert_eq!(refused(client.set_secret(&bad).await).0, 422);
    }
    let listed = client.secrets(&PageQuery::default()).await.unwrap();
    assert_eq!(listed.items, [kept]);
    for unknown in [
        r#"{"of":"requests","per":"week","max":1}"#,
        r#"{"of":"calls","per":"day","max":1}"#,
        r#"{"of":"requests","per":"day","max":-1}"#,
        r#"{"of":"requests","per":"day","max":1,"burst":2}"#,
    ] {
        assert!(
            serde_json::from_str::<SecretLimit>(unknown).is_err(),
            "{unknown}"
        );
    }
    // Without limits there are none again.
    let plain = client.set_secret(&with(Vec::new())).await.unwrap();
    assert!(plain.budgets.is_empty());
}
