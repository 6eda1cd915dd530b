//! Secrets of organisations: set, listed and removed, never read.
//!
//! A value is sealed to its organisation's public key as soon as it is here, and control has no key that opens
//! it again. The keys themselves are made by a host's runner and come wrapped by the host's key.

use cove_limits::SECRETS_MAX;
use cove_model::secret::{OrgKeys, SecretBinding, check_secret_name, check_secret_value};
use cove_model::{HostId, OrgId, SecretId};
use cove_store::{Page, PageRequest, Scope, SecretRecord, SecretUsage, StoreError};
use cove_vault::{About, Zeroizing};

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;

/// How often a secret is sealed again because another version came between.
const TRIES_MAX: u32 = 4;

mod authorities;
mod budgets;
mod given;
mod inside;
mod telling;

pub use authorities::SandboxAuthorities;
pub(crate) use authorities::{Trust, Trusting};
pub use budgets::SecretBudget;
pub(crate) use given::{Furnished, Inside};
pub(crate) use telling::Telling;

/// A secret to be kept. Its value is not shown, not even when this is printed.
#[derive(Clone)]
pub struct SetSecret {
    pub name: String,
    pub value: Zeroizing<String>,
    pub binding: SecretBinding,
}

/// A change that is kept, and where it is not in force yet.
#[derive(Debug, Clone, PartialEq)]
pub struct SecretChange<T> {
    pub done: T,
    /// Hosts that could not be told. They go on with what they knew until they are reached.
    pub not_told: Vec<HostId>,
}

impl std::fmt::Debug for SetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetSecret")
            .field("name", &self.name)
            .field("binding", &self.binding)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Needs `admin`. The first version of a secret, or its next one.
    pub async fn set_secret(
        &self,
        principal: &Principal,
        request: SetSecret,
    ) -> Result<SecretChange<SecretRecord>, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let mut operation = Operation::new("secret.set", request.name.as_str());
            let hosts: Vec<_> = request
                .binding
                .hosts
                .iter()
                .map(ToString::to_string)
                .collect();
            let asks = if request.binding.ask { ", asks" } else { "" };
            let usage = &request.binding.usage;
            let limits = request.binding.limits.iter();
            let limits: String = limits.map(|limit| format!(", {limit}")).collect();
            operation.detail = Some(format!("{usage} at {}{asks}{limits}", hosts.join(" ")));
            let outcome = match control.try_set_secret(&principal, &request).await {
                Ok(done) => Ok(SecretChange {
                    done,
                    not_told: control.spread_secrets(&principal.org).await,
                }),
                Err(error) => Err(error),
            };
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_set_secret(
        &self,
        principal: &Principal,
        request: &SetSecret,
    ) -> Result<SecretRecord, ControlError> {
        principal.require(Scope::Admin)?;
        check_secret_name(&request.name)?;
        check_secret_value(&request.value)?;
        request.binding.usage.check_value(&request.value)?;
        request.binding.check()?;
        let keys = self.secret_keys(&principal.org).await?;
        for _ in 0..TRIES_MAX {
            let found = self.store().secret(&principal.org, &request.name).await?;
            let version = found.map_or(0, |found| found.version) + 1;
            let about = About {
                org: &principal.org,
                name: &request.name,
                version,
                binding: &request.binding,
            };
            let sealed = cove_vault::seal(&keys.public, &about, request.value.as_bytes());
            let sealed = sealed
                .map_err(|error| ControlError::internal("cannot seal the secret").because(error))?;
            let now = self.now();
            let record = SecretRecord {
                id: SecretId::random(),
                org: principal.org.clone(),
                name: request.name.clone(),
                version,
                binding: request.binding.clone(),
                sealed,
                created_at: now,
                updated_at: now,
                last_used_at: None,
                uses: 0,
            };
            match self.store().put_secret(&record).await {
                Err(StoreError::Stale) => {}
                Err(error @ StoreError::TooMany { .. }) => {
                    let hint = format!(
                        "an organisation has at most {SECRETS_MAX}; remove some with `cove secret rm`"
                    );
                    return Err(ControlError::from(error).hint(hint));
                }
                outcome => return Ok(outcome?),
            }
        }
        Err(StoreError::Stale.into())
    }

    /// The organisation's keys, made by a host when it has none yet.
    pub(crate) async fn secret_keys(&self, org: &OrgId) -> Result<OrgKeys, ControlError> {
        if let Some(keys) = self.store().secret_keys(org).await? {
            return Ok(keys);
        }
        let host = self.any_host()?;
        let made = self.runner(&host).await?.make_secret_keys(org).await?;
        Ok(self.store().keep_secret_keys(&made).await?)
    }

    /// Needs `manage`. What there is, without values.
    pub async fn list_secrets(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<SecretRecord>, ControlError> {
        principal.require(Scope::Manage)?;
        Ok(self.store().secrets(&principal.org, page).await?)
    }

    /// Needs `manage`. Which sandboxes used it.
    pub async fn secret_uses(
        &self,
        principal: &Principal,
        name: &str,
    ) -> Result<Vec<SecretUsage>, ControlError> {
        principal.require(Scope::Manage)?;
        match self.store().secret(&principal.org, name).await? {
            Some(_) => Ok(self.store().secret_uses(&principal.org, name).await?),
            None => Err(ControlError::not_found("secret", name)),
        }
    }

    /// Needs `admin`. No placeholder is swapped for it any more, and connections that used it are cut.
    pub async fn remove_secret(
        &self,
        principal: &Principal,
        name: &str,
    ) -> Result<SecretChange<()>, ControlError> {
        let (control, principal, name) = (self.clone(), principal.clone(), name.to_owned());
        self.to_the_end(async move {
            let outcome = async {
                principal.require(Scope::Admin)?;
                let removed = control.store().remove_secret(&principal.org, &name).await;
                removed.map_err(|error| match error {
                    StoreError::NotFound { .. } => ControlError::not_found("secret", &name),
                    other => ControlError::from(other),
                })?;
                Ok(SecretChange {
                    done: (),
                    not_told: control.spread_secrets(&principal.org).await,
                })
            }
            .await;
            let operation = Operation::new("secret.remove", name.as_str());
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// The operator's alone. Wraps the keys of all organisations with the newest host key; answers how many.
    pub async fn rotate_secret_keys(&self, principal: &Principal) -> Result<u64, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let outcome = control.try_rotate_secret_keys(&principal).await;
            let mut operation = Operation::new("secret.rotate", "keys");
            operation.detail = outcome
                .as_ref()
                .ok()
                .map(|count| format!("{count} organisations"));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Rows that cannot be wrapped anew do not keep the others from it; they are told together at the end.
    async fn try_rotate_secret_keys(&self, principal: &Principal) -> Result<u64, ControlError> {
        principal.require_operator()?;
        let host = self.any_host()?;
        let runner = self.runner(&host).await?;
        let (mut count, mut failed) = (0, Vec::new());
        for keys in self.store().all_secret_keys().await? {
            let org = keys.org.clone();
            let rewrapped = async {
                let wrapped = runner.rewrap_secret_keys(keys).await?;
                if wrapped.org != org {
                    return Err(ControlError::new(
                        ErrorCode::Internal,
                        "the host answered with keys of another organisation",
                    ));
                }
                Ok(self.store().rewrap_secret_keys(&wrapped).await?)
            };
            match rewrapped.await {
                Ok(_) => {
                    count += 1;
                    // Hosts would start a terminator with what the old key wrapped, which may soon be gone.
                    self.spread_secrets(&org).await;
                }
                Err(error) => {
                    tracing::error!(%org, %error, "cannot re-encrypt the keys of an organisation");
                    failed.push(format!("{org}: {}", error.message));
                }
            }
        }
        match failed.first() {
            None => Ok(count),
            Some(first) => Err(ControlError::new(
                ErrorCode::Internal,
                format!(
                    "{count} organisations were rewrapped, {} were not; the first: {first}",
                    failed.len()
                ),
            )
            .hint("keep the old lines of the host key file; the log names all of them")),
        }
    }
}
