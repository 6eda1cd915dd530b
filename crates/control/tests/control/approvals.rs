//! Approvals: who may decide about which, and what a host may say of them.

use cove_control::{ErrorCode, Scope};
use cove_model::approval::{Approval, ApprovalState, Decision};
use cove_model::{ApprovalId, SandboxId};

use crate::support::Plane;

fn asked(sandbox: &SandboxId) -> Approval {
    let now = time::OffsetDateTime::now_utc();
    Approval {
        id: ApprovalId::random(),
        sandbox: sandbox.clone(),
        secret: "payments".into(),
        host: "api.example".parse().unwrap(),
        method: "POST".into(),
        path: "/v1/charges".into(),
        body: None,
        state: ApprovalState::Pending,
        waiting: 1,
        asked_at: now,
        expires_at: now,
    }
}

#[tokio::test]
async fn admins_decide_about_their_organisations_sandboxes_and_nobody_else() {
    let plane = Plane::new().await;
    let (control, root) = (&plane.control, &plane.root);
    let sandbox = plane.sandbox("agent").await.id;
    let (own, foreign) = (asked(&sandbox), asked(&SandboxId::random()));
    plane.runner.ask_approval(&root.org, own.clone());
    // A host speaks for its own sandboxes only.
    plane.runner.ask_approval(&root.org, foreign.clone());
    let listed = control.list_approvals(root).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&own));
    let other = plane.tenant("other", None).await;
    assert!(control.list_approvals(&other).await.unwrap().is_empty());
    let mut manager = root.clone();
    manager.scopes = vec![Scope::Manage];
    let mut bound = root.clone();
    bound.sandbox = Some(sandbox.clone());
    for (who, id, code) in [
        (&other, own.id.as_str(), ErrorCode::NotFound),
        (root, foreign.id.as_str(), ErrorCode::NotFound),
        (root, "apr_aaaaaaaaaaaaaaaaaaaa", ErrorCode::NotFound),
        (root, "nonsense", ErrorCode::NotFound),
        (&manager, own.id.as_str(), ErrorCode::Forbidden),
        (&bound, own.id.as_str(), ErrorCode::Forbidden),
    ] {
        let refused = control.decide_approval(who, id, Decision::Once).await;
        assert_eq!(refused.unwrap_err().code, code, "{id}");
    }
    assert!(plane.runner.decided_approvals().is_empty());
    let id = own.id.as_str();
    control
        .decide_approval(root, id, Decision::For(60))
        .await
        .unwrap();
    assert_eq!(
        plane.runner.decided_approvals(),
        [(own.id.clone(), Decision::For(60))]
    );
    let records = plane.audit(root).await;
    let decided = ("approval.decide".to_owned(), "ok".to_owned());
    assert!(records.contains(&decided), "{records:?}");
}
