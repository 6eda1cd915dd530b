//! Ports that others than key holders may visit: how many times their links were taken back, and
//! whether they are open to everybody.

use cove_model::SandboxId;

use crate::sql::{Op, Row, Tx, values};
use crate::{PortShare, StoreError};

/// Ports of one sandbox that are shared or ever were.
pub const SHARES_MAX: i64 = 256;
const COLUMNS: &str = "sandbox, port, org, epoch, public, public_until";

/// Adds it, or opens to everybody what was shared by links before. Never closes: that is [`Revoke`]'s.
pub struct Put(pub PortShare);

impl Op for Put {
    type Out = PortShare;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<PortShare, StoreError> {
        let share = &self.0;
        let key = values![&share.sandbox, i64::from(share.port)];
        let others = tx
            .query(
                "SELECT COUNT(*) FROM port_shares WHERE sandbox = ?1 AND port <> ?2",
                key,
            )
            .await?;
        if others.first().map_or(Ok(0), |row| row.int(0))? >= SHARES_MAX {
            return Err(StoreError::TooMany {
                what: "shared ports",
            });
        }
        tx.execute(
            "INSERT INTO port_shares (sandbox, port, org, epoch, public, public_until) \
             VALUES (?1, ?2, ?3, 0, 0, NULL) ON CONFLICT (sandbox, port) DO NOTHING",
            values![&share.sandbox, i64::from(share.port), &share.org],
        )
        .await?;
        if share.public {
            tx.execute(
                "UPDATE port_shares SET public = 1, public_until = ?3 \
                 WHERE sandbox = ?1 AND port = ?2",
                values![&share.sandbox, i64::from(share.port), share.public_until],
            )
            .await?;
        }
        let sql = format!("SELECT {COLUMNS} FROM port_shares WHERE sandbox = ?1 AND port = ?2");
        let rows = tx.query(&sql, key).await?;
        rows.first()
            .map(record)
            .transpose()?
            .ok_or(StoreError::Corrupt {
                what: "shared port",
            })
    }
}

/// Of one port, or of all of a sandbox's.
pub struct Get(pub SandboxId, pub Option<u16>);

impl Op for Get {
    type Out = Vec<PortShare>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = match self.1 {
            Some(port) => {
                let sql =
                    format!("SELECT {COLUMNS} FROM port_shares WHERE sandbox = ?1 AND port = ?2");
                tx.query(&sql, values![&self.0, i64::from(port)]).await?
            }
            None => {
                let sql =
                    format!("SELECT {COLUMNS} FROM port_shares WHERE sandbox = ?1 ORDER BY port");
                tx.query(&sql, values![&self.0]).await?
            }
        };
        rows.iter().map(record).collect()
    }
}

/// Makes every link that was given out for the port worthless, and closes it to everybody.
pub struct Revoke(pub SandboxId, pub u16);

impl Op for Revoke {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "UPDATE port_shares SET epoch = epoch + 1, public = 0, public_until = NULL \
             WHERE sandbox = ?1 AND port = ?2",
            values![&self.0, i64::from(self.1)],
        )
        .await
        .map(drop)
    }
}

fn record(row: &Row) -> Result<PortShare, StoreError> {
    let corrupt = |_| StoreError::Corrupt {
        what: "shared port",
    };
    Ok(PortShare {
        sandbox: row.parse(0, "sandbox id")?,
        port: u16::try_from(row.int(1)?).map_err(corrupt)?,
        org: row.parse(2, "organisation id")?,
        epoch: u64::try_from(row.int(3)?).map_err(corrupt)?,
        public: row.int(4)? != 0,
        public_until: row.optional_time(5)?,
    })
}
