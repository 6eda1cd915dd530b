//! Public keys that may log in over SSH, found by their fingerprint.

use cove_model::{KeyId, OrgId};

use crate::cursor::{self, Position};
use crate::ops::organisations::lock;
use crate::sql::{Op, Row, Tx, micros, values};
use crate::{Page, PageRequest, SshKey, StoreError};

/// Keys of one organisation.
pub const SSH_KEYS_MAX: i64 = 1000;
/// Organisations that are looked at for one key.
const HOLDERS_MAX: i64 = 16;
const COLUMNS: &str = "id, org, name, public_key, fingerprint, created_at, expires_at";

fn key(row: &Row) -> Result<SshKey, StoreError> {
    Ok(SshKey {
        id: row.parse(0, "key id")?,
        org: row.parse(1, "organisation id")?,
        name: row.text(2)?.to_owned(),
        public_key: row.text(3)?.to_owned(),
        fingerprint: row.text(4)?.to_owned(),
        created_at: row.time(5)?,
        expires_at: row.optional_time(6)?,
    })
}

pub struct Create(pub SshKey);

impl Op for Create {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let key = &self.0;
        lock(tx, &key.org).await?;
        let count = "SELECT COUNT(*) FROM ssh_keys WHERE org = ?1";
        let rows = tx.query(count, values![&key.org]).await?;
        if rows.first().map_or(Ok(0), |row| row.int(0))? >= SSH_KEYS_MAX {
            return Err(StoreError::TooMany { what: "SSH keys" });
        }
        let inserted = tx
            .execute(
                "INSERT INTO ssh_keys (id, org, name, public_key, fingerprint, created_at, \
                 expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
                values![
                    &key.id,
                    &key.org,
                    key.name.as_str(),
                    key.public_key.as_str(),
                    key.fingerprint.as_str(),
                    key.created_at,
                    key.expires_at,
                ],
            )
            .await?;
        if inserted == 0 {
            return Err(StoreError::Exists {
                what: "the SSH key",
            });
        }
        Ok(())
    }
}

pub struct List(pub OrgId, pub PageRequest);

impl Op for List {
    type Out = Page<SshKey>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let from = cursor::place(&self.1)?.unwrap_or(Position::new(i64::MIN, ""));
        let sql = format!(
            "SELECT {COLUMNS} FROM ssh_keys WHERE org = ?1 AND (created_at > ?2 OR \
             (created_at = ?2 AND id > ?3)) ORDER BY created_at, id LIMIT ?4"
        );
        let wanted = cursor::rows_wanted(&self.1);
        let rows = tx
            .query(&sql, values![&self.0, from.number, from.id, wanted])
            .await?;
        let found = rows.iter().map(key).collect::<Result<_, _>>()?;
        Ok(cursor::page(found, &self.1, |key: &SshKey| {
            Position::new(micros(key.created_at), key.id.as_str())
        }))
    }
}

/// One person may work for several organisations with the same key.
pub struct ByFingerprint(pub String);

impl Op for ByFingerprint {
    type Out = Vec<SshKey>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM ssh_keys WHERE fingerprint = ?1 ORDER BY created_at, id LIMIT ?2"
        );
        let rows = tx
            .query(&sql, values![self.0.as_str(), HOLDERS_MAX])
            .await?;
        rows.iter().map(key).collect()
    }
}

pub struct Remove(pub OrgId, pub KeyId);

impl Op for Remove {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let removed = tx
            .execute(
                "DELETE FROM ssh_keys WHERE org = ?1 AND id = ?2",
                values![&self.0, &self.1],
            )
            .await?;
        match removed {
            0 => Err(StoreError::NotFound {
                what: "the SSH key",
            }),
            _ => Ok(()),
        }
    }
}
