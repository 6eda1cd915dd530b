//! What a spawner can enforce. Requests have fixed layouts, so engine and spawner must be of one version; the engine
//! carries the spawner that it starts. The engine's hello is the first packet on their socket and names everything
//! that its requests may restrict: it covers the children as well, which are the spawner's own clones.

use cove_wire::{Feature, Needs, Side};

/// Ids of the sandbox's own, in a user namespace.
pub const ID_RANGE: Feature = Feature::new("id-range");
/// The cgroup is entered before anything of the sandbox runs.
pub const CGROUP_FIRST: Feature = Feature::new("cgroup-first");
/// The limit of open files.
pub const OPEN_FILES: Feature = Feature::new("open-files");
/// The limit of shared memory, segments and queues.
pub const SHARED_MEMORY: Feature = Feature::new("shared-memory");
/// No rights by programs that are setuid.
pub const NO_NEW_PRIVS: Feature = Feature::new("no-new-privs");
/// Capabilities are bounded and system calls filtered.
pub const LOCKDOWN: Feature = Feature::new("lockdown");

/// Volumes are attached where they were asked for, inside the sandbox's own tree.
pub const VOLUMES: Feature = Feature::new("volumes");

pub const SIDE: Side = Side {
    wire: "spawner",
    version: 1,
    oldest: 1,
    features: &[
        ID_RANGE,
        CGROUP_FIRST,
        OPEN_FILES,
        SHARED_MEMORY,
        NO_NEW_PRIVS,
        LOCKDOWN,
        VOLUMES,
    ],
};

/// What the requests of an engine may need.
pub fn needs() -> Needs {
    let mut needs = Needs::default();
    for feature in SIDE.features {
        needs.add(*feature);
    }
    needs
}
