//! Whether a host can take a demand at all.

use std::fmt;

use cove_model::placement::Wish;

use crate::{Demand, InventoryHost};

/// Why a host cannot take a demand.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Misfit {
    /// It must go to another host.
    Elsewhere,
    Unavailable,
    Cordoned,
    Tainted {
        taint: String,
    },
    /// It has not the zone or label that was asked for.
    Lacks {
        wish: Wish,
    },
    Tier {
        tier: String,
    },
    Feature {
        feature: String,
    },
    /// More than the host has, even empty.
    TooLarge {
        resource: &'static str,
    },
    /// More than is left now.
    Full {
        resource: &'static str,
    },
}

impl Misfit {
    /// Whether the same demand may fit later without a change of the demand or of the host's settings.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Unavailable | Self::Full { .. })
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere => f.write_str("not the host it must go to"),
            Self::Unavailable => f.write_str("does not answer"),
            Self::Cordoned => f.write_str("cordoned"),
            Self::Tainted { taint } => write!(f, "taint {taint} is not tolerated"),
            Self::Lacks { wish } => write!(f, "does not have {wish}"),
            Self::Tier { tier } => write!(f, "tier {tier} cannot be used there"),
            Self::Feature { feature } => write!(f, "its tier lacks {feature}"),
            Self::TooLarge { resource } => write!(f, "has less {resource} in all"),
            Self::Full { resource } => write!(f, "not enough {resource} left"),
        }
    }
}

/// The first reason why it does not fit. Reasons that last come before those that pass, so that a caller is not told
/// to wait for what will not come.
pub fn fit(host: &InventoryHost, demand: &Demand) -> Result<(), Misfit> {
    if demand.only.as_ref().is_some_and(|only| *only != host.id) {
        return Err(Misfit::Elsewhere);
    }
    let placement = &demand.placement;
    if let Some(taint) = placement.kept_off_by(&host.traits) {
        let taint = taint.to_owned();
        return Err(Misfit::Tainted { taint });
    }
    let mut wishes = placement.wishes();
    if let Some(wish) = wishes.find(|wish| !wish.is_met_by(&host.traits)) {
        return Err(Misfit::Lacks { wish });
    }
    // A host that has not reported yet has neither tiers nor capacity; that says nothing about it.
    if !host.available {
        return Err(Misfit::Unavailable);
    }
    let Some(features) = host.tiers.get(&demand.tier) else {
        let tier = demand.tier.clone();
        return Err(Misfit::Tier { tier });
    };
    if let Some(feature) = demand.features.difference(features).next() {
        let feature = feature.clone();
        return Err(Misfit::Feature { feature });
    }
    if let Some(resource) = demand.room.exceeds(&host.capacity) {
        return Err(Misfit::TooLarge { resource });
    }
    if host.cordoned {
        return Err(Misfit::Cordoned);
    }
    match host.promised.plus(&demand.room).exceeds(&host.capacity) {
        Some(resource) => Err(Misfit::Full { resource }),
        None => Ok(()),
    }
}
