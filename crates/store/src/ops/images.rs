//! Which organisation may use which image, what it calls it, and what it pays for it. The empty
//! organisation stands for everybody.
//!
//! An organisation that has no word for an image any more goes on paying for it until somebody has
//! seen to it that the image is gone, or others pay: the row of what it pays is also the note that
//! there is something left to remove, and outlives a crash in between.

use cove_model::{ImageId, OrgId};

use crate::ops::organisations::{hold, hold_whatever, lock};
use crate::sql::{Op, Row, Tx, Value, values};
use crate::{Holding, ImageGrant, StoreError};

const EVERYBODY: &str = "";
/// Rows of one look at what is paid for without a word.
const LOOSE_MAX: i64 = 500;

fn holder(org: &Option<OrgId>) -> Value {
    org.as_ref().map_or(Value::from(EVERYBODY), Value::from)
}

pub struct Grant {
    pub org: Option<OrgId>,
    pub name: String,
    pub image: ImageId,
    pub held_disk_mb: u64,
}

fn disk(mb: u64) -> Holding {
    Holding {
        disk_mb: mb,
        ..Holding::nothing()
    }
}

/// Charges an image to an organisation unless it pays for it already, or everybody may use it.
async fn charge<T: Tx>(
    tx: &mut T,
    org: &OrgId,
    image: &ImageId,
    mb: u64,
) -> Result<(), StoreError> {
    let shared = tx
        .query(
            "SELECT name FROM image_grants WHERE org = '' AND image = ?1 LIMIT 1",
            values![image],
        )
        .await?;
    let mb = if shared.is_empty() { mb } else { 0 };
    let inserted = tx
        .execute(
            "INSERT INTO image_holds (org, image, held_disk_mb) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
            values![org, image, mb],
        )
        .await?;
    match inserted {
        0 => Ok(()),
        _ => hold(tx, org, &Holding::nothing(), &disk(mb)).await,
    }
}

async fn give_back<T: Tx>(tx: &mut T, rows: &[Row]) -> Result<(), StoreError> {
    for row in rows {
        let org: OrgId = row.parse(0, "organisation id")?;
        hold_whatever(tx, &org, &disk(row.count(1)?), &Holding::nothing()).await?;
    }
    Ok(())
}

impl Op for Grant {
    type Out = Option<ImageId>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Option<ImageId>, StoreError> {
        if let Some(org) = &self.org {
            charge(tx, org, &self.image, self.held_disk_mb).await?;
            lock(tx, org).await?;
        }
        let before = tx
            .query(
                "SELECT image FROM image_grants WHERE org = ?1 AND name = ?2",
                values![holder(&self.org), self.name.as_str()],
            )
            .await?;
        tx.execute(
            "INSERT INTO image_grants (org, name, image) VALUES (?1, ?2, ?3) \
             ON CONFLICT (org, name) DO UPDATE SET image = excluded.image",
            values![holder(&self.org), self.name.as_str(), &self.image],
        )
        .await?;
        let Some(row) = before.first() else {
            return Ok(None);
        };
        let left: ImageId = row.parse(0, "image id")?;
        let words = tx
            .query(
                "SELECT name FROM image_grants WHERE org = ?1 AND image = ?2 LIMIT 1",
                values![holder(&self.org), &left],
            )
            .await?;
        Ok(words.is_empty().then_some(left))
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

/// What organisations pay for without a word for it, from a place on.
pub struct Loose(pub Option<(OrgId, ImageId)>);

impl Op for Loose {
    type Out = Vec<(OrgId, ImageId)>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let (org, image) = match &self.0 {
            Some((org, image)) => (Value::from(org), Value::from(image)),
            None => (Value::from(""), Value::from("")),
        };
        let rows = tx
            .query(
                "SELECT org, image FROM image_holds WHERE (org, image) > (?1, ?2) \
                 AND NOT EXISTS (SELECT 1 FROM image_grants WHERE \
                 image_grants.org = image_holds.org AND image_grants.image = image_holds.image) \
                 ORDER BY org, image LIMIT ?3",
                &[org, image, Value::from(LOOSE_MAX)],
            )
            .await?;
        rows.iter()
            .map(|row| Ok((row.parse(0, "organisation id")?, row.parse(1, "image id")?)))
            .collect()
    }
}

/// Whether anybody but this organisation has a word for the image or pays for it.
pub struct HeldByOthers(pub OrgId, pub ImageId);

impl Op for HeldByOthers {
    type Out = bool;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<bool, StoreError> {
        let rows = tx
            .query(
                "SELECT org FROM image_grants WHERE image = ?2 AND org <> ?1 UNION ALL \
                 SELECT org FROM image_holds WHERE image = ?2 AND org <> ?1 LIMIT 1",
                values![&self.0, &self.1],
            )
            .await?;
        Ok(!rows.is_empty())
    }
}

/// Gives back what an organisation pays for an image, unless it has a word for it.
pub struct Release(pub OrgId, pub ImageId);

impl Op for Release {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let rows = tx
            .query(
                "DELETE FROM image_holds WHERE org = ?1 AND image = ?2 AND NOT EXISTS \
                 (SELECT 1 FROM image_grants WHERE org = ?1 AND image = ?2) \
                 RETURNING org, held_disk_mb",
                values![&self.0, &self.1],
            )
            .await?;
        give_back(tx, &rows).await
    }
}

/// Takes everybody's words for an image back, and what they paid for it off them.
pub struct Forget(pub ImageId);

impl Op for Forget {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute("DELETE FROM image_hosts WHERE image = ?1", values![&self.0])
            .await?;
        tx.execute(
            "DELETE FROM image_grants WHERE image = ?1",
            values![&self.0],
        )
        .await?;
        let rows = tx
            .query(
                "DELETE FROM image_holds WHERE image = ?1 RETURNING org, held_disk_mb",
                values![&self.0],
            )
            .await?;
        give_back(tx, &rows).await
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
