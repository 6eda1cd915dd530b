//! SQLite: one thread that commits, one that flushes, and a few readers beside them.
//!
//! A commit puts its frames into the log and does not wait for the disk, so it takes microseconds and
//! survives the process. Whoever needs it to survive a power loss is answered by the flusher, which
//! takes everything along that was committed while the flush before it went on: a burst costs a few
//! flushes and not one each, and nobody's commit waits behind somebody else's flush. An operation that
//! fails is rolled back to its savepoint alone.

use std::fs::File;
use std::future::{Future, ready};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::StoreError;
use crate::migrate::migrate;
use crate::ops::events::Setting;
use crate::sql::{Backend, Durability, Op, Row, Tx, Value, values};

/// Operations that wait for the writer; more callers wait in their own tasks.
const WRITE_QUEUE_MAX: usize = 1024;
/// Operations committed together at most, so that the first of a group is not kept waiting.
const GROUP_MAX: usize = 128;
/// How long what nobody waits for may stay unflushed.
const UNFLUSHED_MAX: Duration = Duration::from_millis(500);
/// Connections that read at the same time.
const READERS_MAX: usize = 4;
/// More than anybody makes events within [`UNFLUSHED_MAX`].
const EVENTS_PASSED_OVER: u64 = 100_000;
/// The setting that names the boot of the host that last opened the file.
const HOST_BOOT: &str = "host_boot";
/// How the process ends when its disk fails it; whoever started it starts it again.
const EXIT_UNFLUSHED: i32 = 74;
/// How long a statement waits for another process that has the file locked.
const BUSY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one operation may take in all. A disk that hangs holds up the writer, not its callers.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(4);
/// Prepared statements each connection keeps.
const STATEMENTS_MAX: usize = 128;

pub struct Sqlite {
    writer: mpsc::Sender<Job>,
    readers: Arc<Readers>,
    /// Set when an operation was not done in time, and cleared by the next one that is. There always is
    /// one: what was given up is still in the writer's queue.
    stalled: Arc<AtomicBool>,
    operation_max: Duration,
}

struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<SqliteTx>>,
    permits: Semaphore,
}

/// Runs inside the group's transaction.
type Job = Box<dyn FnOnce(&mut SqliteTx) -> Outcome + Send>;
/// Tells the caller how it ended.
type Answer = Box<dyn FnOnce(Result<(), String>) + Send>;

struct Outcome {
    answer: Answer,
    durability: Durability,
}

impl Sqlite {
    /// Opens or makes the file and brings it up to date. Blocks; meant for start-up.
    pub fn open(path: &Path, operation_max: Duration) -> Result<Self, StoreError> {
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
        let prepared = now(async {
            migrate(&mut connection).await?;
            pass_over_lost_numbers(&mut connection, &host_boot()?).await
        });
        match prepared {
            Ok(()) => connection.run("COMMIT")?,
            Err(error) => {
                connection.run("ROLLBACK")?;
                return Err(error);
            }
        }
        let (writer, jobs) = mpsc::channel(WRITE_QUEUE_MAX);
        let (flusher, groups) = channel();
        // Held open: a descriptor hears of every write that failed since it was opened, a new one
        // only of those that nobody has heard of. It stays the log while the writer is connected.
        let log =
            File::open(log_of(path)).map_err(|error| StoreError::Unavailable(error.into()))?;
        let spawned = |thread: std::io::Result<_>| {
            thread
                .map(drop::<std::thread::JoinHandle<()>>)
                .map_err(|error| StoreError::Unavailable(error.into()))
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        spawned(thread("store-flusher").spawn(move || {
            if let Err(error) = flush_loop(&log, &groups) {
                // The kernel may have dropped what it could not write, so that nothing it says about
                // this file can be believed any more. The next process reads what is really there.
                tracing::error!(%error, "cannot flush the log of the database; exiting");
                std::process::exit(EXIT_UNFLUSHED);
            }
        }))?;
        spawned(thread("store-writer").spawn(move || write_loop(connection, jobs, &flusher)))?;
        Ok(Self {
            writer,
            readers: Arc::new(Readers {
                path: path.to_owned(),
                idle: Mutex::new(Vec::new()),
                permits: Semaphore::new(READERS_MAX),
            }),
            stalled: Arc::default(),
            operation_max,
        })
    }
}

impl Backend for Sqlite {
    async fn write<O: Op>(&self, op: O, durability: Durability) -> Result<O::Out, StoreError> {
        self.moving()?;
        let (sender, receiver) = oneshot::channel();
        let stalled = Arc::clone(&self.stalled);
        let job: Job = Box::new(move |tx| {
            let outcome = tx.in_savepoint(&op);
            // What changed nothing has nothing to wait for.
            let durability = match outcome {
                Ok(_) => durability,
                Err(_) => Durability::Written,
            };
            let answer = Box::new(move |kept: Result<(), String>| {
                stalled.store(false, Ordering::Relaxed);
                let answer = match kept {
                    Ok(()) => outcome,
                    Err(why) => Err(StoreError::Unavailable(why.into())),
                };
                // A caller that went away does not undo what it asked for.
                let _ = sender.send(answer);
            });
            Outcome { answer, durability }
        });
        let gone = || StoreError::Unavailable("the writer is not running".into());
        self.in_time(async {
            self.writer.send(job).await.map_err(|_| gone())?;
            receiver.await.map_err(|_| gone())?
        })
        .await
    }

    async fn read<O: Op>(&self, op: O) -> Result<O::Out, StoreError> {
        let readers = Arc::clone(&self.readers);
        let _permit = self
            .readers
            .permits
            .acquire()
            .await
            .map_err(|error| StoreError::Unavailable(error.into()))?;
        let work = move || {
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
        };
        if O::POINT {
            return work();
        }
        let reading = tokio::task::spawn_blocking(work);
        match timeout(self.operation_max, reading).await {
            Ok(done) => done.map_err(|error| StoreError::Database(error.into()))?,
            Err(_) => Err(self.late()),
        }
    }

    fn available(&self) -> Result<(), StoreError> {
        self.moving()
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.moving()?;
        self.read(Setting(HOST_BOOT.to_owned())).await.map(drop)
    }
}

impl Sqlite {
    fn moving(&self) -> Result<(), StoreError> {
        match self.stalled.load(Ordering::Relaxed) {
            true => Err(self.late()),
            false => Ok(()),
        }
    }

    async fn in_time<R>(
        &self,
        work: impl Future<Output = Result<R, StoreError>>,
    ) -> Result<R, StoreError> {
        match timeout(self.operation_max, work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.stalled.store(true, Ordering::Relaxed);
                tracing::error!(
                    "the database's disk does not answer; requests are refused until it does"
                );
                Err(self.late())
            }
        }
    }

    fn late(&self) -> StoreError {
        let seconds = self.operation_max.as_secs();
        StoreError::Unavailable(format!("no answer within {seconds} s").into())
    }
}

impl Readers {
    fn take_idle(&self) -> Option<SqliteTx> {
        let mut idle = self.idle.lock();
        idle.pop()
    }

    fn give_back(&self, connection: SqliteTx) {
        let mut idle = self.idle.lock();
        if idle.len() < READERS_MAX {
            idle.push(connection);
        }
    }
}

fn write_loop(
    mut connection: SqliteTx,
    mut jobs: mpsc::Receiver<Job>,
    flusher: &Sender<Vec<Answer>>,
) {
    while let Some(first) = jobs.blocking_recv() {
        if let Err(error) = connection.run("BEGIN IMMEDIATE") {
            // Without a transaction nothing may run; the caller hears that nobody took it.
            tracing::error!(%error, "the database refused a transaction");
            continue;
        }
        let mut outcomes = vec![first(&mut connection)];
        while outcomes.len() < GROUP_MAX {
            let Ok(job) = jobs.try_recv() else { break };
            outcomes.push(job(&mut connection));
        }
        let committed = connection.run("COMMIT").map_err(|error| {
            tracing::error!(%error, "the database refused a commit");
            let _ = connection.run("ROLLBACK");
            error.to_string()
        });
        let mut waiting = Vec::new();
        for Outcome { answer, durability } in outcomes {
            match durability {
                Durability::Flushed if committed.is_ok() => waiting.push(answer),
                _ => answer(committed.clone()),
            }
        }
        if committed.is_ok() && flusher.send(waiting).is_err() {
            return;
        }
    }
}

/// Flushes the log for those that wait, and after a while also where nobody does. A failure leaves
/// those that wait unanswered, and the writer without anybody to hand its work to.
fn flush_loop(log: &File, groups: &Receiver<Vec<Answer>>) -> std::io::Result<()> {
    let mut unflushed: Option<Instant> = None;
    loop {
        let mut answers = match unflushed {
            None => match groups.recv() {
                Ok(answers) => answers,
                Err(_) => return Ok(()),
            },
            Some(since) => match groups.recv_timeout(UNFLUSHED_MAX.saturating_sub(since.elapsed()))
            {
                Ok(answers) => answers,
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => return log.sync_data(),
            },
        };
        answers.extend(groups.try_iter().flatten());
        let since = *unflushed.get_or_insert_with(Instant::now);
        if answers.is_empty() && since.elapsed() < UNFLUSHED_MAX {
            continue;
        }
        log.sync_data()?;
        unflushed = None;
        for answer in answers {
            answer(Ok(()));
        }
    }
}

/// Numbers of events may have been given out that a power loss then undid. Given out again they would hide
/// what is new from whoever saw them, so after a reboot some are passed over.
async fn pass_over_lost_numbers<T: Tx>(tx: &mut T, boot: &str) -> Result<(), StoreError> {
    let select = "SELECT value FROM settings WHERE name = ?1";
    let rows = tx.query(select, values![HOST_BOOT]).await?;
    match rows.first() {
        Some(row) if row.text(0)? == boot => return Ok(()),
        Some(_) => {
            let pass_over = "UPDATE event_heads SET sequence = sequence + ?1";
            tx.execute(pass_over, values![EVENTS_PASSED_OVER]).await?;
        }
        None => {}
    }
    let put = "INSERT INTO settings (name, value) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET value = ?2";
    tx.execute(put, values![HOST_BOOT, boot]).await.map(drop)
}

fn host_boot() -> Result<String, StoreError> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|boot| boot.trim().to_owned())
        .map_err(|error| StoreError::Unavailable(error.into()))
}

/// Where SQLite keeps what is committed and not yet in the file itself.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
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

/// Moves what the write-ahead log holds into the database file, so that a copy of the file alone is whole.
/// Waits for nobody.
pub fn checkpoint(path: &Path) -> Result<(), StoreError> {
    SqliteTx::open(path)?
        .0
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
        .map_err(failed)
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
        // NORMAL flushes at checkpoints, in the order that keeps the file whole; commits are flushed
        // here. A checkpoint holds every commit up, so it comes after 16 MB of log and not after 4.
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; \
                 PRAGMA wal_autocheckpoint = 4000;",
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
    match error.sqlite_error_code() {
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly,
        // Another process holds it, or the disk below fails it or is full: that may pass.
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen,
        ) => StoreError::Unavailable(error.into()),
        _ => StoreError::Database(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::events::reserve;

    fn ask(
        flusher: &Sender<Vec<Answer>>,
    ) -> Result<Result<(), String>, std::sync::mpsc::RecvError> {
        let (told, answer) = channel();
        let answer_to: Answer = Box::new(move |kept| drop(told.send(kept)));
        let _ = flusher.send(vec![answer_to]);
        answer.recv()
    }

    #[test]
    fn nobody_is_answered_by_a_flush_that_failed_or_after_it() {
        let (flusher, groups) = channel();
        let thread = std::thread::spawn(move || {
            let log = tempfile::tempfile().unwrap();
            flush_loop(&log, &groups)
        });
        assert_eq!(ask(&flusher), Ok(Ok(())));
        drop(flusher);
        thread.join().unwrap().unwrap();

        let (flusher, groups) = channel();
        let thread = std::thread::spawn(move || {
            // A pipe cannot be flushed.
            let (end, _other) = std::io::pipe().unwrap();
            flush_loop(&File::from(std::os::fd::OwnedFd::from(end)), &groups)
        });
        ask(&flusher).unwrap_err();
        thread.join().unwrap().unwrap_err();
        ask(&flusher).unwrap_err();
    }

    #[test]
    fn numbers_of_events_are_passed_over_once_after_a_reboot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        drop(Sqlite::open(&path, OPERATION_TIMEOUT).unwrap());
        let mut connection = SqliteTx::open(&path).unwrap();
        let org = cove_model::OrgId::random();
        let mut last = |boot: Option<&str>| {
            if let Some(boot) = boot {
                now(pass_over_lost_numbers(&mut connection, boot)).unwrap();
            }
            now(reserve(&mut connection, &org, 0)).unwrap()
        };
        assert_eq!(last(None), 0);
        assert_eq!(last(Some("another boot")), EVENTS_PASSED_OVER);
        assert_eq!(last(Some("another boot")), EVENTS_PASSED_OVER);
    }
}
