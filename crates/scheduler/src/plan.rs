//! The order in which hosts are asked.

use std::collections::BTreeMap;

use cove_model::HostId;
use rand::Rng;

use crate::{Demand, InventoryHost, Misfit, Strategy, fit};

/// Hosts of one plan at most: a demand that so many refused is refused.
pub const CANDIDATES_MAX: usize = 8;
/// Hosts that are drawn at random for each place of a plan; the best of them gets it. One would ignore load, all
/// would send every replica to the same host.
pub const DRAWN: usize = 3;
/// A host this full is no longer preferred for what it has, unless a demand packs: otherwise the first host that
/// fetched an image would get every sandbox of it.
pub const LOCALITY_LOAD_MAX: f64 = 0.75;

/// What became of a demand.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// To be asked one after the other.
    pub hosts: Vec<HostId>,
    pub misfits: Vec<(HostId, Misfit)>,
}

impl Plan {
    /// Whether it makes sense to ask again later, where no host fits now.
    pub fn may_fit_later(&self) -> bool {
        self.misfits.iter().any(|(_, misfit)| misfit.passes())
    }

    /// Why no host fits, for a person: each reason with the number of hosts.
    pub fn reasons(&self) -> String {
        let mut counts: BTreeMap<&Misfit, usize> = BTreeMap::new();
        for (_, misfit) in &self.misfits {
            *counts.entry(misfit).or_default() += 1;
        }
        if counts.is_empty() {
            return "there are no hosts".into();
        }
        let each = counts.into_iter().map(|(misfit, count)| match count {
            1 => format!("1 host: {misfit}"),
            count => format!("{count} hosts: {misfit}"),
        });
        each.collect::<Vec<_>>().join("; ")
    }
}

/// Which hosts to ask, in order. The same inventory, demand and state of `rng` give the same plan.
pub fn plan(inventory: &[InventoryHost], demand: &Demand, rng: &mut impl Rng) -> Plan {
    let zones = zone_loads(inventory);
    let pack = demand.placement.strategy == Strategy::Pack;
    let (mut near, mut far, mut misfits) = (Vec::new(), Vec::new(), Vec::new());
    for host in inventory {
        match fit(host, demand) {
            Err(misfit) => misfits.push((host.id.clone(), misfit)),
            Ok(()) if is_near(host, demand) => near.push(Ranked::new(host, demand, &zones)),
            Ok(()) => far.push(Ranked::new(host, demand, &zones)),
        }
    }
    let mut hosts = Vec::new();
    for mut group in [near, far] {
        if pack {
            // By id where the load is the same, so that every replica begins with the same host.
            let fuller = |a: &Ranked<'_>, b: &Ranked<'_>| b.load.total_cmp(&a.load);
            group.sort_by(|a, b| fuller(a, b).then_with(|| a.id.cmp(b.id)));
        }
        while hosts.len() < CANDIDATES_MAX && !group.is_empty() {
            let index = match pack {
                true => 0,
                false => best_drawn(&group, rng),
            };
            hosts.push(group.remove(index).id.clone());
        }
    }
    Plan { hosts, misfits }
}

struct Ranked<'a> {
    id: &'a HostId,
    zone_load: f64,
    load: f64,
}

impl<'a> Ranked<'a> {
    fn new(host: &'a InventoryHost, demand: &Demand, zones: &BTreeMap<&str, f64>) -> Self {
        Self {
            id: &host.id,
            zone_load: zones
                .get(host.traits.zone.as_str())
                .copied()
                .unwrap_or_default(),
            load: host.load_with(&demand.room),
        }
    }
}

fn is_near(host: &InventoryHost, demand: &Demand) -> bool {
    let has = match (&demand.snapshot, &demand.image) {
        (Some(snapshot), _) => host.snapshots.contains(snapshot),
        (None, Some(image)) => host.images.contains(image),
        (None, None) => return false,
    };
    let pack = demand.placement.strategy == Strategy::Pack;
    has && (pack || host.load() <= LOCALITY_LOAD_MAX)
}

/// The mean load of each zone's hosts that answer.
fn zone_loads(inventory: &[InventoryHost]) -> BTreeMap<&str, f64> {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for host in inventory.iter().filter(|host| host.available) {
        let (sum, count) = sums.entry(&host.traits.zone).or_default();
        *sum += host.load();
        *count += 1.0;
    }
    let means = sums.into_iter();
    means
        .map(|(zone, (sum, count))| (zone, sum / count))
        .collect()
}

/// The least loaded of a few, by zone and then by itself.
fn best_drawn(group: &[Ranked<'_>], rng: &mut impl Rng) -> usize {
    let drawn = rand::seq::index::sample(rng, group.len(), group.len().min(DRAWN));
    let best = drawn.into_iter().min_by(|a, b| {
        let (a, b) = (&group[*a], &group[*b]);
        let by_zone = a.zone_load.total_cmp(&b.zone_load);
        by_zone.then_with(|| a.load.total_cmp(&b.load))
    });
    best.unwrap_or_default()
}
