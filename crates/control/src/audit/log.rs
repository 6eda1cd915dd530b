//! The way of audit records: into the journal on this host at once, and from there to the database, in
//! order and exactly once.
//!
//! Whoever needs a record to be in the database waits for that; callers that come while a batch is
//! being written form the next one, so many at once cost few commits. What nobody waits for is moved by
//! the background work.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use cove_model::OrgId;
use cove_store::{AuditJournal, AuditRecord, JournalEntry, Store, StoreError};
use tokio::sync::Mutex as AsyncMutex;

use super::journal::{self, Journal};
use super::refusals::Refusals;
use crate::shares::Sharing;

/// Records written in one transaction at most.
const BATCH_MAX: usize = 256;
/// Records and calls under way that wait for the database or for their end. Their frames fit into the journal.
pub const WAITING: Sharing = Sharing::new(16_384, 64);
/// A call whose end is not known after this long is recorded before.
const LATE_AFTER: Duration = Duration::from_secs(2);
/// How a call is recorded that goes on.
const PENDING: &str = "pending";
const OK: &str = "ok";

pub struct AuditLog {
    store: Arc<dyn Store>,
    state: Arc<Mutex<State>>,
    /// Everything up to this position is in the database; its holder moves for everybody.
    moved: AsyncMutex<u64>,
    refusals: Mutex<Refusals>,
}

struct State {
    /// Absent for those that keep none: only what is in the database survives.
    folder: Option<PathBuf>,
    /// Opened when it is first needed, and tried again when that failed.
    journal: Option<Journal>,
    identity: AuditJournal,
    /// The last one given to an intent or a record.
    position: u64,
    queue: VecDeque<JournalEntry>,
    /// Calls under way, by the position of their intent.
    open: BTreeMap<u64, (Instant, Arc<UnderWay>)>,
    held: HashMap<OrgId, usize>,
}

/// A call whose intent was written and whose end is not.
pub struct UnderWay {
    record: AuditRecord,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    so_far: Option<&'static str>,
    recorded: Option<String>,
}

impl UnderWay {
    pub fn new(record: AuditRecord) -> Self {
        Self {
            record,
            progress: Mutex::default(),
        }
    }

    /// How it would end if it ended now.
    pub fn note(&self, so_far: &'static str) {
        self.progress().so_far = Some(so_far);
    }

    pub fn so_far(&self) -> Option<&'static str> {
        self.progress().so_far
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
    }
}

impl AuditLog {
    pub fn new(store: Arc<dyn Store>, folder: Option<PathBuf>) -> Self {
        let host = folder.as_deref().map(journal::host).transpose();
        let host = host.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot use the directory of the audit journal");
            None
        });
        let state = State {
            folder,
            journal: None,
            identity: AuditJournal {
                host: host.unwrap_or_else(|| "none".into()),
                journal: format!("{:032x}", rand::random::<u128>()),
            },
            position: 0,
            queue: VecDeque::new(),
            open: BTreeMap::new(),
            held: HashMap::new(),
        };
        Self {
            store,
            state: Arc::new(Mutex::new(state)),
            moved: AsyncMutex::new(0),
            refusals: Mutex::default(),
        }
    }

    /// What this installation is called in the database: the same for every process of its data directory.
    pub fn installation(&self) -> String {
        self.state().identity.host.clone()
    }

    /// Written when it returns: the call may be made.
    pub fn begin(&self, call: &Arc<UnderWay>) -> Result<u64, StoreError> {
        let mut state = self.state();
        state.has_room(&call.record.org)?;
        let position = state.intent(&call.record, &self.state)?;
        state.hold(&call.record.org);
        state
            .open
            .insert(position, (Instant::now(), Arc::clone(call)));
        Ok(position)
    }

    /// The call has ended. Says nothing that was said already.
    pub fn end(&self, position: u64, call: &UnderWay, result: &str) {
        let mut state = self.state();
        let open = state.open.remove(&position).is_some();
        if open {
            state.let_go(&call.record.org);
        }
        if call.progress().recorded.as_deref() != Some(result) {
            state.tell(open.then_some(position), call, result, &self.state);
        }
    }

    /// Written to the journal; the database follows.
    pub fn add(&self, record: AuditRecord) -> Result<u64, StoreError> {
        let mut state = self.state();
        state.has_room(&record.org)?;
        Ok(state.push(None, record, &self.state))
    }

    /// Returns when the record is in the database and flushed. To be run to its end: cut off between
    /// the store's commit and the queue's it would have the batch written again, and skipped there.
    #[boxed]
    pub async fn write(&self, record: AuditRecord) -> Result<(), StoreError> {
        let position = self.add(record)?;
        self.move_up_to(position).await
    }

    /// Everything that is complete by now.
    #[boxed]
    pub async fn move_all(&self) -> Result<(), StoreError> {
        let last = self.state().queue.back().map(|entry| entry.position);
        match last {
            Some(last) => self.move_up_to(last).await,
            None => Ok(()),
        }
    }

    async fn move_up_to(&self, position: u64) -> Result<(), StoreError> {
        let mut moved = self.moved.lock().await;
        while *moved < position {
            // They leave the queue only once they are written: a failure leaves them to the next one in
            // line.
            let (identity, batch): (_, Vec<_>) = {
                let state = self.state();
                let batch = state.queue.iter().take(BATCH_MAX).cloned().collect();
                (state.identity.clone(), batch)
            };
            let Some(last) = batch.last().map(|entry| entry.position) else {
                return Ok(());
            };
            self.store.append_audit(&identity, &batch).await?;
            *moved = last;
            self.state().forget(&batch);
        }
        Ok(())
    }

    /// Tells of calls that go on for long, so that they are known before they end.
    pub fn tell_of_late(&self) {
        let mut state = self.state();
        let late: Vec<u64> = state
            .open
            .iter()
            .take_while(|(_, (began, _))| began.elapsed() > LATE_AFTER)
            .map(|(position, _)| *position)
            .collect();
        for position in late {
            let Some((_, call)) = state.open.remove(&position) else {
                continue;
            };
            state.let_go(&call.record.org);
            let result = match call.so_far() {
                Some(OK) => OK,
                _ => PENDING,
            };
            state.tell(Some(position), &call, result, &self.state);
        }
    }

    /// Moves what earlier processes left in the journal.
    #[boxed]
    pub async fn take_over(&self) -> Result<(), StoreError> {
        let left = {
            let mut state = self.state();
            let shared = Arc::clone(&self.state);
            match state.journal(&shared) {
                None => return Ok(()),
                Some(Ok(journal)) => journal.left(),
                Some(Err(error)) => Err(error),
            }
        };
        // A journal that cannot be read must not keep the server from starting; nothing is removed.
        let left = match left {
            Ok(left) => left,
            Err(error) => {
                tracing::error!(%error, "cannot read the audit journal; calls inside sandboxes are refused until it can be written");
                return Ok(());
            }
        };
        for left in left {
            for batch in left.entries.chunks(BATCH_MAX) {
                self.store.append_audit(&left.identity, batch).await?;
            }
            tracing::info!(
                records = left.entries.len(),
                "recovered audit records of an earlier process"
            );
            left.remove();
        }
        Ok(())
    }

    /// At an orderly end: everything is moved, and the journal is empty.
    #[boxed]
    pub async fn finish(&self) -> Result<(), StoreError> {
        self.move_all().await?;
        let mut state = self.state();
        if state.open.is_empty()
            && state.queue.is_empty()
            && let Some(journal) = &mut state.journal
        {
            journal.finish();
        }
        Ok(())
    }

    /// Records and calls that wait for the database or for their end.
    pub fn waiting(&self) -> usize {
        let state = self.state();
        state.queue.len() + state.open.len()
    }

    pub fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock()
}

impl State {
    fn has_room(&self, org: &OrgId) -> Result<(), StoreError> {
        let waiting = self.queue.len() + self.open.len();
        let own = self.held.get(org).copied().unwrap_or(0);
        // Records that say how a call ended are never refused, so that there may be more than the total.
        if own >= WAITING.share(waiting.saturating_sub(own)) {
            return Err(StoreError::Unavailable(
                "too many audit records wait for the database".into(),
            ));
        }
        Ok(())
    }

    fn hold(&mut self, org: &OrgId) {
        *self.held.entry(org.clone()).or_default() += 1;
    }

    fn let_go(&mut self, org: &OrgId) {
        if let Some(held) = self.held.get_mut(org) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(org);
            }
        }
    }

    /// Absent for those that keep none.
    fn journal(&mut self, shared: &Arc<Mutex<Self>>) -> Option<io::Result<&mut Journal>> {
        let folder = self.folder.as_deref()?;
        if self.journal.is_none() {
            let state = Arc::downgrade(shared);
            let opened = Journal::open(folder, self.identity.clone(), move |error| {
                tracing::error!(%error, "cannot flush the audit journal; starting a new segment");
                if let Some(state) = state.upgrade()
                    && let Some(journal) = &mut lock(&state).journal
                {
                    journal.distrust();
                }
            });
            match opened {
                Ok(opened) => self.journal = Some(opened),
                Err(error) => return Some(Err(error)),
            }
        }
        self.journal.as_mut().map(Ok)
    }

    fn next(&mut self) -> u64 {
        self.position += 1;
        self.position
    }

    fn intent(
        &mut self,
        record: &AuditRecord,
        shared: &Arc<Mutex<Self>>,
    ) -> Result<u64, StoreError> {
        let position = self.next();
        if let Some(journal) = self.journal(shared) {
            let written = journal.and_then(|journal| journal.intent(position, record));
            written.map_err(|error| {
                tracing::error!(%error, "cannot write the audit journal");
                StoreError::Unavailable(error.into())
            })?;
        }
        Ok(position)
    }

    /// What the journal does not take the database will have all the same.
    fn push(&mut self, intent: Option<u64>, record: AuditRecord, shared: &Arc<Mutex<Self>>) -> u64 {
        let position = self.next();
        if let Some(journal) = self.journal(shared)
            && let Err(error) =
                journal.and_then(|journal| journal.record(position, intent, &record))
        {
            tracing::error!(%error, "cannot write the audit journal");
        }
        self.hold(&record.org);
        self.queue.push_back(JournalEntry { position, record });
        position
    }

    fn tell(
        &mut self,
        intent: Option<u64>,
        call: &UnderWay,
        result: &str,
        shared: &Arc<Mutex<Self>>,
    ) {
        call.progress().recorded = Some(result.to_owned());
        let record = AuditRecord {
            result: result.to_owned(),
            ..call.record.clone()
        };
        self.push(intent, record, shared);
    }

    /// The database has them.
    fn forget(&mut self, batch: &[JournalEntry]) {
        for entry in self.queue.drain(..batch.len()).collect::<Vec<_>>() {
            self.let_go(&entry.record.org);
        }
        let first_open = self.open.keys().next().copied();
        let first_queued = self.queue.front().map(|entry| entry.position);
        if let Some(journal) = &mut self.journal {
            let unsettled = [first_open, first_queued].into_iter().flatten().min();
            journal.settle(unsettled.map_or(self.position, |first| first - 1));
        }
    }
}
