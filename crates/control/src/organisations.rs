//! Organisations, the unit of tenancy.

use std::collections::{BTreeMap, BTreeSet};

use async_recursion::async_recursion as boxed;
use cove_model::OrgId;
use cove_model::placement::{ORG_TOLERATIONS_MAX, check_tolerations};
use cove_model::spec::check_name;
use cove_runner_api::HostInventory;
use cove_store::{
    Holding, Organisation, OrganisationHolding, OrganisationRemoval, Page, PageRequest, Quota,
    Scope, StoreError,
};

use crate::admission::Taken;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::{Control, ControlConfig, HOME_ORGANISATION};

const WHOLE_QUOTA: &str =
    "give the whole quota: `cove org create NAME --sandboxes … --cpu … --memory … --disk …`";
/// How often a change of a quota begins again when another came first.
const QUOTA_TRIES: u32 = 10;

/// Parts of a quota; the others stay, or have their default.
#[derive(Debug, Clone, Copy, Default)]
pub struct QuotaChange {
    pub sandboxes: Option<u64>,
    pub cpu_milli: Option<u64>,
    pub memory_mb: Option<u64>,
    pub disk_mb: Option<u64>,
}

impl QuotaChange {
    pub fn over(self, base: Quota) -> Quota {
        Quota {
            sandboxes: self.sandboxes.unwrap_or(base.sandboxes),
            cpu_milli: self.cpu_milli.unwrap_or(base.cpu_milli),
            memory_mb: self.memory_mb.unwrap_or(base.memory_mb),
            disk_mb: self.disk_mb.unwrap_or(base.disk_mb),
        }
    }

    fn whole(self) -> Option<Quota> {
        Some(Quota {
            sandboxes: self.sandboxes?,
            cpu_milli: self.cpu_milli?,
            memory_mb: self.memory_mb?,
            disk_mb: self.disk_mb?,
        })
    }
}

impl From<Option<Quota>> for QuotaChange {
    fn from(quota: Option<Quota>) -> Self {
        Self {
            sandboxes: quota.map(|quota| quota.sandboxes),
            cpu_milli: quota.map(|quota| quota.cpu_milli),
            memory_mb: quota.map(|quota| quota.memory_mb),
            disk_mb: quota.map(|quota| quota.disk_mb),
        }
    }
}

/// The configured default, and of what these hosts may promise together no more than the configured share.
fn share_of(hosts: &[HostInventory], config: &ControlConfig) -> Quota {
    let default = config.default_quota;
    let share = |part: fn(&HostInventory) -> u64| {
        let all = hosts.iter().map(part).fold(0, u64::saturating_add);
        (all as f64 * config.quota_share) as u64
    };
    let sandboxes = config.sandboxes_max.saturating_mul(hosts.len() as u64);
    Quota {
        sandboxes: default
            .sandboxes
            .min((sandboxes as f64 * config.quota_share) as u64),
        cpu_milli: default.cpu_milli.min(share(|host| host.cpu_milli)),
        memory_mb: default.memory_mb.min(share(|host| host.memory_bytes >> 20)),
        disk_mb: default.disk_mb.min(share(|host| host.disk_bytes >> 20)),
    }
}

impl Control {
    /// Finds or makes the organisation that runs the installation.
    pub(crate) async fn ensure_home(&self) -> Result<(), ControlError> {
        let home = match self.store().organisation_by_name(HOME_ORGANISATION).await? {
            Some(home) => home,
            None => {
                let home = Organisation {
                    id: OrgId::random(),
                    name: HOME_ORGANISATION.into(),
                    quota: self.config().default_quota,
                    used: Holding::nothing(),
                    tolerations: BTreeSet::new(),
                    created_at: self.now(),
                };
                match self.store().create_organisation(&home).await {
                    Ok(()) => home,
                    // Another control plane on the same database was faster.
                    Err(StoreError::Exists { .. }) => {
                        let found = self.store().organisation_by_name(HOME_ORGANISATION).await?;
                        found.ok_or_else(|| {
                            ControlError::internal("the home organisation is gone")
                        })?
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        // Preparing twice finds the same one.
        let _ = self.0.callers.home.set(home.id);
        Ok(())
    }

    /// Operators only.
    #[boxed]
    pub async fn create_organisation(
        &self,
        principal: &Principal,
        name: &str,
        quota: impl Into<QuotaChange> + Send + 'static,
    ) -> Result<Organisation, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let (name, quota) = (name.to_owned(), quota.into());
        self.to_the_end(async move {
            let made = control.try_create_organisation(&principal, &name, quota);
            let outcome = made.await;
            let operation = Operation::new("organisation.create", name);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_create_organisation(
        &self,
        principal: &Principal,
        name: &str,
        quota: QuotaChange,
    ) -> Result<Organisation, ControlError> {
        principal.require_operator()?;
        check_name(name)?;
        let org = Organisation {
            id: OrgId::random(),
            name: name.to_owned(),
            quota: match quota.whole() {
                Some(quota) => quota,
                None => quota.over(self.quota_of_others().await?),
            },
            used: Holding::nothing(),
            tolerations: BTreeSet::new(),
            created_at: self.now(),
        };
        self.store().create_organisation(&org).await?;
        Ok(org)
    }

    /// What a new organisation has by default: nobody but the home organisation can take a whole host.
    async fn quota_of_others(&self) -> Result<Quota, ControlError> {
        let asked = self.ask_hosts(|host| async move {
            // A new organisation can use nothing of these.
            if host.cordoned() || !host.traits().taints.is_empty() {
                return Ok(None);
            }
            Ok(Some(host.runner().await?.inventory().await?))
        });
        let hosts = asked.await.map_err(|error| error.hint(WHOLE_QUOTA))?;
        let hosts: Vec<_> = hosts.into_iter().flatten().collect();
        if hosts.is_empty() {
            let message = "there is no host whose size the quota could depend on";
            return Err(ControlError::conflict(message).hint(WHOLE_QUOTA));
        }
        Ok(share_of(&hosts, self.config()))
    }

    /// Operators only.
    #[boxed]
    pub async fn list_organisations(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<Organisation>, ControlError> {
        principal.require_operator()?;
        Ok(self.store().organisations(page).await?)
    }

    /// The caller's own (needs `read`), or by id any other (operators only).
    #[boxed]
    pub async fn organisation(
        &self,
        principal: &Principal,
        id: Option<&OrgId>,
    ) -> Result<Organisation, ControlError> {
        principal.require(Scope::Read)?;
        let id = id.unwrap_or(&principal.org);
        let found = self.store().organisation(id).await?;
        found
            .filter(|org| org.id == principal.org || principal.is_operator())
            .ok_or_else(|| ControlError::not_found("organisation", id.as_str()))
    }

    /// Operators only.
    #[boxed]
    pub async fn set_quota(
        &self,
        principal: &Principal,
        id: &OrgId,
        quota: Quota,
    ) -> Result<Organisation, ControlError> {
        let (control, principal, id) = (self.clone(), principal.clone(), id.clone());
        self.to_the_end(async move {
            let outcome = control.try_set_quota(&principal, &id, None, quota).await;
            let operation = Operation::new("organisation.quota", id.as_str());
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// The same for what is asked as a change of the present quota; a change that makes no sense says why.
    pub async fn change_quota(
        &self,
        principal: &Principal,
        id: &OrgId,
        change: impl Fn(Quota) -> Result<Quota, String> + Send + Sync + 'static,
    ) -> Result<Organisation, ControlError> {
        let (control, principal, id) = (self.clone(), principal.clone(), id.clone());
        self.to_the_end(async move {
            let changed = async {
                let mut tries = 0;
                loop {
                    let from = control.organisation(&principal, Some(&id)).await?.quota;
                    let to = change(from).map_err(ControlError::invalid)?;
                    let set = control.try_set_quota(&principal, &id, Some(from), to);
                    match set.await {
                        // Somebody changed another part of it meanwhile.
                        Err(error) if error.code == ErrorCode::Stale && tries < QUOTA_TRIES => {
                            tries += 1;
                        }
                        outcome => return outcome,
                    }
                }
            };
            let outcome = changed.await;
            let operation = Operation::new("organisation.quota", id.as_str());
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Operators only. Which taints of hosts its sandboxes may tolerate from now on, and which not any more. Those that
    /// are on such a host stay.
    #[boxed]
    pub async fn tolerate(
        &self,
        principal: &Principal,
        id: &OrgId,
        change: BTreeMap<String, bool>,
    ) -> Result<Organisation, ControlError> {
        let (control, principal, id) = (self.clone(), principal.clone(), id.clone());
        self.to_the_end(async move {
            let outcome = async {
                principal.require_operator()?;
                check_tolerations(&change)?;
                let changed = control.store().tolerate(&id, &change).await;
                changed.map_err(|error| match error {
                    StoreError::NotFound { .. } => {
                        ControlError::not_found("organisation", id.as_str())
                    }
                    StoreError::TooMany { .. } => ControlError::from(error)
                        .hint(format!("an organisation has at most {ORG_TOLERATIONS_MAX}")),
                    other => other.into(),
                })
            };
            let outcome = outcome.await;
            let mut operation = Operation::new("organisation.tolerate", id.as_str());
            operation.detail = outcome.is_ok().then(|| {
                let each = change.iter().map(|(taint, may)| match may {
                    true => format!("may tolerate {taint}"),
                    false => format!("may not tolerate {taint}"),
                });
                each.collect::<Vec<_>>().join(", ")
            });
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_set_quota(
        &self,
        principal: &Principal,
        id: &OrgId,
        from: Option<Quota>,
        to: Quota,
    ) -> Result<Organisation, ControlError> {
        principal.require_operator()?;
        self.store()
            .set_quota(id, from, to)
            .await
            .map_err(|error| match error {
                StoreError::NotFound { .. } => ControlError::not_found("organisation", id.as_str()),
                other => other.into(),
            })
    }

    /// Operators only, and not of the home organisation. Refused while it has anything. Its keys end at once, with all
    /// that was opened with them; its audit records and usage stay.
    #[boxed]
    pub async fn remove_organisation(
        &self,
        principal: &Principal,
        id: &OrgId,
    ) -> Result<(), ControlError> {
        let (control, principal, id) = (self.clone(), principal.clone(), id.clone());
        self.to_the_end(async move {
            let outcome = control.try_remove_organisation(&principal, &id).await;
            let mut operation = Operation::new("organisation.delete", id.as_str());
            // Nobody can look the name up afterwards.
            operation.detail = outcome.as_ref().ok().cloned();
            let concluded = control.conclude(&principal, operation, outcome);
            concluded.await.map(drop)
        })
        .await
    }

    async fn try_remove_organisation(
        &self,
        principal: &Principal,
        id: &OrgId,
    ) -> Result<String, ControlError> {
        principal.require_operator()?;
        if id == self.home()? {
            return Err(ControlError::new(
                ErrorCode::Forbidden,
                "this organisation runs the installation and cannot be removed",
            ));
        }
        let removed = self.store().remove_organisation(id, self.now()).await;
        // Also when it is not known whether it was done.
        self.0.callers.keyring.forget_all();
        self.0.callers.taken_back.tell(Taken::AnyKey);
        match removed {
            Ok(OrganisationRemoval::Removed { name }) => Ok(name),
            Ok(OrganisationRemoval::Holds(holds)) => Err(still_holds(id, &holds)),
            Err(StoreError::NotFound { .. }) => {
                Err(ControlError::not_found("organisation", id.as_str()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What one of them is called, and the command that takes it away where it does not end by itself.
fn named(what: OrganisationHolding) -> (&'static str, Option<&'static str>) {
    match what {
        OrganisationHolding::Sandboxes => ("sandbox", Some("cove rm")),
        OrganisationHolding::Snapshots => ("snapshot", Some("cove snapshot rm")),
        OrganisationHolding::Templates => ("template version", Some("cove template rm")),
        OrganisationHolding::Volumes => ("volume", Some("cove volume rm")),
        OrganisationHolding::Secrets => ("secret", Some("cove secret rm")),
        OrganisationHolding::Images => ("image name", Some("cove image rm")),
        OrganisationHolding::Builds => ("running build", Some("cove template cancel")),
        OrganisationHolding::Pulls => ("running image pull", None),
    }
}

fn still_holds(id: &OrgId, holds: &[(OrganisationHolding, u64)]) -> ControlError {
    let counts: Vec<_> = holds
        .iter()
        .map(|(what, count)| match (named(*what).0, count) {
            (name, 1) => format!("1 {name}"),
            ("sandbox", _) => format!("{count} sandboxes"),
            (name, _) => format!("{count} {name}s"),
        })
        .collect();
    let commands: Vec<_> = holds
        .iter()
        .filter_map(|(what, _)| named(*what).1)
        .map(|command| format!("`{command}`"))
        .collect();
    let hint = match commands.as_slice() {
        [] => "try again when the pull has ended".to_owned(),
        _ => format!(
            "delete them with a key of the organisation (`cove key create NAME --org {id}`): {}",
            commands.join(", ")
        ),
    };
    let message = format!("the organisation still has {}", counts.join(", "));
    ControlError::new(ErrorCode::InUse, message).hint(hint)
}
