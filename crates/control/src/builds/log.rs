//! What a build says, for as many as want to read it, from the beginning and as it goes on.

use std::collections::VecDeque;
use std::sync::Arc;

use cove_limits::BUILD_LOG_MAX;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepState {
    Started,
    /// An earlier build had made it.
    Cached,
    Done,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildEvent {
    Step {
        /// From 1.
        number: u64,
        total: u64,
        line: u32,
        text: String,
        state: StepState,
        /// How long it took, once it is over.
        ms: u64,
    },
    Output {
        stderr: bool,
        text: String,
    },
    Note(String),
    /// So many bytes of the log are gone.
    Dropped(u64),
}

impl BuildEvent {
    fn bytes(&self) -> usize {
        let text = match self {
            Self::Step { text, .. } | Self::Output { text, .. } | Self::Note(text) => text.len(),
            Self::Dropped(_) => 0,
        };
        text + 64
    }
}

#[derive(Default)]
struct Kept {
    /// The number of the first one.
    first: u64,
    events: VecDeque<(OffsetDateTime, BuildEvent)>,
    bytes: usize,
    dropped: u64,
}

struct Shared {
    kept: Mutex<Kept>,
    /// How many there were, and whether there will be more.
    told: watch::Sender<(u64, bool)>,
}

/// Cheap to clone; each clone reads the same events.
#[derive(Clone)]
pub struct BuildLog(Arc<Shared>);

impl Default for BuildLog {
    fn default() -> Self {
        Self(Arc::new(Shared {
            kept: Mutex::default(),
            told: watch::Sender::new((0, false)),
        }))
    }
}

impl BuildLog {
    pub(super) fn add(&self, event: BuildEvent) {
        let mut kept = self.0.kept.lock();
        kept.bytes += event.bytes();
        kept.events.push_back((OffsetDateTime::now_utc(), event));
        while kept.bytes > BUILD_LOG_MAX {
            let Some((_, oldest)) = kept.events.pop_front() else {
                break;
            };
            kept.bytes -= oldest.bytes();
            kept.dropped += oldest.bytes() as u64;
            kept.first += 1;
        }
        let count = kept.first + kept.events.len() as u64;
        drop(kept);
        self.0.told.send_modify(|told| told.0 = count);
    }

    pub(super) fn note(&self, text: impl Into<String>) {
        self.add(BuildEvent::Note(text.into()));
    }

    pub(super) fn end(&self) {
        self.0.told.send_modify(|told| told.1 = true);
    }

    /// What there is from event `from` on, and the number to go on with. Empty at the end.
    pub async fn next(&self, from: u64) -> (Vec<BuildEvent>, u64) {
        let mut told = self.0.told.subscribe();
        let waited = told
            .wait_for(|(count, ended)| *count > from || *ended)
            .await;
        drop(waited);
        let kept = self.0.kept.lock();
        let mut events = Vec::new();
        let mut at = from;
        if at < kept.first {
            events.push(BuildEvent::Dropped(kept.dropped));
            at = kept.first;
        }
        let skip = usize::try_from(at - kept.first).unwrap_or(usize::MAX);
        let rest = kept.events.iter().skip(skip);
        events.extend(rest.map(|(_, event)| event.clone()));
        (events, kept.first + kept.events.len() as u64)
    }

    /// At most `most` events from number `from` on, with their times, and how many there were so far. `None` stands for
    /// one that is gone.
    pub fn page(&self, from: u64, most: usize) -> (Vec<Option<(OffsetDateTime, BuildEvent)>>, u64) {
        let kept = self.0.kept.lock();
        let count = kept.first + kept.events.len() as u64;
        let numbers = (from..count).take(most);
        let events = numbers.map(|number| {
            let at = usize::try_from(number.checked_sub(kept.first)?).ok()?;
            kept.events.get(at).cloned()
        });
        (events.collect(), count)
    }

    /// The end of what commands have written since the last step began.
    pub(super) fn tail(&self, lines: usize) -> String {
        let kept = self.0.kept.lock();
        let mut text = String::new();
        let output = kept
            .events
            .iter()
            .rev()
            .map_while(|(_, event)| match event {
                BuildEvent::Output { text, .. } => Some(text),
                _ => None,
            });
        let mut pieces: Vec<&String> = Vec::new();
        let mut bytes = 0;
        for piece in output {
            bytes += piece.len();
            pieces.push(piece);
            if bytes > 8 * 1024 {
                break;
            }
        }
        for piece in pieces.into_iter().rev() {
            text.push_str(piece);
        }
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_keeps_its_newest_bytes_and_says_what_is_gone() {
        let log = BuildLog::default();
        let output = |text: &str| BuildEvent::Output {
            stderr: false,
            text: text.to_owned(),
        };
        log.add(output("first"));
        let (events, at) = log.next(0).await;
        assert_eq!((events.len(), at), (1, 1));
        for _ in 0..40 {
            log.add(output(&"x".repeat(BUILD_LOG_MAX / 20)));
        }
        log.end();
        let (events, at) = log.next(at).await;
        assert!(matches!(events[0], BuildEvent::Dropped(bytes) if bytes > 0));
        assert!(events.len() < 25);
        assert!(log.next(at).await.0.is_empty());
    }

    #[test]
    fn pages_keep_their_numbers_whatever_is_gone() {
        let log = BuildLog::default();
        for text in ["first", &"x".repeat(BUILD_LOG_MAX - 100), "last"] {
            log.note(text);
        }
        let (page, count) = log.page(0, 2);
        assert_eq!((page.len(), count), (2, 3));
        assert!(page[0].is_none(), "the oldest is gone");
        let (page, _) = log.page(2, 2);
        assert!(matches!(&page[0], Some((_, BuildEvent::Note(text))) if text == "last"));
        assert!(log.page(3, 2).0.is_empty());
    }
}
