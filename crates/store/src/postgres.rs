//! PostgreSQL: a few connections, each with one transaction at a time.
//!
//! Checks and changes are single statements or happen under a row lock, so the default isolation is
//! enough; a deadlock or serialisation failure is tried again a few times.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, Statement};

use crate::StoreError;
use crate::migrate::migrate;
use crate::sql::{Backend, Durability, Op, Row, Tx, Value};

mod tls;

/// Connections held at most.
const CONNECTIONS_MAX: usize = 8;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one operation may take in all, waiting for locks included.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
/// How often an operation is tried that lost to another one.
const TRIES_MAX: u32 = 5;
/// Prepared statements each connection keeps; filters make a few shapes of the same list.
const STATEMENTS_MAX: usize = 256;
/// Any number nobody else uses in this database: holds off other migrations.
const MIGRATION_LOCK: i64 = 0x636f_7665;

pub struct Postgres {
    config: Config,
    tls: tls::Tls,
    idle: Mutex<Vec<PgTx>>,
    permits: Semaphore,
}

impl Postgres {
    /// Connects once and brings the database up to date.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let (mut config, tls) = tls::parse(url)?;
        config.connect_timeout(CONNECT_TIMEOUT);
        config.application_name("cove");
        let store = Self {
            config,
            tls,
            idle: Mutex::new(Vec::new()),
            permits: Semaphore::new(CONNECTIONS_MAX),
        };
        let mut connection = store.connect().await?;
        connection.batch("BEGIN").await?;
        connection
            .batch(&format!("SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            .await?;
        match migrate(&mut connection).await {
            Ok(()) => connection.batch("COMMIT").await?,
            Err(error) => {
                let _ = connection.batch("ROLLBACK").await;
                return Err(error);
            }
        }
        store.give_back(connection);
        Ok(store)
    }

    async fn connect(&self) -> Result<PgTx, StoreError> {
        let (client, connection) = self
            .config
            .connect(self.tls.clone())
            .await
            .map_err(unreachable)?;
        // Ends by itself when the client is dropped or the server goes away.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(%error, "a database connection ended");
            }
        });
        let mut connection = PgTx {
            client,
            statements: HashMap::new(),
        };
        let limit = OPERATION_TIMEOUT.as_millis();
        connection
            .batch(&format!(
                "SET statement_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit}; \
                 SET client_min_messages = warning; \
                 SELECT set_config('synchronous_commit', 'on', false) \
                 WHERE current_setting('synchronous_commit') = 'off'"
            ))
            .await?;
        Ok(connection)
    }

    async fn take(&self) -> Result<PgTx, StoreError> {
        loop {
            let idle = self
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            match idle {
                Some(connection) if connection.client.is_closed() => continue,
                Some(connection) => return Ok(connection),
                None => return self.connect().await,
            }
        }
    }

    fn give_back(&self, connection: PgTx) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < CONNECTIONS_MAX {
            idle.push(connection);
        }
    }

    /// A connection goes back only after its transaction has ended; one that was cut off in the
    /// middle (an error, a timeout, a caller that went away) is closed, which rolls it back.
    async fn once<O: Op>(&self, op: &O, transaction: bool) -> Result<O::Out, StoreError> {
        let mut connection = self.take().await?;
        if transaction {
            connection.batch("BEGIN").await?;
        }
        match op.run(&mut connection).await {
            Ok(out) => {
                if transaction {
                    connection.batch("COMMIT").await?;
                }
                self.give_back(connection);
                Ok(out)
            }
            Err(error) => {
                if !transaction || connection.batch("ROLLBACK").await.is_ok() {
                    self.give_back(connection);
                }
                Err(error)
            }
        }
    }

    async fn run<O: Op>(&self, op: O, transaction: bool) -> Result<O::Out, StoreError> {
        let work = async {
            let _permit = self
                .permits
                .acquire()
                .await
                .map_err(|error| StoreError::Unavailable(error.into()))?;
            let mut tries = 1;
            loop {
                match self.once(&op, transaction).await {
                    Err(error) if tries < TRIES_MAX && lost_to_another(&error) => tries += 1,
                    outcome => return outcome,
                }
            }
        };
        timeout(OPERATION_TIMEOUT, work).await.map_err(|_| {
            StoreError::Unavailable(
                format!("no answer within {} s", OPERATION_TIMEOUT.as_secs()).into(),
            )
        })?
    }
}

impl Backend for Postgres {
    /// Always flushed: the database may crash and come back while this process lives, and must not have
    /// forgotten what later writes take for granted. It groups commits by itself.
    async fn write<O: Op>(&self, op: O, _: Durability) -> Result<O::Out, StoreError> {
        self.run(op, true).await
    }

    async fn read<O: Op>(&self, op: O) -> Result<O::Out, StoreError> {
        self.run(op, false).await
    }
}

/// A connection, with a transaction open on it while an operation writes.
pub struct PgTx {
    client: Client,
    statements: HashMap<String, Statement>,
}

impl PgTx {
    async fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        self.client.batch_execute(sql).await.map_err(failed)
    }

    async fn statement(&mut self, sql: &str) -> Result<Statement, StoreError> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let text = sql.replace('?', "$");
        let statement = self.client.prepare(&text).await.map_err(failed)?;
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

fn parameters(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as _).collect()
}

impl Tx for PgTx {
    async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, StoreError> {
        let statement = self.statement(sql).await?;
        self.client
            .execute(&statement, &parameters(values))
            .await
            .map_err(failed)
    }

    async fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, StoreError> {
        let statement = self.statement(sql).await?;
        let rows = self
            .client
            .query(&statement, &parameters(values))
            .await
            .map_err(failed)?;
        rows.iter().map(row).collect()
    }
}

fn row(row: &tokio_postgres::Row) -> Result<Row, StoreError> {
    let values = row
        .columns()
        .iter()
        .enumerate()
        .map(|(index, column)| {
            Ok(if *column.type_() == Type::INT8 {
                row.try_get::<_, Option<i64>>(index).map_err(failed)?.into()
            } else {
                row.try_get::<_, Option<String>>(index)
                    .map_err(failed)?
                    .into()
            })
        })
        .collect::<Result<_, StoreError>>()?;
    Ok(Row(values))
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(value) => value.to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::INT8 || *kind == Type::TEXT
    }

    to_sql_checked!();
}

fn lost_to_another(error: &StoreError) -> bool {
    let StoreError::Database(source) = error else {
        return false;
    };
    source
        .downcast_ref::<tokio_postgres::Error>()
        .and_then(tokio_postgres::Error::code)
        .is_some_and(|code| {
            *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE
        })
}

/// A server that cannot be trusted, or that knows no such user, will not become another by waiting.
fn unreachable(error: tokio_postgres::Error) -> StoreError {
    let text = full_text(&error);
    let refused = error.code().is_some_and(|code| {
        [
            SqlState::INVALID_PASSWORD,
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
            SqlState::INVALID_CATALOG_NAME,
        ]
        .contains(code)
    });
    let untrusted = ["certificate", "does not support TLS", "TLS handshake"];
    if refused || untrusted.iter().any(|part| text.contains(part)) {
        return StoreError::Refused(error.into());
    }
    StoreError::Unavailable(error.into())
}

fn failed(error: tokio_postgres::Error) -> StoreError {
    if error.code() == Some(&SqlState::UNIQUE_VIOLATION) {
        return StoreError::Exists { what: "the row" };
    }
    if error.is_closed() {
        return StoreError::Unavailable(error.into());
    }
    StoreError::Database(error.into())
}

fn full_text(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", full_text(source)),
        None => error.to_string(),
    }
}
