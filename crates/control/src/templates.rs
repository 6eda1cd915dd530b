//! Templates: named, versioned starting points of sandboxes.
//!
//! A version is a row that points at a snapshot and has all settings of a sandbox. It never changes, and the snapshot
//! cannot be deleted while it is there. Tags point at versions and may be moved. The host knows nothing of templates.

use cove_model::spec::check_name;
use cove_model::template::{LATEST, TEMPLATE_TAGS_MAX, check_tag};
use cove_model::{SandboxSpec, TemplateAt, TemplateId, TemplateRef};
use cove_runner_api::FromSnapshot;
use cove_store::{
    Inserted, NewTemplate, Page, PageRequest, Scope, StoreError, TemplateHint, TemplateKey,
    TemplateRecord, TemplatesDoomed,
};

use crate::Control;
use crate::audit::Operation;
use crate::error::ControlError;
use crate::principal::Principal;
use crate::sandboxes::{claim, key_reused};
use crate::snapshots::{Base, Source};

/// Tags that a refusal names.
const TAGS_NAMED: u32 = 8;

#[derive(Debug, Clone)]
pub struct CreateTemplate {
    pub name: String,
    /// Id or name.
    pub snapshot: String,
    /// Sandboxes go on with the snapshot's processes.
    pub memory: bool,
    /// Empty: `latest`.
    pub tags: Vec<String>,
    /// Two requests with the same key within a day are one.
    pub idempotency_key: Option<String>,
    /// What an image that was built says of itself.
    pub config: Option<cove_template::Config>,
}

#[derive(Debug, Clone)]
pub struct CreatedTemplate {
    pub template: TemplateRecord,
    /// An earlier request with the same idempotency key made it.
    pub replayed: bool,
}

pub(crate) fn no_template(given: &str) -> ControlError {
    ControlError::not_found("template", given).hint("see `cove template ls`")
}

impl Control {
    /// The caller's own template, by id, `name`, `name:tag` or `name:version`.
    pub(crate) async fn find_template(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<TemplateRecord, ControlError> {
        let reference: TemplateRef = which.parse().map_err(|_| no_template(which))?;
        let (name, key) = match (&reference, reference.at()) {
            (TemplateRef::Id(id), _) => (None, TemplateKey::Id(id.clone())),
            (TemplateRef::Named { name, .. }, Some(TemplateAt::Version(version))) => {
                (Some(name), TemplateKey::Version(name.clone(), version))
            }
            (TemplateRef::Named { name, .. }, at) => {
                let tag = match at {
                    Some(TemplateAt::Tag(tag)) => tag,
                    _ => LATEST.to_owned(),
                };
                (Some(name), TemplateKey::Tag(name.clone(), tag))
            }
        };
        if let Some(found) = self.store().template(&principal.org, &key).await? {
            return Ok(found);
        }
        // A name whose tags are others than the one that was meant.
        let Some(name) = name else {
            return Err(no_template(which));
        };
        let hint = self.store().template_hint(&principal.org, name, TAGS_NAMED);
        let Some(TemplateHint { newest, tags }) = hint.await? else {
            return Err(no_template(which));
        };
        let tags = match tags.is_empty() {
            true => "no tags".to_owned(),
            false => format!("the tags {}", tags.join(", ")),
        };
        Err(ControlError::not_found("template", which)
            .hint(format!("{name} has {tags}; its newest version is {newest}")))
    }

    /// What a sandbox from a template is like where its maker does not say.
    pub(crate) async fn template_base(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Base, ControlError> {
        principal.require(Scope::Manage)?;
        let found = self.find_template(principal, which).await?;
        if found.lost {
            return Err(ControlError::not_found("snapshot", found.snapshot.as_str()).hint(format!(
                "the host has lost the snapshot of the template {}:{}; make a new version from another one",
                found.name, found.version
            )));
        }
        Ok(Base {
            spec: found.spec,
            from: Some(FromSnapshot {
                snapshot: found.snapshot,
                memory: found.memory,
            }),
        })
    }

    /// Needs `read`.
    pub async fn get_template(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<TemplateRecord, ControlError> {
        principal.require(Scope::Read)?;
        self.find_template(principal, which).await
    }

    /// Needs `read`. Versions, newest first; of one name, or of all.
    pub async fn list_templates(
        &self,
        principal: &Principal,
        name: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<TemplateRecord>, ControlError> {
        principal.require(Scope::Read)?;
        Ok(self.store().templates(&principal.org, name, page).await?)
    }

    /// Needs `manage`. A new version of the name, from a snapshot. `over` puts the maker's defaults over the
    /// snapshot's settings.
    pub async fn create_template(
        &self,
        principal: &Principal,
        request: CreateTemplate,
        over: impl FnOnce(SandboxSpec) -> Result<SandboxSpec, ControlError> + Send + 'static,
    ) -> Result<CreatedTemplate, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let name = request.name.clone();
            let outcome = control.make_template(&principal, request, over).await;
            let target = match &outcome {
                Ok(created) => created.template.id.to_string(),
                Err(_) => name,
            };
            let operation = Operation::new("template.create", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. Points a tag at a version, wherever it pointed before.
    pub async fn tag_template(
        &self,
        principal: &Principal,
        which: &str,
        tag: &str,
    ) -> Result<TemplateRecord, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let (which, tag) = (which.to_owned(), tag.to_owned());
        self.to_the_end(async move {
            let mut target = which.clone();
            let outcome = async {
                principal.require(Scope::Manage)?;
                check_tag(&tag)?;
                let found = control.find_template(&principal, &which).await?;
                target = found.id.to_string();
                let store = control.store();
                Ok(store.tag_template(&principal.org, &found.id, &tag).await?)
            }
            .await;
            let mut operation = Operation::new("template.tag", target);
            operation.detail = Some(format!("tag {tag:.80}"));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. What the tag pointed at stays. A name alone means wherever the tag points, anything else only
    /// that version.
    pub async fn untag_template(
        &self,
        principal: &Principal,
        which: &str,
        tag: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let (which, tag) = (which.to_owned(), tag.to_owned());
        self.to_the_end(async move {
            let mut target = which.clone();
            let outcome = async {
                principal.require(Scope::Manage)?;
                let reference = which.parse().map_err(|_| no_template(&which))?;
                let (name, version) = match reference {
                    TemplateRef::Named { name, at: None } => (name, None),
                    _ => {
                        let found = control.find_template(&principal, &which).await?;
                        target = found.id.to_string();
                        (found.name, Some(found.version))
                    }
                };
                let store = control.store();
                let removed = store
                    .untag_template(&principal.org, &name, &tag, version)
                    .await;
                removed.map_err(|error| match (error, version) {
                    (StoreError::NotFound { .. }, None) => no_template(&format!("{name}:{tag}")),
                    (StoreError::NotFound { .. }, Some(version)) => {
                        ControlError::not_found("tag", &tag)
                            .hint(format!("it does not point at {name}:{version}"))
                    }
                    (error, _) => error.into(),
                })
            }
            .await;
            let mut operation = Operation::new("template.untag", target);
            operation.detail = Some(format!("tag {tag:.80}"));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. A name alone means its only version, or with `all` all of them. Sandboxes that began from it stay,
    /// and so does the snapshot, which may be deleted from then on.
    pub async fn delete_template(
        &self,
        principal: &Principal,
        which: &str,
        all: bool,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let mut target = which.clone();
            let outcome = async {
                principal.require(Scope::Manage)?;
                let reference = which.parse().map_err(|_| no_template(&which))?;
                let doomed = match reference {
                    TemplateRef::Named { name, at: None } if all => TemplatesDoomed::All(name),
                    TemplateRef::Named { name, at: None } => TemplatesDoomed::Only(name),
                    _ if all => {
                        return Err(ControlError::invalid(
                            "all needs a name without a tag or version",
                        ));
                    }
                    _ => {
                        let found = control.find_template(&principal, &which).await?;
                        target = found.id.to_string();
                        TemplatesDoomed::Version(found.id)
                    }
                };
                let store = control.store();
                let gone = store.delete_templates(&principal.org, &doomed).await;
                gone.map(drop).map_err(|error| match error {
                    StoreError::NotFound { .. } => no_template(&which),
                    error => error.into(),
                })
            }
            .await;
            let operation = Operation::new("template.delete", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Refuses a version that no sandbox could begin from.
    async fn check_startable(
        &self,
        principal: &Principal,
        from: &FromSnapshot,
        spec: &SandboxSpec,
    ) -> Result<(), ControlError> {
        let row = self.check_origin(principal, from).await?;
        if from.memory
            && let Some(why) = &row.facts.unfit
        {
            return Err(ControlError::invalid(format!(
                "memory: the snapshot's memory cannot be restored: {why}"
            ))
            .hint("leave memory out: sandboxes then boot from the snapshot's disk"));
        }
        match self.check_volumes(principal, spec, false).await? {
            Some(host) if host != row.host => Err(ControlError::invalid(
                "volumes: they are on another host than the snapshot",
            )),
            _ => Ok(()),
        }
    }

    pub(crate) async fn make_template(
        &self,
        principal: &Principal,
        request: CreateTemplate,
        over: impl FnOnce(SandboxSpec) -> Result<SandboxSpec, ControlError> + Send,
    ) -> Result<CreatedTemplate, ControlError> {
        principal.require(Scope::Manage)?;
        check_name(&request.name)?;
        if request.tags.len() > TEMPLATE_TAGS_MAX {
            return Err(ControlError::invalid(format!(
                "tags: at most {TEMPLATE_TAGS_MAX}, not {}",
                request.tags.len()
            )));
        }
        let mut tags = match request.tags.is_empty() {
            true => vec![LATEST.to_owned()],
            false => request.tags,
        };
        tags.sort_unstable();
        tags.dedup();
        for tag in &tags {
            check_tag(tag)?;
        }
        let source = Source::Snapshot {
            snapshot: request.snapshot,
            memory: request.memory,
        };
        let mut base = self.base(principal, source).await?;
        let Some(from) = base.from else {
            return Err(ControlError::internal("a template without a snapshot"));
        };
        // Volumes can be written to by all who mount them, so they are never taken over without being asked for.
        base.spec.volumes.clear();
        let spec = over(base.spec)?;
        spec.check()?;
        self.check_reach(principal, &spec.network)?;
        self.check_startable(principal, &from, &spec).await?;
        let key = request
            .idempotency_key
            .map(|key| {
                let asked = ("template", &request.name, &from.snapshot, from.memory);
                claim(key, &(asked, &tags, &spec))
            })
            .transpose()?;
        let config = request
            .config
            .as_ref()
            .map(serde_json::to_string)
            .transpose();
        let config = config.map_err(|error| {
            ControlError::internal("the configuration cannot be written").because(error)
        })?;
        let new = NewTemplate {
            id: TemplateId::random(),
            org: principal.org.clone(),
            name: request.name,
            snapshot: from.snapshot,
            memory: from.memory,
            spec,
            tags,
            config,
            created_at: self.now(),
            created_steady: self.steady(),
        };
        let (id, replayed) = match self.store().create_template(&new, key.as_ref()).await? {
            Inserted::New => (new.id, false),
            Inserted::KeyReused => return Err(key_reused("for another request")),
            Inserted::Replayed(first) => (first, true),
        };
        let key = TemplateKey::Id(id);
        let found = self.store().template(&principal.org, &key).await?;
        match found {
            Some(template) => Ok(CreatedTemplate { template, replayed }),
            None => Err(key_reused("for a template that is gone")),
        }
    }
}
