//! Budgets of secrets: what hosts are granted, over days, crashes and lies.

use std::time::Duration;

use cove_control::{SetSecret, Zeroizing};
use cove_model::secret::{BudgetUnit, SecretGrant};
use cove_model::{NetworkMode, NetworkPolicy, SandboxId, SandboxSpec};
use cove_runner_api::{BudgetBack, BudgetGrant, BudgetNeed, BudgetsWanted};

use crate::support::{Plane, named};

const DAY: Duration = Duration::from_secs(86_400);

struct Metered {
    plane: Plane,
    sandbox: SandboxId,
}

impl Metered {
    async fn new(limits: &[&str]) -> Self {
        let mut plane = Plane::new().await;
        plane.go();
        plane
            .control
            .set_secret(&plane.root, secret(limits))
            .await
            .unwrap();
        let sandbox = create(&plane, "metered").await;
        Self { plane, sandbox }
    }

    fn need(&self, need: u64) -> BudgetNeed {
        BudgetNeed {
            org: self.plane.root.org.clone(),
            secret: "metered".into(),
            of: BudgetUnit::Requests,
            sandbox: self.sandbox.clone(),
            own: false,
            need,
            more: 0,
        }
    }

    fn back(&self, grant: &BudgetGrant, amount: u64) -> BudgetBack {
        BudgetBack {
            org: grant.org.clone(),
            secret: grant.secret.clone(),
            of: grant.of,
            sandbox: grant.sandbox.clone(),
            day: grant.day,
            amount,
        }
    }

    /// What the host is granted; a last need tells when the others were looked at.
    async fn ask(&self, needs: Vec<BudgetNeed>, back: Vec<BudgetBack>) -> Vec<BudgetGrant> {
        let marker = BudgetNeed {
            of: BudgetUnit::Bytes,
            ..self.need(0)
        };
        let needs = needs.into_iter().chain([marker]).collect();
        self.plane
            .runner
            .want_budgets(BudgetsWanted { needs, back });
        let mut granted = Vec::new();
        loop {
            granted.extend(self.plane.runner.take_granted());
            if granted.iter().any(|it| it.of == BudgetUnit::Bytes) {
                granted.retain(|it| it.of == BudgetUnit::Requests);
                return granted;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn used(&self) -> Vec<u64> {
        let (control, root) = (&self.plane.control, &self.plane.root);
        let page = control
            .list_secrets(root, &Default::default())
            .await
            .unwrap();
        let budgets = control
            .secret_budgets(&root.org, &page.items)
            .await
            .unwrap();
        budgets.concat().iter().map(|it| it.used).collect()
    }
}

fn secret(limits: &[&str]) -> SetSecret {
    SetSecret {
        name: "metered".into(),
        value: Zeroizing::new("sk-canary-0123456789".into()),
        binding: cove_model::secret::SecretBinding {
            hosts: vec!["api.example".parse().unwrap()],
            usage: "bearer".parse().unwrap(),
            ask: false,
            limits: limits.iter().map(|text| text.parse().unwrap()).collect(),
        },
    }
}

async fn create(plane: &Plane, name: &str) -> SandboxId {
    let spec = SandboxSpec {
        network: NetworkPolicy {
            mode: NetworkMode::Allowlist,
            allow: Some(vec!["api.example".parse().unwrap()]),
            ..NetworkPolicy::default()
        },
        secrets: vec![SecretGrant {
            name: "metered".into(),
            env: Some("KEY".into()),
            file: None,
            exposed: false,
        }],
        ..named(name)
    };
    let created = plane.create(&plane.root, spec).await.unwrap();
    created.sandbox.id
}

#[tokio::test]
async fn a_day_renews_once_and_a_clock_that_is_set_back_renews_nothing() {
    let metered = Metered::new(&["requests=10/day"]).await;
    let clock = &metered.plane.clock;
    let took = async |need| {
        let granted = metered.ask(vec![metered.need(need)], Vec::new()).await;
        (granted[0].amount, granted[0].left)
    };
    assert_eq!(took(7).await, (7, 3));
    assert_eq!(metered.used().await, [7]);
    assert_eq!(took(7).await, (3, 0));
    assert_eq!(took(1).await, (0, 0));
    clock.advance(DAY);
    let granted = metered.ask(vec![metered.need(4)], Vec::new()).await;
    assert_eq!((granted[0].amount, granted[0].left), (4, 6));
    assert!(granted[0].lasts_ms <= 86_400_000 && granted[0].renews_ms.is_some());
    // At the end of the day somebody sets the clock back, and forth, and back.
    for _ in 0..3 {
        clock.set_by(-86_400);
        assert_eq!(took(1).await, (0, 0));
        clock.set_by(86_400);
    }
    assert_eq!(took(10).await, (6, 0));
    assert_eq!(took(1).await, (0, 0));
    assert_eq!(metered.used().await, [10]);
}

#[tokio::test]
async fn what_was_granted_stays_counted_over_crashes_until_it_is_given_back() {
    let mut metered = Metered::new(&["requests=10/day", "requests=15/organisation"]).await;
    let granted = metered.ask(vec![metered.need(8)], Vec::new()).await;
    assert_eq!(granted[0].amount, 8);
    // The terminator is killed with the block, or control before it is told: neither makes anything free.
    metered.plane.crash().await;
    metered.plane.go();
    assert_eq!(metered.used().await, [8, 8]);
    let again = metered.ask(vec![metered.need(8)], Vec::new()).await;
    assert_eq!((again[0].amount, again[0].left), (2, 0));
    // Given back once, and more than there was is not taken for it.
    let back = metered.back(&granted[0], 5);
    assert!(metered.ask(Vec::new(), vec![back]).await.is_empty());
    assert_eq!(metered.used().await, [5, 5]);
    let lie = metered.back(&granted[0], u64::MAX);
    metered.ask(Vec::new(), vec![lie]).await;
    assert_eq!(metered.used().await, [0, 0]);
    // Yesterday's block comes back to yesterday, and to what never renews.
    let granted = metered.ask(vec![metered.need(10)], Vec::new()).await;
    metered.plane.clock.advance(DAY);
    assert_eq!(metered.used().await, [0, 10]);
    let today = metered.ask(vec![metered.need(10)], Vec::new()).await;
    assert_eq!((today[0].amount, today[0].left), (5, 0));
    assert_eq!(today[0].renews_ms, None);
    metered
        .ask(Vec::new(), vec![metered.back(&granted[0], 9)])
        .await;
    assert_eq!(metered.used().await, [5, 6]);
}

#[tokio::test]
async fn a_host_gets_parts_for_its_own_sandboxes_only() {
    let metered = Metered::new(&["requests=10/day", "requests=3/sandbox"]).await;
    let (plane, root) = (&metered.plane, &metered.plane.root);
    let theirs = plane.tenant("others", None).await;
    let foreign = BudgetNeed {
        org: theirs.org.clone(),
        ..metered.need(1)
    };
    let nowhere = BudgetNeed {
        sandbox: SandboxId::random(),
        ..metered.need(1)
    };
    let unknown = BudgetNeed {
        secret: "another".into(),
        ..metered.need(1)
    };
    let granted = metered
        .ask(vec![foreign, nowhere, unknown], Vec::new())
        .await;
    assert_eq!(granted, []);
    assert_eq!(metered.used().await[0], 0);
    // Each sandbox has its own; a copy counts against the same day.
    let second = create(plane, "second").await;
    let own = |sandbox: &SandboxId| BudgetNeed {
        sandbox: sandbox.clone(),
        own: true,
        ..metered.need(5)
    };
    let needs = vec![own(&metered.sandbox), own(&second), own(&second)];
    let granted = metered.ask(needs, Vec::new()).await;
    let amounts: Vec<_> = granted.iter().map(|it| (it.amount, it.left)).collect();
    assert_eq!(amounts, [(3, 0), (3, 0), (0, 0)]);
    assert!(granted.iter().all(|it| it.renews_ms.is_none()));
    let control = &plane.control;
    let by_sandbox = control.sandbox_budgets(root, "metered").await.unwrap();
    assert_eq!(by_sandbox[&second][0].used, 3);
    assert!(control.sandbox_budgets(&theirs, "metered").await.is_err());
    // A higher limit is in force with the next need.
    let raised = secret(&["requests=10/day", "requests=4/sandbox"]);
    control.set_secret(root, raised).await.unwrap();
    let granted = metered.ask(vec![own(&second)], Vec::new()).await;
    assert_eq!((granted[0].amount, granted[0].left), (1, 0));
}
