//! Organisations, the unit of tenancy.

use cove_model::OrgId;
use cove_model::spec::check_name;
use cove_store::{Holding, Organisation, Page, PageRequest, Quota, Scope, StoreError};

use crate::audit::Deed;
use crate::error::ControlError;
use crate::principal::Principal;
use crate::{Control, HOME_ORGANISATION};

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
        let _ = self.0.home.set(home.id);
        Ok(())
    }

    /// Operators only.
    pub async fn create_organisation(
        &self,
        principal: &Principal,
        name: &str,
        quota: Option<Quota>,
    ) -> Result<Organisation, ControlError> {
        let outcome = self.try_create_organisation(principal, name, quota).await;
        let deed = Deed::new("organisation.create", name);
        self.record(principal, deed, &outcome).await;
        outcome
    }

    async fn try_create_organisation(
        &self,
        principal: &Principal,
        name: &str,
        quota: Option<Quota>,
    ) -> Result<Organisation, ControlError> {
        principal.require_operator()?;
        check_name(name)?;
        let org = Organisation {
            id: OrgId::random(),
            name: name.to_owned(),
            quota: quota.unwrap_or(self.config().default_quota),
            used: Holding::nothing(),
            created_at: self.now(),
        };
        self.store().create_organisation(&org).await?;
        Ok(org)
    }

    /// Operators only.
    pub async fn list_organisations(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<Organisation>, ControlError> {
        principal.require_operator()?;
        Ok(self.store().organisations(page).await?)
    }

    /// The caller's own (needs `read`), or by id any other (operators only).
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
    pub async fn set_quota(
        &self,
        principal: &Principal,
        id: &OrgId,
        quota: Quota,
    ) -> Result<Organisation, ControlError> {
        let outcome = self.try_set_quota(principal, id, quota).await;
        let deed = Deed::new("organisation.quota", id.as_str());
        self.record(principal, deed, &outcome).await;
        outcome
    }

    /// The same for what is asked as a change of the present quota; a change that makes no sense says why.
    pub async fn change_quota(
        &self,
        principal: &Principal,
        id: &OrgId,
        change: impl FnOnce(Quota) -> Result<Quota, String> + Send,
    ) -> Result<Organisation, ControlError> {
        let changed = async {
            let now = self.organisation(principal, Some(id)).await?;
            let quota = change(now.quota).map_err(ControlError::invalid)?;
            self.try_set_quota(principal, id, quota).await
        };
        let outcome = changed.await;
        let deed = Deed::new("organisation.quota", id.as_str());
        self.record(principal, deed, &outcome).await;
        outcome
    }

    async fn try_set_quota(
        &self,
        principal: &Principal,
        id: &OrgId,
        quota: Quota,
    ) -> Result<Organisation, ControlError> {
        principal.require_operator()?;
        self.store()
            .set_quota(id, quota)
            .await
            .map_err(|error| match error {
                StoreError::NotFound { .. } => ControlError::not_found("organisation", id.as_str()),
                other => other.into(),
            })
    }
}
