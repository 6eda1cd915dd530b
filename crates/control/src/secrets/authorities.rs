//! Certificate authorities that the operator gives to sandboxes: those of a proxy or of internal servers. They are
//! added to the image's own roots, beside the authority that stands for secrets.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use cove_model::{OrgId, SandboxId};
use cove_store::SandboxRecord;
use parking_lot::Mutex;

use super::given::{BUNDLE_VARIABLES, Inside, NODE_VARIABLE, ROOT};
use super::inside::{BUNDLES, contains, read, write};
use crate::Control;
use crate::error::ControlError;

/// Where `update-ca-certificates` and `update-ca-trust` find them when they write the bundles again.
const ANCHORS: [&str; 2] = [
    "/usr/local/share/ca-certificates/cove-host.crt",
    "/etc/pki/ca-trust/source/anchors/cove-host.crt",
];
/// All that a program with roots of its own must add, the authority of secrets included.
const ADDED_FILE: &str = "/etc/cove/host-ca.pem";

/// The certificates, and who gets them.
#[derive(Debug, Clone)]
pub struct SandboxAuthorities {
    /// Each in PEM, with a line feed at its end.
    pub certificates: Vec<String>,
    /// The home organisation's sandboxes have them.
    pub home: bool,
    /// Other organisations whose sandboxes have them.
    pub organisations: BTreeSet<OrgId>,
}

/// Which sandboxes have them already, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Trusting(Mutex<HashMap<SandboxId, (State, Arc<Trust>)>>);

/// What a sandbox was like when its bundles were looked at. A start, a rollback or a change makes another one of it.
#[derive(Debug)]
struct State {
    generation: u64,
    inside: Option<Weak<Inside>>,
}

/// Variables that make programs look at the bundle.
#[derive(Debug)]
pub(crate) struct Trust {
    pub variables: Vec<(String, String)>,
}

impl State {
    fn of(record: &SandboxRecord, inside: Option<&Arc<Inside>>) -> Self {
        Self {
            generation: record.generation,
            inside: inside.map(Arc::downgrade),
        }
    }

    fn is(&self, other: &Self) -> bool {
        let same = match (&self.inside, &other.inside) {
            (Some(one), Some(other)) => one.ptr_eq(other),
            (None, None) => true,
            _ => false,
        };
        same && self.generation == other.generation
    }
}

impl Trusting {
    fn of(&self, id: &SandboxId, state: &State) -> Option<Arc<Trust>> {
        let all = self.0.lock();
        let (known, trust) = all.get(id)?;
        known.is(state).then(|| Arc::clone(trust))
    }

    pub fn forget(&self, id: &SandboxId) {
        self.0.lock().remove(id);
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Control {
    /// Adds the operator's authorities to a running sandbox whose organisation gets them. A sandbox that cannot take
    /// them, because its disk is full for example, can still be used.
    pub(crate) async fn add_authorities(
        &self,
        record: &SandboxRecord,
        inside: Option<&Arc<Inside>>,
    ) -> Result<Option<Arc<Trust>>, ControlError> {
        let Some(authorities) = &self.config().authorities else {
            return Ok(None);
        };
        let home = self.home()?;
        let given = match &record.org == home {
            true => authorities.home,
            false => authorities.organisations.contains(&record.org),
        };
        if !given {
            return Ok(None);
        }
        let host = self.host_of(&record.host)?;
        let state = State::of(record, inside);
        if let Some(trust) = host.trusting.of(&record.id, &state) {
            return Ok(Some(trust));
        }
        let added = self.add_to(record, &authorities.certificates, inside).await;
        let trust = match added {
            Ok(trust) => Arc::new(trust),
            Err(error) => {
                tracing::warn!(sandbox = %record.id, %error, "cannot add the host's certificate authorities");
                return Ok(None);
            }
        };
        let mut all = host.trusting.0.lock();
        all.insert(record.id.clone(), (state, Arc::clone(&trust)));
        Ok(Some(trust))
    }

    async fn add_to(
        &self,
        record: &SandboxRecord,
        certificates: &[String],
        inside: Option<&Arc<Inside>>,
    ) -> Result<Trust, ControlError> {
        let guest = self.guest_of(record);
        let ours = certificates.concat();
        let mut added = ours.clone();
        if inside.is_some_and(|inside| inside.terminates()) {
            let keys = self.store().secret_keys(&record.org).await?;
            added.extend(keys.map(|keys| keys.authority));
        }
        let put = async |path: &str, text: Vec<u8>| {
            write(&guest, path, Bytes::from(text), Some(0o644), ROOT.into()).await
        };
        put(ADDED_FILE, added.into_bytes()).await?;
        let mut found = None;
        for (bundle, anchor) in BUNDLES.iter().zip(ANCHORS) {
            let Some(mut text) = read(&guest, bundle).await? else {
                continue;
            };
            found = found.or(Some(*bundle));
            if add_missing(&mut text, certificates) {
                put(bundle, text).await?;
            }
            put(anchor, ours.clone().into_bytes()).await?;
        }
        if found.is_none() {
            // An image without roots trusts nobody; now it trusts these.
            put(BUNDLES[0], ours.into_bytes()).await?;
        }
        let bundle = found.unwrap_or(BUNDLES[0]);
        let variables = BUNDLE_VARIABLES.map(|name| (name.to_owned(), bundle.to_owned()));
        let node = (NODE_VARIABLE.to_owned(), ADDED_FILE.to_owned());
        Ok(Trust {
            variables: variables.into_iter().chain([node]).collect(),
        })
    }
}

/// Adds what a bundle does not have yet; whether it had to.
fn add_missing(bundle: &mut Vec<u8>, certificates: &[String]) -> bool {
    let before = bundle.len();
    for certificate in certificates {
        if contains(bundle, certificate.trim().as_bytes()) {
            continue;
        }
        if !bundle.is_empty() && !bundle.ends_with(b"\n") {
            bundle.push(b'\n');
        }
        bundle.extend_from_slice(certificate.as_bytes());
    }
    bundle.len() > before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_gets_each_certificate_once() {
        let certificates = ["-one-\n".to_owned(), "-two-\n".to_owned()];
        let mut bundle = b"-two-".to_vec();
        assert!(add_missing(&mut bundle, &certificates));
        assert_eq!(bundle, b"-two-\n-one-\n");
        assert!(!add_missing(&mut bundle, &certificates));
        assert_eq!(bundle, b"-two-\n-one-\n");
    }
}
