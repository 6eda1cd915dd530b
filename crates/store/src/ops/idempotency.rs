//! A caller's promise that two requests with one key are one.

use std::fmt::Display;
use std::marker::PhantomData;
use std::str::FromStr;

use cove_model::{OrgId, Steady};

use crate::sql::{Op, Tx, Value, values};
use crate::{IdempotencyKey, Inserted, StoreError};

/// Binds the key to what the request is about to make, `made`. Waits for a concurrent claim of the same key to
/// commit or to vanish. `None`: the request is the first with this key, or has none, and goes on.
pub async fn claim<T: Tx, I: FromStr + Display>(
    tx: &mut T,
    org: &OrgId,
    key: Option<&IdempotencyKey>,
    made: &I,
    at: Steady,
) -> Result<Option<Inserted<I>>, StoreError> {
    let Some(key) = key else { return Ok(None) };
    let claimed = tx
        .execute(
            "INSERT INTO idempotency (org, key, request_hash, sandbox, created_at) \
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
            values![
                org,
                key.key.as_str(),
                key.request_hash.as_str(),
                Value::Text(made.to_string()),
                at
            ],
        )
        .await?;
    if claimed > 0 {
        return Ok(None);
    }
    match earlier(tx, org, key).await? {
        None => Err(StoreError::Stale),
        found => Ok(found),
    }
}

/// What the key was used for, if it was.
pub async fn earlier<T: Tx, I: FromStr>(
    tx: &mut T,
    org: &OrgId,
    key: &IdempotencyKey,
) -> Result<Option<Inserted<I>>, StoreError> {
    let rows = tx
        .query(
            "SELECT request_hash, sandbox FROM idempotency WHERE org = ?1 AND key = ?2",
            values![org, key.key.as_str()],
        )
        .await?;
    let Some(earlier) = rows.first() else {
        return Ok(None);
    };
    if earlier.text(0)? != key.request_hash {
        return Ok(Some(Inserted::KeyReused));
    }
    let first = earlier.text(1)?.parse();
    first
        .map(|first| Some(Inserted::Replayed(first)))
        .map_err(|_| StoreError::Corrupt {
            what: "id behind an idempotency key",
        })
}

/// The same by itself, for one kind of thing.
pub struct Earlier<I> {
    org: OrgId,
    key: IdempotencyKey,
    made: PhantomData<fn() -> I>,
}

impl<I> Earlier<I> {
    pub fn new(org: &OrgId, key: &IdempotencyKey) -> Self {
        Self {
            org: org.clone(),
            key: key.clone(),
            made: PhantomData,
        }
    }
}

impl<I: FromStr + Send + 'static> Op for Earlier<I> {
    type Out = Option<Inserted<I>>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        earlier(tx, &self.org, &self.key).await
    }
}
