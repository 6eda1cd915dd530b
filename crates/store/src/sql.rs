//! The narrow waist between the statements and the two databases.
//!
//! An [`Op`] is one transaction, written once against [`Tx`]. SQLite answers each statement on the
//! spot, PostgreSQL over the network; both see the same text, with `?1` for parameters and only what
//! both understand.

use std::future::Future;

use time::OffsetDateTime;

use crate::StoreError;

/// What goes into a statement and comes out of it. Times are microseconds since 1970, structures JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
}

/// One transaction under way.
pub trait Tx: Send {
    /// Rows changed.
    fn execute(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    fn query(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;
}

/// One transaction to be done. It may be run again when the database asks for that, so it changes
/// nothing but the database.
pub trait Op: Send + Sync + 'static {
    type Out: Send + 'static;
    /// Reads a row or two by their keys. Handing such a question to another thread takes longer than
    /// answering it.
    const POINT: bool = false;
    fn run<T: Tx>(&self, tx: &mut T) -> impl Future<Output = Result<Self::Out, StoreError>> + Send;
}

/// What a committed transaction survives at least when its caller hears of it. A later one that is
/// flushed takes all before it along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The end of this process.
    Written,
    /// A power loss.
    Flushed,
}

/// A database that runs transactions.
pub trait Backend: Send + Sync + 'static {
    /// As durable as asked for when it returns `Ok`; nothing happened when it returns `Err`, unless
    /// the connection broke while committing or a flush failed.
    fn write<O: Op>(
        &self,
        op: O,
        durability: Durability,
    ) -> impl Future<Output = Result<O::Out, StoreError>> + Send;
    /// An operation that changes nothing.
    fn read<O: Op>(&self, op: O) -> impl Future<Output = Result<O::Out, StoreError>> + Send;
    /// What is known of that already.
    fn available(&self) -> Result<(), StoreError>;
    /// Whether it answers and takes writes.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A row of an answer, by position.
#[derive(Debug, Clone)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// What its texts take.
    pub fn bytes(&self) -> usize {
        let texts = self.0.iter().map(|value| match value {
            Value::Text(text) => text.len(),
            Value::Int(_) | Value::Null => 0,
        });
        texts.sum()
    }

    pub fn int(&self, index: usize) -> Result<i64, StoreError> {
        match self.0.get(index) {
            Some(Value::Int(value)) => Ok(*value),
            _ => Err(StoreError::Corrupt { what: "number" }),
        }
    }

    pub fn count(&self, index: usize) -> Result<u64, StoreError> {
        u64::try_from(self.int(index)?).map_err(|_| StoreError::Corrupt { what: "count" })
    }

    pub fn text(&self, index: usize) -> Result<&str, StoreError> {
        match self.0.get(index) {
            Some(Value::Text(value)) => Ok(value),
            _ => Err(StoreError::Corrupt { what: "text" }),
        }
    }

    pub fn optional_text(&self, index: usize) -> Result<Option<String>, StoreError> {
        match self.0.get(index) {
            Some(Value::Null) => Ok(None),
            _ => Ok(Some(self.text(index)?.to_owned())),
        }
    }

    pub fn time(&self, index: usize) -> Result<OffsetDateTime, StoreError> {
        time_of(self.int(index)?)
    }

    pub fn steady(&self, index: usize) -> Result<cove_model::Steady, StoreError> {
        self.int(index).map(cove_model::Steady::from_micros)
    }

    pub fn optional_time(&self, index: usize) -> Result<Option<OffsetDateTime>, StoreError> {
        match self.0.get(index) {
            Some(Value::Null) => Ok(None),
            _ => Ok(Some(self.time(index)?)),
        }
    }

    pub fn parse<T: std::str::FromStr>(
        &self,
        index: usize,
        what: &'static str,
    ) -> Result<T, StoreError> {
        self.text(index)?
            .parse()
            .map_err(|_| StoreError::Corrupt { what })
    }

    pub fn optional_parse<T: std::str::FromStr>(
        &self,
        index: usize,
        what: &'static str,
    ) -> Result<Option<T>, StoreError> {
        match self.0.get(index) {
            Some(Value::Null) => Ok(None),
            _ => self.parse(index, what).map(Some),
        }
    }

    pub fn json<T: serde::de::DeserializeOwned>(
        &self,
        index: usize,
        what: &'static str,
    ) -> Result<T, StoreError> {
        serde_json::from_str(self.text(index)?).map_err(|_| StoreError::Corrupt { what })
    }
}

pub fn micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

fn time_of(micros: i64) -> Result<OffsetDateTime, StoreError> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
        .map_err(|_| StoreError::Corrupt { what: "time" })
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for Value {
    /// PostgreSQL has no NUL in texts. Nothing that is kept may contain one, so a filter with one
    /// only has to find nothing, in both databases alike.
    fn from(text: String) -> Self {
        if text.contains('\0') {
            return Self::Text(text.replace('\0', "\u{fffd}"));
        }
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<u64> for Value {
    /// Counts above what a database column holds are as good as its largest value.
    fn from(value: u64) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(value.into())
    }
}

impl From<OffsetDateTime> for Value {
    fn from(at: OffsetDateTime) -> Self {
        Self::Int(micros(at))
    }
}

impl From<cove_model::Steady> for Value {
    fn from(at: cove_model::Steady) -> Self {
        Self::Int(at.micros())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

macro_rules! id_values {
    ($($id:ty),*) => {$(
        impl From<&$id> for Value {
            fn from(id: &$id) -> Self {
                Self::Text(id.as_str().to_owned())
            }
        }
    )*};
}
id_values!(
    cove_model::HostId,
    cove_model::OrgId,
    cove_model::KeyId,
    cove_model::SandboxId,
    cove_model::SecretId,
    cove_model::SnapshotId,
    cove_model::ImageId,
    cove_model::TemplateId,
    cove_model::BuildId,
    cove_model::VolumeId
);

/// The values of a statement, in order.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        &[$($crate::sql::Value::from($value)),*]
    };
}
pub(crate) use values;

pub fn json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Database(error.into()))
}
