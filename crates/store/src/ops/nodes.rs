//! The fleet: its authority, its nodes, and tokens to join it.

use cove_model::{HostId, HostTraits, TraitsChange};
use time::OffsetDateTime;

use crate::sql::{Op, Row, Tx, json, values};
use crate::{FleetRecord, JoinTokenRecord, Joined, NodeRecord, StoreError};

const COLUMNS: &str = "host, name, address, public_key, cordoned, joined_at, expires_at, traits";
const NO_NODE: StoreError = StoreError::NotFound { what: "the node" };

fn node(row: &Row) -> Result<NodeRecord, StoreError> {
    Ok(NodeRecord {
        host: row.parse(0, "host id")?,
        name: row.text(1)?.to_owned(),
        address: row.text(2)?.to_owned(),
        public_key: row.text(3)?.to_owned(),
        cordoned: row.int(4)? != 0,
        joined_at: row.time(5)?,
        expires_at: row.time(6)?,
        traits: row.json(7, "traits of a host")?,
    })
}

/// One changes the fleet at a time: the update that changes nothing takes the row's lock.
async fn lock<T: Tx>(tx: &mut T) -> Result<(), StoreError> {
    tx.execute("UPDATE schema_version SET version = version", &[])
        .await
        .map(drop)
}

/// Where a new row names a host: refuses a node that was removed. The update that changes nothing waits for a removal
/// under way, and one that comes later waits for this transaction. For a host that is not a node it finds nothing.
pub async fn still_there<T: Tx>(tx: &mut T, host: &HostId) -> Result<(), StoreError> {
    let rows = tx
        .query(
            "UPDATE nodes SET cordoned = cordoned WHERE host = ?1 RETURNING removed_at",
            values![host],
        )
        .await?;
    match rows.first().map(|row| row.optional_time(0)).transpose()? {
        Some(Some(_)) => Err(StoreError::NodeRemoved),
        Some(None) | None => Ok(()),
    }
}

pub struct Fleet;

impl Op for Fleet {
    type Out = Option<FleetRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query("SELECT id, authority, wrapped FROM fleet", &[])
            .await?;
        let record = |row: &Row| {
            Ok(FleetRecord {
                id: row.text(0)?.to_owned(),
                authority: row.text(1)?.to_owned(),
                wrapped: row.text(2)?.to_owned(),
            })
        };
        rows.first().map(record).transpose()
    }
}

/// The first one stays.
pub struct KeepFleet(pub FleetRecord);

impl Op for KeepFleet {
    type Out = FleetRecord;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let FleetRecord {
            id,
            authority,
            wrapped,
        } = &self.0;
        tx.execute(
            "INSERT INTO fleet (one, id, authority, wrapped) VALUES (1, ?1, ?2, ?3) \
             ON CONFLICT DO NOTHING",
            values![id.as_str(), authority.as_str(), wrapped.as_str()],
        )
        .await?;
        let kept = Fleet.run(tx).await?;
        kept.ok_or(StoreError::Corrupt { what: "fleet" })
    }
}

pub struct All;

impl Op for All {
    type Out = Vec<NodeRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM nodes WHERE removed_at IS NULL ORDER BY name");
        tx.query(&sql, &[]).await?.iter().map(node).collect()
    }
}

pub struct CreateToken {
    pub token: JoinTokenRecord,
    pub now: OffsetDateTime,
}

impl Op for CreateToken {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        lock(tx).await?;
        // What has ended or was used long ago is of no use to anybody.
        tx.execute(
            "DELETE FROM join_tokens WHERE expires_at <= ?1",
            values![self.now],
        )
        .await?;
        let rows = tx
            .query("SELECT COUNT(*) FROM join_tokens WHERE host IS NULL", &[])
            .await?;
        let open = rows.first().map_or(Ok(0), |row| row.count(0))?;
        if open >= cove_limits::JOIN_TOKENS_MAX as u64 {
            return Err(StoreError::TooMany {
                what: "join tokens",
            });
        }
        let JoinTokenRecord {
            id,
            wrapped,
            created_at,
            expires_at,
            host: _,
        } = &self.token;
        tx.execute(
            "INSERT INTO join_tokens (id, wrapped, created_at, expires_at) VALUES (?1, ?2, ?3, ?4)",
            values![id.as_str(), wrapped.as_str(), *created_at, *expires_at],
        )
        .await
        .map(drop)
    }
}

pub struct Token(pub String);

impl Op for Token {
    type Out = Option<JoinTokenRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT id, wrapped, created_at, expires_at, host FROM join_tokens WHERE id = ?1",
                values![self.0.as_str()],
            )
            .await?;
        let record = |row: &Row| {
            Ok(JoinTokenRecord {
                id: row.text(0)?.to_owned(),
                wrapped: row.text(1)?.to_owned(),
                created_at: row.time(2)?,
                expires_at: row.time(3)?,
                host: row.optional_parse(4, "host id")?,
            })
        };
        rows.first().map(record).transpose()
    }
}

/// Token and node in one transaction: a token that was used has its node, and none joins without one.
pub struct Join {
    pub token: String,
    pub node: NodeRecord,
    pub now: OffsetDateTime,
}

impl Op for Join {
    type Out = Joined;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Joined, StoreError> {
        lock(tx).await?;
        let new = &self.node;
        let rows = tx
            .query(
                "SELECT expires_at, host, public_key FROM join_tokens WHERE id = ?1",
                values![self.token.as_str()],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Joined::NoToken);
        };
        // Also for who used it: a request that was overheard is of no use afterwards.
        if row.time(0)? <= self.now {
            return Ok(Joined::Expired);
        }
        let nodes = All.run(tx).await?;
        let here = nodes.iter().find(|known| known.host == new.host);
        if let Some(by) = row.optional_parse::<HostId>(1, "host id")? {
            let same = by == new.host
                && row.optional_text(2)?.as_deref() == Some(new.public_key.as_str())
                && here.is_some_and(|here| {
                    here.name == new.name
                        && here.address == new.address
                        && here.traits == new.traits
                });
            return Ok(match same {
                true => Joined::Again,
                false => Joined::Used,
            });
        }
        if let Some(here) = here {
            let name = here.name.clone();
            return Ok(Joined::HostTaken { name });
        }
        if nodes.iter().any(|known| known.name == new.name) {
            return Ok(Joined::NameTaken);
        }
        if nodes.len() >= cove_limits::NODES_MAX {
            return Err(StoreError::TooMany { what: "nodes" });
        }
        // The control plane's own host, or one that was taken out.
        let known = tx
            .query("SELECT id FROM hosts WHERE id = ?1", values![&new.host])
            .await?;
        let before = tx
            .query("SELECT host FROM nodes WHERE host = ?1", values![&new.host])
            .await?;
        if !known.is_empty() && before.is_empty() {
            let name = "the host of the control plane".to_owned();
            return Ok(Joined::HostTaken { name });
        }
        tx.execute("DELETE FROM nodes WHERE host = ?1", values![&new.host])
            .await?;
        let sql = format!("INSERT INTO nodes ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
        tx.execute(
            &sql,
            values![
                &new.host,
                new.name.as_str(),
                new.address.as_str(),
                new.public_key.as_str(),
                new.cordoned,
                new.joined_at,
                new.expires_at,
                json(&new.traits)?,
            ],
        )
        .await?;
        tx.execute(
            "INSERT INTO hosts (id, added_at) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            values![&new.host, self.now],
        )
        .await?;
        tx.execute(
            "UPDATE join_tokens SET host = ?2, public_key = ?3 WHERE id = ?1",
            values![self.token.as_str(), &new.host, new.public_key.as_str()],
        )
        .await?;
        Ok(Joined::New)
    }
}

pub struct Cordon(pub HostId, pub bool);

impl Op for Cordon {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let changed = tx
            .execute(
                "UPDATE nodes SET cordoned = ?2 WHERE host = ?1 AND removed_at IS NULL",
                values![&self.0, self.1],
            )
            .await?;
        match changed {
            0 => Err(NO_NODE),
            _ => Ok(()),
        }
    }
}

/// The names in the change are good; only how many there are then is checked.
pub struct ChangeTraits(pub HostId, pub TraitsChange);

impl Op for ChangeTraits {
    type Out = HostTraits;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<HostTraits, StoreError> {
        // The update that changes nothing takes the row's lock.
        let rows = tx
            .query(
                "UPDATE nodes SET cordoned = cordoned WHERE host = ?1 AND removed_at IS NULL RETURNING traits",
                values![&self.0],
            )
            .await?;
        let row = rows.first().ok_or(NO_NODE)?;
        let before: HostTraits = row.json(0, "traits of a host")?;
        let after = before.changed(&self.1);
        for (what, count, most) in [
            (
                "labels of a node",
                after.labels.len(),
                cove_limits::HOST_LABELS_MAX,
            ),
            (
                "taints of a node",
                after.taints.len(),
                cove_limits::HOST_TAINTS_MAX,
            ),
        ] {
            if count > most {
                return Err(StoreError::TooMany { what });
            }
        }
        tx.execute(
            "UPDATE nodes SET traits = ?2 WHERE host = ?1",
            values![&self.0, json(&after)?],
        )
        .await?;
        Ok(after)
    }
}

/// It got another certificate, so it has the answer to its token.
pub struct Renewed(pub HostId, pub OffsetDateTime);

impl Op for Renewed {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "UPDATE nodes SET expires_at = ?2 WHERE host = ?1",
            values![&self.0, self.1],
        )
        .await?;
        tx.execute(
            "UPDATE join_tokens SET public_key = NULL WHERE host = ?1",
            values![&self.0],
        )
        .await
        .map(drop)
    }
}

/// What a node still has.
const HELD: [(&str, &str); 3] = [
    ("sandboxes", "sandboxes"),
    ("snapshots", "snapshots"),
    ("volumes", "volumes"),
];

/// Refused while there are sandboxes, snapshots or volumes on it.
pub struct Remove(pub HostId, pub OffsetDateTime);

impl Op for Remove {
    type Out = Option<(&'static str, u64)>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        lock(tx).await?;
        // Before counting: rows that name it are written under the same lock.
        tx.execute(
            "UPDATE nodes SET cordoned = cordoned WHERE host = ?1",
            values![&self.0],
        )
        .await?;
        for (what, table) in HELD {
            let sql =
                format!("SELECT COUNT(*) FROM {table} WHERE host = ?1 AND deleted_at IS NULL");
            let rows = tx.query(&sql, values![&self.0]).await?;
            let count = rows.first().map_or(Ok(0), |row| row.count(0))?;
            if count > 0 {
                return Ok(Some((what, count)));
            }
        }
        let removed = tx
            .execute(
                "UPDATE nodes SET removed_at = ?2 WHERE host = ?1 AND removed_at IS NULL",
                values![&self.0, self.1],
            )
            .await?;
        if removed == 0 {
            return Err(NO_NODE);
        }
        tx.execute("DELETE FROM image_hosts WHERE host = ?1", values![&self.0])
            .await?;
        Ok(None)
    }
}

/// A sandbox that its host refused goes to another, before that one is asked.
pub struct Place {
    pub sandbox: cove_model::SandboxId,
    pub from: HostId,
    pub to: HostId,
}

impl Op for Place {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let placed = tx
            .execute(
                "UPDATE sandboxes SET host = ?3 WHERE id = ?1 AND host = ?2 \
                 AND state = 'creating' AND deleted_at IS NULL",
                values![&self.sandbox, &self.from, &self.to],
            )
            .await?;
        match placed {
            0 => Err(StoreError::Stale),
            _ => still_there(tx, &self.to).await,
        }
    }
}
