//! Messages between engine, spawner and the children it makes.

use serde::{Deserialize, Serialize};

/// Engine to spawner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    Prepare(Prepare),
    Criu(Criu),
    /// A user namespace with the sandbox's ids and nobody in it, to map the ids of a root before
    /// the sandbox's own exists.
    Ids {
        uid_base: u32,
    },
}

/// Make a child in new namespaces.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Prepare {
    /// First of the 65,536 uids and gids that are the sandbox's own.
    pub uid_base: u32,
    pub cgroup: CgroupEntry,
    /// Directory on the host that holds the guest program; it appears read-only inside.
    pub guest_dir: String,
    /// An empty directory on the host that anybody may enter; a place to attach mounts to.
    pub staging: String,
}

/// Run a `criu swrk`. The first descriptor that comes along is its end of the conversation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Criu {
    pub program: String,
    /// Preloaded; makes some of its calls as `owner`.
    pub library: Vec<u8>,
    /// The uid that owns or will own the sandbox's user namespace.
    pub owner: u32,
    pub staging: String,
    /// What a restore needs besides; nothing for a dump, which acts on another sandbox's processes
    /// and writes where it is asked to.
    pub restore: Option<Restorer>,
}

/// Three more descriptors come along: the root and the directory of images as detached mounts, and a
/// memory file with the images that replace some of those, as packed [`Replacement`]s. Any further ones are
/// the sandbox's volumes, as detached mounts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Restorer {
    /// Entered before CRIU starts, so that everything it makes is born inside.
    pub cgroup: CgroupEntry,
    pub guest_dir: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Replacement {
    pub name: String,
    pub content: Vec<u8>,
}

/// Where a restore finds its things in CRIU's own mount namespace.
pub mod places {
    pub const ROOT: &str = "/tmp/root";
    pub const IMAGES: &str = "/tmp/images";
    pub const GUEST: &str = "/tmp/guest";
    /// One directory per volume below it, named by its number.
    pub const VOLUMES: &str = "/tmp/volumes";
    /// One directory per controller below it; itself the directory on version 2.
    pub const CGROUP: &str = "/tmp/cgroup";
}

/// How the child enters its cgroup, and what of it the sandbox gets to see.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum CgroupEntry {
    /// Version 1: the child's pid is written to each of these files; the directories are shown
    /// inside under these names.
    V1 {
        procs: Vec<String>,
        shown: Vec<(String, String)>,
    },
    /// Version 2: the child is born inside.
    V2 { dir: String },
}

/// Spawner to engine. With `Prepared` come three descriptors: the child's pidfd, its user namespace
/// and the engine's end of a socket to the child. With `Criu` comes its pidfd, with `Ids` the
/// namespace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum PrepareReply {
    Prepared {
        pid: i32,
    },
    Criu {
        pid: i32,
    },
    Ids,
    Failed(Failure),
    /// To the engine's hello: this spawner cannot do what its requests may need, and ends.
    Refused(cove_wire::Refusal),
}

/// Engine to child, with the sandbox's root as a detached mount. Where more mounts come along, they are its volumes,
/// and [`MountPoints`] is the next packet. Where the last descriptor is a plain file, it holds a [`Keeper`], which the
/// child becomes instead of the guest; that takes no volumes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    pub hostname: String,
    /// Whose machine this is; see [`crate::boot_id`].
    pub sandbox: String,
    pub boot_id: String,
    pub cpuinfo: String,
    pub cpu_online: String,
    pub meminfo: String,
    pub shm_bytes: u64,
    pub open_files: u64,
    pub no_new_privs: bool,
}

/// Engine to child, after [`Start`]: where in the sandbox its volumes go, in their order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountPoints(pub Vec<String>);

/// What a child becomes that is not the guest: the guest runs on a kernel of its own. Packed in a memory file, which is
/// the last descriptor that comes with [`Start`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Keeper {
    Runsc(Runsc),
    Supervisor(Supervisor),
}

/// The keeper of runsc. Its root is a small tree of its own: what the guest shares with the host in `/.cove` (the
/// programs in `/.cove/bin`), the sandbox's root in `/root`, and a bundle in `/bundle`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Runsc {
    /// The bundle's `config.json`.
    pub config: String,
    /// What the program `/.cove/bin/runner` is told, the program's own name left out.
    pub arguments: Vec<String>,
}

/// The supervisor of a virtual machine, which `/.cove/bin/runner` is. Instead of the sandbox's root comes the tree of
/// programs that it runs, shown in `/vm`; where it makes a disk image, the tree to make it of is the next descriptor,
/// shown in `/root`; where the machine has KVM, its device is the next one, shown as `/dev/kvm`. Further ones are the supervisor's from 5 on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Supervisor {
    pub shows_root: bool,
    pub shows_kvm: bool,
    pub arguments: Vec<String>,
}

/// Where the supervisor of a virtual machine listens for captures, in its own tree.
pub const SAVE_SOCKET: &str = "/.cove/save";

/// Engine to the supervisor of a virtual machine: capture it. Two empty files come along, for the state of the devices
/// and for the memory. The machine goes on when the engine hangs up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Save {
    /// How long calls under way are waited for.
    pub wait_ms: u64,
}

/// The answer to [`Save`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum SaveReply {
    /// All is written, and the machine stands still.
    Saved {
        /// How long it has stood still.
        stood_us: u64,
        bytes: u64,
    },
    /// The guest refuses for now; its own words, as a quotation.
    Refused(String),
    Failed(Failure),
}

/// Child to engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ChildReply {
    /// Everything that does not depend on the image is in place.
    Parked,
    /// The guest's socket listens; the next thing this process does is become the guest.
    Ready,
    Failed(Failure),
    /// Where the volumes really are, links in the sandbox's tree followed. Only to [`MountPoints`].
    Mounted(Vec<String>),
}

/// What could not be done and what the kernel said.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {}", std::io::Error::from_raw_os_error(*errno))]
pub struct Failure {
    pub step: String,
    pub errno: i32,
}

impl Failure {
    pub fn new(step: impl Into<String>, errno: rustix::io::Errno) -> Self {
        Self {
            step: step.into(),
            errno: errno.raw_os_error(),
        }
    }
}

/// Names the step a system call belongs to.
pub trait Step<T> {
    fn step(self, step: &str) -> Result<T, Failure>;
}

impl<T> Step<T> for Result<T, rustix::io::Errno> {
    fn step(self, step: &str) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(step, errno))
    }
}

impl<T> Step<T> for std::io::Result<T> {
    fn step(self, step: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            step: step.to_owned(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        })
    }
}
