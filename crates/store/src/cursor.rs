//! Opaque places in lists. A cursor names the last row seen, so rows that come and go meanwhile
//! neither hide nor repeat others. It carries no rights: every list is bound to its organisation.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cove_limits::CURSOR_MAX;
use time::OffsetDateTime;

use crate::sql::micros;
use crate::{PAGE_DEFAULT, PAGE_MAX, Page, PageRequest, StoreError};

/// A number (a time or a sequence) and the id that breaks ties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    pub number: i64,
    pub id: String,
}

impl Position {
    pub fn new(number: i64, id: impl Into<String>) -> Self {
        Self {
            number,
            id: id.into(),
        }
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}.{}", self.number, self.id))
    }

    fn decode(text: &str) -> Option<Self> {
        if text.len() > CURSOR_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let plain = String::from_utf8(bytes).ok()?;
        let (number, id) = plain.split_once('.')?;
        // A NUL would be refused by PostgreSQL with an error of its own.
        if id.contains('\0') {
            return None;
        }
        Some(Self::new(number.parse().ok()?, id))
    }
}

/// Where a list goes on behind the row of this id and time, for whoever ends a page where the database did not.
pub fn cursor_behind(created_at: OffsetDateTime, id: &str) -> String {
    Position::new(micros(created_at), id).encode()
}

/// Rows to ask the database for (one more than the page, to see whether there is a next one).
pub fn rows_wanted(page: &PageRequest) -> i64 {
    i64::from(limit(page)) + 1
}

fn limit(page: &PageRequest) -> u32 {
    match page.limit {
        0 => PAGE_DEFAULT,
        limit => limit.min(PAGE_MAX),
    }
}

pub fn place(page: &PageRequest) -> Result<Option<Position>, StoreError> {
    page.cursor
        .as_deref()
        .map(|text| Position::decode(text).ok_or(StoreError::BadCursor))
        .transpose()
}

/// Cuts the extra row off again and names where the next page starts.
pub fn page<T>(
    mut items: Vec<T>,
    request: &PageRequest,
    place: impl Fn(&T) -> Position,
) -> Page<T> {
    let limit = limit(request) as usize;
    let more = items.len() > limit;
    items.truncate(limit);
    ended(items, more, place)
}

/// A page of these, and where the next one starts if there is more.
pub fn ended<T>(items: Vec<T>, more: bool, place: impl Fn(&T) -> Position) -> Page<T> {
    let next_cursor = items
        .last()
        .filter(|_| more)
        .map(|last| place(last).encode());
    Page { items, next_cursor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_come_back_whole(number: i64, id in "[a-z_.0-9]{0,40}") {
            let place = Position::new(number, id);
            prop_assert_eq!(Position::decode(&place.encode()), Some(place));
        }

        #[test]
        fn strange_cursors_are_refused_quietly(text in ".{0,400}") {
            let _ = Position::decode(&text);
        }
    }
}
