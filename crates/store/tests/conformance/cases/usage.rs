//! Metering, against a model that adds up in the simplest way.

use std::sync::Arc;
use std::time::Duration;

use cove_model::{OrgId, SandboxId};
use cove_store::{Moment, PageRequest, Period, Store, Usage, UsageSample};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::rows::{at, moment, org, sandbox, steady};

fn ever() -> Period {
    Period {
        from: at(-1_000_000),
        to: at(100_000_000),
    }
}

fn later(than: Moment, by: Duration) -> Moment {
    Moment {
        at: than.at + by,
        steady: than.steady + by,
    }
}

fn sample(sandbox: &SandboxId, org: &OrgId, second: i64) -> UsageSample {
    UsageSample {
        sandbox: sandbox.clone(),
        org: org.clone(),
        at: moment(second),
        exact_since: steady(-1_000_000),
        running: true,
        running_for: None,
        ran_until: None,
        cpu_usec: 0,
        memory_bytes: 0,
        disk_bytes: 0,
        egress_bytes: 0,
    }
}

pub async fn charges_are_exact_for_any_series_of_samples(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let mut runner = TestRunner::deterministic();
    let steps = proptest::collection::vec(
        (
            0u64..7_200_000_000,
            proptest::bool::ANY,
            0u64..5_000_000,
            0u64..1 << 34,
            0u64..1 << 36,
            0u64..1_000_000,
        ),
        1..25,
    );
    let (mut total, mut rests) = (Usage::default(), 0u64);
    for _ in 0..12 {
        let sandbox = SandboxId::random();
        let series = steps.new_tree(&mut runner).unwrap().current();
        let (mut memory, mut disk) = (0u128, 0u128);
        let mut last = UsageSample {
            running: false,
            ..sample(&sandbox, &ours, 0)
        };
        store
            .apply_samples(std::slice::from_ref(&last))
            .await
            .unwrap();
        for (passed, running, cpu, memory_bytes, disk_bytes, egress) in series {
            let next = UsageSample {
                at: later(last.at, Duration::from_micros(passed)),
                running,
                cpu_usec: last.cpu_usec + cpu,
                memory_bytes,
                disk_bytes,
                egress_bytes: last.egress_bytes + egress,
                ..last.clone()
            };
            if passed == 0 {
                continue;
            }
            if last.running {
                // Nobody says when it ended, so a minute is the most that counts.
                let ran = if running {
                    passed
                } else {
                    passed.min(60_000_000)
                };
                memory += u128::from(last.memory_bytes) * u128::from(ran);
            }
            disk += u128::from(last.disk_bytes) * u128::from(passed);
            // Told twice, and the older one once more: neither counts.
            let told = [next.clone(), last.clone(), next.clone()];
            store.apply_samples(&told).await.unwrap();
            last = next;
        }
        let unit = (1u128 << 20) * 1000;
        let expected = Usage {
            cpu_usec: last.cpu_usec,
            memory_mib_ms: (memory / unit) as u64,
            disk_mib_ms: (disk / unit) as u64,
            egress_bytes: last.egress_bytes,
            estimated_ms: 0,
        };
        assert_eq!(store.usage_of(&sandbox).await.unwrap(), expected);
        total.cpu_usec += expected.cpu_usec;
        total.memory_mib_ms += expected.memory_mib_ms;
        total.disk_mib_ms += expected.disk_mib_ms;
        total.egress_bytes += expected.egress_bytes;
        rests += 1;
    }
    assert_eq!(store.usage(&ours, ever()).await.unwrap(), total);
    let listed = store
        .usage_by_sandbox(
            &ours,
            ever(),
            &PageRequest {
                limit: 1000,
                cursor: None,
            },
        )
        .await
        .unwrap();
    assert!(listed.items.len() as u64 <= rests);
    let sum: u64 = listed.items.iter().map(|item| item.usage.cpu_usec).sum();
    assert_eq!(sum, total.cpu_usec);
    let theirs = org(&store, "theirs").await;
    assert_eq!(
        store.usage(&theirs, ever()).await.unwrap(),
        Usage::default()
    );
}

pub async fn periods_count_whole_hours(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let sandbox = SandboxId::random();
    for (hour, cpu) in [(0, 10), (1, 30), (2, 60)] {
        let told = UsageSample {
            cpu_usec: cpu,
            ..sample(&sandbox, &ours, hour * 3600)
        };
        store.apply_samples(&[told]).await.unwrap();
    }
    let cpu = |from: i64, to: i64| {
        let (store, ours) = (Arc::clone(&store), ours.clone());
        async move {
            let period = Period {
                from: at(from),
                to: at(to),
            };
            store.usage(&ours, period).await.unwrap().cpu_usec
        }
    };
    assert_eq!(cpu(0, 3 * 3600).await, 60);
    assert_eq!(cpu(3600, 7200).await, 20);
    assert_eq!(cpu(7200, 7201).await, 30);
    // A counter that went back is not charged again, and goes on from there; one that stopped is
    // charged until it did.
    let back = UsageSample {
        cpu_usec: 50,
        memory_bytes: 1 << 20,
        ..sample(&sandbox, &ours, 3 * 3600)
    };
    store.apply_samples(&[back]).await.unwrap();
    assert_eq!(store.usage_of(&sandbox).await.unwrap().cpu_usec, 60);
    let stopped = UsageSample {
        cpu_usec: 57,
        running: false,
        ran_until: Some(steady(3 * 3600 + 2)),
        ..sample(&sandbox, &ours, 3 * 3600 + 100)
    };
    store.apply_samples(&[stopped]).await.unwrap();
    let usage = store.usage_of(&sandbox).await.unwrap();
    assert_eq!((usage.cpu_usec, usage.memory_mib_ms), (67, 2000));
}

pub async fn first_figures_count_from_the_start_for_a_while(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    for (seconds, charged) in [(5i64, 5), (3600, 60)] {
        let record = sandbox(&ours, None);
        store.create_sandbox(&record, None).await.unwrap();
        let first = UsageSample {
            running_for: Some(Duration::from_secs(seconds.unsigned_abs())),
            cpu_usec: 7,
            memory_bytes: 3 << 20,
            disk_bytes: 2 << 20,
            ..sample(&record.id, &ours, 100 + seconds)
        };
        store.apply_samples(&[first]).await.unwrap();
        let usage = store.usage_of(&record.id).await.unwrap();
        assert_eq!(usage.cpu_usec, 7);
        assert_eq!(usage.memory_mib_ms, 3 * charged * 1000);
        assert_eq!(usage.disk_mib_ms, 2 * charged * 1000);
    }
    // What is seen only after its end has no memory to tell of.
    let record = sandbox(&ours, None);
    store.create_sandbox(&record, None).await.unwrap();
    let ended = UsageSample {
        running: false,
        ran_until: Some(steady(110)),
        disk_bytes: 2 << 20,
        ..sample(&record.id, &ours, 120)
    };
    store.apply_samples(&[ended]).await.unwrap();
    let usage = store.usage_of(&record.id).await.unwrap();
    assert_eq!((usage.memory_mib_ms, usage.disk_mib_ms), (0, 0));
}

/// The date says which hour something counts for; how long it was is another clock's to say.
pub async fn dates_that_jump_change_no_charge(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let sandbox = SandboxId::random();
    let told = |steady_s: i64, date_s: i64| UsageSample {
        at: Moment {
            at: at(date_s),
            steady: steady(steady_s),
        },
        memory_bytes: 1 << 20,
        disk_bytes: 1 << 20,
        ..sample(&sandbox, &ours, 0)
    };
    // An hour forward, and two back.
    for (steady_s, date_s) in [(0, 0), (10, 3610), (20, -3580), (30, -3570)] {
        store
            .apply_samples(&[told(steady_s, date_s)])
            .await
            .unwrap();
    }
    let usage = store.usage_of(&sandbox).await.unwrap();
    assert_eq!((usage.memory_mib_ms, usage.disk_mib_ms), (30_000, 30_000));
    assert_eq!(usage.estimated_ms, 0);
    // What spans a restart of the host is charged too, and marked.
    let restarted = UsageSample {
        exact_since: steady(45),
        ..told(50, 50)
    };
    store.apply_samples(&[restarted]).await.unwrap();
    let usage = store.usage_of(&sandbox).await.unwrap();
    assert_eq!((usage.disk_mib_ms, usage.estimated_ms), (50_000, 20_000));
}
