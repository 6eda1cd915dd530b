//! Where a new sandbox goes: a pure function of an inventory of hosts and a demand.
//!
//! [`plan`] answers with hosts in the order in which they should be asked. The inventory may be old, and other
//! replicas plan at the same time, so a plan promises nothing: the host itself admits the sandbox or refuses it, and
//! the caller then asks the next host of the plan. What this crate adds is that the first answer is usually yes, and
//! that replicas with the same old inventory do not all choose the same host.
//!
//! In this order:
//! 1. Fit ([`fit`]): hosts that cannot take the demand are left out, each with its reason.
//! 2. Locality: hosts that have the snapshot or image come before those that would have to fetch it, unless they are
//!    nearly full.
//! 3. Load: the best of a few hosts that are drawn at random; or, for a demand that packs, the fullest.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use cove_model::{HostId, HostTraits, Placement, SnapshotId};

mod fit;
mod plan;

pub use cove_model::placement::Strategy;
pub use fit::{Misfit, fit};
pub use plan::{CANDIDATES_MAX, DRAWN, LOCALITY_LOAD_MAX, Plan, plan};

/// An amount of what hosts promise to sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

impl Room {
    fn parts(&self) -> [(&'static str, u64); 3] {
        [
            ("CPU", self.cpu_milli),
            ("memory", self.memory_bytes),
            ("disk", self.disk_bytes),
        ]
    }

    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            disk_bytes: self.disk_bytes.saturating_add(other.disk_bytes),
        }
    }

    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            disk_bytes: self.disk_bytes.saturating_sub(other.disk_bytes),
        }
    }

    /// What `self` has too much of to be part of `limit`.
    fn exceeds(&self, limit: &Self) -> Option<&'static str> {
        let mut parts = self.parts().into_iter().zip(limit.parts());
        parts
            .find(|((_, wanted), (_, limit))| wanted > limit)
            .map(|((name, _), _)| name)
    }

    /// The fullest part, as a share of `capacity`. A capacity of nothing counts as full.
    fn load(&self, capacity: &Self) -> f64 {
        let shares = self.parts().into_iter().zip(capacity.parts());
        let shares = shares.map(|((_, used), (_, of))| match (used, of) {
            (0, _) => 0.0,
            (_, 0) => 1.0,
            (used, of) => used as f64 / of as f64,
        });
        shares.fold(0.0, f64::max)
    }
}

/// One host, as far as the caller knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct InventoryHost {
    pub id: HostId,
    pub traits: HostTraits,
    /// Takes nothing new.
    pub cordoned: bool,
    /// Whether it answered lately.
    pub available: bool,
    /// Tiers that can be used there, each with its features.
    pub tiers: BTreeMap<String, BTreeSet<String>>,
    /// What it may promise in all, overcommitment included.
    pub capacity: Room,
    pub promised: Room,
    /// Images that need not be fetched, by every name and id that a demand may use.
    pub images: BTreeSet<String>,
    pub snapshots: BTreeSet<SnapshotId>,
}

impl InventoryHost {
    /// Counts a demand that was sent there, until the host reports its own figures.
    pub fn promise(&mut self, room: &Room) {
        self.promised = self.promised.plus(room);
    }

    fn load(&self) -> f64 {
        self.promised.load(&self.capacity)
    }

    fn load_with(&self, room: &Room) -> f64 {
        self.promised.plus(room).load(&self.capacity)
    }
}

/// What a new sandbox needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Demand {
    pub room: Room,
    pub tier: String,
    /// What the tier must be able to do.
    pub features: BTreeSet<String>,
    pub placement: Placement,
    /// The only host it may go to, for example because its volumes are there.
    pub only: Option<HostId>,
    pub image: Option<String>,
    pub snapshot: Option<SnapshotId>,
}
