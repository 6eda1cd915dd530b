//! Admission under concurrency: never over the quota, never a leak.

use std::fmt::Write;
use std::sync::Arc;

use cove_control::testing::{Call, Fault, GuestKind, ScriptedGuest};
use cove_control::{
    CHANGES_PER_ORG, CommandRequest, ControlConfig, ControlError, CreateKey, CreateSandbox,
    ErrorCode, GuestAction, PageRequest, Principal, Quota, QuotaChange, SandboxPatch, Scope,
    TakeSnapshot,
};
use cove_model::{ResourcesPatch, SandboxSpec, State};
use cove_protocol::message::Process;
use cove_runner_api::{RunnerApi, RunnerError};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use tokio::sync::Semaphore;

use crate::support::{Plane, named, quick, sized, wait};

#[derive(Debug, Clone)]
enum Act {
    Create(u64),
    CreateRefused(u64),
    Delete(usize),
    Stop(usize),
    Start(usize),
    Resize(usize, u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (16u64..400).prop_map(Act::Create),
        1 => (16u64..400).prop_map(Act::CreateRefused),
        1 => (0usize..20).prop_map(Act::Delete),
        2 => (0usize..20).prop_map(Act::Stop),
        2 => (0usize..20).prop_map(Act::Start),
        1 => (0usize..20, 16u64..500).prop_map(|(which, memory)| Act::Resize(which, memory)),
    ]
}

const QUOTA: Quota = Quota {
    sandboxes: 12,
    cpu_milli: 4_000,
    memory_mb: 1_000,
    disk_mb: 1_000,
};

async fn check(plane: &Plane, tenant: &cove_control::Principal) {
    let used = plane.control.organisation(tenant, None).await.unwrap().used;
    assert!(used.sandboxes <= QUOTA.sandboxes, "{used:?}");
    assert!(used.cpu_milli <= QUOTA.cpu_milli, "{used:?}");
    assert!(used.memory_mb <= QUOTA.memory_mb, "{used:?}");
    assert!(used.disk_mb <= QUOTA.disk_mb, "{used:?}");
}

/// Batches of acts run at once; between batches the sums must be right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_mix_of_requests_gets_past_the_quota() {
    let mut runner = TestRunner::deterministic();
    let (mut done, mut short) = (0, 0);
    for round in 0..60 {
        // How much is refused depends on the order in which calls come to be admitted.
        if round >= 6 && done > 20 && short > 5 {
            break;
        }
        let plane = Plane::new().await;
        let tenant = plane.tenant(&format!("t{round}"), Some(QUOTA)).await;
        let batches = prop::collection::vec(prop::collection::vec(act(), 1..12), 1..6);
        for batch in batches.new_tree(&mut runner).unwrap().current() {
            let ids: Vec<String> = plane
                .all(&tenant)
                .await
                .iter()
                .map(|s| s.id.to_string())
                .collect();
            let calls: Vec<_> = batch
                .into_iter()
                .map(|act| {
                    let (control, tenant) = (plane.control.clone(), tenant.clone());
                    let pick = |which: usize| {
                        ids.get(which % ids.len().max(1))
                            .cloned()
                            .unwrap_or_default()
                    };
                    let (one, memory) = match act {
                        Act::Create(memory) | Act::CreateRefused(memory) => (String::new(), memory),
                        Act::Delete(which) | Act::Stop(which) | Act::Start(which) => {
                            (pick(which), 0)
                        }
                        Act::Resize(which, memory) => (pick(which), memory),
                    };
                    if matches!(act, Act::CreateRefused(_)) {
                        let no = RunnerError::Internal {
                            message: "no".into(),
                        };
                        plane.runner.inject(Call::Create, Fault::Refuse(no));
                    }
                    tokio::spawn(async move {
                        match act {
                            Act::Create(_) | Act::CreateRefused(_) => {
                                let spec = sized(memory);
                                let request = cove_control::CreateSandbox {
                                    spec,
                                    idempotency_key: None,
                                    ..cove_control::CreateSandbox::default()
                                };
                                control.create_sandbox(&tenant, request).await.map(drop)
                            }
                            Act::Delete(_) => control.delete_sandbox(&tenant, &one).await,
                            Act::Stop(_) => {
                                control.stop_sandbox(&tenant, &one, None).await.map(drop)
                            }
                            Act::Start(_) => control.start_sandbox(&tenant, &one).await.map(drop),
                            Act::Resize(..) => {
                                let resources = ResourcesPatch {
                                    memory_mb: Some(memory),
                                    ..Default::default()
                                };
                                let patch = SandboxPatch {
                                    resources: Some(resources),
                                    ..SandboxPatch::default()
                                };
                                control.update_sandbox(&tenant, &one, patch).await.map(drop)
                            }
                        }
                    })
                })
                .collect();
            for call in calls {
                match call.await.unwrap() {
                    Ok(()) => done += 1,
                    Err(error) if error.code == ErrorCode::QuotaExceeded => short += 1,
                    Err(error) => assert_ne!(error.code, ErrorCode::Stale, "{error}"),
                }
            }
            check(&plane, &tenant).await;
            // The sums are those of what is really there.
            let (mut memory, mut disk, mut count) = (0, 0, 0);
            for sandbox in plane.all(&tenant).await {
                count += 1;
                disk += sandbox.spec.resources.disk_mb;
                if sandbox.state == State::Running {
                    memory += sandbox.spec.resources.memory_mb;
                }
                assert_eq!(plane.runner.state(&sandbox.id), Some(sandbox.state));
            }
            let used = plane
                .control
                .organisation(&tenant, None)
                .await
                .unwrap()
                .used;
            assert_eq!(
                (used.memory_mb, used.disk_mb, used.sandboxes),
                (memory, disk, count)
            );
            assert_eq!(plane.runner.ids().len() as u64, count);
        }
    }
    assert!(
        done > 20 && short > 5,
        "{done} done, {short} refused: too few to say anything"
    );
}

#[tokio::test]
async fn refusals_of_the_quota_name_it_and_say_when_to_try_again() {
    let plane = Plane::new().await;
    let tenant = plane
        .tenant(
            "tenant",
            Some(Quota {
                sandboxes: 1,
                ..QUOTA
            }),
        )
        .await;
    plane.create(&tenant, sized(16)).await.unwrap();
    let refused = plane.create(&tenant, sized(16)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert!(refused.message.contains("sandboxes"), "{}", refused.message);
    assert!(refused.retry_after_s.is_some() && refused.hint.is_some());
}

#[tokio::test]
async fn two_changes_of_a_quota_at_once_both_hold() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("org", None).await;
    for value in 1..20 {
        let one = plane
            .control
            .change_quota(&plane.root, &tenant.org, move |quota| {
                Ok(Quota {
                    sandboxes: value,
                    ..quota
                })
            });
        let other = plane
            .control
            .change_quota(&plane.root, &tenant.org, move |quota| {
                Ok(Quota {
                    memory_mb: value,
                    ..quota
                })
            });
        let (one, other) = tokio::join!(one, other);
        one.unwrap();
        other.unwrap();
        let org = plane.control.organisation(&plane.root, Some(&tenant.org));
        let quota = org.await.unwrap().quota;
        assert_eq!((quota.sandboxes, quota.memory_mb), (value, value));
    }
}

#[tokio::test]
async fn a_listing_that_its_organisation_has_no_room_for_is_refused_and_others_get_theirs() {
    const PROCESSES: usize = 200;
    const TEXT: usize = 4000;
    let plane = Plane::new().await;
    let large = |number: usize| Process {
        id: number.to_string(),
        cwd: "x".repeat(TEXT),
        ..Process::default()
    };
    let guest = ScriptedGuest {
        processes: (0..PROCESSES).map(large).collect(),
        ..ScriptedGuest::default()
    };
    plane.runner.set_guest(GuestKind::Scripted(guest));
    let (greedy, other) = (
        plane.tenant("greedy", None).await,
        plane.tenant("other", None).await,
    );
    let control = &plane.control;
    let list = async |who: &Principal| {
        let access = control.guest(who, "box", GuestAction::ProcessRead).await;
        access.unwrap().guest().processes().await
    };
    plane.create(&greedy, named("box")).await.unwrap();
    plane.create(&other, named("box")).await.unwrap();
    let mut held = control.budget().account(&greedy).charge();
    while held.grow(64 * 1024) {}
    let refused = list(&greedy).await.expect_err("there is no room");
    assert_eq!(ControlError::from(refused).code, ErrorCode::LimitReached);
    assert_eq!(list(&other).await.unwrap().len(), PROCESSES);
    drop(held);
    assert_eq!(control.budget().held(), 0);
    let listed = list(&greedy).await.unwrap();
    assert!(control.budget().held() > PROCESSES * TEXT);
    let names: Vec<String> = listed.into_iter().map(|process| process.id).collect();
    assert_eq!(names.len(), PROCESSES);
    assert_eq!(control.budget().held(), 0, "given back with the last of it");
}

/// Letters of an id, another for each number.
fn letters(number: u64) -> String {
    let digits = format!("{number:020}");
    digits
        .bytes()
        .map(|digit| char::from(digit - b'0' + b'a'))
        .collect()
}

#[tokio::test]
async fn an_organisation_has_so_many_keys_and_others_have_theirs() {
    let plane = Plane::new().await;
    let greedy = plane.tenant("greedy", None).await;
    let other = plane.tenant("other", None).await;
    let request = || CreateKey {
        name: "one".into(),
        scopes: vec![Scope::Read],
        expires_at: None,
        org: None,
        sandbox: None,
    };
    let fill = |first: u64, rows: u64, revoked: &str| {
        let mut sql = String::from("BEGIN;");
        for number in first..first + rows {
            let (id, org) = (letters(number), &greedy.org);
            write!(
                sql,
                "INSERT INTO api_keys (id, org, hash, name, scopes, created_at, revoked_at, root) \
                 VALUES ('key_{id}', '{org}', '{id}', 'x', 'read', {number}, {revoked}, 0);"
            )
            .unwrap();
        }
        plane.sql(&(sql + "COMMIT;"));
    };
    // One is what it was made with. Those that ended take no place.
    fill(0, cove_limits::KEYS_MAX - 2, "NULL");
    fill(cove_limits::KEYS_MAX, 2 * cove_limits::KEYS_ENDED_KEPT, "1");
    let last = plane.control.create_key(&greedy, request()).await.unwrap();
    let refused = plane.control.create_key(&greedy, request()).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::LimitReached);
    plane.control.create_key(&other, request()).await.unwrap();
    // And the oldest of them are forgotten.
    let raw = rusqlite::Connection::open(plane.database()).unwrap();
    let sql = "SELECT COUNT(*), MIN(created_at) FROM api_keys WHERE revoked_at IS NOT NULL";
    let ended: (i64, i64) = raw
        .query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    let oldest = cove_limits::KEYS_MAX + cove_limits::KEYS_ENDED_KEPT;
    let expected = (cove_limits::KEYS_ENDED_KEPT, oldest);
    assert_eq!(ended, (expected.0.cast_signed(), expected.1.cast_signed()));
    plane
        .control
        .revoke_key(&greedy, &last.key.id)
        .await
        .unwrap();
    plane.control.create_key(&greedy, request()).await.unwrap();
}

#[tokio::test]
async fn an_organisation_has_so_many_snapshots_and_others_have_theirs() {
    let plane = Plane::new().await;
    let greedy = plane.tenant("greedy", None).await;
    let other = plane.tenant("other", None).await;
    for whose in [&greedy, &other] {
        plane.create(whose, named("box")).await.unwrap();
    }
    let take = async |whose: &Principal| {
        let request = TakeSnapshot::default();
        plane.control.take_snapshot(whose, "box", request).await
    };
    let first = take(&greedy).await.unwrap().snapshot;
    let mut sql = String::from(
        "BEGIN; CREATE TEMP TABLE one AS SELECT * FROM snapshots; UPDATE one SET name = NULL;",
    );
    for number in 2..cove_limits::SNAPSHOTS_MAX {
        let id = letters(number);
        write!(
            sql,
            "UPDATE one SET id = 'snap_{id}'; INSERT INTO snapshots SELECT * FROM one;"
        )
        .unwrap();
    }
    plane.sql(&(sql + "COMMIT;"));
    take(&greedy).await.unwrap();
    let refused = take(&greedy).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::LimitReached, "{refused:?}");
    take(&other).await.unwrap();
    let gone = plane.control.delete_snapshot(&greedy, first.id.as_str());
    gone.await.unwrap();
    take(&greedy).await.unwrap();
}

#[tokio::test]
async fn organisations_with_many_snapshots_leave_some_of_the_host_to_others() {
    let plane = Plane::new().await;
    let [large, greedy, late] = [
        plane.tenant("large", None).await,
        plane.tenant("greedy", None).await,
        plane.tenant("late", None).await,
    ];
    let take = async |whose: &Principal| {
        let request = TakeSnapshot::default();
        plane.control.take_snapshot(whose, "box", request).await
    };
    // Rows as those of many organisations would be: what the others have is all that counts.
    let fill = |sandbox: &str, from: u64, count: u64| {
        let digits = "substr('00000000000000000000' || rowid, -20)";
        let letters = (0..10).fold(digits.to_owned(), |text, digit| {
            format!("replace({text}, '{digit}', '{}')", &letters(digit)[19..])
        });
        plane.sql(&format!(
            "BEGIN; CREATE TEMP TABLE many AS WITH RECURSIVE n(i) AS \
             (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {from} + {count}) \
             SELECT snapshots.* FROM n, snapshots WHERE sandbox = '{sandbox}'; \
             DELETE FROM many WHERE rowid <= {from}; \
             UPDATE many SET name = NULL, id = 'snap_' || {letters}; \
             INSERT INTO snapshots SELECT * FROM many; DROP TABLE many; COMMIT;"
        ));
    };
    for (whose, from, count) in [(&large, 0, 89_999), (&greedy, 90_000, 4_998)] {
        let sandbox = plane.create(whose, named("box")).await.unwrap();
        take(whose).await.unwrap();
        fill(sandbox.sandbox.id.as_str(), from, count);
    }
    plane.create(&late, named("box")).await.unwrap();
    // Half of the 10,000 that are left.
    take(&greedy).await.unwrap();
    let refused = take(&greedy).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::LimitReached, "{refused:?}");
    take(&late).await.unwrap();
}

#[tokio::test]
async fn an_organisation_that_makes_many_at_once_leaves_calls_of_the_host_to_others() {
    const BEYOND: usize = 50;
    let plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    let greedy = plane.tenant("greedy", None).await;
    let other = plane.tenant("other", None).await;
    plane.create(&other, named("theirs")).await.unwrap();
    // A host that is busy with each of them for long.
    let gate = Arc::new(Semaphore::new(0));
    for _ in 0..CHANGES_PER_ORG {
        plane.runner.inject(Call::Create, Fault::Hold(gate.clone()));
    }
    let making: Vec<_> = (0..CHANGES_PER_ORG + BEYOND)
        .map(|_| {
            let (control, greedy) = (plane.control.clone(), greedy.clone());
            tokio::spawn(async move {
                let request = CreateSandbox {
                    spec: SandboxSpec::default(),
                    ..CreateSandbox::default()
                };
                control.create_sandbox(&greedy, request).await
            })
        })
        .collect();
    let asked = || plane.runner.count(Call::Create, None) - 1;
    wait(|| async { (asked() == CHANGES_PER_ORG).then_some(()) }).await;
    // All have their rows, and those beyond wait where they keep nobody from the host.
    wait(|| async {
        let held = plane
            .control
            .organisation(&greedy, None)
            .await
            .unwrap()
            .used;
        (held.sandboxes as usize == CHANGES_PER_ORG + BEYOND).then_some(())
    })
    .await;
    assert_eq!(asked(), CHANGES_PER_ORG);
    plane.create(&other, named("more")).await.unwrap();
    let exec = CommandRequest::shell("true");
    plane.control.exec(&other, "theirs", exec).await.unwrap();
    assert_eq!(asked(), CHANGES_PER_ORG + 1);
    gate.add_permits(CHANGES_PER_ORG);
    for made in making {
        made.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_new_organisation_gets_no_more_than_its_share_of_the_hosts_unless_it_is_told() {
    // Of CPUs less than its share, of the rest more.
    let default_quota = Quota {
        sandboxes: 1_000,
        cpu_milli: 7,
        memory_mb: 1 << 40,
        disk_mb: 1 << 40,
    };
    let config = ControlConfig {
        default_quota,
        quota_share: 0.25,
        sandboxes_max: 40,
        ..quick()
    };
    let plane = Plane::with(config).await;
    let control = &plane.control;
    let host = plane.runner.inventory().await.unwrap();
    let made = control.create_organisation(&plane.root, "shared", None);
    let share = Quota {
        sandboxes: 10,
        cpu_milli: 7,
        memory_mb: (host.memory_bytes >> 20) / 4,
        disk_mb: (host.disk_bytes >> 20) / 4,
    };
    assert_eq!(made.await.unwrap().quota, share);
    let part = QuotaChange {
        memory_mb: Some(5),
        sandboxes: Some(1_000),
        ..QuotaChange::default()
    };
    let made = control.create_organisation(&plane.root, "told", part);
    let told = Quota {
        memory_mb: 5,
        sandboxes: 1_000,
        ..share
    };
    let made = made.await.unwrap();
    assert_eq!(made.quota, told);
    // It is changed like any other.
    let more = Quota::default();
    let changed = control.set_quota(&plane.root, &made.id, more).await;
    assert_eq!(changed.unwrap().quota, more);
    let home = control.organisation(&plane.root, None).await.unwrap();
    assert_eq!(home.quota, default_quota);
}

#[tokio::test]
async fn without_a_host_that_answers_a_quota_is_given_whole() {
    let plane = Plane::new().await;
    plane.runner.cut_off(true);
    let control = &plane.control;
    let refused = control.create_organisation(&plane.root, "unknown", None);
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::RunnerUnreachable);
    assert!(refused.hint.unwrap().contains("--memory"));
    let page = PageRequest::default();
    let listed = control.list_organisations(&plane.root, &page).await;
    assert_eq!(listed.unwrap().items.len(), 1, "nothing was made");
    let whole = Some(Quota::default());
    let made = control.create_organisation(&plane.root, "unknown", whole);
    assert_eq!(made.await.unwrap().quota, Quota::default());
}
