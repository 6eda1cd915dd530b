//! Properties of one plan, for any inventory and demand.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cove_model::placement::Wish;
use cove_model::{HostId, HostTraits, Placement, SnapshotId};
use cove_scheduler::{CANDIDATES_MAX, Demand, InventoryHost, Misfit, Room, Strategy, fit, plan};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generated;
use rand::SeedableRng;
use rand::rngs::StdRng;

const GIB: u64 = 1 << 30;

fn room(cpu_milli: u64, memory_gib: u64, disk_gib: u64) -> Room {
    Room {
        cpu_milli,
        memory_bytes: memory_gib * GIB,
        disk_bytes: disk_gib * GIB,
    }
}

fn host(zone: &str) -> InventoryHost {
    InventoryHost {
        id: HostId::random(),
        traits: HostTraits {
            zone: zone.into(),
            ..HostTraits::default()
        },
        cordoned: false,
        available: true,
        tiers: BTreeMap::from([("container".into(), BTreeSet::from(["memory".into()]))]),
        capacity: room(8000, 32, 200),
        promised: Room::default(),
        images: BTreeSet::new(),
        snapshots: BTreeSet::new(),
    }
}

fn demand() -> Demand {
    Demand {
        room: room(1000, 1, 2),
        tier: "container".into(),
        ..Demand::default()
    }
}

fn words(from: &'static [&'static str]) -> impl Generated<Value = BTreeSet<String>> {
    proptest::sample::subsequence(from, 0..=from.len())
        .prop_map(|words| words.into_iter().map(str::to_owned).collect())
}

prop_compose! {
    fn any_room()(cpu in 0u64..10_000, memory in 0u64..40, disk in 0u64..220) -> Room {
        room(cpu, memory, disk)
    }
}

prop_compose! {
    fn any_host()(
        zone in "[abc]?",
        label in proptest::option::of("[xy]"),
        taints in words(&["gpu", "spot"]),
        cordoned in proptest::bool::weighted(0.1),
        available in proptest::bool::weighted(0.9),
        features in words(&["memory", "disk"]),
        has_vm in any::<bool>(),
        promised in any_room(),
        has_image in any::<bool>(),
    ) -> InventoryHost {
        let mut host = host(&zone);
        host.traits.labels.extend(label.map(|value| ("pool".to_owned(), value)));
        host.traits.taints = taints;
        (host.cordoned, host.available) = (cordoned, available);
        host.tiers = BTreeMap::from([("container".into(), features.clone())]);
        if has_vm {
            host.tiers.insert("vm".into(), features);
        }
        host.promised = promised;
        host.images.extend(has_image.then(|| "debian".to_owned()));
        host
    }
}

prop_compose! {
    fn any_demand()(
        room in any_room(),
        tier in proptest::sample::select(vec!["container", "vm"]),
        features in words(&["memory", "disk"]),
        label in proptest::option::of("[xy]"),
        zone in proptest::option::weighted(0.2, "[abc]"),
        tolerate in words(&["gpu", "spot"]),
        image in proptest::option::of(Just("debian".to_owned())),
        pack in any::<bool>(),
    ) -> Demand {
        Demand {
            room,
            tier: tier.into(),
            features,
            placement: Placement {
                labels: label.map(|value| ("pool".to_owned(), value)).into_iter().collect(),
                zone,
                tolerate,
                strategy: if pack { Strategy::Pack } else { Strategy::Spread },
            },
            only: None,
            image,
            snapshot: None,
        }
    }
}

proptest! {
    #[test]
    fn every_planned_host_fits_and_every_other_has_a_reason(
        hosts in proptest::collection::vec(any_host(), 0..40),
        demand in any_demand(),
        seed in any::<u64>(),
    ) {
        let made = plan(&hosts, &demand, &mut StdRng::seed_from_u64(seed));
        let fitting = hosts.iter().filter(|host| fit(host, &demand).is_ok()).count();
        prop_assert_eq!(made.hosts.len(), fitting.min(CANDIDATES_MAX));
        prop_assert_eq!(made.misfits.len(), hosts.len() - fitting);
        let distinct: BTreeSet<_> = made.hosts.iter().collect();
        prop_assert_eq!(distinct.len(), made.hosts.len(), "a host is asked twice");
        for id in &made.hosts {
            let host = hosts.iter().find(|host| host.id == *id).unwrap();
            // Written out again, so that a mistake in `fit` shows.
            prop_assert!(host.available && !host.cordoned);
            let (traits, asked) = (&host.traits, &demand.placement);
            prop_assert!(traits.taints.is_subset(&asked.tolerate));
            prop_assert!(asked.labels.iter().all(|(key, value)| traits.labels.get(key) == Some(value)));
            prop_assert!(asked.zone.as_ref().is_none_or(|zone| *zone == traits.zone));
            prop_assert!(host.tiers.get(&demand.tier).is_some_and(|has| demand.features.is_subset(has)));
            let after = host.promised.plus(&demand.room);
            prop_assert!(after.cpu_milli <= host.capacity.cpu_milli);
            prop_assert!(after.memory_bytes <= host.capacity.memory_bytes);
            prop_assert!(after.disk_bytes <= host.capacity.disk_bytes);
        }
        for (id, misfit) in &made.misfits {
            let host = hosts.iter().find(|host| host.id == *id).unwrap();
            prop_assert_eq!(fit(host, &demand), Err(misfit.clone()));
        }
        let traits: Vec<_> = hosts.iter().map(|host| host.traits.clone()).collect();
        if demand.placement.unmet(&traits).is_some() {
            prop_assert!(made.hosts.is_empty());
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_plan(
        hosts in proptest::collection::vec(any_host(), 0..40),
        demand in any_demand(),
        seed in any::<u64>(),
    ) {
        let once = plan(&hosts, &demand, &mut StdRng::seed_from_u64(seed));
        let again = plan(&hosts, &demand, &mut StdRng::seed_from_u64(seed));
        prop_assert_eq!(once, again);
    }
}

#[test]
fn hosts_that_have_the_image_come_first_until_they_are_nearly_full() {
    let mut hosts: Vec<_> = (0..10).map(|_| host("a")).collect();
    for host in &mut hosts[..2] {
        host.images.insert("debian".into());
        host.promised = room(5000, 1, 1);
    }
    let wanted = Demand {
        image: Some("debian".into()),
        ..demand()
    };
    for seed in 0..100 {
        let made = plan(&hosts, &wanted, &mut StdRng::seed_from_u64(seed));
        let near = &made.hosts[..2];
        assert!(near.contains(&hosts[0].id) && near.contains(&hosts[1].id));
    }
    for host in &mut hosts[..2] {
        host.promised = room(7000, 1, 1);
    }
    let mut rng = StdRng::seed_from_u64(1);
    let firsts = (0..100).map(|_| plan(&hosts, &wanted, &mut rng).hosts.remove(0));
    let full = firsts.filter(|id| *id == hosts[0].id || *id == hosts[1].id);
    assert_eq!(full.count(), 0, "any draw of three has an emptier host");
}

#[test]
fn the_host_of_a_snapshot_comes_first_and_a_bound_demand_goes_nowhere_else() {
    let mut hosts: Vec<_> = (0..20).map(|_| host("a")).collect();
    let snapshot = SnapshotId::random();
    hosts[7].snapshots.insert(snapshot.clone());
    let mut wanted = Demand {
        snapshot: Some(snapshot),
        ..demand()
    };
    let mut rng = StdRng::seed_from_u64(3);
    assert_eq!(plan(&hosts, &wanted, &mut rng).hosts[0], hosts[7].id);
    wanted.only = Some(hosts[9].id.clone());
    assert_eq!(plan(&hosts, &wanted, &mut rng).hosts, [hosts[9].id.clone()]);
    hosts[9].cordoned = true;
    let refused = plan(&hosts, &wanted, &mut rng);
    assert!(refused.hosts.is_empty() && !refused.may_fit_later());
    assert_eq!(
        refused.reasons(),
        "19 hosts: not the host it must go to; 1 host: cordoned"
    );
}

#[test]
fn a_refusal_says_whether_waiting_helps() {
    let mut only = host("a");
    let mut rng = StdRng::seed_from_u64(1);
    let reasons = |hosts: &[InventoryHost], demand: &Demand, rng: &mut StdRng| {
        let made = plan(hosts, demand, rng);
        assert!(made.hosts.is_empty());
        (made.may_fit_later(), made.reasons())
    };
    assert_eq!(
        reasons(&[], &demand(), &mut rng),
        (false, "there are no hosts".into())
    );
    only.promised = room(8000, 0, 0);
    let (later, why) = reasons(&[only.clone()], &demand(), &mut rng);
    assert!(later && why == "1 host: not enough CPU left", "{why}");
    let huge = Demand {
        room: room(1000, 64, 1),
        ..demand()
    };
    let (later, why) = reasons(&[only.clone()], &huge, &mut rng);
    assert!(!later && why == "1 host: has less memory in all", "{why}");
    only.available = false;
    let silent = fit(&only, &demand());
    assert_eq!(silent, Err(Misfit::Unavailable));
}

#[test]
fn spreading_evens_out_zones_of_different_size_and_packing_leaves_hosts_empty() {
    for strategy in [Strategy::Spread, Strategy::Pack] {
        let mut hosts = vec![
            host("a"),
            host("a"),
            host("a"),
            host("b"),
            host("c"),
            host("c"),
        ];
        let wanted = Demand {
            room: room(500, 1, 1),
            placement: Placement {
                strategy,
                ..Placement::default()
            },
            ..demand()
        };
        let mut rng = StdRng::seed_from_u64(5);
        for _ in 0..30 {
            let first = plan(&hosts, &wanted, &mut rng).hosts.remove(0);
            let chosen = hosts.iter_mut().find(|host| host.id == first).unwrap();
            chosen.promise(&wanted.room);
        }
        let mut zones: HashMap<&str, Vec<u64>> = HashMap::new();
        for host in &hosts {
            let used = host.promised.cpu_milli;
            zones.entry(&host.traits.zone).or_default().push(used);
        }
        let empty = hosts.iter().filter(|host| host.promised == Room::default());
        match strategy {
            Strategy::Spread => {
                let mean = |used: &Vec<u64>| used.iter().sum::<u64>() / used.len() as u64;
                let means: Vec<u64> = zones.values().map(mean).collect();
                let (least, most) = (means.iter().min().unwrap(), means.iter().max().unwrap());
                assert!(most - least <= 2000, "{zones:?}");
                assert_eq!(empty.count(), 0, "{zones:?}");
            }
            // 30 halves of a CPU fill one host of eight, and the next almost.
            Strategy::Pack => assert_eq!(empty.count(), 4, "{zones:?}"),
        }
    }
}

#[test]
fn packing_fills_one_host_before_the_next_whichever_has_the_image() {
    let mut hosts: Vec<_> = (0..6).map(|_| host("a")).collect();
    for host in &mut hosts[..2] {
        host.images.insert("debian".into());
    }
    let wanted = Demand {
        room: room(1000, 1, 1),
        image: Some("debian".into()),
        placement: Placement {
            strategy: Strategy::Pack,
            ..Placement::default()
        },
        ..demand()
    };
    let mut firsts: Vec<HostId> = Vec::new();
    for seed in 0..16 {
        let mut rng = StdRng::seed_from_u64(seed);
        let first = plan(&hosts, &wanted, &mut rng).hosts.remove(0);
        let chosen = hosts.iter_mut().find(|host| host.id == first).unwrap();
        assert!(chosen.images.contains("debian"));
        chosen.promise(&wanted.room);
        if firsts.last() != Some(&first) {
            firsts.push(first);
        }
    }
    assert_eq!(firsts.len(), 2, "a host was left before it was full");
}

#[test]
fn a_host_that_lacks_what_is_asked_for_is_left_out_by_name() {
    let hosts = [host("a"), host("b")];
    let mut wanted = demand();
    wanted.placement.zone = Some("b".into());
    let made = plan(&hosts, &wanted, &mut StdRng::seed_from_u64(1));
    assert_eq!(made.hosts, [hosts[1].id.clone()]);
    let wish = Wish::Zone("b".into());
    assert_eq!(fit(&hosts[0], &wanted), Err(Misfit::Lacks { wish }));
    wanted.placement.labels = [("gpu".to_owned(), "h100".to_owned())].into();
    let made = plan(&hosts, &wanted, &mut StdRng::seed_from_u64(1));
    assert!(made.hosts.is_empty() && !made.may_fit_later());
    assert_eq!(
        made.reasons(),
        "1 host: does not have zone b; 1 host: does not have label gpu=h100"
    );
}
