//! The control plane: tenants and their keys, quotas, the lifecycle of sandboxes, metering, events
//! and audit. No HTTP here and no privileges: it speaks to hosts through [`cove_runner_api::RunnerApi`] and keeps
//! its rows in a [`Store`].
//!
//! [`Control`] is the handle everything goes through. Each call takes the [`Principal`] that
//! [`Control::authenticate`] made, and answers for that organisation only: what belongs to another
//! one does not exist. What the owner wants is durable before the host is asked for it, so a crash
//! at any moment leaves something [`Control::prepare`] can finish or undo.
#![forbid(unsafe_code)]

use std::sync::{Arc, OnceLock};

use cove_model::OrgId;
use cove_runner_api::SandboxOwner;
use cove_store::Store;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod access;
mod activity;
mod admission;
mod approvals;
mod audit;
mod background;
pub mod budget;
mod builds;
mod clocks;
pub mod code;
pub mod config;
pub mod egress;
pub mod error;
pub mod events;
mod figures;
mod following;
mod guards;
pub mod guest;
mod hosts;
pub mod identity;
mod images;
pub mod isolation;
pub mod keys;
mod leases;
mod lifecycle;
mod listeners;
mod metadata;
mod meter;
mod nodes;
pub mod objects;
mod organisations;
mod picking;
mod placement;
pub mod previews;
pub mod principal;
pub mod quarantine;
mod reach;
mod reconcile;
mod refusals;
mod relayed;
pub mod sandboxes;
mod secrets;
mod services;
pub mod shares;
mod slots;
pub mod snapshots;
pub mod ssh;
pub mod templates;
#[cfg(feature = "testing")]
pub mod testing;
pub mod volumes;
mod work;

pub use access::PORT_VISITS;
pub use admission::Admission;
pub use audit::{AuditChain, WAITING as AUDIT_WAITING};
pub use budget::{Account, Budget, Charge};
pub use builds::BUILDS;
pub use builds::{
    BuildEvent, BuildFileLink, BuildFileUpload, BuildLog, BuildSteps, ContextUpload, CreateBuild,
    StartCommand, StepState,
};
pub use code::{CodeContextRequest, CodeOutcome, CodeRequest, CodeRun};
pub use config::{Clock, ControlConfig, SystemClock};
pub use cove_code::{CodeContext, CodeError, CodeEvent, CodeOutput, Language};
pub use cove_identity::{Discovery, Issuer, Jwks, Rotation};
pub use cove_model::HostId;
pub use cove_model::RateLimit;
pub use cove_model::network::Cidr;
pub use cove_objects::{Bucket, BucketConfig};
pub use cove_protocol::client::{Guest, GuestError};
pub use cove_runner_api::{
    FromSnapshot, GuestStream, HostReport, ImageJob, ImageSource, ImageView, JobState, Sample,
};
pub use cove_store::{
    AuditHead, AuditRecord, BuildRecord, ChainBreak, Holding, Key, ObjectCopy, Operations,
    Organisation, Page, PageRequest, Period, Quota, SNAPSHOTS_ALWAYS, SNAPSHOTS_OF_HOST,
    SandboxFilter, SandboxUsage, Scope, SecretRecord, SecretUsage, SnapshotFacts, SnapshotKind,
    SnapshotRecord, SnapshotState, SshKey, StoredEvent, TemplateRecord, Usage, VolumeRecord,
    VolumeUser,
};
pub use cove_template::Config as TemplateConfig;
pub use cove_vault::{HostKeys, Zeroizing};
pub use error::{ControlError, ErrorCode};
pub use events::{EventItem, EventSubscription};
pub use figures::TableSize;
pub use following::{FollowError, Following, PIECE, Seen};
pub use guest::{CommandLine, CommandRequest, GuestAccess, GuestAction};
pub use hosts::{CHANGES_PER_ORG, Hosts};
pub use identity::{IdentityConfig, IdentityToken, IdentityTokenRequest};
pub use keys::{ApiToken, CreateKey, NewKey, TokenHash};
pub use listeners::SharedEvent;
pub use metadata::{PLACES as METADATA_VISITS, WhoAmI};
pub use nodes::{JoinNode, NewJoinToken, Node, NodeState};
pub use objects::{ObjectFigures, ObjectsConfig};
pub use organisations::QuotaChange;
pub use previews::{LinkKey, Pass, Share, ShareRequest};
pub use principal::{Origin, Principal};
pub use quarantine::{Quarantined, QuarantinedId};
pub use relayed::RELAYED;
pub use sandboxes::{CreateSandbox, Created, Sandbox, SandboxPatch};
pub use secrets::{SandboxAuthorities, SecretBudget, SecretChange, SetSecret};
pub use services::ServiceRequest;
pub use shares::{Portion, Shares, Sharing};
pub use snapshots::{
    Base, Children, ForkRequest, Imported, RolledBack, Source, TakeSnapshot, Taken, Timeline,
    TimelineFork,
};
pub use ssh::{AddSshKey, SshEntry, SshLogin, SshToken, SshTokenRequest};
pub use templates::{CreateTemplate, CreatedTemplate};
pub use volumes::{CreateVolume, CreatedVolume, MountRequest, VolumeAccess};

/// The organisation that runs the installation.
pub const HOME_ORGANISATION: &str = "default";

/// The control plane. Cheap to clone.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

struct Inner {
    config: ControlConfig,
    store: Arc<dyn Store>,
    clocks: Arc<clocks::Clocks>,
    hosts: Hosts,
    fleet: nodes::KnownFleet,
    guards: Arc<dyn guards::Guards>,
    callers: Callers,
    in_use: InUse,
    audit: audit::AuditLog,
    identity: identity::IdentityKeys,
    /// Who tells which host of which organisation's secrets.
    secrets: secrets::Telling,
    visits: Arc<metadata::Visits>,
    /// Default images that are being prepared, and those that failed.
    preparing: images::Preparing,
    builds: builds::Builds,
    /// Archives for builds to come.
    uploads: builds::Uploads,
    /// Those who follow the events of one organisation, or wait for those of one sandbox.
    listeners: listeners::Listeners,
    tasks: Tasks,
    others_work: work::OthersWork,
    /// Where snapshots outlive their host, if the operator has such a place.
    objects: Option<objects::ObjectStorage>,
}

/// Who asks, and what they are allowed at once.
#[derive(Default)]
struct Callers {
    /// Set by [`Control::prepare`].
    home: OnceLock<OrgId>,
    keyring: keys::Keyring,
    taken_back: admission::TakenBack,
    searches: access::Searches,
    /// What requests and answers of every front hold in memory.
    budget: Budget,
}

/// Which sandboxes somebody uses now, or is waking.
#[derive(Default)]
struct InUse {
    activity: activity::Activity,
    wakes: sandboxes::Wakes,
    ends: lifecycle::Ends,
    dues: lifecycle::Dues,
}

/// Work that outlives the request that began it.
#[derive(Default)]
struct Tasks {
    /// Changes under way; they outlive the callers that asked for them.
    changes: TaskTracker,
    closing: CancellationToken,
}

impl Control {
    pub fn new(
        config: ControlConfig,
        store: Arc<dyn Store>,
        hosts: impl Into<Hosts>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let objects = config.objects.clone().map(objects::ObjectStorage::new);
        Self(Arc::new(Inner {
            audit: audit::AuditLog::new(Arc::clone(&store), config.audit_journal.clone()),
            config,
            store,
            clocks: Arc::new(clocks::Clocks::new(clock)),
            hosts: hosts.into(),
            fleet: nodes::KnownFleet::default(),
            guards: Arc::new(guards::InProcess::default()),
            callers: Callers::default(),
            in_use: InUse::default(),
            identity: identity::IdentityKeys::default(),
            secrets: secrets::Telling::default(),
            visits: Arc::default(),
            preparing: images::Preparing::default(),
            builds: builds::Builds::default(),
            uploads: builds::Uploads::default(),
            listeners: listeners::Listeners::default(),
            tasks: Tasks::default(),
            others_work: work::OthersWork::default(),
            objects,
        }))
    }

    /// What callers hold in memory, in every front.
    pub fn budget(&self) -> &Budget {
        &self.0.callers.budget
    }

    fn now(&self) -> OffsetDateTime {
        self.0.clocks.now()
    }

    fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    fn config(&self) -> &ControlConfig {
        &self.0.config
    }

    fn home(&self) -> Result<&OrgId, ControlError> {
        self.0.callers.home.get().ok_or_else(|| {
            ControlError::internal("the control plane is still starting").retry_after(1)
        })
    }

    /// Whose a sandbox is, as the host gets it.
    fn owner_of(&self, org: &OrgId) -> Result<SandboxOwner, ControlError> {
        Ok(SandboxOwner {
            org: org.to_string(),
            home: org == self.home()?,
        })
    }

    /// Runs a change to its end, whether its caller waits for it or goes away.
    async fn to_the_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, ControlError>> + Send + 'static,
    ) -> Result<T, ControlError> {
        match self.0.tasks.changes.spawn(change).await {
            Ok(outcome) => outcome,
            Err(error) => {
                Err(ControlError::internal("the request was not completed").because(error))
            }
        }
    }
}
