//! Which organisation may use which image, and what it calls it. The empty organisation stands for
//! everybody.

use cove_model::{ImageId, OrgId};

use crate::sql::{Op, Tx, Value, values};
use crate::{ImageGrant, StoreError};

const EVERYBODY: &str = "";

fn holder(org: &Option<OrgId>) -> Value {
    org.as_ref().map_or(Value::from(EVERYBODY), Value::from)
}

pub struct Grant {
    pub org: Option<OrgId>,
    pub name: String,
    pub image: ImageId,
}

impl Op for Grant {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "INSERT INTO image_grants VALUES (?1, ?2, ?3) \
             ON CONFLICT (org, name) DO UPDATE SET image = excluded.image",
            values![holder(&self.org), self.name.as_str(), &self.image],
        )
        .await
        .map(drop)
    }
}

pub struct Withdraw(pub Option<OrgId>, pub ImageId);

impl Op for Withdraw {
    type Out = bool;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<bool, StoreError> {
        let removed = tx
            .execute(
                "DELETE FROM image_grants WHERE org = ?1 AND image = ?2",
                values![holder(&self.0), &self.1],
            )
            .await?;
        Ok(removed > 0)
    }
}

pub struct Of(pub OrgId);

impl Op for Of {
    type Out = Vec<ImageGrant>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT name, image, org FROM image_grants WHERE org = ?1 OR org = '' \
                 ORDER BY name, org",
                values![&self.0],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(ImageGrant {
                    name: row.text(0)?.to_owned(),
                    image: row.parse(1, "image id")?,
                    shared: row.text(2)? == EVERYBODY,
                })
            })
            .collect()
    }
}

pub struct IsGranted(pub ImageId);

impl Op for IsGranted {
    type Out = bool;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<bool, StoreError> {
        let rows = tx
            .query(
                "SELECT name FROM image_grants WHERE image = ?1 LIMIT 1",
                values![&self.0],
            )
            .await?;
        Ok(!rows.is_empty())
    }
}
