//! Lists page by page, the newest first, of tables with `id` and `created_at`. A list says what it is of
//! and what it leaves out; the order, the place and the page are the same for all.

use cove_limits::PAGE_BYTES_MAX;

use crate::cursor::{self, Position};
use crate::sql::{Row, Tx, Value};
use crate::{Page, PageRequest, StoreError};

/// Rows that are asked for at once, so that a page's bytes are counted before it is all in memory.
const ROWS_AT_ONCE: i64 = 128;

pub struct Newest<'a> {
    page: &'a PageRequest,
    sql: String,
    order: &'static str,
    values: Vec<Value>,
}

impl<'a> Newest<'a> {
    pub fn of(columns: &str, table: &str, page: &'a PageRequest) -> Result<Self, StoreError> {
        Self::ordered(columns, table, page, false)
    }

    /// The other way round, where the oldest are to come first.
    pub fn ordered(
        columns: &str,
        table: &str,
        page: &'a PageRequest,
        oldest_first: bool,
    ) -> Result<Self, StoreError> {
        let (beyond, begin, order) = match oldest_first {
            false => ("<", i64::MAX, "DESC"),
            true => (">", i64::MIN, "ASC"),
        };
        let from = cursor::place(page)?.unwrap_or(Position::new(begin, ""));
        let sql = format!(
            "SELECT {columns} FROM {table} WHERE \
             (created_at {beyond} ?1 OR (created_at = ?1 AND id {beyond} ?2))"
        );
        let values = vec![
            Value::from(from.number),
            Value::from(from.id),
            Value::from(cursor::rows_wanted(page)),
        ];
        Ok(Self {
            page,
            sql,
            order,
            values,
        })
    }

    /// Leaves out what does not fulfil the condition.
    pub fn and(&mut self, condition: &str) {
        self.sql += " AND ";
        self.sql += condition;
    }

    /// How a condition names this value.
    pub fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("?{}", self.values.len())
    }

    pub fn equal(&mut self, column: &str, value: impl Into<Value>) {
        let bound = self.bind(value);
        self.and(&format!("{column} = {bound}"));
    }

    /// No values at all: any will do.
    pub fn among(&mut self, column: &str, values: impl Iterator<Item = &'static str>) {
        let bound: Vec<String> = values.map(|value| self.bind(value)).collect();
        if !bound.is_empty() {
            self.and(&format!("{column} IN ({})", bound.join(", ")));
        }
    }

    /// Ends the page early once it has [`PAGE_BYTES_MAX`].
    pub async fn read<T: Tx, R>(
        mut self,
        tx: &mut T,
        record: fn(&Row) -> Result<R, StoreError>,
        place: fn(&R) -> Position,
    ) -> Result<Page<R>, StoreError> {
        let order = self.order;
        let sql = format!(
            "{} ORDER BY created_at {order}, id {order} LIMIT ?3",
            self.sql
        );
        let mut wanted = cursor::rows_wanted(self.page);
        let (mut found, mut bytes) = (Vec::new(), 0);
        loop {
            let asked = wanted.min(ROWS_AT_ONCE);
            self.values[2] = asked.into();
            let rows = tx.query(&sql, &self.values).await?;
            for row in &rows {
                if bytes >= PAGE_BYTES_MAX {
                    return Ok(cursor::ended(found, true, place));
                }
                bytes += row.bytes();
                found.push(record(row)?);
            }
            wanted -= asked;
            let last = found.last().map(place);
            match last {
                Some(last) if wanted > 0 && rows.len() as i64 == asked => {
                    self.values[0] = last.number.into();
                    self.values[1] = last.id.into();
                }
                _ => return Ok(cursor::page(found, self.page, place)),
            }
        }
    }
}
