//! Whether somebody who was let in for long may stay: connections live on when the key or link that
//! opened them is taken back, unless somebody looks.
//!
//! What is taken back is sent to every admission at once; besides, each looks at the database now and
//! then, for what ends by the clock.

use async_recursion::async_recursion as boxed;
use std::time::Duration;

use cove_model::{KeyId, SandboxId};
use cove_store::Key;
use time::OffsetDateTime;
use tokio::sync::broadcast;
use tokio::time::{Instant, timeout_at};

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;
use crate::ssh::SignedToken;

/// How often an admission looks at the database when it hears nothing.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The first look, from which on the end by the clock is known. Most of what is admitted is over before.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Clocks of machines that share a database differ a little, and nobody looks without a pause.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long a database that cannot be read is believed to say what it said: a database may be restarting.
const UNREAD_MAX: Duration = Duration::from_secs(60);
/// What is taken back faster than an admission hears it makes that one look at the database.
const TOLD_MAX: usize = 256;

/// What ended before its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    Key(KeyId),
    /// Links and openness of a port.
    Port(SandboxId, u16),
    /// A public key for SSH.
    SshKey(KeyId),
    /// Tokens for SSH.
    SshTokens(SandboxId),
    /// Every key might be.
    AnyKey,
}

pub(crate) struct TakenBack(broadcast::Sender<Taken>);

impl Default for TakenBack {
    fn default() -> Self {
        Self(broadcast::Sender::new(TOLD_MAX))
    }
}

impl TakenBack {
    pub(crate) fn tell(&self, taken: Taken) {
        // Nobody is in: nobody has to know.
        let _ = self.0.send(taken);
    }
}

/// Tells what was taken back when it is dropped: whoever took it has their answer by then, or has gone.
/// The one who takes back their own key would be cut off from that answer otherwise.
pub(crate) struct Telling {
    control: Control,
    taken: Taken,
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.control.0.callers.taken_back.tell(self.taken.clone());
    }
}

/// By what somebody is in.
#[derive(Debug, Clone)]
pub(crate) enum By {
    Key(KeyId),
    /// By these tokens, or because the port is open to everybody.
    Port {
        sandbox: SandboxId,
        port: u16,
        tokens: Vec<String>,
    },
    /// By a public key for SSH that was registered.
    SshKey {
        id: KeyId,
        fingerprint: String,
    },
    SshToken {
        sandbox: SandboxId,
        token: SignedToken,
    },
    /// Not by anything that can be taken back.
    Itself,
}

impl By {
    pub(crate) fn of(principal: &Principal) -> Self {
        match &principal.key {
            Some(key) => Self::Key(key.clone()),
            None => Self::Itself,
        }
    }

    fn concerned(&self, taken: &Taken) -> bool {
        match (self, taken) {
            (Self::Key(_) | Self::SshKey { .. }, Taken::AnyKey) => true,
            (Self::Key(key), Taken::Key(taken)) => key == taken,
            (Self::Port { sandbox, port, .. }, Taken::Port(of, number)) => {
                sandbox == of && port == number
            }
            (Self::SshKey { id, .. }, Taken::SshKey(taken)) => id == taken,
            (Self::SshToken { sandbox, .. }, Taken::SshTokens(of)) => sandbox == of,
            (Self::SshToken { token, .. }, Taken::Key(taken)) => {
                token.claims.key.as_ref() == Some(taken)
            }
            (Self::SshToken { token, .. }, Taken::AnyKey) => token.claims.key.is_some(),
            _ => false,
        }
    }
}

/// Somebody who was let in.
pub struct Admission {
    control: Control,
    by: By,
    told: broadcast::Receiver<Taken>,
}

impl Admission {
    /// Returns when whoever was let in must go: their key or link was taken back or has expired. While
    /// the database cannot be read nobody stays whose end was announced, and nobody stays for long.
    #[boxed]
    pub async fn ended(mut self) {
        let mut look = Instant::now() + FIRST_LOOK;
        let mut unread_since = None;
        loop {
            // What others lose does not put the next look off.
            let told = match timeout_at(look, self.told.recv()).await {
                Ok(Ok(taken)) if !self.by.concerned(&taken) => continue,
                Ok(Err(broadcast::error::RecvError::Closed)) => return,
                Ok(Ok(_) | Err(broadcast::error::RecvError::Lagged(_))) => true,
                Err(_) => false,
            };
            let pause = match self.holds().await {
                Ok(Stay::Over) => return,
                Ok(Stay::Until(None)) => LOOK_EVERY,
                Ok(Stay::Until(Some(end))) => {
                    let left = Duration::try_from(end - self.control.now());
                    left.unwrap_or_default().clamp(LOOK_AGAIN, LOOK_EVERY)
                }
                Err(error) => {
                    let since = *unread_since.get_or_insert_with(Instant::now);
                    if told || since.elapsed() >= UNREAD_MAX {
                        tracing::warn!(%error, "cannot read the database; exiting");
                        return;
                    }
                    look = Instant::now() + LOOK_AGAIN;
                    continue;
                }
            };
            unread_since = None;
            look = Instant::now() + pause;
        }
    }

    async fn holds(&self) -> Result<Stay, ControlError> {
        let control = &self.control;
        match &self.by {
            By::Itself => Ok(Stay::Until(None)),
            By::Key(id) => {
                let now = control.now();
                let key = control.key_shared(id).await?;
                Ok(match key {
                    Some(key)
                        if key.revoked_at.is_none() && key.expires_at.is_none_or(|at| now < at) =>
                    {
                        Stay::Until(key.expires_at)
                    }
                    _ => Stay::Over,
                })
            }
            By::Port {
                sandbox,
                port,
                tokens,
            } => {
                let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
                let admitted = control.admitted(sandbox, *port, &tokens).await;
                Ok(admitted.map_or(Stay::Over, |(_, until)| Stay::Until(until)))
            }
            By::SshKey { id, fingerprint } => {
                let found = control.living_ssh_keys(fingerprint).await?;
                let found = found.into_iter().find(|key| key.id == *id);
                Ok(found.map_or(Stay::Over, |key| Stay::Until(key.expires_at)))
            }
            By::SshToken { sandbox, token } => {
                let until = control.ssh_token_until(sandbox, token).await?;
                Ok(until.map_or(Stay::Over, |until| Stay::Until(Some(until))))
            }
        }
    }
}

/// What the database says.
enum Stay {
    Over,
    /// Until then, unless it is taken back before.
    Until(Option<OffsetDateTime>),
}

impl Control {
    pub(crate) fn taken_back(&self) -> broadcast::Receiver<Taken> {
        self.0.callers.taken_back.0.subscribe()
    }

    pub(crate) fn telling(&self, taken: Taken) -> Telling {
        Telling {
            control: self.clone(),
            taken,
        }
    }

    pub(crate) fn admission(&self, by: By, told: broadcast::Receiver<Taken>) -> Admission {
        Admission {
            control: self.clone(),
            by,
            told,
        }
    }

    /// A key, read once in a while for all that was let in by it.
    async fn key_shared(&self, id: &KeyId) -> Result<Option<Key>, ControlError> {
        let now = self.steady();
        let epoch = match self.0.callers.keyring.recall_id(id, now) {
            Ok(key) => return Ok(Some(key)),
            Err(epoch) => epoch,
        };
        let found = self.store().key(id).await?;
        if let Some(key) = found.as_ref().filter(|key| key.revoked_at.is_none()) {
            self.0.callers.keyring.remember_id(key.clone(), now, epoch);
        }
        Ok(found)
    }

    /// For something long that the holder of a key does: it ends when the key does.
    pub fn admission_of(&self, principal: &Principal) -> Admission {
        self.admission(By::of(principal), self.taken_back())
    }
}
