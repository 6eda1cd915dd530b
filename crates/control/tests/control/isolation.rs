//! Which isolation tier a sandbox gets, and who decides.

use std::sync::Arc;

use cove_control::testing::{Call, Fault};
use cove_control::{CreateSandbox, ErrorCode, SandboxPatch, Source};
use cove_model::{Accel, IdlePolicy, SandboxSpec, TierRule};
use cove_runner_api::RunnerError;
use tokio::sync::Semaphore;

use crate::support::{Plane, sized};

const BOTH: &[(&str, &[&str])] = &[("container", &["memory"]), ("gvisor", &[])];

fn of_tier(isolation: &str) -> SandboxSpec {
    SandboxSpec {
        isolation: isolation.into(),
        ..sized(16)
    }
}

fn rule(tiers: &[&str]) -> TierRule {
    TierRule::of(tiers).unwrap()
}

#[tokio::test]
async fn auto_takes_the_strongest_tier_that_the_host_has_and_the_rule_allows() {
    let mut plane = Plane::new().await;
    let made = plane.create(&plane.root, of_tier("auto")).await.unwrap();
    assert_eq!(made.sandbox.spec.isolation, "container");
    plane.runner.set_tiers(BOTH);
    plane.crash().await;
    let made = plane.create(&plane.root, of_tier("auto")).await.unwrap();
    assert_eq!(made.sandbox.spec.isolation, "gvisor");
    plane
        .runner
        .set_tiers(&[("container", &[]), ("gvisor", &[]), ("vm", &[])]);
    plane.crash().await;
    let made = plane.create(&plane.root, of_tier("auto")).await.unwrap();
    assert_eq!(made.sandbox.spec.isolation, "vm");
    assert_eq!(
        made.sandbox.spec.accel, None,
        "emulation is had by name alone"
    );
    let emulated = |isolation| SandboxSpec {
        accel: Some(Accel::Software),
        ..of_tier(isolation)
    };
    for isolation in ["auto", "container", "gvisor"] {
        let refused = plane.create(&plane.root, emulated(isolation)).await;
        let refused = refused.unwrap_err();
        assert!(refused.message.contains("accel"), "{refused:?}");
    }
    let made = plane.create(&plane.root, emulated("vm")).await.unwrap();
    assert_eq!(made.sandbox.spec.accel, Some(Accel::Software));
    plane
        .crash_with(|config| config.isolation.all = rule(&["auto", "container"]))
        .await;
    let made = plane.create(&plane.root, of_tier("auto")).await.unwrap();
    assert_eq!(made.sandbox.spec.isolation, "container");
}

#[tokio::test]
async fn auto_is_refused_and_never_weakened_when_the_strongest_tier_does_not_boot() {
    let mut plane = Plane::new().await;
    plane.runner.set_tiers(BOTH);
    plane.crash().await;
    for error in [
        RunnerError::Internal {
            message: "runsc did not start".into(),
        },
        RunnerError::NoCapacity {
            resource: "memory".into(),
            message: "none is left".into(),
        },
    ] {
        plane.runner.inject(Call::Create, Fault::Refuse(error));
        let refused = plane.create(&plane.root, of_tier("auto")).await;
        refused.unwrap_err();
        assert!(plane.runner.ids().is_empty(), "a weaker one was made");
    }
    // A host that cannot say which tiers it has makes nothing either.
    plane.crash().await;
    plane.runner.inject(Call::Tiers, Fault::unreachable());
    let refused = plane.create(&plane.root, of_tier("auto")).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::RunnerUnreachable);
    assert!(plane.runner.ids().is_empty());
}

#[tokio::test]
async fn each_organisation_goes_by_its_own_rule() {
    let mut plane = Plane::new().await;
    plane.runner.set_tiers(BOTH);
    let (careful, other) = (
        plane.tenant("careful", None).await,
        plane.tenant("other", None).await,
    );
    let org = careful.org.clone();
    plane
        .crash_with(|config| {
            config.isolation.all = rule(&["container"]);
            config.isolation.of.insert(org, rule(&["gvisor"]));
        })
        .await;
    for (who, allowed, refused) in [
        (&careful, "gvisor", "container"),
        (&other, "container", "gvisor"),
        (&plane.root, "container", "gvisor"),
    ] {
        let base = plane.control.base(who, Source::Image(None)).await.unwrap();
        assert_eq!(base.spec.isolation, allowed, "the default");
        for isolation in [allowed, "auto"] {
            let made = plane.create(who, of_tier(isolation)).await.unwrap();
            assert_eq!(made.sandbox.spec.isolation, allowed);
        }
        let error = plane.create(who, of_tier(refused)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Forbidden);
        let told = format!("allowed: {allowed}");
        assert!(error.message.contains(&told), "{error:?}");
    }
    // A tier that nobody has is no matter of rules.
    plane.runner.set_tiers(&[("container", &[])]);
    plane.crash().await;
    let refused = plane.create(&careful, of_tier("auto")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unsupported);
}

#[tokio::test]
async fn a_repeated_request_gets_its_sandbox_whatever_has_become_of_the_tiers() {
    let mut plane = Plane::new().await;
    plane.runner.set_tiers(BOTH);
    plane.crash().await;
    let request = |isolation: &str, key: &str| CreateSandbox {
        spec: of_tier(isolation),
        idempotency_key: Some(key.into()),
        ..CreateSandbox::default()
    };
    let create = |plane: &Plane, isolation: &str, key: &str| {
        let (control, root) = (plane.control.clone(), plane.root.clone());
        let request = request(isolation, key);
        async move { control.create_sandbox(&root, request).await }
    };
    let by_choice = create(&plane, "auto", "one").await.unwrap().sandbox;
    let by_name = create(&plane, "container", "two").await.unwrap().sandbox;
    plane
        .crash_with(|config| config.isolation.all = rule(&["gvisor"]))
        .await;
    plane.runner.inject(Call::Tiers, Fault::unreachable());
    let again = create(&plane, "auto", "one").await.unwrap();
    assert!(again.replayed && again.sandbox.id == by_choice.id);
    let again = create(&plane, "container", "two").await.unwrap();
    assert!(again.replayed && again.sandbox.id == by_name.id);
    let reused = create(&plane, "container", "one").await.unwrap_err();
    assert_eq!(reused.code, ErrorCode::IdempotencyKeyReused);
    let new = create(&plane, "container", "three").await.unwrap_err();
    assert_eq!(new.code, ErrorCode::Forbidden);
}

#[tokio::test]
async fn pausing_is_refused_for_a_tier_that_cannot_when_a_policy_changes() {
    let mut plane = Plane::new().await;
    plane.runner.set_tiers(BOTH);
    plane.crash().await;
    let pausing = || SandboxPatch {
        lifecycle: Some(IdlePolicy {
            pause_after_s: Some(60),
            ..IdlePolicy::default()
        }),
        ..SandboxPatch::default()
    };
    for (isolation, able) in [("container", true), ("gvisor", false)] {
        let made = plane.create(&plane.root, of_tier(isolation)).await.unwrap();
        let id = made.sandbox.id;
        let outcome = plane
            .control
            .update_sandbox(&plane.root, id.as_str(), pausing())
            .await;
        match able {
            true => drop(outcome.unwrap()),
            false => {
                let refused = outcome.unwrap_err();
                assert_eq!(refused.code, ErrorCode::Unsupported);
                assert!(
                    refused.message.contains("isolation container"),
                    "{refused:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_host_that_is_slow_to_name_its_tiers_holds_up_nobody_else() {
    let mut plane = Plane::new().await;
    plane.runner.set_tiers(BOTH);
    plane.crash().await;
    let gate = Arc::new(Semaphore::new(0));
    let hold = Fault::Hold(Arc::clone(&gate));
    plane.runner.inject(Call::Tiers, hold);
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let waiting = tokio::spawn(async move {
        let request = CreateSandbox {
            spec: of_tier("auto"),
            ..CreateSandbox::default()
        };
        control.create_sandbox(&root, request).await
    });
    while plane.runner.calls(Call::Tiers) == 0 {
        tokio::task::yield_now().await;
    }
    // Neither those that name a tier nor those that ask anew wait for it.
    for isolation in ["container", "auto"] {
        plane.create(&plane.root, of_tier(isolation)).await.unwrap();
    }
    gate.add_permits(1);
    let made = waiting.await.unwrap().unwrap();
    assert_eq!(made.sandbox.spec.isolation, "gvisor");
    let asked = plane.runner.calls(Call::Tiers);
    plane.create(&plane.root, of_tier("auto")).await.unwrap();
    assert_eq!(plane.runner.calls(Call::Tiers), asked, "it is asked once");
}
