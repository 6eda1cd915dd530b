use super::*;
use proptest::prelude::*;

fn at(s: i64) -> Steady {
    Steady::from_micros((1_800_000_000 + s) * 1_000_000)
}

fn policy(stop: Option<u64>, delete: Option<u64>, life: Option<u64>) -> IdlePolicy {
    IdlePolicy {
        stop_after_s: stop,
        delete_after_s: delete,
        max_lifetime_s: life,
        ..IdlePolicy::default()
    }
}

fn facts() -> Facts {
    Facts {
        now: at(1000),
        created: at(0),
        last_active: at(900),
        state: State::Running,
        unpausable: false,
        present: false,
        observed: true,
        network_at: None,
        network_quiet: Duration::from_secs(900),
        lease: Due::Nothing,
    }
}

#[test]
fn stops_then_deletes_by_the_idle_time() {
    let both = policy(Some(60), Some(3600), None);
    assert_eq!(verdict(&both, &facts()), Verdict::Stop(100));
    let stopped = Facts {
        state: State::Stopped,
        ..facts()
    };
    assert_eq!(verdict(&both, &stopped), Verdict::Keep);
    let later = Facts {
        now: at(900 + 3600),
        ..stopped
    };
    assert_eq!(verdict(&both, &later), Verdict::Delete(3600));
    let recent = Facts {
        last_active: at(990),
        ..facts()
    };
    assert_eq!(verdict(&both, &recent), Verdict::Keep);
}

#[test]
fn the_ladder_goes_down_a_rung_at_a_time_and_never_up() {
    let ladder = IdlePolicy {
        freeze_after_s: Some(10),
        pause_after_s: Some(60),
        ..policy(Some(600), Some(3600), None)
    };
    for (state, idle, expected) in [
        (State::Running, 9, Verdict::Keep),
        (State::Running, 10, Verdict::Freeze(10)),
        (State::Frozen, 59, Verdict::Keep),
        (State::Running, 60, Verdict::Pause(60)),
        (State::Frozen, 60, Verdict::Pause(60)),
        (State::Paused, 599, Verdict::Keep),
        (State::Paused, 600, Verdict::Stop(600)),
        (State::Frozen, 600, Verdict::Stop(600)),
        (State::Stopped, 3599, Verdict::Keep),
        (State::Paused, 3600, Verdict::Delete(3600)),
        (State::Stopped, 3600, Verdict::Delete(3600)),
    ] {
        let facts = Facts {
            now: at(900 + idle),
            state,
            ..facts()
        };
        assert_eq!(verdict(&ladder, &facts), expected, "{state} {idle}");
    }
    let unpausable = Facts {
        now: at(960),
        unpausable: true,
        ..facts()
    };
    assert_eq!(verdict(&ladder, &unpausable), Verdict::Freeze(60));
}

#[test]
fn work_of_any_kind_keeps_it_and_its_lifetime_ends_it_anyway() {
    let both = policy(Some(60), None, Some(1001));
    for busy in [
        Facts {
            present: true,
            ..facts()
        },
        Facts {
            observed: false,
            ..facts()
        },
        Facts {
            network_at: Some(at(500)),
            ..facts()
        },
    ] {
        assert_eq!(verdict(&both, &busy), Verdict::Keep);
        let old = Facts {
            now: at(1001),
            ..busy
        };
        assert_eq!(verdict(&both, &old), Verdict::Expire(1001));
    }
    let quiet = Facts {
        network_at: Some(at(100)),
        ..facts()
    };
    assert_eq!(verdict(&both, &quiet), Verdict::Stop(100));
}

proptest! {
    #[test]
    fn without_a_policy_nothing_is_ever_put_away(
        now in -10_000i64..1_000_000, active in -10_000i64..1_000_000, state in 0..State::ALL.len(), present: bool,
    ) {
        let facts = Facts { now: at(now), last_active: at(active), state: State::ALL[state], present, ..facts() };
        prop_assert_eq!(verdict(&IdlePolicy::default(), &facts), Verdict::Keep);
    }

    #[test]
    fn a_clock_that_jumps_back_puts_nothing_away(back in 1i64..1_000_000) {
        let facts = Facts { now: at(-back), ..facts() };
        let all = policy(Some(1), Some(1), Some(1));
        prop_assert_eq!(verdict(&all, &facts), Verdict::Keep);
    }
}

fn sample(cpu_usec: u64, sent: u64) -> Sample {
    Sample {
        at: time::OffsetDateTime::UNIX_EPOCH,
        boot_time: None,
        running_us: None,
        running: true,
        cpu_usec,
        memory_bytes: 0,
        memory_peak_bytes: 0,
        memory_limit_bytes: 0,
        pids: 1,
        oom_kills: 0,
        disk_bytes: 0,
        disk_limit_bytes: 0,
        network_sent_bytes: sent,
        network_received_bytes: 0,
    }
}

#[test]
fn cpu_and_network_between_two_samples_count_as_work() {
    let (first, busy) = compare(None, &sample(500_000, 10), at(0), 0.02, 1024);
    assert!(!busy && !first.compared, "one sample says nothing yet");
    let (idle, busy) = compare(Some(&first), &sample(510_000, 10), at(10), 0.02, 1024);
    assert!(!busy && idle.compared);
    let (_, busy) = compare(Some(&idle), &sample(910_000, 10), at(20), 0.02, 1024);
    assert!(busy, "four percent of a CPU");
    let (talked, busy) = compare(Some(&idle), &sample(510_000, 5_000), at(20), 0.02, 1024);
    assert!(busy);
    assert_eq!(talked.network_at, Some(at(20)));
    let (still, busy) = compare(Some(&talked), &sample(999_000, 9_000), at(20), 0.02, 1024);
    assert!(!busy, "the same moment twice");
    assert_eq!(still, talked);
}
