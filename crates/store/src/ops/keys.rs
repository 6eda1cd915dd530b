//! API keys, found by the hash of their token.

use cove_limits::{KEYS_ENDED_KEPT, KEYS_MAX};
use cove_model::{KeyId, OrgId, SandboxId};
use time::OffsetDateTime;

use crate::cursor::{self, Position};
use crate::ops::organisations::lock;
use crate::sql::{Op, Row, Tx, micros, values};
use crate::{Key, Page, PageRequest, Scope, StoreError};

/// Ended keys that one new key removes at most.
const FORGOTTEN_AT_ONCE: u64 = 1_000;

const COLUMNS: &str = "id, org, name, scopes, created_at, expires_at, revoked_at, last_used_at, root, \
     sandbox";

fn key(row: &Row) -> Result<Key, StoreError> {
    let scopes = row
        .text(3)?
        .split_terminator(',')
        .map(|text| Scope::parse(text).ok_or(StoreError::Corrupt { what: "scope" }))
        .collect::<Result<_, _>>()?;
    Ok(Key {
        id: row.parse(0, "key id")?,
        org: row.parse(1, "organisation id")?,
        name: row.text(2)?.to_owned(),
        scopes,
        created_at: row.time(4)?,
        expires_at: row.optional_time(5)?,
        revoked_at: row.optional_time(6)?,
        last_used_at: row.optional_time(7)?,
        root: row.int(8)? != 0,
        sandbox: row.optional_parse(9, "sandbox id")?,
    })
}

async fn insert<T: Tx>(tx: &mut T, key: &Key, hash: &str) -> Result<(), StoreError> {
    let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    let inserted = tx
        .execute(
            "INSERT INTO api_keys (id, org, hash, name, scopes, created_at, expires_at, revoked_at, \
             last_used_at, root, sandbox) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
             ON CONFLICT DO NOTHING",
            values![
                &key.id,
                &key.org,
                hash,
                key.name.as_str(),
                scopes.join(","),
                key.created_at,
                key.expires_at,
                key.revoked_at,
                key.last_used_at,
                key.root,
                key.sandbox.as_ref().map(SandboxId::as_str),
            ],
        )
        .await?;
    if inserted == 0 {
        return Err(StoreError::Exists { what: "the key" });
    }
    Ok(())
}

pub struct Create(pub Key, pub String);

/// Those of an organisation that ended by then.
const ENDED: &str = "org = ?1 AND root = 0 AND (revoked_at IS NOT NULL OR (expires_at IS NOT NULL AND expires_at <= ?2))";

impl Op for Create {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let new = &self.0;
        lock(tx, &new.org).await?;
        let good = "SELECT COUNT(*) FROM api_keys WHERE org = ?1 AND revoked_at IS NULL \
             AND (expires_at IS NULL OR expires_at > ?2)";
        let rows = tx.query(good, values![&new.org, new.created_at]).await?;
        if rows.first().map_or(Ok(0), |row| row.count(0))? >= KEYS_MAX {
            return Err(StoreError::TooMany { what: "API keys" });
        }
        // Whoever makes and revokes keys all day leaves no more rows than this.
        let forget = format!(
            "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys WHERE {ENDED} \
             ORDER BY created_at DESC, id DESC LIMIT {FORGOTTEN_AT_ONCE} OFFSET {KEYS_ENDED_KEPT})"
        );
        tx.execute(&forget, values![&new.org, new.created_at])
            .await?;
        insert(tx, new, &self.1).await
    }
}

pub struct PutRoot(pub Key, pub String);

impl Op for PutRoot {
    type Out = Key;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Key, StoreError> {
        tx.execute(
            "UPDATE api_keys SET revoked_at = ?1 WHERE root = 1 AND hash <> ?2 AND revoked_at IS NULL",
            values![self.0.created_at, self.1.as_str()],
        )
        .await?;
        let sql = format!("SELECT {COLUMNS} FROM api_keys WHERE hash = ?1 AND root = 1");
        if let Some(row) = tx.query(&sql, values![self.1.as_str()]).await?.first() {
            // The owner of the machine put this token back: it counts again.
            tx.execute(
                "UPDATE api_keys SET revoked_at = NULL WHERE hash = ?1",
                values![self.1.as_str()],
            )
            .await?;
            let mut found = key(row)?;
            found.revoked_at = None;
            return Ok(found);
        }
        insert(tx, &self.0, &self.1).await?;
        Ok(self.0.clone())
    }
}

pub struct ByHash(pub String);

impl Op for ByHash {
    type Out = Option<Key>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM api_keys WHERE hash = ?1");
        let rows = tx.query(&sql, values![self.0.as_str()]).await?;
        rows.first().map(key).transpose()
    }
}

pub struct ById(pub KeyId);

impl Op for ById {
    type Out = Option<Key>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM api_keys WHERE id = ?1");
        let rows = tx.query(&sql, values![&self.0]).await?;
        rows.first().map(key).transpose()
    }
}

pub struct List(pub OrgId, pub PageRequest);

impl Op for List {
    type Out = Page<Key>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let from = cursor::place(&self.1)?.unwrap_or(Position::new(i64::MIN, ""));
        let sql = format!(
            "SELECT {COLUMNS} FROM api_keys WHERE org = ?1 AND (created_at > ?2 OR \
             (created_at = ?2 AND id > ?3)) ORDER BY created_at, id LIMIT ?4"
        );
        let wanted = cursor::rows_wanted(&self.1);
        let rows = tx
            .query(&sql, values![&self.0, from.number, from.id, wanted])
            .await?;
        let found = rows.iter().map(key).collect::<Result<_, _>>()?;
        Ok(cursor::page(found, &self.1, |key: &Key| {
            Position::new(micros(key.created_at), key.id.as_str())
        }))
    }
}

pub struct Revoke {
    pub org: OrgId,
    pub id: KeyId,
    pub at: OffsetDateTime,
}

impl Op for Revoke {
    type Out = Key;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Key, StoreError> {
        // Holds off other revocations of this organisation, so that the last two keys do not both go.
        tx.execute(
            "UPDATE organisations SET name = name WHERE id = ?1",
            values![&self.org],
        )
        .await?;
        let sql = format!("SELECT {COLUMNS} FROM api_keys WHERE org = ?1 AND id = ?2");
        let rows = tx.query(&sql, values![&self.org, &self.id]).await?;
        let row = rows
            .first()
            .ok_or(StoreError::NotFound { what: "the key" })?;
        let mut found = key(row)?;
        if found.revoked_at.is_some() {
            return Ok(found);
        }
        if found.root {
            return Err(StoreError::RootKey);
        }
        if found.scopes.contains(&Scope::Admin) && !self.another_admin(tx).await? {
            return Err(StoreError::LastAdminKey);
        }
        tx.execute(
            "UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1",
            values![&self.id, self.at],
        )
        .await?;
        found.revoked_at = Some(self.at);
        Ok(found)
    }
}

impl Revoke {
    /// Whether somebody is left who can make keys.
    async fn another_admin<T: Tx>(&self, tx: &mut T) -> Result<bool, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM api_keys WHERE org = ?1 AND id <> ?2 AND revoked_at IS NULL \
             AND (expires_at IS NULL OR expires_at > ?3) AND scopes LIKE '%admin%' LIMIT 1"
        );
        let rows = tx
            .query(&sql, values![&self.org, &self.id, self.at])
            .await?;
        Ok(!rows.is_empty())
    }
}

pub struct Touch(pub Vec<(KeyId, OffsetDateTime)>);

impl Op for Touch {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for (id, at) in &self.0 {
            tx.execute(
                "UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1 \
                 AND (last_used_at IS NULL OR last_used_at < ?2)",
                values![id, *at],
            )
            .await?;
        }
        Ok(())
    }
}
