//! Brings a database to this program's version. One that is ahead of it is used as it is, or refused where it says that
//! this program is too old for it.

use crate::StoreError;
use crate::schema::{COMPATIBLE_FROM, MIGRATIONS, VERSION, VERSION_TABLE};
use crate::sql::{Tx, values};

/// Runs inside a transaction that holds off every other migration.
pub async fn migrate<T: Tx>(tx: &mut T) -> Result<(), StoreError> {
    tx.execute(VERSION_TABLE, &[]).await?;
    let rows = tx.query("SELECT version FROM schema_version", &[]).await?;
    let found = match rows.first() {
        Some(row) => row.int(0)?,
        None => {
            tx.execute("INSERT INTO schema_version (version) VALUES (0)", &[])
                .await?;
            0
        }
    };
    if found > VERSION {
        let found = compatible(tx).await?;
        tracing::info!(
            version = found,
            known = VERSION,
            "the database has a newer schema that works with this program"
        );
        return Ok(());
    }
    let done = usize::try_from(found).map_err(|_| StoreError::Corrupt {
        what: "schema version",
    })?;
    for step in &MIGRATIONS[done..] {
        for statement in *step {
            tx.execute(statement, &[]).await?;
        }
    }
    if found < VERSION {
        tracing::info!(
            from = found,
            to = VERSION,
            "database schema brought up to date"
        );
        tx.execute(
            "UPDATE schema_version SET version = ?1, compatible_from = ?2",
            values![VERSION, COMPATIBLE_FROM],
        )
        .await?;
    }
    Ok(())
}

/// The version of the database, unless this program is too old for it. Another program may have migrated it since this
/// one opened it.
pub async fn compatible<T: Tx>(tx: &mut T) -> Result<i64, StoreError> {
    let rows = tx
        .query("SELECT version, compatible_from FROM schema_version", &[])
        .await?;
    let row = rows.first().ok_or(StoreError::Corrupt {
        what: "schema version",
    })?;
    let (found, oldest) = (row.int(0)?, row.int(1)?);
    match oldest > VERSION {
        true => Err(StoreError::Newer {
            found,
            oldest,
            known: VERSION,
        }),
        false => Ok(found),
    }
}
