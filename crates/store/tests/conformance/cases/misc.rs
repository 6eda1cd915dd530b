//! The smaller tables, and odd input.

use std::collections::BTreeMap;
use std::sync::Arc;

use cove_model::{EventKind, ImageId, OrgId, SandboxId};
use cove_store::{
    AuditRecord, Created, Holding, IdempotencyKey, ImageGrant, ImageJobRecord, NewEvent,
    PageRequest, Period, Quota, Retention, SandboxChange, SandboxFilter, SandboxRef, Store,
    StoreError, Usage, UsageSample,
};

use crate::rows::{append, at, host, moment, org, sandbox, steady};

pub async fn image_grants_are_per_organisation_or_for_everybody(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let [debian, old, new] = [(); 3].map(|()| ImageId::random());
    store.grant_image(None, "debian", &debian, 1).await.unwrap();
    store
        .grant_image(Some(&ours), "app", &old, 1)
        .await
        .unwrap();
    store
        .grant_image(Some(&ours), "app", &new, 1)
        .await
        .unwrap();
    store
        .grant_image(Some(&ours), "debian", &new, 1)
        .await
        .unwrap();
    let grant = |name: &str, image: &ImageId, shared| ImageGrant {
        name: name.into(),
        image: image.clone(),
        shared,
    };
    let shared = grant("debian", &debian, true);
    let mine = [
        grant("app", &new, false),
        shared.clone(),
        grant("debian", &new, false),
    ];
    assert_eq!(store.image_grants(&ours).await.unwrap(), mine);
    assert_eq!(store.image_grants(&theirs).await.unwrap(), [shared]);
    assert!(
        !store.image_is_granted(&old).await.unwrap(),
        "the name has moved on"
    );
    assert!(!store.withdraw_image(Some(&theirs), &new).await.unwrap());
    assert!(store.withdraw_image(Some(&ours), &new).await.unwrap());
    assert!(!store.image_is_granted(&new).await.unwrap());
    assert!(store.image_is_granted(&debian).await.unwrap());
}

pub async fn images_of_their_own_count_to_organisations_disk_quotas_once(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let quota = Quota {
        disk_mb: 100,
        ..Quota::default()
    };
    store.set_quota(&ours, None, quota).await.unwrap();
    let used = async |org: &OrgId| {
        let found = store.organisation(org).await.unwrap();
        found.unwrap().used.disk_mb
    };
    let [shared, app, tool] = [(); 3].map(|()| ImageId::random());
    store
        .grant_image(None, "debian", &shared, 70)
        .await
        .unwrap();
    let grant = async |name: &str, image: &ImageId, mb| {
        store.grant_image(Some(&ours), name, image, mb).await
    };
    grant("mine", &shared, 70).await.unwrap();
    assert_eq!(used(&ours).await, 0, "everybody's costs nothing");
    grant("app", &app, 60).await.unwrap();
    grant("app:latest", &app, 60).await.unwrap();
    assert_eq!(used(&ours).await, 60);
    let refused = grant("tool", &tool, 50).await;
    assert!(
        matches!(refused, Err(StoreError::Quota { .. })),
        "{refused:?}"
    );
    assert!(!store.image_is_granted(&tool).await.unwrap());
    assert_eq!(used(&ours).await, 60);

    // When the last word has moved on, the image is paid for until it is known to be gone.
    let loose = async || store.loose_images(None).await.unwrap();
    assert_eq!(grant("app", &tool, 40).await.unwrap(), None);
    assert_eq!((used(&ours).await, loose().await), (100, vec![]));
    store.release_image(&ours, &app).await.unwrap();
    assert_eq!(used(&ours).await, 100, "it has a word for it");
    let left = grant("app:latest", &tool, 40).await.unwrap();
    assert_eq!(left, Some(app.clone()));
    let left = vec![(ours.clone(), app.clone())];
    assert_eq!((used(&ours).await, loose().await), (100, left.clone()));
    let next = store.loose_images(Some(left[0].clone())).await.unwrap();
    assert_eq!(next, []);
    let others = async |org: &OrgId, image: &ImageId| {
        store.image_is_held_by_others(org, image).await.unwrap()
    };
    assert!(!others(&ours, &app).await);
    assert!(others(&theirs, &app).await);
    store.release_image(&ours, &app).await.unwrap();
    assert_eq!((used(&ours).await, loose().await), (40, vec![]));
    assert!(!others(&theirs, &app).await);
    store
        .grant_image(Some(&theirs), "tool", &tool, 40)
        .await
        .unwrap();
    assert!(store.withdraw_image(Some(&ours), &tool).await.unwrap());
    assert_eq!(loose().await, [(ours.clone(), tool.clone())]);
    assert!(others(&ours, &tool).await);
    store.release_image(&ours, &tool).await.unwrap();
    assert_eq!((used(&ours).await, used(&theirs).await), (0, 40));
    store.forget_image(&tool).await.unwrap();
    assert_eq!(used(&theirs).await, 0);
    assert!(!store.image_is_granted(&tool).await.unwrap());
}

pub async fn settings_are_replaced(store: Arc<dyn Store>) {
    assert_eq!(store.setting("issuer").await.unwrap(), None);
    store.put_setting("issuer", "a").await.unwrap();
    store.put_setting("issuer", "b").await.unwrap();
    assert_eq!(store.setting("issuer").await.unwrap().as_deref(), Some("b"));
}

pub async fn sweeping_removes_only_what_is_past_its_time(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let key = IdempotencyKey {
        key: "k".into(),
        request_hash: "h".into(),
    };
    let (dead, alive) = (sandbox(&ours, None), sandbox(&ours, None));
    store.create_sandbox(&dead, Some(&key)).await.unwrap();
    store.create_sandbox(&alive, None).await.unwrap();
    let gone = SandboxChange {
        holds: Some(Holding::nothing()),
        deleted_at: Some(at(20)),
        ..SandboxChange::default()
    };
    store.change_sandbox(&dead.id, &gone, at(20)).await.unwrap();
    let events: Vec<_> = (0..10)
        .map(|second| NewEvent {
            org: ours.clone(),
            sandbox: alive.id.clone(),
            at: at(second),
            kind: EventKind::Resized,
        })
        .collect();
    store.append_events(&events, None).await.unwrap();

    let record = AuditRecord {
        sequence: 0,
        at: at(5),
        org: ours.clone(),
        key: None,
        action: "sandbox.stop".into(),
        target: None,
        source: None,
        request_id: None,
        result: "ok".into(),
        detail: None,
        hash: String::new(),
    };
    append(&store, "journal", vec![record; 4]).await;
    let used = UsageSample {
        sandbox: dead.id.clone(),
        org: ours.clone(),
        at: moment(15),
        exact_since: steady(0),
        running: true,
        running_for: None,
        ran_until: None,
        cpu_usec: 77,
        memory_bytes: 0,
        disk_bytes: 0,
        egress_bytes: 5,
    };
    store.apply_samples(&[used]).await.unwrap();
    let keep = Retention {
        idempotency_before: steady(0),
        jobs_before: at(0),
        events_before: at(0),
        events_max: 100,
        audit_before: at(0),
        audit_max: 100,
        tombstones_before: at(0),
        tombstones_max: 100,
    };
    assert_eq!(store.sweep(&keep).await.unwrap(), 0);
    assert_eq!(
        store
            .sweep(&Retention {
                events_before: at(3),
                ..keep.clone()
            })
            .await
            .unwrap(),
        3
    );
    assert_eq!(
        store
            .sweep(&Retention {
                events_max: 2,
                ..keep.clone()
            })
            .await
            .unwrap(),
        5
    );
    assert_eq!(store.event_bounds(&ours).await.unwrap(), (Some(9), 10));
    let few = Retention {
        audit_max: 3,
        ..keep.clone()
    };
    assert_eq!(store.sweep(&few).await.unwrap(), 1);
    let ever = Period {
        from: at(-100_000),
        to: at(100_000),
    };
    let usage = store.usage(&ours, ever).await.unwrap();
    assert_eq!(usage.cpu_usec, 77);
    let none = Retention {
        tombstones_max: 0,
        ..keep.clone()
    };
    let removed = store.sweep(&none).await.unwrap();
    assert_eq!(removed, 1);
    assert_eq!(
        store.usage(&ours, ever).await.unwrap(),
        usage,
        "what was used stays"
    );
    assert_eq!(store.usage_of(&dead.id).await.unwrap(), Usage::default());
    let page = PageRequest::default();
    let by_sandbox = store.usage_by_sandbox(&ours, ever, &page);
    assert!(by_sandbox.await.unwrap().items.is_empty());
    assert!(store.any_sandbox(&dead.id).await.unwrap().is_none());
    assert!(store.any_sandbox(&alive.id).await.unwrap().is_some());
    let removed = store
        .sweep(&Retention {
            idempotency_before: steady(11),
            ..keep
        })
        .await
        .unwrap();
    assert_eq!(removed, 1);
    let again = store
        .create_sandbox(&sandbox(&ours, None), Some(&key))
        .await
        .unwrap();
    assert_eq!(again, Created::New);
}

pub async fn odd_texts_find_nothing_and_break_nothing(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    store
        .create_sandbox(&sandbox(&ours, Some("agent")), None)
        .await
        .unwrap();
    for odd in [
        "",
        "\0",
        "a\0b",
        "'; DROP TABLE sandboxes; --",
        "?1",
        "$1",
        "\u{10ffff}",
        "%",
        "_",
    ] {
        assert!(
            store
                .sandbox(&ours, SandboxRef::Name(odd))
                .await
                .unwrap()
                .is_none()
        );
        assert!(store.key_by_hash(odd).await.unwrap().is_none());
        assert!(store.organisation_by_name(odd).await.unwrap().is_none());
        let filter = SandboxFilter {
            name: Some(odd.into()),
            labels: BTreeMap::from([(odd.into(), odd.into())]),
            ..SandboxFilter::default()
        };
        let found = store
            .sandboxes(&ours, &filter, &PageRequest::default())
            .await
            .unwrap();
        assert!(found.items.is_empty());
    }
    let none = store
        .events(&ours, Some(&SandboxId::random()), u64::MAX, u32::MAX)
        .await
        .unwrap();
    assert!(none.is_empty());
}

pub async fn image_jobs_are_per_organisation_and_end_once(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let job = |org: &OrgId, outcome: Option<&str>| ImageJobRecord {
        id: "job_1".into(),
        org: org.clone(),
        host: host(),
        name: "app".into(),
        shared: false,
        created_at: at(5),
        outcome: outcome.map(str::to_owned),
    };
    store.put_image_job(&job(&ours, None)).await.unwrap();
    assert_eq!(
        store.image_job(Some(&ours), "job_1").await.unwrap(),
        Some(job(&ours, None))
    );
    assert_eq!(store.image_job(Some(&theirs), "job_1").await.unwrap(), None);
    assert_eq!(
        store.image_job(None, "job_1").await.unwrap(),
        Some(job(&ours, None))
    );
    store.put_image_job(&job(&theirs, None)).await.unwrap();
    assert_eq!(store.unfinished_image_jobs().await.unwrap().len(), 2);
    store
        .put_image_job(&job(&ours, Some("done")))
        .await
        .unwrap();
    store
        .put_image_job(&job(&ours, Some("failed")))
        .await
        .unwrap();
    store.put_image_job(&job(&ours, None)).await.unwrap();
    assert_eq!(
        store.image_job(Some(&ours), "job_1").await.unwrap(),
        Some(job(&ours, Some("done")))
    );
    assert_eq!(
        store.unfinished_image_jobs().await.unwrap(),
        [job(&theirs, None)]
    );
    let keep = Retention {
        jobs_before: at(5),
        idempotency_before: steady(0),
        events_before: at(0),
        events_max: 100,
        audit_before: at(0),
        audit_max: 100,
        tombstones_before: at(0),
        tombstones_max: 100,
    };
    assert_eq!(store.sweep(&keep).await.unwrap(), 0);
    let later = Retention {
        jobs_before: at(6),
        ..keep
    };
    assert_eq!(store.sweep(&later).await.unwrap(), 2);
    assert_eq!(store.image_job(None, "job_1").await.unwrap(), None);
}

/// Readings of several boots lie on one axis that never goes back.
pub async fn time_that_passed_never_goes_back(store: Arc<dyn Store>) {
    let read = |boot: &str, since_s: u64, date_s: i64| {
        let reading = cove_store::BootReading {
            machine: "one".into(),
            at: at(date_s),
            boot_time: cove_model::BootTime {
                boot: boot.into(),
                micros: since_s * 1_000_000,
            },
        };
        let store = Arc::clone(&store);
        async move {
            let axis = store.read_steady(&reading).await.unwrap();
            let now = axis.offset_us + i64::try_from(since_s).unwrap() * 1_000_000;
            (
                now - steady(0).micros(),
                axis.began.micros() - steady(0).micros(),
            )
        }
    };
    let second = 1_000_000;
    assert_eq!(read("a", 100, 0).await, (0, 0));
    // The date jumps; what passed does not.
    assert_eq!(read("a", 110, 3610).await, (10 * second, 0));
    assert_eq!(read("a", 120, -3580).await, (20 * second, 0));
    // Another boot: as long as dates say since the last reading.
    assert_eq!(read("b", 5, -3480).await, (120 * second, 120 * second));
    assert_eq!(read("b", 15, 9999).await, (130 * second, 120 * second));
    // And never less than nothing.
    assert_eq!(read("c", 1, 0).await, (130 * second, 130 * second));
}

/// Readings in seconds: `(machine, boot, since its boot, its date)`; answers where the axis is.
async fn axis(store: &Arc<dyn Store>, machine: &str, boot: &str, since_s: i64, date_s: i64) -> i64 {
    let reading = cove_store::BootReading {
        machine: machine.into(),
        at: at(date_s),
        boot_time: cove_model::BootTime {
            boot: boot.into(),
            micros: u64::try_from(since_s).unwrap() * 1_000_000,
        },
    };
    let axis = store.read_steady(&reading).await.unwrap();
    (axis.offset_us + since_s * 1_000_000 - steady(0).micros()) / 1_000_000
}

pub async fn machines_whose_dates_differ_share_an_axis(store: Arc<dyn Store>) {
    const HOUR: i64 = 3600;
    // The second one's date is an hour ahead, a third one's an hour behind.
    assert_eq!(axis(&store, "one", "a", 100, 0).await, 0);
    assert_eq!(axis(&store, "two", "b", 7, HOUR).await, 0);
    assert_eq!(axis(&store, "three", "c", 70_000, -HOUR).await, 0);
    for passed in 1..200 {
        for (machine, boot, began, date) in [
            ("one", "a", 100, 0),
            ("two", "b", 7, HOUR),
            ("three", "c", 70_000, -HOUR),
        ] {
            let now = axis(
                &store,
                machine,
                boot,
                began + passed * 30,
                date + passed * 30,
            )
            .await;
            assert_eq!(now, passed * 30, "{machine}");
        }
    }
    let now = 200 * 30;
    assert_eq!(axis(&store, "one", "a", 100 + now, now).await, now);
    // One starts again, with a date that jumped: it continues where the others are.
    assert_eq!(axis(&store, "two", "d", 3, 9 * HOUR).await, now);
    assert_eq!(
        axis(&store, "one", "a", 100 + now + 30, now + 30).await,
        now + 30
    );
    assert_eq!(axis(&store, "two", "d", 33, 9 * HOUR).await, now + 30);
}

pub async fn a_machine_that_was_away_continues_where_the_others_are(store: Arc<dyn Store>) {
    const HOUR: i64 = 3600;
    assert_eq!(axis(&store, "one", "a", 0, 0).await, 0);
    // It hangs, and meanwhile another one starts: how long that was nobody there has counted.
    assert_eq!(axis(&store, "two", "b", 0, 2 * HOUR).await, 0);
    assert_eq!(axis(&store, "two", "b", 150, 2 * HOUR).await, 150);
    assert_eq!(axis(&store, "one", "a", 2 * HOUR, 2 * HOUR).await, 150);
    assert_eq!(axis(&store, "one", "a", 2 * HOUR + 60, 2 * HOUR).await, 210);
    assert_eq!(axis(&store, "two", "b", 210, 2 * HOUR).await, 210);
    // Where no other was there, its own date counts.
    assert_eq!(axis(&store, "two", "b", 220, 3 * HOUR).await, 220);
    assert_eq!(axis(&store, "two", "c", 5, 4 * HOUR).await, 220 + HOUR);
}

pub async fn an_outage_that_two_machines_share_moves_neither(store: Arc<dyn Store>) {
    const DAY: i64 = 86_400;
    assert_eq!(axis(&store, "one", "a", 0, DAY).await, DAY);
    assert_eq!(axis(&store, "two", "b", 0, DAY).await, DAY);
    assert_eq!(axis(&store, "one", "a", 100, DAY + 100).await, DAY + 100);
    assert_eq!(axis(&store, "two", "b", 115, DAY + 115).await, DAY + 115);
    assert_eq!(axis(&store, "one", "a", 700, DAY + 700).await, DAY + 700);
    assert_eq!(axis(&store, "two", "b", 700, DAY + 700).await, DAY + 700);
}

pub async fn work_belongs_to_the_process_that_took_it_last(store: Arc<dyn Store>) {
    let work = async || store.work("bld_1").await.unwrap();
    assert_eq!(work().await, None);
    let stale = store.beat_work("bld_1", "a").await.unwrap_err();
    assert!(matches!(stale, StoreError::Stale), "{stale}");
    store.take_work("bld_1", "one", "a").await.unwrap();
    for beats in 0..3 {
        let found = work().await.unwrap();
        assert_eq!(
            (found.owner.as_str(), found.token.as_str(), found.beats),
            ("one", "a", beats)
        );
        store.beat_work("bld_1", "a").await.unwrap();
    }
    store.take_work("bld_1", "two", "b").await.unwrap();
    let stale = store.beat_work("bld_1", "a").await.unwrap_err();
    assert!(matches!(stale, StoreError::Stale), "{stale}");
    store.end_work("bld_1", "a").await.unwrap();
    let found = work().await.unwrap();
    assert_eq!((found.owner.as_str(), found.beats), ("two", 0));
    store.end_work("bld_1", "b").await.unwrap();
    assert_eq!(work().await, None);
}
