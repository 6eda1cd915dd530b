//! Rows of the fleet.

use cove_model::{HostId, HostTraits};
use time::OffsetDateTime;

/// The fleet's own row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetRecord {
    pub id: String,
    /// The certificate of the authority, PEM.
    pub authority: String,
    /// Its private key, wrapped.
    pub wrapped: String,
}

/// A host that joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    pub host: HostId,
    pub name: String,
    /// Where its relay is reached.
    pub address: String,
    /// The key it joined with, hexadecimal.
    pub public_key: String,
    pub cordoned: bool,
    pub traits: HostTraits,
    pub joined_at: OffsetDateTime,
    /// When its certificate ends.
    pub expires_at: OffsetDateTime,
}

/// A token by which one host may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTokenRecord {
    pub id: String,
    /// Its secret, wrapped.
    pub wrapped: String,
    pub created_at: OffsetDateTime,
    pub expires_at: OffsetDateTime,
    /// Who joined with it.
    pub host: Option<HostId>,
}

/// What became of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    New,
    /// The same host with the same key had joined by this token; its answer was lost.
    Again,
    NoToken,
    /// Another host joined with it.
    Used,
    Expired,
    /// A node of this name is there.
    NameTaken,
    /// This host is a node already, under this name.
    HostTaken {
        name: String,
    },
}
