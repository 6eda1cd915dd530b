//! The words every other crate speaks: ids, specs, limits, policies and the lifecycle.
//!
//! Nothing here does I/O. Types that arrive from outside are checked when they are built, so the
//! rest of the system never meets an invalid one.
#![forbid(unsafe_code)]

pub mod approval;
pub mod backoff;
pub mod build;
pub mod clock;
pub mod egress;
pub mod error;
pub mod event;
pub mod host;
pub mod id;
pub mod identity;
pub mod isolation;
pub mod language;
pub mod lifecycle;
pub mod network;
pub mod placement;
pub mod rate;
pub mod resources;
pub mod scope;
pub mod secret;
pub mod snapshot;
pub mod spec;
pub mod template;
pub mod volume;

pub use backoff::Backoff;
pub use build::BuildState;
pub use clock::{BootTime, Steady};
pub use error::ErrorCode;
pub use event::{Event, EventKind, Restated};
pub use host::{JobState, Level};
pub use id::{
    ApprovalId, BuildId, HostId, ImageId, KeyId, OrgId, ProcessId, SandboxId, SecretId, SnapshotId,
    TemplateId, VolumeId,
};
pub use identity::{Grant, IdentitySpec};
pub use isolation::{
    AUTO_ISOLATION, Accel, DEFAULT_ISOLATION, ISOLATION_BY_STRENGTH, IsolationPolicy, TierRule,
    VM_ISOLATION,
};
pub use language::Language;
pub use lifecycle::{Refusal, State};
pub use network::{NetworkMode, NetworkPolicy};
pub use placement::{HostTraits, Placement, TraitsChange};
pub use rate::{RateLimit, TokenBucket};
pub use resources::{Resources, ResourcesError, ResourcesPatch};
pub use scope::Scope;
pub use snapshot::{ObjectCopy, SnapshotKind};
pub use spec::{AutoSnapshot, IdlePolicy, Lease, LeaseTimes, SandboxSpec, SpecError};
pub use template::{TemplateAt, TemplateRef};
pub use volume::VolumeMount;
