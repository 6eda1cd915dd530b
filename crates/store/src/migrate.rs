//! Brings a database to this program's version, or refuses one that is ahead of it.

use crate::StoreError;
use crate::schema::{MIGRATIONS, VERSION, VERSION_TABLE};
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
        return Err(StoreError::Newer {
            found,
            known: VERSION,
        });
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
        tx.execute("UPDATE schema_version SET version = ?1", values![VERSION])
            .await?;
    }
    Ok(())
}
