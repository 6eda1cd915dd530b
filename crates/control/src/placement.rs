//! Where a new sandbox goes, of several hosts.
//!
//! The order in which hosts are asked comes from `cove-scheduler`, over what hosts said last. A host admits a sandbox
//! or refuses it by its own figures, so old ones here cost a question and oversell nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cove_model::{
    AUTO_ISOLATION, Accel, HostId, HostTraits, ISOLATION_BY_STRENGTH, Placement, SandboxSpec,
};
use cove_runner_api::TierReport;
use cove_scheduler::{Demand, InventoryHost, Room, plan};

use crate::Control;
use crate::error::{CAPACITY_RETRY_S, ControlError, ErrorCode};
use crate::hosts::{Host, no_hosts};
use crate::images::is_built_in;
use crate::principal::Principal;

fn room(spec: &SandboxSpec) -> Room {
    let resources = &spec.resources;
    Room {
        cpu_milli: (resources.cpu * 1000.0).round() as u64,
        memory_bytes: resources.memory_mb << 20,
        disk_bytes: resources.disk_mb << 20,
    }
}

/// What the planner calls a tier whose machines are emulated.
fn emulated(tier: &str) -> String {
    format!("{tier} with accel {}", Accel::Software.as_str())
}

/// The tiers of a host, with what each can do.
fn tiers_shown(reports: Vec<TierReport>) -> BTreeMap<String, BTreeSet<String>> {
    let mut shown = BTreeMap::new();
    for tier in reports {
        let capabilities: BTreeSet<String> = tier.capabilities.into_iter().collect();
        // Also on a host without hardware virtualisation, where the tier counts as not usable.
        if capabilities.contains(&Accel::Software.capability()) {
            shown.insert(emulated(&tier.name), capabilities.clone());
        }
        if tier.usable {
            shown.insert(tier.name, capabilities);
        }
    }
    shown
}

/// A host as the planner sees it. One that has not said what it has does not answer yet.
fn inventory(host: &Host) -> InventoryHost {
    let known = host.inventory.lock().clone();
    let mut shown = InventoryHost {
        id: host.id.clone(),
        traits: host.traits(),
        cordoned: host.cordoned(),
        available: known.is_some() && host.away().is_none(),
        tiers: BTreeMap::new(),
        capacity: Room::default(),
        promised: Room::default(),
        images: BTreeSet::new(),
        snapshots: BTreeSet::new(),
    };
    if let Some(known) = known {
        shown.tiers = tiers_shown(known.tiers);
        shown.capacity = Room {
            cpu_milli: known.cpu_milli,
            memory_bytes: known.memory_bytes,
            disk_bytes: known.disk_bytes,
        };
        shown.promised = Room {
            cpu_milli: known.promised_cpu_milli,
            memory_bytes: known.promised_memory_bytes,
            disk_bytes: known.promised_disk_bytes,
        };
        shown.images = known.images.into_iter().collect();
    }
    shown
}

impl Control {
    /// The hosts to ask for a new sandbox from an image, in order. Without nodes that is the server's own, whatever it
    /// has left: it says itself what is short.
    pub(crate) async fn place(
        &self,
        principal: &Principal,
        spec: &SandboxSpec,
    ) -> Result<Vec<HostId>, ControlError> {
        let image = match self.only_host() {
            Some(own) => return Ok(vec![own]),
            None => self.resolve_image(&principal.org, &spec.image).await?,
        };
        self.plan(principal, spec, image).await
    }

    /// The hosts to ask for a sandbox that needs no image of theirs, in order.
    pub(crate) async fn place_anywhere(
        &self,
        principal: &Principal,
        spec: &SandboxSpec,
    ) -> Result<Vec<HostId>, ControlError> {
        match self.only_host() {
            Some(own) => Ok(vec![own]),
            None => self.plan(principal, spec, None).await,
        }
    }

    /// The server's own, where there are no nodes.
    fn only_host(&self) -> Option<HostId> {
        let hosts = self.hosts();
        let own = hosts.first()?;
        let alone = hosts.iter().all(|host| host.node.is_none());
        alone.then(|| own.id.clone())
    }

    async fn plan(
        &self,
        principal: &Principal,
        spec: &SandboxSpec,
        image: Option<String>,
    ) -> Result<Vec<HostId>, ControlError> {
        let placement = &spec.placement;
        self.check_tolerations(principal, placement).await?;
        let hosts = self.hosts();
        let fitting = fitting_hosts(&hosts, placement)?;
        let mut shown: Vec<InventoryHost> =
            fitting.into_iter().map(|host| inventory(host)).collect();
        let mut demand = Demand {
            room: room(spec),
            placement: placement.clone(),
            image: image.clone(),
            ..Demand::default()
        };
        // Any host can make a built-in image, or pull one that is nowhere; another one is only where it was fetched.
        if let Some(image) = image.filter(|image| !is_built_in(image)) {
            let has = |host: &InventoryHost| {
                host.images.contains(&image) || host.images.contains(&format!("{image}:latest"))
            };
            if shown.iter().any(has) {
                shown.retain(has);
            } else if hosts.iter().any(|host| has(&inventory(host)))
                && !self.pulls(&principal.org, &spec.image).unwrap_or(false)
            {
                let open = |host: &&Arc<Host>| placement.kept_off_by(&host.traits()).is_none();
                let mut open = hosts.iter().filter(open);
                // Of hosts that are reserved for others nothing is said.
                if !open.any(|host| has(&inventory(host))) {
                    return Err(self.no_image(&spec.image));
                }
                return Err(ControlError::new(
                    ErrorCode::UnfitHost,
                    format!(
                        "the image {} is only on hosts that this sandbox cannot be placed on",
                        spec.image
                    ),
                )
                .hint("leave placement out, or use an image that can be pulled by its reference"));
            }
        }
        let rule = self.config().isolation.rule(&principal.org);
        let tiers: Vec<String> = match (spec.isolation.as_str(), spec.accel) {
            (AUTO_ISOLATION, _) => {
                let strongest = ISOLATION_BY_STRENGTH.iter().copied();
                let allowed = strongest.filter(|tier| rule.allows(tier));
                allowed.map(str::to_owned).collect()
            }
            (asked, Some(Accel::Software)) => vec![emulated(asked)],
            (asked, _) => vec![asked.to_owned()],
        };
        let mut reasons = String::new();
        let mut later = false;
        // The strongest tier that some host has, as on one host.
        for tier in tiers {
            if spec.isolation == AUTO_ISOLATION
                && !shown.iter().any(|host| host.tiers.contains_key(&tier))
            {
                continue;
            }
            demand.tier = tier;
            let planned = plan(&shown, &demand, &mut rand::rng());
            if !planned.hosts.is_empty() {
                return Ok(planned.hosts);
            }
            later = planned.may_fit_later();
            reasons = planned.reasons();
            break;
        }
        if reasons.is_empty() {
            later = true;
            reasons = "no host has reported its resources yet".into();
        }
        let told = ControlError::new(
            ErrorCode::NoCapacity,
            format!("no host can take this sandbox: {reasons}"),
        );
        Err(match later {
            true => told
                .hint("ask for less, stop sandboxes that are not needed, or add a node")
                .retry_after(CAPACITY_RETRY_S),
            false => told.hint("`cove node ls` shows the resources of nodes"),
        })
    }
}

/// The hosts that are not kept for others and have what is asked for. Those that are kept for others might as well not
/// be there: nothing is said about them.
pub(crate) fn fitting_hosts<'a>(
    hosts: &'a [Arc<Host>],
    placement: &Placement,
) -> Result<Vec<&'a Arc<Host>>, ControlError> {
    placement.check()?;
    if hosts.is_empty() {
        return Err(no_hosts());
    }
    let hosts = hosts.iter().map(|host| (host, host.traits()));
    let (open, traits): (Vec<_>, Vec<HostTraits>) = hosts
        .filter(|(_, traits)| placement.kept_off_by(traits).is_none())
        .unzip();
    if open.is_empty() {
        return Err(
            ControlError::new(ErrorCode::UnfitHost, "every host is reserved for others")
                .hint("ask the operator which taints this organisation may tolerate"),
        );
    }
    if let Some(wish) = placement.unmet(&traits) {
        return Err(ControlError::new(ErrorCode::UnfitHost, format!("no host has {wish}"))
            .hint("ask for something else in placement, or leave it out; the operator labels nodes with `cove node set`"));
    }
    let each = open.into_iter().zip(traits);
    let suited = each.filter(|(_, traits)| placement.suits(traits));
    Ok(suited.map(|(host, _)| host).collect())
}

impl Control {
    /// Every taint needs the operator's permission, whether or not a host has it.
    pub(crate) async fn check_tolerations(
        &self,
        principal: &Principal,
        placement: &Placement,
    ) -> Result<(), ControlError> {
        if placement.tolerate.is_empty() {
            return Ok(());
        }
        let org = self.store().organisation(&principal.org).await?;
        let may = org.map(|org| org.tolerations).unwrap_or_default();
        match placement.tolerate.difference(&may).next() {
            None => Ok(()),
            Some(taint) => Err(ControlError::new(
                ErrorCode::Forbidden,
                format!("placement.tolerate: this organisation may not tolerate '{taint}'"),
            )
            .hint(format!(
                "leave it out, or ask the operator for `cove org tolerate ORG --add {taint}`"
            ))),
        }
    }

    /// Asks every host what it has, as the work for each does every few seconds.
    #[cfg(feature = "testing")]
    pub async fn learn_inventories(&self) {
        for host in self.hosts().iter() {
            let asked = async { host.runner().await?.inventory().await };
            *host.inventory.lock() = asked.await.ok();
        }
    }

    /// Whether a host has what is asked for, and is not kept for others.
    pub(crate) fn suits(&self, host: &HostId, placement: &Placement) -> bool {
        self.0.hosts.get(host).is_some_and(|host| {
            let traits = host.traits();
            placement.kept_off_by(&traits).is_none() && placement.suits(&traits)
        })
    }

    /// Refuses hosts that do not have what is asked for, or are kept for others. For hosts that were not planned, such
    /// as that of a snapshot, and once more for those that were.
    pub(crate) async fn check_placement(
        &self,
        principal: &Principal,
        placement: &Placement,
        hosts: &[HostId],
    ) -> Result<(), ControlError> {
        self.check_tolerations(principal, placement).await?;
        let all = self.hosts();
        fitting_hosts(&all, placement)?;
        for id in hosts {
            // One that is not there any more is refused by whoever asks it.
            let Some(host) = all.iter().find(|host| host.id == *id) else {
                continue;
            };
            let traits = host.traits();
            let lacking = placement.wishes().find(|wish| !wish.is_met_by(&traits));
            let why = match (placement.kept_off_by(&traits), lacking) {
                (Some(_), _) => "is reserved for others".to_owned(),
                (None, Some(wish)) => format!("does not have {wish}"),
                (None, None) => continue,
            };
            return Err(ControlError::new(
                ErrorCode::UnfitHost,
                format!("the host of its snapshot or volumes {why}"),
            )
            .hint("a durable snapshot can begin on another host"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_kvm_is_one_for_emulated_machines_alone() {
        let report = |usable, accels: &[Accel]| TierReport {
            name: "vm".into(),
            usable,
            capabilities: accels.iter().map(|accel| accel.capability()).collect(),
        };
        let names = |report| tiers_shown(vec![report]).into_keys().collect::<Vec<_>>();
        assert_eq!(
            names(report(false, &[Accel::Software])),
            ["vm with accel software"]
        );
        let both = report(true, &[Accel::Kvm, Accel::Software]);
        assert_eq!(names(both), ["vm", "vm with accel software"]);
        assert!(names(report(false, &[])).is_empty());
    }
}
