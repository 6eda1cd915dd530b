//! PostgreSQL: a few connections, each with one transaction at a time.
//!
//! Checks and changes are single statements or happen under a row lock, so the default isolation is
//! enough; a deadlock or serialisation failure is tried again a few times. So is an operation whose
//! connection broke before it was asked to commit: nothing of it can have been kept.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use bytes::BytesMut;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Statement};

use crate::StoreError;
use crate::migrate::{compatible, migrate};
use crate::sql::{Backend, Durability, Op, Row, Tx, Value};
use health::{Health, Trouble};
use hosts::Hosts;

mod health;
mod hosts;
mod tls;

/// Connections held at most.
const CONNECTIONS_MAX: usize = 8;
/// How long one operation may take in all: waiting for a connection and for locks included.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(4);
/// How long bringing a database up to date may take. Rows may have to be copied.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How often an operation is tried that lost to another one or lost its connection.
const TRIES_MAX: u32 = 5;
/// Prepared statements each connection keeps; filters make a few shapes of the same list.
const STATEMENTS_MAX: usize = 256;
/// Any number nobody else uses in this database: holds off other migrations.
const MIGRATION_LOCK: i64 = 0x636f_7665;

pub struct Postgres(Arc<Inner>);

struct Inner {
    hosts: Hosts,
    idle: Mutex<Vec<PgTx>>,
    permits: Semaphore,
    health: Health,
}

/// How an attempt failed, and whether something of it may have been kept.
struct Broken {
    error: StoreError,
    committing: bool,
}

impl Postgres {
    /// Connects once and brings the database up to date.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let (config, tls) = tls::parse(url)?;
        let inner = Inner {
            hosts: Hosts::new(&config, tls)?,
            idle: Mutex::new(Vec::new()),
            permits: Semaphore::new(CONNECTIONS_MAX),
            health: Health::up(),
        };
        let late = |_| StoreError::Unavailable("the database does not answer".into());
        let mut connection = timeout(OPERATION_TIMEOUT, inner.connect())
            .await
            .map_err(late)??;
        // Whoever migrates now is waited for only as long as any operation; the caller tries again.
        let locking = async {
            connection.batch("BEGIN").await?;
            connection
                .batch(&format!("SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
                .await?;
            connection.batch("SET LOCAL statement_timeout = 0").await
        };
        timeout(OPERATION_TIMEOUT, locking).await.map_err(late)??;
        let migrating = async {
            match migrate(&mut connection).await {
                Ok(()) => connection.batch("COMMIT").await,
                Err(error) => {
                    let _ = connection.batch("ROLLBACK").await;
                    Err(error)
                }
            }
        };
        timeout(MIGRATION_TIMEOUT, migrating)
            .await
            .map_err(late)??;
        inner.give_back(connection);
        Ok(Self(Arc::new(inner)))
    }

    async fn run<O: Op>(&self, op: O, transaction: bool) -> Result<O::Out, StoreError> {
        let inner = &self.0;
        inner.health.check()?;
        let work = async {
            let _permit = inner.permit().await?;
            let mut tries = 1;
            loop {
                let Broken { error, committing } = match inner.once(&op, transaction).await {
                    Ok(out) => return Ok(out),
                    Err(broken) => broken,
                };
                if matches!(error, StoreError::ReadOnly) {
                    inner.note_down(Trouble::ReadOnly);
                    return Err(error);
                }
                let lost_connection = matches!(error, StoreError::Unavailable(_));
                if lost_connection {
                    // The others of its time have probably ended too.
                    inner.close_idle();
                }
                let again = lost_to_another(&error) || (lost_connection && !committing);
                if !again || tries >= TRIES_MAX {
                    return Err(error);
                }
                inner.health.check()?;
                tries += 1;
            }
        };
        match timeout(OPERATION_TIMEOUT, work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let why = format!("no answer within {} s", OPERATION_TIMEOUT.as_secs());
                let trouble = Trouble::Unreachable(why);
                // A database that is only slow is found up again at once.
                inner.note_down(trouble.clone());
                Err(trouble.into())
            }
        }
    }
}

impl Inner {
    async fn connect(&self) -> Result<PgTx, StoreError> {
        let (client, connection) = self.hosts.connect().await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(%error, "a database connection ended");
            }
        });
        let mut connection = PgTx {
            client,
            driver,
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

    /// Everybody who waits in line hears at once that the database is down.
    async fn permit(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(permit);
        }
        tokio::select! {
            permit = self.permits.acquire() => {
                permit.map_err(|error| StoreError::Unavailable(error.into()))
            }
            error = self.health.down() => Err(error),
        }
    }

    async fn take(self: &Arc<Self>) -> Result<PgTx, StoreError> {
        loop {
            let idle = self.idle.lock().pop();
            match idle {
                Some(connection) if connection.client.is_closed() => continue,
                Some(connection) => return Ok(connection),
                None => {
                    let connected = self.connect().await;
                    return connected.inspect_err(|error| self.note_failed_connect(error));
                }
            }
        }
    }

    fn give_back(&self, connection: PgTx) {
        let mut idle = self.idle.lock();
        if idle.len() < CONNECTIONS_MAX {
            idle.push(connection);
        }
    }

    /// A connection goes back only after its transaction has ended; one that was cut off in the
    /// middle (an error, a timeout, a caller that went away) is closed, which rolls it back.
    async fn once<O: Op>(self: &Arc<Self>, op: &O, transaction: bool) -> Result<O::Out, Broken> {
        let before = |error| Broken {
            error,
            committing: false,
        };
        let mut connection = self.take().await.map_err(before)?;
        if transaction {
            connection.batch("BEGIN").await.map_err(before)?;
        }
        match op.run(&mut connection).await {
            Ok(out) => {
                if transaction {
                    let committed = connection.batch("COMMIT").await;
                    committed.map_err(|error| Broken {
                        error,
                        committing: true,
                    })?;
                }
                self.give_back(connection);
                Ok(out)
            }
            Err(error) => {
                let usable = !matches!(error, StoreError::Unavailable(_) | StoreError::ReadOnly);
                if usable && (!transaction || connection.batch("ROLLBACK").await.is_ok()) {
                    self.give_back(connection);
                }
                Err(before(error))
            }
        }
    }
}

/// Whether this session may write, and the tables are still those of this program: either may have changed since it
/// connected.
struct TakesWrites;

impl Op for TakesWrites {
    type Out = bool;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<bool, StoreError> {
        compatible(tx).await?;
        let rows = tx
            .query("SELECT current_setting('transaction_read_only')", &[])
            .await?;
        let row = rows
            .first()
            .ok_or(StoreError::Corrupt { what: "setting" })?;
        Ok(row.text(0)? == "off")
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

    fn available(&self) -> Result<(), StoreError> {
        self.0.health.check()
    }

    async fn check(&self) -> Result<(), StoreError> {
        if self.run(TakesWrites, false).await? {
            return Ok(());
        }
        self.0.note_down(Trouble::ReadOnly);
        Err(StoreError::ReadOnly)
    }
}

/// A connection, with a transaction open on it while an operation writes.
pub struct PgTx {
    client: Client,
    driver: JoinHandle<()>,
    statements: HashMap<String, Statement>,
}

impl Drop for PgTx {
    /// The driver would wait for answers that a hung server still owes.
    fn drop(&mut self) {
        self.driver.abort();
    }
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
    if text.contains("does not allow writes") {
        return StoreError::ReadOnly;
    }
    StoreError::Unavailable(error.into())
}

fn failed(error: tokio_postgres::Error) -> StoreError {
    let Some(code) = error.code() else {
        // Not the database's own words: the connection is gone, or what came over it made no sense.
        return match error.is_closed() || is_io(&error) {
            true => StoreError::Unavailable(error.into()),
            false => StoreError::Database(error.into()),
        };
    };
    if *code == SqlState::UNIQUE_VIOLATION {
        return StoreError::Exists { what: "the row" };
    }
    if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        return StoreError::ReadOnly;
    }
    // Connections (08), resources (53), the operator's doing (57), the system below (58).
    let passes = ["08", "53", "57", "58"];
    if passes.iter().any(|class| code.code().starts_with(class)) {
        return StoreError::Unavailable(error.into());
    }
    StoreError::Database(error.into())
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    error
        .source()
        .is_some_and(|source| source.is::<std::io::Error>())
}

fn full_text(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", full_text(source)),
        None => error.to_string(),
    }
}
