//! Secrets, sealed, and the keys of organisations that they are sealed to, wrapped. Nothing here opens anything.

use cove_model::OrgId;
use cove_model::secret::OrgKeys;

use crate::cursor::{self, Position};
use crate::ops::organisations::lock;
use crate::sql::{Op, Row, Tx, json, micros, values};
use crate::{Page, PageRequest, SecretRecord, SecretUsage, StoreError};

/// Secrets of one organisation.
const SECRETS_MAX: i64 = cove_limits::SECRETS_MAX as i64;
/// Sandboxes that are kept as users of one secret.
const USERS_MAX: i64 = 1000;
const COLUMNS: &str =
    "id, org, name, version, binding, sealed, created_at, updated_at, last_used_at, uses";

fn secret(row: &Row) -> Result<SecretRecord, StoreError> {
    Ok(SecretRecord {
        id: row.parse(0, "secret id")?,
        org: row.parse(1, "organisation id")?,
        name: row.text(2)?.to_owned(),
        version: row.count(3)?,
        binding: row.json(4, "binding of a secret")?,
        sealed: row.text(5)?.to_owned(),
        created_at: row.time(6)?,
        updated_at: row.time(7)?,
        last_used_at: row.optional_time(8)?,
        uses: row.count(9)?,
    })
}

/// Keys of an organisation are made once: the first ones win, and are answered.
pub struct KeepKeys(pub OrgKeys);

impl Op for KeepKeys {
    type Out = OrgKeys;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<OrgKeys, StoreError> {
        lock(tx, &self.0.org).await?;
        let insert = "INSERT INTO secret_keys (org, keys) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        tx.execute(insert, values![&self.0.org, json(&self.0)?])
            .await?;
        let kept = Keys(self.0.org.clone()).run(tx).await?;
        kept.ok_or(StoreError::Corrupt {
            what: "keys of an organisation",
        })
    }
}

/// Other wrapping of the same keys.
pub struct RewrapKeys(pub OrgKeys);

impl Op for RewrapKeys {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let found = Keys(self.0.org.clone()).run(tx).await?;
        if found.is_none_or(|found| found.public != self.0.public) {
            return Err(StoreError::Stale);
        }
        let update = "UPDATE secret_keys SET keys = ?2 WHERE org = ?1";
        tx.execute(update, values![&self.0.org, json(&self.0)?])
            .await?;
        Ok(())
    }
}

pub struct Keys(pub OrgId);

impl Op for Keys {
    type Out = Option<OrgKeys>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = "SELECT keys FROM secret_keys WHERE org = ?1";
        let rows = tx.query(sql, values![&self.0]).await?;
        let keys = rows
            .first()
            .map(|row| row.json(0, "keys of an organisation"));
        keys.transpose()
    }
}

pub struct AllKeys;

impl Op for AllKeys {
    type Out = Vec<OrgKeys>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query("SELECT keys FROM secret_keys ORDER BY org", &[])
            .await?;
        let keys = rows
            .iter()
            .map(|row| row.json(0, "keys of an organisation"));
        keys.collect()
    }
}

/// Adds a secret, or the next version of one. `version` must follow the one there is: the value is sealed for it.
pub struct Put(pub SecretRecord);

impl Op for Put {
    type Out = SecretRecord;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<SecretRecord, StoreError> {
        let new = &self.0;
        let found = Get(new.org.clone(), new.name.clone()).run(tx).await?;
        if found.as_ref().map_or(0, |found| found.version) + 1 != new.version {
            return Err(StoreError::Stale);
        }
        let binding = json(&new.binding)?;
        if found.is_some() {
            tx.execute(
                "UPDATE secrets SET version = ?3, binding = ?4, sealed = ?5, updated_at = ?6 \
                 WHERE org = ?1 AND name = ?2",
                values![
                    &new.org,
                    new.name.as_str(),
                    new.version,
                    binding,
                    new.sealed.as_str(),
                    new.updated_at,
                ],
            )
            .await?;
        } else {
            lock(tx, &new.org).await?;
            let count = "SELECT COUNT(*) FROM secrets WHERE org = ?1";
            let rows = tx.query(count, values![&new.org]).await?;
            if rows.first().map_or(Ok(0), |row| row.int(0))? >= SECRETS_MAX {
                return Err(StoreError::TooMany { what: "secrets" });
            }
            tx.execute(
                "INSERT INTO secrets (id, org, name, version, binding, sealed, created_at, \
                 updated_at, last_used_at, uses) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NULL, 0)",
                values![
                    &new.id,
                    &new.org,
                    new.name.as_str(),
                    new.version,
                    binding,
                    new.sealed.as_str(),
                    new.created_at,
                    new.updated_at,
                ],
            )
            .await?;
        }
        let kept = Get(new.org.clone(), new.name.clone()).run(tx).await?;
        kept.ok_or(StoreError::NotFound { what: "the secret" })
    }
}

pub struct Get(pub OrgId, pub String);

impl Op for Get {
    type Out = Option<SecretRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM secrets WHERE org = ?1 AND name = ?2");
        let rows = tx.query(&sql, values![&self.0, self.1.as_str()]).await?;
        rows.first().map(secret).transpose()
    }
}

pub struct List(pub OrgId, pub PageRequest);

impl Op for List {
    type Out = Page<SecretRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let from = cursor::place(&self.1)?.unwrap_or(Position::new(i64::MIN, ""));
        let sql = format!(
            "SELECT {COLUMNS} FROM secrets WHERE org = ?1 AND (created_at > ?2 OR \
             (created_at = ?2 AND id > ?3)) ORDER BY created_at, id LIMIT ?4"
        );
        let wanted = cursor::rows_wanted(&self.1);
        let rows = tx
            .query(&sql, values![&self.0, from.number, from.id, wanted])
            .await?;
        let found = rows.iter().map(secret).collect::<Result<_, _>>()?;
        Ok(cursor::page(found, &self.1, |secret: &SecretRecord| {
            Position::new(micros(secret.created_at), secret.id.as_str())
        }))
    }
}

pub struct Remove(pub OrgId, pub String);

impl Op for Remove {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let gone = "DELETE FROM secret_uses WHERE org = ?1 AND secret = ?2";
        tx.execute(gone, values![&self.0, self.1.as_str()]).await?;
        let spent = "DELETE FROM secret_spend WHERE org = ?1 AND secret IN \
                     (SELECT id FROM secrets WHERE org = ?1 AND name = ?2)";
        tx.execute(spent, values![&self.0, self.1.as_str()]).await?;
        let removed = tx
            .execute(
                "DELETE FROM secrets WHERE org = ?1 AND name = ?2",
                values![&self.0, self.1.as_str()],
            )
            .await?;
        match removed {
            0 => Err(StoreError::NotFound { what: "the secret" }),
            _ => Ok(()),
        }
    }
}

/// Adds to what each secret was used by each sandbox. A secret that is gone meanwhile is left out.
pub struct NoteUses(pub OrgId, pub Vec<SecretUsage>);

impl Op for NoteUses {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for usage in &self.1 {
            let noted = tx
                .execute(
                    "UPDATE secrets SET uses = uses + ?3, last_used_at = ?4 WHERE org = ?1 AND name = ?2",
                    values![&self.0, usage.secret.as_str(), usage.count, usage.last_used_at],
                )
                .await?;
            if noted == 0 {
                continue;
            }
            tx.execute(
                "INSERT INTO secret_uses (org, secret, sandbox, uses, last_used_at) \
                 VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (org, secret, sandbox) DO UPDATE SET \
                 uses = secret_uses.uses + excluded.uses, last_used_at = excluded.last_used_at",
                values![
                    &self.0,
                    usage.secret.as_str(),
                    &usage.sandbox,
                    usage.count,
                    usage.last_used_at,
                ],
            )
            .await?;
            // The least recent go, so that sandboxes that come and go do not fill the table.
            tx.execute(
                "DELETE FROM secret_uses WHERE org = ?1 AND secret = ?2 AND sandbox IN (\
                 SELECT sandbox FROM secret_uses WHERE org = ?1 AND secret = ?2 \
                 ORDER BY last_used_at DESC, sandbox LIMIT 100 OFFSET ?3)",
                values![&self.0, usage.secret.as_str(), USERS_MAX],
            )
            .await?;
        }
        Ok(())
    }
}

pub struct Uses(pub OrgId, pub String);

impl Op for Uses {
    type Out = Vec<SecretUsage>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = "SELECT secret, sandbox, uses, last_used_at FROM secret_uses \
                   WHERE org = ?1 AND secret = ?2 ORDER BY last_used_at DESC, sandbox LIMIT ?3";
        let rows = tx
            .query(sql, values![&self.0, self.1.as_str(), USERS_MAX])
            .await?;
        let usage = |row: &Row| {
            Ok(SecretUsage {
                secret: row.text(0)?.to_owned(),
                sandbox: row.parse(1, "sandbox id")?,
                count: row.count(2)?,
                last_used_at: row.time(3)?,
            })
        };
        rows.iter().map(usage).collect()
    }
}
