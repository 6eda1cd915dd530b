//! The egress log on disk, for the process that comes after this one.
//!
//! The process can open no file: the engine opens two, and the process fills one after the other, emptying
//! the one it turns to. Lines are written by a thread of their own, so that a slow disk slows no
//! connection; what comes faster than it writes is left out, and the place is marked. Each sandbox has a
//! rate, so that one cannot push the others' lines out. When a process is started the engine reads both
//! files, keeps what the log in memory would have kept, and hands it over.
//!
//! What is read back was written by a process that untrusted clients talk to: lines that make no sense are skipped.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use cove_model::SandboxId;
use cove_model::egress::EgressEntry;
use serde::{Deserialize, Serialize};

use crate::limits::{Bucket, bucket};
use crate::log::Log;
use crate::record::{self, LINE_BYTES_MAX, SEPARATOR};

/// The files that are filled in turn.
pub const FILES: usize = 2;
/// The process fills each to this much.
pub const FILE_BYTES_MAX: u64 = 8 << 20;
/// What was read of all files is put into the first, which may therefore be as long as all of them.
const MERGED_BYTES_MAX: u64 = FILES as u64 * FILE_BYTES_MAX;
/// What is read of each.
const READ_BYTES_MAX: [u64; FILES] = [MERGED_BYTES_MAX, FILE_BYTES_MAX];
/// Lines that wait for the disk.
const WAITING_MAX: usize = 4096;
/// Lines of one sandbox in a second, and at once.
const LINES_PER_SECOND: u32 = 20;
const LINES_AT_ONCE: u32 = 500;
/// How long the end of the process waits for the disk.
const FLUSH: Duration = Duration::from_secs(1);

/// One line of a file: the sandbox, what there is to say besides, and a [`record`].
#[derive(Debug)]
struct Line {
    sandbox: SandboxId,
    entry: Option<EgressEntry>,
    /// The number this entry had before its connection was over.
    replaces: Option<u64>,
    /// Some before this one were left out.
    gap: bool,
    /// The sandbox was deleted, and its log with it.
    forgotten: bool,
}

const GAP: &str = "gap";
const FORGOTTEN: &str = "forgotten";

impl Line {
    fn encode(&self) -> String {
        let mark = match (self.forgotten, self.gap) {
            (true, _) => FORGOTTEN,
            (false, true) => GAP,
            (false, false) => "",
        };
        let replaces = self.replaces.map(|number| number.to_string());
        let entry = self.entry.as_ref().map(record::encode);
        format!(
            "{}{SEPARATOR}{mark}{SEPARATOR}{}{SEPARATOR}{}\n",
            self.sandbox,
            replaces.unwrap_or_default(),
            entry.unwrap_or_default()
        )
    }

    fn decode(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
        let mut fields = line.splitn(4, SEPARATOR);
        let (sandbox, mark) = (fields.next()?.parse().ok()?, fields.next()?);
        if !["", GAP, FORGOTTEN].contains(&mark) {
            return None;
        }
        Some(Self {
            sandbox,
            gap: mark == GAP,
            forgotten: mark == FORGOTTEN,
            replaces: match fields.next()? {
                "" => None,
                number => Some(number.parse().ok()?),
            },
            entry: match fields.next()? {
                "" => None,
                entry => Some(record::decode(entry)?),
            },
        })
    }
}

#[derive(Debug)]
enum Message {
    Line(Box<Line>),
    Flush(SyncSender<()>),
}

/// The way to the thread that writes.
#[derive(Debug)]
pub struct Journal(SyncSender<Message>);

impl Journal {
    /// Takes the files over, which were opened for appending; the first goes on where it ends.
    pub fn begin(files: [File; FILES]) -> std::io::Result<Self> {
        Self::within(files, FILE_BYTES_MAX)
    }

    fn within(files: [File; FILES], bytes_max: u64) -> std::io::Result<Self> {
        let (sender, messages) = sync_channel(WAITING_MAX);
        std::thread::Builder::new()
            .name("journal".into())
            .stack_size(256 * 1024)
            .spawn(move || write(files, &messages, bytes_max))?;
        Ok(Self(sender))
    }

    /// Whether there was room.
    fn send(&self, line: Line) -> bool {
        match self.0.try_send(Message::Line(Box::new(line))) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    pub fn forget(&self, sandbox: &SandboxId) {
        // A log that comes back although its sandbox is gone is found by nobody, and goes with the files.
        self.send(Line {
            sandbox: sandbox.clone(),
            entry: None,
            replaces: None,
            gap: false,
            forgotten: true,
        });
    }

    /// Waits, but not long, until what was said so far is written.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.0.send(Message::Flush(done)).is_ok() {
            // A disk that does not take it in time loses it.
            let _ = written.recv_timeout(FLUSH);
        }
    }
}

fn write(mut files: [File; FILES], messages: &Receiver<Message>, bytes_max: u64) {
    let mut at = 0;
    let length = |file: &File| file.metadata().map_or(0, |data| data.len());
    let mut bytes = length(&files[at]);
    while let Ok(message) = messages.recv() {
        let line = match message {
            Message::Flush(done) => {
                let _ = done.send(());
                continue;
            }
            Message::Line(line) => line,
        };
        let text = line.encode();
        let size = text.len() as u64;
        if text.len() > LINE_BYTES_MAX {
            continue;
        }
        if bytes + size > bytes_max {
            at = (at + 1) % FILES;
            if files[at].set_len(0).is_err() {
                continue;
            }
            bytes = 0;
        }
        // A full disk loses lines, which shows only when the process is replaced.
        if files[at].write_all(text.as_bytes()).is_ok() {
            bytes += size;
        }
    }
}

/// Writes the lines of one sandbox.
#[derive(Debug)]
pub struct Scribe {
    journal: Arc<Journal>,
    sandbox: SandboxId,
    rate: Mutex<Bucket>,
    /// What all sandboxes of its organisation may write, once it is known whose it is.
    owners_rate: OnceLock<Arc<Mutex<Bucket>>>,
    gap: AtomicBool,
}

impl Scribe {
    pub fn new(journal: Arc<Journal>, sandbox: SandboxId) -> Self {
        let rate = bucket(LINES_PER_SECOND, LINES_AT_ONCE, Instant::now());
        Self {
            journal,
            sandbox,
            rate: Mutex::new(rate),
            owners_rate: OnceLock::new(),
            gap: AtomicBool::new(false),
        }
    }

    pub fn belongs_to(&self, lines: Arc<Mutex<Bucket>>) {
        // The first to say so is right: a sandbox stays its organisation's.
        let _ = self.owners_rate.set(lines);
    }

    pub fn note(&self, entry: &EgressEntry, replaces: Option<u64>) {
        let mut rate = self.rate.lock();
        let now = Instant::now();
        let owners = || match self.owners_rate.get() {
            Some(lines) => {
                let mut lines = lines.lock();
                lines.take(1, now).is_ok()
            }
            None => true,
        };
        let sent = rate.take(1, now).is_ok()
            && owners()
            && self.journal.send(Line {
                sandbox: self.sandbox.clone(),
                entry: Some(entry.clone()),
                replaces,
                gap: self.gap.load(Ordering::Relaxed),
                forgotten: false,
            });
        self.gap.store(!sent, Ordering::Relaxed);
    }
}

/// What is kept of one sandbox's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub sandbox: SandboxId,
    /// In the order of their numbers.
    pub entries: Vec<EgressEntry>,
    /// The number below which entries may be missing.
    pub complete_from: u64,
}

impl Kept {
    /// A log in which nothing was decided yet.
    pub fn nothing(sandbox: SandboxId) -> Self {
        Self {
            sandbox,
            entries: Vec::new(),
            complete_from: 0,
        }
    }
}

/// What the files hold, within the bounds of the log in memory.
pub fn read(files: &[File; FILES]) -> Vec<Kept> {
    let mut logs: BTreeMap<SandboxId, BTreeMap<u64, Line>> = BTreeMap::new();
    let mut forgotten = Vec::new();
    for (file, bytes_max) in files.iter().zip(READ_BYTES_MAX) {
        let mut lines = BufReader::new(file.take(bytes_max));
        let mut text = Vec::new();
        loop {
            text.clear();
            let limited = &mut (&mut lines).take(LINE_BYTES_MAX as u64);
            match limited.read_until(b'\n', &mut text) {
                Ok(read) if read > 0 => {}
                Ok(_) | Err(_) => break,
            }
            let Some(line) = Line::decode(&text) else {
                continue;
            };
            match &line.entry {
                _ if line.forgotten => forgotten.push(line.sandbox),
                Some(entry) => {
                    let log = logs.entry(line.sandbox.clone()).or_default();
                    log.insert(entry.sequence, line);
                }
                None => {}
            }
        }
    }
    for sandbox in forgotten {
        logs.remove(&sandbox);
    }
    let kept = logs
        .into_iter()
        .map(|(sandbox, lines)| kept(sandbox, lines));
    kept.collect()
}

fn kept(sandbox: SandboxId, mut lines: BTreeMap<u64, Line>) -> Kept {
    let replaced: Vec<u64> = lines.values().filter_map(|line| line.replaces).collect();
    let gap = lines.iter().filter(|(_, line)| line.gap).map(|(at, _)| *at);
    let gap = gap.max();
    for number in replaced {
        lines.remove(&number);
    }
    let first = lines.keys().next().copied();
    let complete_from = gap.or(first).unwrap_or_default();
    let entries = lines.into_values().filter_map(|line| line.entry).collect();
    let whole = Kept {
        sandbox,
        entries,
        complete_from,
    };
    // The log itself knows what it has room for.
    Log::restored(&whole, None).kept(whole.sandbox)
}

/// What there is room for in the first file, and its text.
pub fn merged(kept: Vec<Kept>) -> (Vec<Kept>, Vec<u8>) {
    merged_within(kept, MERGED_BYTES_MAX)
}

fn merged_within(mut kept: Vec<Kept>, bytes_max: u64) -> (Vec<Kept>, Vec<u8>) {
    let text = text_of(&kept);
    if text.len() as u64 <= bytes_max {
        return (kept, text);
    }
    // The oldest go, whosever they are: numbers begin with the clock.
    let numbers = kept.iter().flat_map(|log| &log.entries);
    let numbers = numbers.map(|entry| entry.sequence);
    let sizes = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::len);
    let mut lines: Vec<(u64, usize)> = numbers.zip(sizes).collect();
    lines.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
    let mut bytes = 0;
    let newest_gone = lines.iter().find(|(_, size)| {
        bytes += *size as u64;
        bytes > bytes_max
    });
    let newest_gone = newest_gone.map_or(0, |(number, _)| *number);
    for log in &mut kept {
        log.entries.retain(|entry| entry.sequence > newest_gone);
        let first = log.entries.first().map_or(0, |entry| entry.sequence);
        log.complete_from = log.complete_from.max(first);
    }
    kept.retain(|log| !log.entries.is_empty());
    let text = text_of(&kept);
    (kept, text)
}

/// The text that [`read`] makes the same of.
fn text_of(kept: &[Kept]) -> Vec<u8> {
    let mut text = Vec::new();
    for log in kept {
        let mut later = log.entries.iter().skip(1).map(|entry| entry.sequence);
        let after_gap = later.find(|number| *number >= log.complete_from);
        let first = log.entries.first().map_or(0, |entry| entry.sequence);
        let after_gap = after_gap.filter(|_| first < log.complete_from);
        for entry in &log.entries {
            let line = Line {
                sandbox: log.sandbox.clone(),
                entry: Some(entry.clone()),
                replaces: None,
                gap: Some(entry.sequence) == after_gap,
                forgotten: false,
            };
            text.extend_from_slice(line.encode().as_bytes());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use cove_model::egress::{EgressProtocol, EgressVerdict};
    use time::OffsetDateTime;

    use super::*;
    use crate::log::Draft;

    fn files() -> [File; FILES] {
        let folder = tempfile::tempdir().expect("a folder");
        [0, 1].map(|number: usize| {
            let mut options = File::options();
            let options = options.create(true).append(true).read(true);
            let path = folder.path().join(number.to_string());
            options.open(path).expect("a file")
        })
    }

    fn again(files: &[File; FILES]) -> [File; FILES] {
        [&files[0], &files[1]].map(|mut file| {
            file.seek(SeekFrom::Start(0)).expect("it can be read");
            file.try_clone().expect("a copy")
        })
    }

    fn draft(name: &str, verdict: EgressVerdict) -> Draft {
        Draft {
            protocol: EgressProtocol::Dns,
            name: Some(name.to_owned()),
            address: None,
            port: None,
            verdict,
            rule: "test".to_owned(),
        }
    }

    fn names(kept: &Kept) -> Vec<&str> {
        let names = kept.entries.iter().map(|entry| entry.name.as_deref());
        names.map(|name| name.expect("named")).collect()
    }

    #[test]
    fn what_a_process_logged_is_there_for_the_next() {
        let files = files();
        let journal = Arc::new(Journal::begin(again(&files)).expect("it begins"));
        let (one, two, gone) = (
            SandboxId::random(),
            SandboxId::random(),
            SandboxId::random(),
        );
        let log = |id: &SandboxId| {
            let scribe = Scribe::new(journal.clone(), id.clone());
            Log::restored(&Kept::nothing(id.clone()), Some(scribe))
        };
        let (first, second, third) = (log(&one), log(&two), log(&gone));
        let number = first.record(draft("a", EgressVerdict::Allowed));
        first.record(draft("b", EgressVerdict::Denied));
        first.finish(number, 7, 9, None);
        second.record(draft("c", EgressVerdict::Allowed));
        third.record(draft("d", EgressVerdict::Allowed));
        journal.forget(&gone);
        journal.flush();
        let kept = read(&again(&files));
        assert_eq!(kept.len(), 2, "{kept:?}");
        let of = |id: &SandboxId| kept.iter().find(|log| log.sandbox == *id).expect("kept");
        assert_eq!(names(of(&one)), ["b", "a"]);
        assert_eq!(of(&one).entries[1].received_bytes, 9);
        assert_eq!(names(of(&two)), ["c"]);
        // Written anew it says the same, and numbers go on growing.
        let mut fresh = self::files();
        fresh[0].write_all(&text_of(&kept)).expect("room");
        assert_eq!(read(&again(&fresh)), kept);
        let restored = Log::restored(of(&one), None);
        assert!(restored.record(draft("e", EgressVerdict::Denied)) > of(&one).entries[1].sequence);
    }

    #[test]
    fn files_are_bounded_and_the_newest_lines_are_kept() {
        let files = files();
        const BYTES_MAX: u64 = 32 * 1024;
        let journal = Journal::within(again(&files), BYTES_MAX).expect("it begins");
        let id = SandboxId::random();
        let lines = 9 * BYTES_MAX / 1000;
        for sequence in 1..=lines {
            let entry = EgressEntry {
                sequence,
                at: OffsetDateTime::now_utc(),
                protocol: EgressProtocol::Tcp,
                name: Some("x".repeat(1000)),
                address: None,
                port: None,
                verdict: EgressVerdict::Allowed,
                rule: String::new(),
                sent_bytes: 0,
                received_bytes: 0,
            };
            let line = Line {
                sandbox: id.clone(),
                entry: Some(entry),
                replaces: None,
                gap: false,
                forgotten: false,
            };
            // As a caller that waits, so that none is left out.
            let message = Message::Line(Box::new(line));
            journal.0.send(message).expect("the thread lives");
        }
        journal.flush();
        for file in &files {
            assert!(file.metadata().expect("a file").len() <= BYTES_MAX);
        }
        let kept = read(&again(&files)).pop().expect("kept");
        let last = kept.entries.last().expect("some");
        assert_eq!(last.sequence, lines);
        assert!(kept.complete_from > 1, "older ones are known to be gone");
    }

    #[test]
    fn where_there_is_no_room_for_all_the_oldest_lines_of_all_sandboxes_go() {
        let entry = |sequence| EgressEntry {
            sequence,
            at: OffsetDateTime::UNIX_EPOCH,
            protocol: EgressProtocol::Tcp,
            name: Some(format!("{sequence:0100}")),
            address: None,
            port: None,
            verdict: EgressVerdict::Allowed,
            rule: String::new(),
            sent_bytes: 0,
            received_bytes: 0,
        };
        let log = |numbers: &[u64]| Kept {
            sandbox: SandboxId::random(),
            entries: numbers.iter().copied().map(entry).collect(),
            complete_from: numbers[0],
        };
        // By turns, and one sandbox with nothing new.
        let kept = vec![log(&[101, 103, 105]), log(&[100]), log(&[102, 104, 106])];
        let whole = text_of(&kept).len() as u64;
        let (all, _) = merged_within(kept.clone(), whole);
        assert_eq!(all, kept);
        let (newest, text) = merged_within(kept.clone(), whole / 2);
        assert!(text.len() as u64 <= whole / 2);
        let numbers: Vec<Vec<u64>> = newest
            .iter()
            .map(|log| log.entries.iter().map(|entry| entry.sequence).collect())
            .collect();
        assert_eq!(numbers, [vec![105], vec![104, 106]]);
        assert_eq!(
            newest[1].complete_from, 104,
            "older ones are known to be gone"
        );
        let mut fresh = files();
        fresh[0].write_all(&text).expect("room");
        let mut again = read(&again(&fresh));
        again.sort_by_key(|log| log.complete_from);
        let mut newest = newest;
        newest.sort_by_key(|log| log.complete_from);
        assert_eq!(again, newest);
    }

    #[test]
    fn a_flood_of_one_sandbox_fills_no_file() {
        let files = files();
        let journal = Arc::new(Journal::begin(again(&files)).expect("it begins"));
        let id = SandboxId::random();
        let scribe = Scribe::new(journal.clone(), id.clone());
        let log = Log::restored(&Kept::nothing(id.clone()), Some(scribe));
        for _ in 0..10 * LINES_AT_ONCE {
            log.record(draft("flood", EgressVerdict::Denied));
        }
        journal.flush();
        let written = files[0].metadata().expect("a file").len();
        assert!(written < u64::from(2 * LINES_AT_ONCE) * 400, "{written}");
    }

    #[test]
    fn lines_that_make_no_sense_are_skipped() {
        let mut files = files();
        let id = SandboxId::random();
        let entry = format!("{id}\t\t\t5\t1767225600000000000\tdns\tdenied\t=a\t\t\t0\t0\tr");
        // As an earlier version wrote it.
        let json = format!(r#"{{"sandbox":"{id}","entry":{{"sequence":5,"name":"a"}}}}"#);
        let long = "z".repeat(3 * LINE_BYTES_MAX);
        let marked = entry.replacen("\t\t", "\tmark\t", 1);
        let text = format!(
            "nonsense\n\n\t\t\t\n{json}\n\u{0}\n{long}\n{marked}\n{entry}\t\n{entry}\n{id}\t\t"
        );
        files[1].write_all(text.as_bytes()).expect("room");
        let kept = read(&again(&files));
        assert_eq!(kept.len(), 1);
        assert_eq!(names(&kept[0]), ["a"]);
    }
}
