//! When output was written: pieces of about the same time, and nothing from before a time.

use cove_api::Timestamp;
use cove_protocol::client::FollowEvent;
use time::OffsetDateTime;

/// What a reader asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    since: Option<OffsetDateTime>,
    is_shown: bool,
}

impl Timing {
    pub fn new(since: Option<Timestamp>, is_shown: bool) -> Self {
        let since = since.map(|since| since.0);
        Self { since, is_shown }
    }

    /// The event as the reader gets it, with the times to show. Output without a known time is always passed on.
    pub fn parts(self, event: FollowEvent) -> Vec<(FollowEvent, Option<Timestamp>)> {
        let FollowEvent::Output {
            channel,
            mut offset,
            mut data,
            mut dropped,
            times,
        } = event
        else {
            return vec![(event, None)];
        };
        let is_asked = self.is_shown || self.since.is_some();
        if !is_asked || times.is_empty() {
            let event = FollowEvent::Output {
                channel,
                offset,
                data,
                dropped,
                times,
            };
            return vec![(event, None)];
        }
        let end = offset + data.len() as u64;
        let cuts = times.iter().map(|time| time.offset).chain([end]);
        let at = std::iter::once(None).chain(times.iter().map(|time| Some(time.unix_ms)));
        let mut parts = Vec::new();
        for (cut, at) in cuts.zip(at) {
            let length = usize::try_from(cut.saturating_sub(offset)).unwrap_or(usize::MAX);
            let piece = data.split_to(length.min(data.len()));
            if piece.is_empty() {
                continue;
            }
            let at = at.map(Timestamp::from_unix_ms);
            let is_early = self.since.zip(at).is_some_and(|(since, at)| at.0 < since);
            if !is_early {
                let piece = FollowEvent::Output {
                    channel,
                    offset,
                    data: piece,
                    dropped,
                    times: Vec::new(),
                };
                parts.push((piece, at.filter(|_| self.is_shown)));
            }
            // What was dropped is older than what follows it.
            (offset, dropped) = (cut, 0);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cove_protocol::message::{Channel, OutputTime};

    use super::*;

    fn output(dropped: u64, times: &[(u64, i64)]) -> FollowEvent {
        FollowEvent::Output {
            channel: Channel::Stdout,
            offset: 100,
            data: Bytes::from_static(b"abcdefghij"),
            dropped,
            times: times
                .iter()
                .map(|(offset, unix_ms)| OutputTime {
                    offset: *offset,
                    unix_ms: *unix_ms,
                })
                .collect(),
        }
    }

    fn shown(timing: Timing, event: FollowEvent) -> Vec<(u64, u64, String, Option<i64>)> {
        let parts = timing.parts(event).into_iter();
        parts
            .map(|(event, at)| match event {
                FollowEvent::Output {
                    offset,
                    data,
                    dropped,
                    ..
                } => {
                    let text = String::from_utf8(data.to_vec()).unwrap();
                    (offset, dropped, text, at.map(|at| at.0.unix_timestamp()))
                }
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn second(at: i64) -> Option<Timestamp> {
        Some(Timestamp::from_unix_ms(at * 1000))
    }

    #[test]
    fn output_is_cut_where_its_time_changes() {
        let all = Timing::new(None, true);
        let event = output(7, &[(100, 1000), (103, 2000), (108, 5000)]);
        let part = |offset, dropped, text: &str, at| (offset, dropped, text.to_owned(), at);
        assert_eq!(
            shown(all, event.clone()),
            [
                part(100, 7, "abc", Some(1)),
                part(103, 0, "defgh", Some(2)),
                part(108, 0, "ij", Some(5)),
            ]
        );
        let later = Timing::new(second(2), false);
        assert_eq!(
            shown(later, event.clone()),
            [part(103, 0, "defgh", None), part(108, 0, "ij", None)]
        );
        assert_eq!(shown(Timing::new(second(6), true), event.clone()), []);
        let whole = part(100, 7, "abcdefghij", None);
        assert_eq!(shown(Timing::default(), event), [whole]);
    }

    #[test]
    fn output_without_a_known_time_is_passed_on_as_it_is() {
        let late = Timing::new(second(9), true);
        let whole = (100, 3, "abcdefghij".to_owned(), None);
        assert_eq!(shown(late, output(3, &[])), [whole]);
        let begins = (100, 3, "abcd".to_owned(), None);
        assert_eq!(shown(late, output(3, &[(104, 1000)])), [begins]);
    }
}
