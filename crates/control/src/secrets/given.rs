//! Secrets in sandboxes: which may be held, what hosts are told of them, and what stands for them inside.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use cove_model::secret::{SecretBinding, SecretGrant};
use cove_model::{OrgId, SandboxId, SandboxSpec};
use cove_protocol::client::{Guest, GuestError};
use cove_protocol::message::{ErrorCode as GuestCode, ReadFile, WriteFile};
use cove_store::SandboxRecord;
use cove_vault::Zeroizing;
use parking_lot::Mutex;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;

/// The bundles of certificates that programs look at: Debian's and Alpine's, Fedora's.
pub(super) const BUNDLES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];
/// Where `update-ca-certificates` and `update-ca-trust` find the organisation's authority when they write those anew.
const ANCHORS: [&str; 2] = [
    "/usr/local/share/ca-certificates/cove-secrets.crt",
    "/etc/pki/ca-trust/source/anchors/cove-secrets.crt",
];
/// The authority alone.
pub(crate) const AUTHORITY_FILE: &str = "/etc/cove/secrets-ca.pem";
/// A bundle above this is not one.
const BUNDLE_BYTES_MAX: usize = 4 << 20;
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

/// What this process has put into which sandboxes, and where.
#[derive(Debug, Default)]
pub(crate) struct Furnished(Mutex<HashMap<SandboxId, Arc<Inside>>>);

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
        self.0.lock().retain(|_, inside| inside.exposed.is_empty());
    }

    fn of(&self, record: &SandboxRecord) -> Option<Arc<Inside>> {
        let found = self.0.lock().get(&record.id).cloned();
        found.filter(|inside| inside.placeholders == record.facts.placeholders)
    }

    pub fn forget(&self, id: &SandboxId) {
        self.0.lock().remove(id);
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
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
        if record.spec.secrets.is_empty() {
            return Ok(None);
        }
        let host = self.host_of(&record.host)?;
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
                write(&guest, path, text, Some(0o600), owner).await?;
            }
        }
        let mut all = host.furnished.0.lock();
        all.insert(record.id.clone(), Arc::clone(&inside));
        Ok(Some(inside))
    }
}

/// Adds the authority to the image's bundles; the one that programs are pointed to.
async fn trust(guest: &Guest, authority: &str) -> Result<&'static str, ControlError> {
    let ours = Bytes::copy_from_slice(authority.as_bytes());
    write(
        guest,
        AUTHORITY_FILE,
        ours.clone(),
        Some(0o644),
        ROOT.into(),
    )
    .await?;
    let mut found = None;
    for (bundle, anchor) in BUNDLES.iter().zip(ANCHORS) {
        let Some(mut text) = read(guest, bundle).await? else {
            continue;
        };
        found = found.or(Some(*bundle));
        if !contains(&text, authority.trim().as_bytes()) {
            if !text.ends_with(b"\n") {
                text.push(b'\n');
            }
            text.extend_from_slice(authority.as_bytes());
            write(guest, bundle, text.into(), Some(0o644), ROOT.into()).await?;
        }
        write(guest, anchor, ours.clone(), Some(0o644), ROOT.into()).await?;
    }
    match found {
        Some(bundle) => Ok(bundle),
        // An image without roots trusts nobody; now it trusts the bound hosts.
        None => {
            write(guest, BUNDLES[0], ours, Some(0o644), ROOT.into()).await?;
            Ok(BUNDLES[0])
        }
    }
}

pub(super) fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

pub(super) async fn read(guest: &Guest, path: &str) -> Result<Option<Vec<u8>>, ControlError> {
    let wanted = ReadFile {
        path: path.to_owned(),
        user: ROOT.into(),
        ..ReadFile::default()
    };
    let mut reader = match guest.read_file(wanted).await {
        Ok(reader) => reader,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    loop {
        match reader.next().await {
            Ok(Some(piece)) if text.len() + piece.len() <= BUNDLE_BYTES_MAX => {
                text.extend_from_slice(&piece);
            }
            Ok(Some(_)) => {
                return Err(ControlError::conflict(format!(
                    "{path} in the sandbox is too large for a bundle of certificates"
                )));
            }
            Ok(None) => return Ok(Some(text)),
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_absent(error: &GuestError) -> bool {
    let absent = [GuestCode::NotFound, GuestCode::NotADirectory];
    error.code().is_some_and(|code| absent.contains(&code))
}

pub(super) async fn write(
    guest: &Guest,
    path: &str,
    bytes: Bytes,
    mode: Option<u32>,
    owner: String,
) -> Result<(), ControlError> {
    let wanted = WriteFile {
        path: path.to_owned(),
        user: ROOT.into(),
        mode,
        owner,
        parents: true,
        ..WriteFile::default()
    };
    let mut upload = guest.write_file(wanted).await?;
    upload.write(bytes).await?;
    upload.finish().await?;
    Ok(())
}
