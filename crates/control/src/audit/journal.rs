//! The journal of audit records on this host's disk: what is about to be done inside a sandbox and how
//! it ended is appended here before the database hears of it, so that it survives the end of this
//! process at once and a power loss after [`FLUSH_WITHIN`].
//!
//! A journal is a row of files (segments) in one folder, `JOURNAL-NUMBER.log`. Each holds frames: length
//! and CRC-32 of the payload, both four bytes little endian, then the payload in JSON. A frame that was
//! cut off by a crash fails its checksum and ends its segment. Positions count the frames of a journal
//! from 1, over all segments. A process begins a journal of its own; those of earlier ones are read,
//! moved to the database and removed.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use cove_store::{AuditJournal, AuditRecord, JournalEntry};
use serde::{Deserialize, Serialize};

/// What was appended is on the disk after this long, and the flush.
const FLUSH_WITHIN: Duration = Duration::from_millis(250);
/// A segment that has grown to this is closed.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;
/// All segments together. They are removed once the database has them.
const JOURNAL_BYTES: u64 = 64 * 1024 * 1024;
/// One frame's payload; the fields of a record are bounded far below.
const FRAME_BYTES: usize = 64 * 1024;
const FRAME_HEAD: usize = 8;
const SUFFIX: &str = ".log";
const HOST_FILE: &str = "host";

/// How a call ended that nobody lived to tell.
pub const UNKNOWN: &str = "unknown";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Frame<'a> {
    /// Begins each segment.
    Segment { host: String },
    /// About to be done.
    Intent {
        position: u64,
        record: Cow<'a, AuditRecord>,
    },
    /// Goes to the database; ends the intent at that position, if it names one.
    Record {
        position: u64,
        intent: Option<u64>,
        record: Cow<'a, AuditRecord>,
    },
}

pub struct Journal {
    folder: PathBuf,
    identity: AuditJournal,
    current: Option<Segment>,
    /// Closed, oldest first.
    closed: VecDeque<Closed>,
    /// Segments ever begun.
    segments: u64,
    /// Position of the last frame.
    last: u64,
    unflushed: Arc<Mutex<Vec<Arc<File>>>>,
    flusher: SyncSender<()>,
}

struct Segment {
    path: PathBuf,
    file: Arc<File>,
    bytes: u64,
}

struct Closed {
    path: PathBuf,
    bytes: u64,
    last: u64,
}

/// What an earlier process left.
pub struct Left {
    pub identity: AuditJournal,
    pub entries: Vec<JournalEntry>,
    files: Vec<PathBuf>,
}

impl Journal {
    /// Makes the folder. `failed` hears of what could not be flushed.
    pub fn open(
        folder: &Path,
        identity: AuditJournal,
        failed: impl Fn(&io::Error) + Send + 'static,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let (flusher, told) = sync_channel(1);
        let unflushed: Arc<Mutex<Vec<Arc<File>>>> = Arc::default();
        let (place, files) = (folder.to_owned(), Arc::clone(&unflushed));
        std::thread::Builder::new()
            .name("audit-flusher".into())
            .spawn(move || flush(&place, &told, &files, failed))?;
        Ok(Self {
            folder: folder.to_owned(),
            identity,
            current: None,
            closed: VecDeque::new(),
            segments: 0,
            last: 0,
            unflushed,
            flusher,
        })
    }

    /// Positions only grow.
    pub fn intent(&mut self, position: u64, record: &AuditRecord) -> io::Result<()> {
        let record = Cow::Borrowed(record);
        self.append(position, &Frame::Intent { position, record })
    }

    pub fn record(
        &mut self,
        position: u64,
        intent: Option<u64>,
        record: &AuditRecord,
    ) -> io::Result<()> {
        let record = Cow::Borrowed(record);
        let frame = Frame::Record {
            position,
            intent,
            record,
        };
        self.append(position, &frame)
    }

    /// Written when it returns. A frame that was written in part ends its segment.
    fn append(&mut self, position: u64, frame: &Frame<'_>) -> io::Result<()> {
        let bytes = encode(frame)?;
        let held: u64 = self.closed.iter().map(|closed| closed.bytes).sum();
        if held >= JOURNAL_BYTES {
            return Err(io::Error::other("the audit journal is full"));
        }
        let mut segment = match self.current.take() {
            Some(segment) if segment.bytes < SEGMENT_BYTES => segment,
            full => {
                if let Some(full) = full {
                    self.close(full);
                }
                self.begin()?
            }
        };
        if let Err(error) = (&*segment.file).write_all(&bytes) {
            self.close(segment);
            return Err(error);
        }
        segment.bytes += bytes.len() as u64;
        self.flush_later(&segment.file);
        self.current = Some(segment);
        self.last = position;
        Ok(())
    }

    fn flush_later(&self, file: &Arc<File>) {
        let mut files = self.unflushed.lock();
        if !files.last().is_some_and(|last| Arc::ptr_eq(last, file)) {
            files.push(Arc::clone(file));
        }
        // A flusher that was woken already looks at the list only afterwards.
        let _ = self.flusher.try_send(());
    }

    fn begin(&mut self) -> io::Result<Segment> {
        self.segments += 1;
        let name = format!("{}-{:08}{SUFFIX}", self.identity.journal, self.segments);
        let path = self.folder.join(name);
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let head = encode(&Frame::Segment {
            host: self.identity.host.clone(),
        })?;
        if let Err(error) = (&file).write_all(&head) {
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Segment {
            path,
            file: Arc::new(file),
            bytes: head.len() as u64,
        })
    }

    fn close(&mut self, segment: Segment) {
        self.closed.push_back(Closed {
            path: segment.path,
            bytes: segment.bytes,
            last: self.last,
        });
    }

    /// A flush failed: what is appended from now on goes into a new segment.
    pub fn distrust(&mut self) {
        if let Some(segment) = self.current.take() {
            self.close(segment);
        }
    }

    /// Removes segments whose frames are all settled: everything up to this position is in the
    /// database or concluded.
    pub fn settle(&mut self, position: u64) {
        while let Some(first) = self.closed.front() {
            if first.last > position {
                return;
            }
            remove(&first.path);
            self.closed.pop_front();
        }
    }

    /// At an orderly end, with everything settled, nothing is left to be read.
    pub fn finish(&mut self) {
        if let Some(segment) = self.current.take() {
            self.close(segment);
        }
        self.settle(self.last);
    }

    /// What earlier processes left, in the order it was written.
    pub fn left(&self) -> io::Result<Vec<Left>> {
        let mut journals: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let journal = name
                .and_then(|name| name.strip_suffix(SUFFIX))
                .and_then(|name| name.rsplit_once('-'))
                .map(|(journal, _)| journal.to_owned());
            match journal {
                Some(journal) if journal != self.identity.journal => {
                    journals.entry(journal).or_default().push(path);
                }
                _ => {}
            }
        }
        journals
            .into_iter()
            .map(|(journal, mut files)| {
                files.sort();
                read_journal(journal, &self.identity.host, files)
            })
            .collect()
    }
}

impl Left {
    /// The database has all of it.
    pub fn remove(self) {
        self.files.iter().for_each(|path| remove(path));
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(%error, path = %path.display(), "cannot remove a segment of the audit journal");
    }
}

/// Names this installation in the database; made once.
pub fn host(folder: &Path) -> io::Result<String> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(HOST_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let host = format!("{:032x}", rand::random::<u128>());
    let new = folder.join("host.new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(host.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    Ok(host)
}

/// Ends with the journal.
fn flush(
    folder: &Path,
    told: &Receiver<()>,
    files: &Mutex<Vec<Arc<File>>>,
    failed: impl Fn(&io::Error),
) {
    while told.recv().is_ok() {
        std::thread::sleep(FLUSH_WITHIN);
        let taken = std::mem::take(&mut *files.lock());
        // The folder too: a segment may be new.
        let flushed = taken
            .iter()
            .try_for_each(|file| file.sync_data())
            .and_then(|()| File::open(folder)?.sync_all());
        if let Err(error) = flushed {
            failed(&error);
        }
    }
}

fn encode(frame: &Frame<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; FRAME_HEAD];
    serde_json::to_writer(&mut bytes, frame)?;
    let payload = &bytes[FRAME_HEAD..];
    if payload.len() > FRAME_BYTES {
        return Err(io::Error::other("an audit record is too long"));
    }
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let sum = crc32fast::hash(payload);
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..FRAME_HEAD].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

fn read_journal(journal: String, host: &str, files: Vec<PathBuf>) -> io::Result<Left> {
    let mut identity = AuditJournal {
        host: host.to_owned(),
        journal,
    };
    let (mut position, mut entries) = (0, Vec::new());
    let mut open: BTreeMap<u64, AuditRecord> = BTreeMap::new();
    for path in &files {
        let mut reader = io::BufReader::new(File::open(path)?);
        while let Some(frame) = next_frame(&mut reader, path)? {
            match frame {
                Frame::Segment { host } => {
                    identity.host = host;
                    continue;
                }
                Frame::Intent {
                    position: at,
                    record,
                } => {
                    position = at;
                    open.insert(at, record.into_owned());
                }
                Frame::Record {
                    position: at,
                    intent,
                    record,
                } => {
                    position = at;
                    if let Some(intent) = intent {
                        open.remove(&intent);
                    }
                    entries.push(JournalEntry {
                        position,
                        record: record.into_owned(),
                    });
                }
            }
        }
    }
    // In the same order and at the same positions however often this is repeated.
    for (_, mut record) in open {
        position += 1;
        UNKNOWN.clone_into(&mut record.result);
        entries.push(JournalEntry { position, record });
    }
    Ok(Left {
        identity,
        entries,
        files,
    })
}

/// Absent at the end and at a frame that is not whole.
fn next_frame(reader: &mut impl Read, path: &Path) -> io::Result<Option<Frame<'static>>> {
    let mut head = [0; FRAME_HEAD];
    let torn = |why: &str| {
        tracing::warn!(path = %path.display(), why, "the audit journal ends in an incomplete frame");
        Ok(None)
    };
    let got = read_up_to(reader, &mut head)?;
    match got {
        0 => return Ok(None),
        FRAME_HEAD => {}
        _ => return torn("its header is truncated"),
    }
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (length, sum) = (number(0) as usize, number(4));
    if length == 0 || length > FRAME_BYTES {
        return torn("its length is invalid");
    }
    let mut payload = vec![0; length];
    if read_up_to(reader, &mut payload)? < length {
        return torn("it is truncated");
    }
    if crc32fast::hash(&payload) != sum {
        return torn("its checksum is wrong");
    }
    match serde_json::from_slice(&payload) {
        Ok(frame) => Ok(Some(frame)),
        Err(_) => torn("it is invalid"),
    }
}

fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match reader.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::OffsetDateTime;

    fn record(target: &str) -> AuditRecord {
        AuditRecord {
            sequence: 0,
            at: OffsetDateTime::UNIX_EPOCH,
            org: "org_aaaaaaaaaaaaaaaaaaaa".parse().unwrap(),
            key: None,
            action: "process.exec".into(),
            target: Some(target.into()),
            source: None,
            request_id: None,
            result: "ok".into(),
            detail: None,
            hash: String::new(),
        }
    }

    fn open(folder: &Path) -> Journal {
        let identity = AuditJournal {
            host: host(folder).unwrap(),
            journal: format!("{:032x}", rand::random::<u128>()),
        };
        Journal::open(folder, identity, |error| panic!("{error}")).unwrap()
    }

    fn told(folder: &Path) -> Vec<(u64, String, String)> {
        let left = open(folder).left().unwrap();
        left.into_iter()
            .flat_map(|left| left.entries)
            .map(|entry| {
                let record = entry.record;
                (entry.position, record.target.unwrap(), record.result)
            })
            .collect()
    }

    #[test]
    fn what_has_no_outcome_is_unknown_and_reading_again_says_the_same() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut journal = open(folder.path());
        journal.intent(1, &record("one")).unwrap();
        journal.intent(2, &record("two")).unwrap();
        journal.record(3, Some(1), &record("one")).unwrap();
        journal.record(4, None, &record("three")).unwrap();
        drop(journal);
        let wanted = [(3, "one", "ok"), (4, "three", "ok"), (5, "two", "unknown")];
        let wanted = wanted.map(|(at, target, result)| (at, target.to_owned(), result.to_owned()));
        assert_eq!(told(folder.path()), wanted);
        assert_eq!(told(folder.path()), wanted);
        open(folder.path())
            .left()
            .unwrap()
            .into_iter()
            .for_each(Left::remove);
        assert!(told(folder.path()).is_empty());
    }

    #[test]
    fn a_torn_or_damaged_end_is_dropped_wherever_it_was_cut() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut journal = open(folder.path());
        journal.record(1, None, &record("whole")).unwrap();
        let path = journal.current.as_ref().unwrap().path.clone();
        let whole = std::fs::read(&path).unwrap();
        journal.record(2, None, &record("torn")).unwrap();
        let both = std::fs::read(&path).unwrap();
        drop(journal);
        for cut in whole.len()..both.len() {
            std::fs::write(&path, &both[..cut]).unwrap();
            let found = told(folder.path());
            assert_eq!(found.len(), 1, "cut at {cut}");
            assert_eq!(found[0].1, "whole");
        }
        let mut damaged = both.clone();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(told(folder.path()).len(), 1);
        let garbage = [&whole[..], &[0xff; 64]].concat();
        std::fs::write(&path, &garbage).unwrap();
        assert_eq!(told(folder.path()).len(), 1);
    }

    #[test]
    fn segments_are_closed_when_they_are_large_and_removed_when_they_are_settled() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut journal = open(folder.path());
        let large = record(&"x".repeat(FRAME_BYTES / 2));
        while journal.closed.len() < 3 {
            journal.record(journal.last + 1, None, &large).unwrap();
        }
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        // One more is open, and one names the host.
        assert_eq!(files(), 5);
        let last = journal.closed[1].last;
        journal.settle(last - 1);
        assert_eq!(files(), 4);
        journal.settle(last);
        assert_eq!(files(), 3);
        journal.finish();
        assert_eq!(files(), 1);
    }

    #[test]
    fn it_is_bounded_while_nothing_is_settled() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut journal = open(folder.path());
        let large = record(&"x".repeat(FRAME_BYTES / 2));
        let full = loop {
            if let Err(error) = journal.record(journal.last + 1, None, &large) {
                break error;
            }
        };
        assert!(full.to_string().contains("full"), "{full}");
        let bytes: u64 = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(bytes < JOURNAL_BYTES + 2 * SEGMENT_BYTES, "{bytes}");
        journal.settle(journal.last);
        journal.record(journal.last + 1, None, &large).unwrap();
    }
}
