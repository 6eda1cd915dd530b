//! Secrets and the keys they are sealed to.

use std::sync::Arc;

use cove_model::secret::{BudgetScope, BudgetUnit, OrgKeys, SecretBinding, WrappedKeys};
use cove_model::{HostId, OrgId, SandboxId, SecretId};
use cove_store::{
    BudgetReturned, BudgetTaken, PageRequest, SecretRecord, SecretUsage, Store, StoreError,
};

use crate::rows::{at, org};

pub fn secret(org: &OrgId, name: &str, version: u64) -> SecretRecord {
    SecretRecord {
        id: SecretId::random(),
        org: org.clone(),
        name: name.into(),
        version,
        binding: SecretBinding {
            hosts: vec!["api.example".parse().unwrap()],
            usage: "header:x-api-key".parse().unwrap(),
            ask: false,
            limits: Vec::new(),
        },
        sealed: format!("sealed {version}"),
        created_at: at(1),
        updated_at: at(version.cast_signed()),
        last_used_at: None,
        uses: 0,
    }
}

pub fn keys(org: &OrgId, public: &str, host_key: &str) -> OrgKeys {
    OrgKeys {
        org: org.clone(),
        public: public.into(),
        authority: "certificate".into(),
        wrapped: WrappedKeys {
            host_key: host_key.into(),
            bytes: "AAAA".into(),
        },
    }
}

pub async fn versions_of_a_secret_follow_each_other(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let theirs = org(&store, "theirs").await;
    let first = store.put_secret(&secret(&ours, "github", 1)).await.unwrap();
    let second = store.put_secret(&secret(&ours, "github", 2)).await.unwrap();
    assert_eq!(second.id, first.id);
    assert_eq!((second.created_at, second.updated_at), (at(1), at(2)));
    for stale in [1, 2, 4] {
        let refused = store.put_secret(&secret(&ours, "github", stale)).await;
        assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");
    }
    // Another organisation has its own, and this one's does not exist for it.
    assert_eq!(store.secret(&theirs, "github").await.unwrap(), None);
    store
        .put_secret(&secret(&theirs, "github", 1))
        .await
        .unwrap();
    let page = store.secrets(&ours, &PageRequest::default()).await.unwrap();
    assert_eq!(page.items, [second]);
    store.remove_secret(&ours, "github").await.unwrap();
    let again = store.remove_secret(&ours, "github").await;
    assert!(
        matches!(again, Err(StoreError::NotFound { .. })),
        "{again:?}"
    );
    assert!(store.secret(&theirs, "github").await.unwrap().is_some());
}

pub async fn an_organisation_has_so_many_secrets_and_no_more(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let theirs = org(&store, "theirs").await;
    for number in 0..cove_limits::SECRETS_MAX {
        let one = secret(&ours, &format!("secret-{number}"), 1);
        store.put_secret(&one).await.unwrap();
    }
    let beyond = store.put_secret(&secret(&ours, "beyond", 1)).await;
    assert!(
        matches!(beyond, Err(StoreError::TooMany { .. })),
        "{beyond:?}"
    );
    // A new version of one that is there needs no room, and neighbours have their own.
    store
        .put_secret(&secret(&ours, "secret-0", 2))
        .await
        .unwrap();
    store
        .put_secret(&secret(&theirs, "first", 1))
        .await
        .unwrap();
}

pub async fn the_first_keys_of_an_organisation_stay(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    assert_eq!(store.secret_keys(&ours).await.unwrap(), None);
    let first = keys(&ours, "first", "host");
    assert_eq!(store.keep_secret_keys(&first).await.unwrap(), first);
    let second = keys(&ours, "second", "host");
    assert_eq!(store.keep_secret_keys(&second).await.unwrap(), first);
    let refused = store.rewrap_secret_keys(&second).await;
    assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");
    let rewrapped = keys(&ours, "first", "newer");
    store.rewrap_secret_keys(&rewrapped).await.unwrap();
    assert_eq!(store.all_secret_keys().await.unwrap(), [rewrapped]);
}

pub async fn uses_of_a_secret_are_added_up(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let sandbox = SandboxId::random();
    let used = |count, seconds| SecretUsage {
        secret: "github".into(),
        sandbox: sandbox.clone(),
        count,
        last_used_at: at(seconds),
    };
    // What was removed meanwhile is left out.
    store.note_secret_uses(&ours, &[used(1, 1)]).await.unwrap();
    store.put_secret(&secret(&ours, "github", 1)).await.unwrap();
    let noted = [used(2, 3), used(3, 5)];
    store.note_secret_uses(&ours, &noted).await.unwrap();
    assert_eq!(
        store.secret_uses(&ours, "github").await.unwrap(),
        [used(5, 5)]
    );
    let found = store.secret(&ours, "github").await.unwrap().unwrap();
    assert_eq!((found.uses, found.last_used_at), (5, Some(at(5))));
    store.remove_secret(&ours, "github").await.unwrap();
    assert_eq!(store.secret_uses(&ours, "github").await.unwrap(), []);
}

fn want(secret: &SecretRecord, host: &HostId, need: u64, limits: &[&str]) -> BudgetTaken {
    BudgetTaken {
        org: secret.org.clone(),
        secret: secret.id.clone(),
        host: host.clone(),
        of: BudgetUnit::Requests,
        sandbox: None,
        day: 20_000,
        need,
        more: 0,
        limits: limits.iter().map(|text| text.parse().unwrap()).collect(),
    }
}

pub async fn takers_at_once_get_no_more_of_a_budget_than_there_is(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let kept = store
        .put_secret(&secret(&ours, "metered", 1))
        .await
        .unwrap();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (store, host) = (store.clone(), HostId::random());
        let taken = want(
            &kept,
            &host,
            5,
            &["requests=37/day", "requests=60/organisation"],
        );
        running.spawn(async move { store.take_budget(&taken).await.unwrap().given });
    }
    assert_eq!(running.join_all().await.into_iter().sum::<u64>(), 37);
    // The next day has its own, as far as the organisation's goes.
    let host = HostId::random();
    let tomorrow = BudgetTaken {
        day: 20_001,
        ..want(
            &kept,
            &host,
            30,
            &["requests=37/day", "requests=60/organisation"],
        )
    };
    let given = store.take_budget(&tomorrow).await.unwrap();
    assert_eq!((given.given, given.left, given.renews), (23, 0, false));
    // A clock that goes back goes back to a day that is used up.
    let today = want(&kept, &host, 1, &["requests=37/day"]);
    let given = store.take_budget(&today).await.unwrap();
    assert_eq!((given.given, given.left, given.renews), (0, 0, true));
    let spent = store.spent_budgets(&ours, 20_000).await.unwrap();
    let used = |per| spent.iter().find(|it| it.per == per).map(|it| it.used);
    assert_eq!(used(BudgetScope::Day), Some(37));
    assert_eq!(used(BudgetScope::Organisation), Some(60));
    // Another organisation has nothing of it, and cannot take from it.
    let theirs = org(&store, "theirs").await;
    assert_eq!(store.spent_budgets(&theirs, 20_000).await.unwrap(), []);
    let foreign = BudgetTaken {
        org: theirs,
        ..today
    };
    let refused = store.take_budget(&foreign).await;
    assert!(
        matches!(refused, Err(StoreError::NotFound { .. })),
        "{refused:?}"
    );
}

pub async fn a_host_gives_back_no_more_than_it_took(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let kept = store
        .put_secret(&secret(&ours, "metered", 1))
        .await
        .unwrap();
    let (honest, liar, sandbox) = (HostId::random(), HostId::random(), SandboxId::random());
    let limits = ["requests=100/organisation"].as_slice();
    for host in [&honest, &liar] {
        store
            .take_budget(&want(&kept, host, 10, limits))
            .await
            .unwrap();
    }
    let own = BudgetTaken {
        sandbox: Some(sandbox.clone()),
        ..want(&kept, &honest, 4, &["requests=4/sandbox"])
    };
    assert_eq!(store.take_budget(&own).await.unwrap().given, 4);
    assert_eq!(store.take_budget(&own).await.unwrap().given, 0);
    let back = |amount| BudgetReturned {
        org: ours.clone(),
        secret: "metered".into(),
        of: BudgetUnit::Requests,
        sandbox: None,
        day: 20_000,
        amount,
    };
    store
        .return_budgets(&liar, &[back(u64::MAX)])
        .await
        .unwrap();
    store.return_budgets(&honest, &[back(3)]).await.unwrap();
    let other_org = BudgetReturned {
        org: org(&store, "theirs").await,
        ..back(7)
    };
    store.return_budgets(&honest, &[other_org]).await.unwrap();
    let spent = store.spent_budgets(&ours, 20_000).await.unwrap();
    assert!(spent.iter().all(|it| it.used == 7), "{spent:?}");
    let of_sandbox = store.spent_by_sandbox(&ours, &kept.id).await.unwrap();
    assert_eq!(of_sandbox.len(), 1);
    assert_eq!(
        (of_sandbox[0].sandbox.clone(), of_sandbox[0].used),
        (Some(sandbox), 4)
    );
    // A new version goes on where the old one was; a new secret of the same name begins anew.
    store
        .put_secret(&secret(&ours, "metered", 2))
        .await
        .unwrap();
    assert_eq!(store.spent_budgets(&ours, 20_000).await.unwrap(), spent);
    store.remove_secret(&ours, "metered").await.unwrap();
    assert_eq!(store.spent_by_sandbox(&ours, &kept.id).await.unwrap(), []);
    let refused = store.take_budget(&want(&kept, &honest, 1, limits)).await;
    assert!(
        matches!(refused, Err(StoreError::NotFound { .. })),
        "{refused:?}"
    );
}

pub async fn days_take_bounded_room_and_a_clock_that_jumps_frees_none(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let kept = store
        .put_secret(&secret(&ours, "metered", 1))
        .await
        .unwrap();
    let host = HostId::random();
    let on = |day| BudgetTaken {
        day,
        ..want(&kept, &host, 1, &["requests=1/day"])
    };
    for day in 0..60 {
        let given = store.take_budget(&on(20_000 + day)).await.unwrap();
        assert_eq!(given.given, 1, "{day}");
    }
    // Far ahead and back, and back to the beginning of time: each day is used up once.
    for day in [u32::MAX, 0, 20_059] {
        store.take_budget(&on(day)).await.unwrap();
    }
    for day in [u32::MAX, 20_059, 20_058, 20_030, 0, 0] {
        let first = store.take_budget(&on(day)).await.unwrap();
        let again = store.take_budget(&on(day)).await.unwrap();
        assert_eq!(again.given, 0, "{day}");
        assert!(first.given == 0 || day == 0, "{day}");
    }
}
