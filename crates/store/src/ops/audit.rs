//! Audit records: added, read, never changed.

use cove_model::OrgId;

use crate::cursor::{self, Place};
use crate::ops::events::reserve;
use crate::sql::{Op, Tx, values};
use crate::{AuditRecord, Page, PageRequest, StoreError};

pub struct Append(pub Vec<AuditRecord>);

impl Op for Append {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut sequence = reserve(tx, "audit", self.0.len()).await?;
        for record in &self.0 {
            sequence += 1;
            tx.execute(
                "INSERT INTO audit VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                values![
                    sequence,
                    record.at,
                    &record.org,
                    record.key.as_ref(),
                    record.action.as_str(),
                    record.target.as_deref(),
                    record.source.as_deref(),
                    record.request_id.as_deref(),
                    record.result.as_str(),
                    record.detail.as_deref(),
                ],
            )
            .await?;
        }
        Ok(())
    }
}

pub struct List(pub OrgId, pub PageRequest);

impl Op for List {
    type Out = Page<AuditRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let before = cursor::place(&self.1)?.map_or(i64::MAX, |place| place.number);
        let wanted = cursor::rows_wanted(&self.1);
        let rows = tx
            .query(
                "SELECT sequence, at, org, key_id, action, target, source, request_id, result, detail \
                 FROM audit WHERE org = ?1 AND sequence < ?2 ORDER BY sequence DESC LIMIT ?3",
                values![&self.0, before, wanted],
            )
            .await?;
        let found = rows
            .iter()
            .map(|row| {
                let key = row.optional_text(3)?.map(|text| text.parse());
                Ok(AuditRecord {
                    sequence: row.count(0)?,
                    at: row.time(1)?,
                    org: row.parse(2, "organisation id")?,
                    key: key
                        .transpose()
                        .map_err(|_| StoreError::Corrupt { what: "key id" })?,
                    action: row.text(4)?.to_owned(),
                    target: row.optional_text(5)?,
                    source: row.optional_text(6)?,
                    request_id: row.optional_text(7)?,
                    result: row.text(8)?.to_owned(),
                    detail: row.optional_text(9)?,
                })
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(cursor::page(found, &self.1, |record: &AuditRecord| {
            Place::new(i64::try_from(record.sequence).unwrap_or(i64::MAX), "")
        }))
    }
}
