//! A caller's promise that two requests with one key are one.

use cove_model::{OrgId, Steady};

use crate::sql::{Tx, Value, values};
use crate::{IdempotencyKey, StoreError};

/// What a claim met.
pub enum Claimed {
    New,
    /// The id of what the same request made before.
    Before(String),
    /// The key belongs to another request.
    Taken,
}

/// Binds the key to what the request is about to make. Waits for a concurrent claim of the same key to
/// commit or to vanish.
pub async fn claim<T: Tx>(
    tx: &mut T,
    org: &OrgId,
    key: &IdempotencyKey,
    made: Value,
    at: Steady,
) -> Result<Claimed, StoreError> {
    let claimed = tx
        .execute(
            "INSERT INTO idempotency VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
            values![org, key.key.as_str(), key.request_hash.as_str(), made, at],
        )
        .await?;
    if claimed > 0 {
        return Ok(Claimed::New);
    }
    let rows = tx
        .query(
            "SELECT request_hash, sandbox FROM idempotency WHERE org = ?1 AND key = ?2",
            values![org, key.key.as_str()],
        )
        .await?;
    let earlier = rows.first().ok_or(StoreError::Stale)?;
    if earlier.text(0)? != key.request_hash {
        return Ok(Claimed::Taken);
    }
    Ok(Claimed::Before(earlier.text(1)?.to_owned()))
}
