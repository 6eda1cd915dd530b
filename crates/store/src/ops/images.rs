//! Which organisation may use which image. The empty organisation stands for everybody.

use cove_model::OrgId;

use crate::StoreError;
use crate::sql::{Op, Tx, Value, values};

const EVERYBODY: &str = "";

fn holder(org: &Option<OrgId>) -> Value {
    org.as_ref().map_or(Value::from(EVERYBODY), Value::from)
}

pub struct Grant(pub Option<OrgId>, pub String);

impl Op for Grant {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "INSERT INTO image_grants VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            values![holder(&self.0), self.1.as_str()],
        )
        .await
        .map(drop)
    }
}

pub struct Withdraw(pub Option<OrgId>, pub String);

impl Op for Withdraw {
    type Out = bool;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<bool, StoreError> {
        let removed = tx
            .execute(
                "DELETE FROM image_grants WHERE org = ?1 AND name = ?2",
                values![holder(&self.0), self.1.as_str()],
            )
            .await?;
        Ok(removed > 0)
    }
}

pub struct Of(pub OrgId);

impl Op for Of {
    type Out = Vec<(String, bool)>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT name, org FROM image_grants WHERE org = ?1 OR org = ''",
                values![&self.0],
            )
            .await?;
        rows.iter()
            .map(|row| Ok((row.text(0)?.to_owned(), row.text(1)? == EVERYBODY)))
            .collect()
    }
}

pub struct Count(pub String);

impl Op for Count {
    type Out = u64;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<u64, StoreError> {
        let rows = tx
            .query(
                "SELECT COUNT(*) FROM image_grants WHERE name = ?1",
                values![self.0.as_str()],
            )
            .await?;
        rows.first().map_or(Ok(0), |row| row.count(0))
    }
}
