//! Whether somebody who was let in for long may stay: connections live on when the key or link that
//! opened them is taken back, unless somebody looks.
//!
//! What is taken back is told to every admission at once; besides, each looks at the books now and
//! then, for what ends by the clock.

use std::time::Duration;

use cove_model::{KeyId, SandboxId};
use tokio::sync::broadcast;
use tokio::time::timeout;

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

/// How often an admission looks at the books when it is told nothing.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// What is taken back faster than an admission hears it makes that one look at the books.
const TOLD_MAX: usize = 256;

/// What ended before its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    Key(KeyId),
    /// Links and openness of a port.
    Port(SandboxId, u16),
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
            (Self::Key(_), Taken::AnyKey) => true,
            (Self::Key(key), Taken::Key(taken)) => key == taken,
            (Self::Port { sandbox, port, .. }, Taken::Port(of, number)) => {
                sandbox == of && port == number
            }
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
    /// Returns when whoever was let in must go: their key or link was taken back or has expired. When
    /// the books cannot be read nobody stays.
    pub async fn ended(mut self) {
        loop {
            match timeout(LOOK_EVERY, self.told.recv()).await {
                Ok(Ok(taken)) if !self.by.concerned(&taken) => continue,
                Ok(Err(broadcast::error::RecvError::Closed)) => return,
                Ok(Ok(_) | Err(broadcast::error::RecvError::Lagged(_))) | Err(_) => {}
            }
            if !matches!(self.holds().await, Ok(true)) {
                return;
            }
        }
    }

    async fn holds(&self) -> Result<bool, ControlError> {
        match &self.by {
            By::Itself => Ok(true),
            By::Key(id) => {
                let now = self.control.now();
                let key = self.control.store().key(id).await?;
                Ok(key.is_some_and(|key| {
                    key.revoked_at.is_none() && key.expires_at.is_none_or(|at| now < at)
                }))
            }
            By::Port {
                sandbox,
                port,
                tokens,
            } => {
                let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
                Ok(self.control.admitted(sandbox, *port, &tokens).await.is_ok())
            }
        }
    }
}

impl Control {
    pub(crate) fn taken_back(&self) -> broadcast::Receiver<Taken> {
        self.0.taken_back.0.subscribe()
    }

    pub(crate) fn admission(&self, by: By, told: broadcast::Receiver<Taken>) -> Admission {
        Admission {
            control: self.clone(),
            by,
            told,
        }
    }

    /// For something long that the holder of a key does: it ends when the key does.
    pub fn admission_of(&self, principal: &Principal) -> Admission {
        self.admission(By::of(principal), self.taken_back())
    }
}
