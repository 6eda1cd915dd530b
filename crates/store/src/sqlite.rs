//! SQLite: one writer thread that commits whole groups at once, and a few readers beside it.
//!
//! Writers queue up while a commit waits for the disk; the next commit takes all of them along, so a
//! burst of creates costs one flush per group and not one each. An operation that fails is rolled
//! back to its savepoint alone. Nobody is answered before the commit that holds their work.

use std::collections::VecDeque;
use std::future::{Future, ready};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::StoreError;
use crate::migrate::migrate;
use crate::sql::{Backend, Op, Row, Tx, Value};

/// Operations that wait for the writer; more callers wait in their own tasks.
const WRITE_QUEUE_MAX: usize = 1024;
/// Operations committed together at most, so that the first of a group is not kept waiting.
const GROUP_MAX: usize = 128;
/// Connections that read at the same time.
const READERS_MAX: usize = 4;
/// How long a statement waits for another process that has the file locked.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Prepared statements each connection keeps.
const STATEMENTS_MAX: usize = 128;

pub struct Sqlite {
    writer: mpsc::Sender<Job>,
    readers: Arc<Readers>,
}

struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<SqliteTx>>,
    permits: Semaphore,
}

/// Runs inside the group's transaction; what it returns runs after the commit.
type Job = Box<dyn FnOnce(&mut SqliteTx) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), String>) + Send>;

impl Sqlite {
    /// Opens or makes the file and brings it up to date. Blocks; meant for start-up.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        // Made here and not by SQLite, so that nobody else can ever read it; the files SQLite puts
        // beside it take its mode over.
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| StoreError::Unavailable(error.into()))?;
        let mut connection = SqliteTx::open(path)?;
        connection.run("BEGIN EXCLUSIVE")?;
        match now(migrate(&mut connection)) {
            Ok(()) => connection.run("COMMIT")?,
            Err(error) => {
                connection.run("ROLLBACK")?;
                return Err(error);
            }
        }
        let (writer, jobs) = mpsc::channel(WRITE_QUEUE_MAX);
        std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || write_loop(connection, jobs))
            .map_err(|error| StoreError::Unavailable(error.into()))?;
        Ok(Self {
            writer,
            readers: Arc::new(Readers {
                path: path.to_owned(),
                idle: Mutex::new(Vec::new()),
                permits: Semaphore::new(READERS_MAX),
            }),
        })
    }
}

impl Backend for Sqlite {
    async fn write<O: Op>(&self, op: O) -> Result<O::Out, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |tx| {
            let outcome = tx.in_savepoint(&op);
            Box::new(move |committed| {
                let answer = match committed {
                    Ok(()) => outcome,
                    Err(why) => Err(StoreError::Database(why.into())),
                };
                // A caller that went away does not undo what it asked for.
                let _ = sender.send(answer);
            })
        });
        let gone = || StoreError::Unavailable("the writer did not take it".into());
        self.writer.send(job).await.map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())?
    }

    async fn read<O: Op>(&self, op: O) -> Result<O::Out, StoreError> {
        let readers = Arc::clone(&self.readers);
        let _permit = self
            .readers
            .permits
            .acquire()
            .await
            .map_err(|error| StoreError::Unavailable(error.into()))?;
        tokio::task::spawn_blocking(move || {
            let idle = readers.take_idle();
            let mut connection = match idle {
                Some(connection) => connection,
                None => SqliteTx::open(&readers.path)?,
            };
            connection.run("BEGIN")?;
            let outcome = now(op.run(&mut connection));
            connection.run("COMMIT")?;
            readers.give_back(connection);
            outcome
        })
        .await
        .map_err(|error| StoreError::Database(error.into()))?
    }
}

impl Readers {
    fn take_idle(&self) -> Option<SqliteTx> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.pop()
    }

    fn give_back(&self, connection: SqliteTx) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < READERS_MAX {
            idle.push(connection);
        }
    }
}

fn write_loop(mut connection: SqliteTx, mut jobs: mpsc::Receiver<Job>) {
    while let Some(first) = jobs.blocking_recv() {
        let mut answers = VecDeque::new();
        let committed = match connection.run("BEGIN IMMEDIATE") {
            Err(error) => {
                // Without a transaction nothing may run; the job still has to answer.
                drop(first);
                tracing::error!(%error, "the database refused a transaction");
                continue;
            }
            Ok(()) => {
                answers.push_back(first(&mut connection));
                while answers.len() < GROUP_MAX {
                    let Ok(job) = jobs.try_recv() else { break };
                    answers.push_back(job(&mut connection));
                }
                connection.run("COMMIT")
            }
        };
        let committed = committed.map_err(|error| {
            tracing::error!(%error, "the database refused a commit");
            let _ = connection.run("ROLLBACK");
            error.to_string()
        });
        for answer in answers {
            answer(committed.clone());
        }
    }
}

/// SQLite answers on the spot, so its futures are ready when first asked.
fn now<R>(future: impl Future<Output = Result<R, StoreError>>) -> Result<R, StoreError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(StoreError::Database(
            "an operation waited for something that is not the database".into(),
        )),
    }
}

/// A connection, with a transaction open on it while an operation runs.
pub struct SqliteTx(Connection);

impl SqliteTx {
    fn open(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|error| StoreError::Unavailable(error.into()))?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;",
            )
            .map_err(failed)?;
        Ok(Self(connection))
    }

    fn run(&mut self, sql: &str) -> Result<(), StoreError> {
        self.0
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute([]))
            .map(drop)
            .map_err(failed)
    }

    fn in_savepoint<O: Op>(&mut self, op: &O) -> Result<O::Out, StoreError> {
        self.run("SAVEPOINT op")?;
        let outcome = now(op.run(self));
        if outcome.is_err() {
            self.run("ROLLBACK TO op")?;
        }
        self.run("RELEASE op")?;
        outcome
    }

    fn execute_now(&mut self, sql: &str, values: &[Value]) -> rusqlite::Result<u64> {
        let mut statement = self.0.prepare_cached(sql)?;
        bind(&mut statement, values)?;
        let changed = statement.raw_execute()?;
        Ok(changed as u64)
    }

    fn query_now(&mut self, sql: &str, values: &[Value]) -> rusqlite::Result<Vec<Row>> {
        let mut statement = self.0.prepare_cached(sql)?;
        bind(&mut statement, values)?;
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let values = (0..columns)
                .map(|index| {
                    Ok(match row.get_ref(index)? {
                        ValueRef::Null => Value::Null,
                        ValueRef::Integer(value) => Value::Int(value),
                        other => Value::Text(other.as_str()?.to_owned()),
                    })
                })
                .collect::<rusqlite::Result<_>>()?;
            found.push(Row(values));
        }
        Ok(found)
    }
}

fn bind(statement: &mut rusqlite::Statement<'_>, values: &[Value]) -> rusqlite::Result<()> {
    for (index, value) in values.iter().enumerate() {
        match value {
            Value::Null => statement.raw_bind_parameter(index + 1, rusqlite::types::Null)?,
            Value::Int(value) => statement.raw_bind_parameter(index + 1, value)?,
            Value::Text(text) => statement.raw_bind_parameter(index + 1, text)?,
        }
    }
    Ok(())
}

impl Tx for SqliteTx {
    fn execute(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        ready(self.execute_now(sql, values).map_err(failed))
    }

    fn query(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send {
        ready(self.query_now(sql, values).map_err(failed))
    }
}

fn failed(error: rusqlite::Error) -> StoreError {
    if let rusqlite::Error::SqliteFailure(failure, _) = &error
        && matches!(
            failure.extended_code,
            rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE | rusqlite::ffi::SQLITE_CONSTRAINT_PRIMARYKEY
        )
    {
        return StoreError::Exists { what: "the row" };
    }
    StoreError::Database(error.into())
}
