//! Secrets in sandboxes: which may be held, what hosts are told of them, and what stands for them inside.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cove_model::secret::{SecretBinding, SecretGrant};
use cove_model::{ImageId, OrgId, SandboxId, SandboxSpec, State};
use cove_store::SandboxRecord;
use cove_vault::Zeroizing;
use parking_lot::Mutex;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;

use super::inside::{AUTHORITY_FILE, distrust_others, put, trust};

/// Variables that make programs with roots of their own look at a bundle.
pub(super) const BUNDLE_VARIABLES: [&str; 7] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
];
pub(super) const NODE_VARIABLE: &str = "NODE_EXTRA_CA_CERTS";
pub(super) const ROOT: &str = "root";
/// How long a fork or a rollback waits for what is put inside. The next command does it otherwise.
const EARLY_MAX: Duration = Duration::from_secs(10);
/// Images that are known to have no other organisation's authority.
const CLEAN_IMAGES_MAX: usize = 4096;

/// What this process has put into which sandboxes, and where.
#[derive(Debug, Default)]
pub(crate) struct Furnished {
    inside: Mutex<HashMap<SandboxId, Arc<Inside>>>,
    /// Those whose guests know what commands get, for their services.
    pub(crate) begun: Mutex<HashSet<SandboxId>>,
    /// Sandboxes without secrets that trust no other organisation's authority.
    clean: Mutex<HashSet<SandboxId>>,
    /// Images of which the same is known. An organisation hears nothing from another one's sandboxes.
    clean_images: Mutex<HashSet<(OrgId, ImageId)>>,
}

/// What is inside for the placeholders that a sandbox has.
pub(crate) struct Inside {
    placeholders: BTreeMap<String, String>,
    /// Values of exposed secrets, by name.
    exposed: BTreeMap<String, Zeroizing<String>>,
    /// Absent where nothing is terminated.
    bundle: Option<&'static str>,
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

impl Furnished {
    /// Values of exposed secrets may have changed: they are asked for again with the next command.
    pub fn forget_exposed(&self) {
        let mut begun = self.begun.lock();
        self.inside.lock().retain(|id, inside| {
            let keeps = inside.exposed.is_empty();
            if !keeps {
                begun.remove(id);
            }
            keeps
        });
    }

    fn of(&self, record: &SandboxRecord) -> Option<Arc<Inside>> {
        let found = self.inside.lock().get(&record.id).cloned();
        found.filter(|inside| inside.placeholders == record.facts.placeholders)
    }

    pub fn forget(&self, id: &SandboxId) {
        self.inside.lock().remove(id);
        self.begun.lock().remove(id);
        self.clean.lock().remove(id);
    }

    pub fn len(&self) -> usize {
        self.inside.lock().len() + self.begun.lock().len() + self.clean.lock().len()
    }

    fn is_clean(&self, record: &SandboxRecord) -> bool {
        // What began with no image and no snapshot has nothing of anybody.
        let began = record.facts.image.is_some() || record.origin.is_some();
        !began
            || self.clean.lock().contains(&record.id)
            || image_of(record).is_some_and(|image| self.clean_images.lock().contains(&image))
    }

    fn note_clean(&self, record: &SandboxRecord) {
        let Some(image) = image_of(record) else {
            self.clean.lock().insert(record.id.clone());
            return;
        };
        let mut images = self.clean_images.lock();
        if images.len() >= CLEAN_IMAGES_MAX {
            images.clear();
        }
        images.insert(image);
    }
}

/// The image of a sandbox that began with nothing else.
fn image_of(record: &SandboxRecord) -> Option<(OrgId, ImageId)> {
    let image = record.facts.image.clone()?;
    (record.origin.is_none() && record.head.is_none()).then(|| (record.org.clone(), image))
}

impl Inside {
    /// Whether the organisation's authority is beside the image's own.
    pub fn terminates(&self) -> bool {
        self.bundle.is_some()
    }

    /// Variables of every command, under what the sandbox's owner or the caller says.
    pub fn variables(&self, spec: &SandboxSpec) -> Vec<(String, String)> {
        let trust = self.bundle.into_iter().flat_map(|bundle| {
            let node = (NODE_VARIABLE.to_owned(), AUTHORITY_FILE.to_owned());
            let bundles = BUNDLE_VARIABLES.map(|name| (name.to_owned(), bundle.to_owned()));
            bundles.into_iter().chain([node])
        });
        let grants = spec
            .secrets
            .iter()
            .filter_map(|grant| Some((grant.env.clone()?, self.text_of(grant)?.to_owned())));
        trust.chain(grants).collect()
    }

    /// What a variable or a file holds for a secret.
    fn text_of(&self, grant: &SecretGrant) -> Option<&str> {
        match grant.exposed {
            true => self.exposed.get(&grant.name).map(|value| value.as_str()),
            false => self.placeholders.get(&grant.name).map(String::as_str),
        }
    }
}

impl Control {
    /// Refuses secrets that the organisation does not have, and hosts that the policy does not list. Afterwards the
    /// host knows them.
    pub(crate) async fn give_secrets(
        &self,
        org: &OrgId,
        spec: &SandboxSpec,
        host: &Host,
    ) -> Result<(), ControlError> {
        if spec.secrets.is_empty() {
            return Ok(());
        }
        self.check_secrets(org, spec).await?;
        self.tell_secrets(org, host).await
    }

    pub(crate) async fn check_secrets(
        &self,
        org: &OrgId,
        spec: &SandboxSpec,
    ) -> Result<(), ControlError> {
        for grant in &spec.secrets {
            let found = self.store().secret(org, &grant.name).await?;
            let found = found.ok_or_else(|| {
                ControlError::invalid(format!("secrets: there is no secret '{}'", grant.name))
                    .hint("`cove secret ls` lists them, `cove secret set` makes one")
            })?;
            found.binding.check_grant(grant)?;
            if let Some(host) = found.binding.unreachable_in(&spec.network) {
                return Err(ControlError::invalid(format!(
                    "secrets: '{}' is bound to {host}, which the network policy does not list",
                    grant.name
                ))
                .hint(format!(
                    "use network mode allowlist and add {host} to network.allow; a secret does not change the network policy"
                )));
            }
        }
        Ok(())
    }

    /// What of a sandbox's secrets a copy of it can have: not those that were removed, and not those whose hosts the
    /// policy does not list any more.
    pub(crate) async fn inherited_secrets(
        &self,
        org: &OrgId,
        spec: &SandboxSpec,
    ) -> Result<Vec<SecretGrant>, ControlError> {
        let mut kept = Vec::new();
        for grant in &spec.secrets {
            let found = self.store().secret(org, &grant.name).await?;
            let fits = |binding: &SecretBinding| {
                binding.check_grant(grant).is_ok()
                    && binding.unreachable_in(&spec.network).is_none()
            };
            if found.is_some_and(|it| fits(&it.binding)) {
                kept.push(grant.clone());
            }
        }
        Ok(kept)
    }

    /// What is inside a sandbox for its secrets, put there first where this process has not seen to it: the
    /// authority beside the image's own roots, and the files that its owner asked for.
    pub(crate) async fn furnish(
        &self,
        record: &SandboxRecord,
    ) -> Result<Option<Arc<Inside>>, ControlError> {
        let host = self.host_of(&record.host)?;
        if record.spec.secrets.is_empty() {
            self.clean(record, &host).await;
            return Ok(None);
        }
        if let Some(inside) = host.furnished.of(record) {
            return Ok(Some(inside));
        }
        let keys = self.store().secret_keys(&record.org).await?;
        let keys = keys.ok_or_else(|| {
            ControlError::new(
                ErrorCode::Internal,
                "the organisation has no keys for secrets",
            )
        })?;
        let guest = self.guest_of(record);
        let secrets = &record.spec.secrets;
        let exposed = match secrets.iter().any(|grant| grant.exposed) {
            true => host.runner().await?.exposed_secrets(&record.id).await?,
            false => BTreeMap::new(),
        };
        let exposed = exposed.into_iter();
        let bundle = match secrets.iter().all(|grant| grant.exposed) {
            true => None,
            false => Some(trust(&guest, &keys.authority).await?),
        };
        let inside = Arc::new(Inside {
            placeholders: record.facts.placeholders.clone(),
            exposed: exposed
                .map(|(name, value)| (name, Zeroizing::new(value)))
                .collect(),
            bundle,
        });
        for grant in secrets {
            if let (Some(path), Some(text)) = (&grant.file, inside.text_of(grant)) {
                let owner = record.spec.user.clone().unwrap_or_else(|| ROOT.into());
                let text = Bytes::copy_from_slice(text.as_bytes());
                put(&guest, path, text, 0o600, owner).await?;
            }
        }
        if bundle.is_none() {
            distrust_others(&guest, Some(&keys.authority)).await?;
        }
        let mut all = host.furnished.inside.lock();
        all.insert(record.id.clone(), Arc::clone(&inside));
        Ok(Some(inside))
    }

    /// A snapshot or an image can come from another organisation, whose authority it would go on to trust.
    async fn clean(&self, record: &SandboxRecord, host: &Host) {
        if host.furnished.is_clean(record) {
            return;
        }
        let cleaned = async {
            let keys = self.store().secret_keys(&record.org).await?;
            let ours = keys.as_ref().map(|keys| keys.authority.as_str());
            distrust_others(&self.guest_of(record), ours).await
        };
        match cleaned.await {
            Ok(true) => {
                // Of this sandbox alone: others of the image still have it.
                host.furnished.clean.lock().insert(record.id.clone());
                tracing::info!(sandbox = %record.id, "removed another organisation's certificate authority from a copy");
            }
            Ok(false) => host.furnished.note_clean(record),
            Err(error) => {
                tracing::debug!(%error, sandbox = %record.id, "cannot look for certificate authorities of other organisations");
            }
        }
    }

    /// For copies and rollbacks, which may run programs before the first command: their files hold what counts for
    /// them as soon as the caller hears of them. What fails here is done, or told, by the next command.
    pub(crate) async fn furnish_early(&self, record: &SandboxRecord) {
        if record.spec.secrets.is_empty() || record.state != State::Running {
            return;
        }
        let furnished = tokio::time::timeout(EARLY_MAX, self.furnish(record)).await;
        let failed = match furnished {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the guest does not answer".to_owned(),
        };
        tracing::warn!(error = failed, sandbox = %record.id, "cannot write placeholders into a copy; the next command does");
    }
}
